"""Reading little first, and more only if the answer is not there.

Cascades of models do the same with a cheap model and an expensive one (FrugalGPT, section 3,
https://arxiv.org/abs/2305.05176).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import replace

from .asker import add_usage
from .choice import PrunedSpace
from .types import SynthesisConfig, Synthesised

__all__ = ["after", "apieces_of", "fewest_of", "pieces_of"]


def fewest_of(space: PrunedSpace, config: SynthesisConfig, count: int) -> SynthesisConfig | None:
    """Return what to read before a configuration; ``None`` if none reads fewer chunks.

    Args:
        space: The configurations that suit the question.
        config: The configuration that was chosen.
        count: Number of retrieved chunks.
    """
    fewest = space.smallest(count)
    return fewest if fewest.num_chunks < config.num_chunks else None


def after(answer: Synthesised, earlier: Synthesised) -> Synthesised:
    """Return an answer with the calls of an earlier one, which had found nothing."""
    usages = [usage for usage in (earlier.usage, answer.usage) if usage is not None]
    known = len(usages) == 2  # noqa: PLR2004 - of both
    return replace(
        answer,
        calls=earlier.calls + answer.calls,
        usage=add_usage(usages) if known else None,
        steps=(*earlier.steps, *answer.steps),
    )


def pieces_of(answer: Synthesised) -> Generator[str | Synthesised]:
    """Yield a whole answer as a stream does: its text, then itself."""
    yield answer.text
    yield answer


async def apieces_of(answer: Synthesised) -> AsyncGenerator[str | Synthesised]:
    """Async version of :func:`pieces_of`."""
    yield answer.text
    yield answer
