"""Flows close the streams that they go through, generators or not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import Any, Self

import pytest

from ragcache_integrations.core.flows import Each, Flow, aoutputs, outputs


class Stream:
    """A backend's stream of three pieces, which is no generator."""

    def __init__(self, *, fails: bool = False) -> None:
        self.pieces = iter("abc")
        self.fails = fails
        self.closed = 0

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self.fails:
            raise OSError
        return next(self.pieces)

    async def __anext__(self) -> str:
        try:
            return self.__next__()
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def flow(stream: Any) -> Flow:
    yield Each(lambda: stream, lambda: stream, str.upper)


@pytest.mark.parametrize("pieces", [1, 2, 3, 9])
async def test_a_stream_is_closed_wherever_its_reader_leaves(pieces: int) -> None:
    stream, astream = Stream(), Stream()
    with contextlib.closing(outputs(flow(stream))) as texts:
        read = [text for text, _ in zip(texts, range(pieces), strict=False)]
    async with contextlib.aclosing(aoutputs(flow(astream))) as atexts:
        aread = []
        async for text in atexts:
            aread.append(text)
            if len(aread) == pieces:
                break
    assert read == aread == list("ABC"[:pieces])
    assert (stream.closed, astream.closed) == (1, 1)


async def test_a_stream_that_fails_is_closed() -> None:
    stream, astream = Stream(fails=True), Stream(fails=True)
    with pytest.raises(OSError):
        list(outputs(flow(stream)))
    with pytest.raises(OSError):
        [text async for text in aoutputs(flow(astream))]
    assert (stream.closed, astream.closed) == (1, 1)


async def test_what_cannot_be_closed_is_read_to_its_end() -> None:
    class Items:
        async def __aiter__(self) -> AsyncGenerator[str]:
            yield "a"

    def generator() -> Generator[str]:
        yield "a"

    assert list(outputs(flow(iter("ab")))) == ["A", "B"]
    assert list(outputs(flow(generator()))) == ["A"]
    assert [text async for text in aoutputs(flow(Items()))] == ["A"]
