"""Documents that a search finds several times are in the prompt and in the answer as often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.engine import Prompt, PromptDocument
from ragcache_integrations.speculation import Speculator, StageOfDocuments
from ragcache_integrations.speculation.sources import stage_of_search, stages_of_pair
from tests.support.sizes import examples

from .doubles import FakeEngine, turns

# Few ids and texts, so that one id has several texts and one text several ids.
DOCUMENT = st.builds(
    PromptDocument, st.sampled_from(["one", "two"]), st.sampled_from(["", "a", "b"])
)


@st.composite
def found(draw: st.DrawFn) -> tuple[PromptDocument, ...]:
    pool = draw(st.lists(DOCUMENT, min_size=1, max_size=3))
    return tuple(draw(st.lists(st.sampled_from(pool), max_size=5)))


def prompt_of(documents: tuple[PromptDocument, ...]) -> Prompt:
    return Prompt.rag("why?", documents)


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 12), found()), min_size=1, max_size=5))
def test_stages(plan: list[tuple[int, tuple[PromptDocument, ...]]]) -> None:
    async def stages() -> AsyncIterator[StageOfDocuments[PromptDocument]]:
        for number, (wait, documents) in enumerate(plan, 1):
            await turns(wait)
            yield StageOfDocuments(documents, final=number == len(plan))

    async def check() -> None:
        engine = FakeEngine()
        answer = await Speculator(engine).arun(stages(), prompt_of)
        final = plan[-1][1]
        assert [id(document) for document in answer.documents] == [id(one) for one in final]
        # A guess is right only if its documents stand in it as often and in the same order.
        assert f"{prompt_of(final)}" in answer.generation.text
        assert engine.submitted[-1].documents == final

    asyncio.run(check())


@given(found(), found())
def test_searches(fast: tuple[PromptDocument, ...], slow: tuple[PromptDocument, ...]) -> None:
    async def check() -> None:
        (stage,) = [one async for one in stage_of_search(lambda: slow)]
        assert stage.documents == slow
        *_, last = [one async for one in stages_of_pair(lambda: fast, lambda: slow)]
        assert last.documents == slow

    asyncio.run(check())
