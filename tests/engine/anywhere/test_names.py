"""Exact requests find nothing approximate, wherever in a block documents end."""

from __future__ import annotations

import itertools

import pytest

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Prompt, RenderedPrompt
from ragcache_integrations.engine import RAGCacheEngine
from tests.engine.anywhere.test_exact_choice import GREEDY, WORDS, scores, start

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("exact_documents", [0, 1])
def test_what_an_answer_fills_after_approximate_tokens_is_approximate(exact_documents: int) -> None:
    """All whole blocks of the prompt are exact, and a document is read into the last part of one.

    The answer fills that block, so that the next turn of the conversation would find it.
    """
    with start(exact_documents=exact_documents) as engine:
        texts, prompt = prompt_that_ends_within_a_block(engine, exact_documents)
        block, length = engine.block_size, len(prompt.token_ids)
        whole = length // block * block
        engine.encode(texts)
        fills = SamplingOptions(max_tokens=whole + block + 1 - length, ignore_eos=True)
        answer = engine.generate(prompt, fills, link_tokens=0)
        read = prompt.documents[-1]
        assert read.start >= whole > 0
        assert answer.usage.cached_tokens == read.end - read.start
        turn = [*prompt.token_ids, *answer.token_ids, *prompt.token_ids[:9]]
        later = RenderedPrompt(turn, ())
        exact = engine.generate(later, GREEDY, reuse="prefix")
        apart = engine.generate(later, GREEDY, reuse="prefix", namespace="apart")
        assert exact.usage.cached_tokens < whole + block
        assert exact.token_ids == apart.token_ids
        assert scores(exact) == pytest.approx(scores(apart), abs=1e-4)


def prompt_that_ends_within_a_block(
    engine: RAGCacheEngine, exact: int
) -> tuple[list[str], RenderedPrompt]:
    """Documents of a prompt, and the prompt: all that is not exact is in its last block."""
    last = " ".join(WORDS[: engine.block_size // 8])
    for length in itertools.count(1):
        first = " ".join(WORDS[place % len(WORDS)] for place in range(length))
        texts = [first, last] if exact else [last]
        prompt = engine.render(Prompt.rag("Q?", texts, system="A." if exact else first))
        begin = prompt.documents[-2].end if exact else prompt.documents[-1].start
        if 0 < len(prompt.token_ids) // engine.block_size * engine.block_size <= begin:
            return texts, prompt
    raise AssertionError
