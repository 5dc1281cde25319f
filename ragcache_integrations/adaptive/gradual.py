"""Reading little first, and more only if the answer is not there.

Cascades of models do the same with a cheap model and an expensive one (FrugalGPT, section 3,
https://arxiv.org/abs/2305.05176). Here the later prompts begin as the earlier ones do, so that an
engine with a prefix cache computes the further chunks alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import replace
from typing import Any, cast

from .asker import Asker, ModelAnswer, ModelRequest, add_usage
from .types import Synthesised

__all__ = ["after", "apieces_of", "inner_asker", "pieces_of"]


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


def inner_asker(asker: Asker) -> Asker:
    """Return a model whose answers may turn out to be none, so that they are not streamed."""
    return cast("Asker", _Inner(asker))


class _Inner:
    """Marks the requests of ``synthesise`` and ``asynthesise``, which make no others than these."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def ask(self, request: ModelRequest) -> ModelAnswer:
        return self._asker.ask(replace(request, inner=True))

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        return await self._asker.aask(replace(request, inner=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asker, name)
