"""The texts of running answers, as LlamaIndex's streaming responses take them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from typing import Any

__all__ = ["adeltas", "atexts_before", "deltas", "texts_before"]


def texts_before(stream: Generator[Any], end: Callable[[Any], object]) -> Generator[str]:
    """The texts of a stream, and then its result.

    Args:
        stream: Texts, and last a result.
        end: Takes the result.
    """
    with closing(stream) as pieces:
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
            else:
                end(piece)


async def atexts_before(
    stream: AsyncGenerator[Any], end: Callable[[Any], object]
) -> AsyncGenerator[str]:
    """Async version of :func:`texts_before`."""
    async with aclosing(stream) as pieces:
        async for piece in pieces:
            if isinstance(piece, str):
                yield piece
            else:
                end(piece)


def deltas(llm: Any, prompt: str | Sequence[Any], **call: Any) -> Generator[str]:
    """What an LLM answers, piece by piece.

    Args:
        llm: The LLM.
        prompt: Messages, or text in the model's own format.
        **call: Arguments of the call.
    """
    if isinstance(prompt, str):
        stream = llm.stream_complete(prompt, formatted=True, **call)
    else:
        stream = llm.stream_chat(prompt, **call)
    with closing(stream) as responses:
        for response in responses:
            yield response.delta or ""


async def adeltas(llm: Any, prompt: str | Sequence[Any], **call: Any) -> AsyncGenerator[str]:
    """Async version of :func:`deltas`."""
    if isinstance(prompt, str):
        stream = await llm.astream_complete(prompt, formatted=True, **call)
    else:
        stream = await llm.astream_chat(prompt, **call)
    async with aclosing(stream) as responses:
        async for response in responses:
            yield response.delta or ""
