"""Chunks that come several times are read as often as they came, in their order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.adaptive import (
    AdaptivePipeline,
    HeuristicProfiler,
    Synthesis,
    SynthesisConfig,
    asynthesise,
    synthesise,
)
from ragcache_integrations.adaptive.best_fit import Measures
from ragcache_integrations.adaptive.synthesis import SynthesisSettings
from ragcache_integrations.core.prompt import PromptDocument

from .askers import ScriptedAsker, read

QUESTION = "Who purrs?"

# Few ids and texts, so that one id has several texts and one text several ids.
CHUNK = st.builds(
    PromptDocument,
    st.sampled_from(["Cats purr.", "Dogs bark.", "Cows"]),
    st.sampled_from(["", "a", "b"]),
)


@st.composite
def chunks(draw: st.DrawFn) -> list[PromptDocument]:
    pool = draw(st.lists(CHUNK, min_size=1, max_size=4))
    return draw(st.lists(st.sampled_from(pool), min_size=1, max_size=6))


def check(asker: ScriptedAsker, given: Sequence[PromptDocument]) -> None:
    """Each chunk was read as often as it is there, and together they were read in order."""
    texts = [read(request) for request in asker.requests]
    texts = [one for one in texts if "yes" not in one]  # the summaries, of which all say so
    together = [text for one in texts for text in one]
    assert Counter(together) == Counter(one.text for one in given)
    if len(texts) == 1:
        assert together == [one.text for one in given]


@given(chunks(), st.sampled_from(["stuff", "map_reduce", "map_rerank"]))
def test_synthesis(given: list[PromptDocument], method: Synthesis) -> None:
    config = SynthesisConfig(method, len(given), 30 if method == "map_reduce" else None)
    for way in (synthesise, lambda *what: asyncio.run(asynthesise(*what))):
        asker = ScriptedAsker()
        result = way(asker, QUESTION, given, config)
        check(asker, given)
        assert result.left_out == ()
        first = [step for step in result.steps if step.kind != "reduce"]
        assert [place for step in first for place in step.chunks] == list(range(len(given)))
        cited = [citation.index for citation in result.citations]
        assert cited == (list(range(len(given))) if method != "map_rerank" else [0])
        assert [one.id for one in result.citations] == [given[place].id for place in cited]


@given(chunks())
def test_the_adaptive_pipeline(given: list[PromptDocument]) -> None:
    asker = ScriptedAsker()
    pipeline = AdaptivePipeline(asker, HeuristicProfiler())
    answer = pipeline.answer(QUESTION, lambda _, count: given[:count])
    check(asker, given[: answer.explanation.config.num_chunks])


@given(st.lists(CHUNK, max_size=20))
def test_an_id_that_stands_for_two_texts_has_the_length_of_each(
    given: list[PromptDocument],
) -> None:
    measures = Measures(ScriptedAsker(), SynthesisSettings())
    assert measures.lengths(given) == tuple(len(one.text) for one in given)
