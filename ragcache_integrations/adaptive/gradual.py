"""Reading little first, and more only if the answer is not there.

Cascades of models do the same with a cheap model and an expensive one (FrugalGPT, section 3,
https://arxiv.org/abs/2305.05176). Here the later prompts begin as the earlier ones do, so that an
engine with a prefix cache computes the further chunks alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import replace

from .asker import add_usage
from .types import Synthesised

__all__ = ["after", "apieces_of", "pieces_of"]


def after(answer: Synthesised, earlier: Sequence[Synthesised]) -> Synthesised:
    """Return an answer with the calls of earlier ones, which had found nothing."""
    every = (*earlier, answer)
    usages = [each.usage for each in every if each.usage is not None]
    return replace(
        answer,
        calls=sum(each.calls for each in every),
        usage=add_usage(usages) if len(usages) == len(every) else None,
        steps=tuple(step for each in every for step in each.steps),
    )


def pieces_of(answer: Synthesised) -> Generator[str | Synthesised]:
    """Yield a whole answer as a stream does: its text, then itself."""
    yield answer.text
    yield answer


async def apieces_of(answer: Synthesised) -> AsyncGenerator[str | Synthesised]:
    """Async version of :func:`pieces_of`."""
    yield answer.text
    yield answer
