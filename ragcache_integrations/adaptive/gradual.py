"""Reading little first, and more only if the answer is not there.

Cascades of models do the same with a cheap model and an expensive one (FrugalGPT, section 3,
https://arxiv.org/abs/2305.05176). Here the later prompts begin as the earlier ones do, so that an
engine with a prefix cache computes the further chunks alone.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from dataclasses import replace

from .asker import add_usage
from .types import Citation, SynthesisConfig, Synthesised

__all__ = ["after", "already_read", "apieces_of", "pieces_of", "shifted"]


def already_read(config: SynthesisConfig, tried: Sequence[SynthesisConfig]) -> int:
    """Return how many chunks need not be read again: those that ``map_rerank`` read separately.

    Args:
        config: What is read next.
        tried: What was read before, in which the answer was not.
    """
    separate = bool(tried) and config.method == tried[-1].method == "map_rerank"
    return tried[-1].num_chunks if separate else 0


def shifted(answer: Synthesised, places: int) -> Synthesised:
    """Return an answer with the places of its chunks among all that were retrieved."""
    return replace(
        answer,
        citations=tuple(Citation(cited.index + places, cited.id) for cited in answer.citations),
        steps=tuple(replace(step, chunks=_later(step.chunks, places)) for step in answer.steps),
        left_out=_later(answer.left_out, places),
        shortened=_later(answer.shortened, places),
    )


def _later(positions: Iterable[int], places: int) -> tuple[int, ...]:
    return tuple(position + places for position in positions)


def after(answer: Synthesised, earlier: Sequence[Synthesised]) -> Synthesised:
    """Return an answer with the calls of earlier ones, which had found nothing."""
    every = (*earlier, answer)
    # Of `map_rerank`, each chunk was read once, by any of them.
    reads_apart = answer.method == "map_rerank"
    apart = [each for each in every if each.method == answer.method] if reads_apart else [answer]
    usages = [each.usage for each in every if each.usage is not None]
    return replace(
        answer,
        calls=sum(each.calls for each in every),
        usage=add_usage(usages) if len(usages) == len(every) else None,
        steps=tuple(step for each in every for step in each.steps),
        left_out=_united(each.left_out for each in apart),
        shortened=_united(each.shortened for each in apart),
    )


def _united(positions: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted(set(itertools.chain.from_iterable(positions))))


def pieces_of(answer: Synthesised) -> Generator[str | Synthesised]:
    """Yield a whole answer as a stream does: its text, then itself."""
    yield answer.text
    yield answer


async def apieces_of(answer: Synthesised) -> AsyncGenerator[str | Synthesised]:
    """Async version of :func:`pieces_of`."""
    yield answer.text
    yield answer
