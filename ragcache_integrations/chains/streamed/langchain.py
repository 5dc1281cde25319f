"""Base class of LangChain Runnables that answer in pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from functools import reduce
from operator import add
from typing import Any, ClassVar, TypeVar

from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.utils import AddableDict
from pydantic import ConfigDict
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.sharing import Rebuildable

__all__ = ["Output", "StreamedRunnable", "chunk_text", "read_question"]

Output = dict[str, Any]
Input = TypeVar("Input")


class StreamedRunnable(RunnableSerializable[Input, Output], Rebuildable):
    """A Runnable whose output is a dict that comes in pieces, which are dicts that can be added.

    Each run has its own callbacks, which are part of the pieces' ``config``. Subclasses implement
    the pieces, and the whole output if there is a shorter way to it than adding them. They keep
    state in ``shared_state``, which copies with other settings share.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )
    _written: ClassVar[frozenset[str]] = frozenset()
    """The keys that the pieces have."""

    @override
    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:
        """Answer; other arguments are the model's."""

        def answer(value: Input, config: RunnableConfig) -> Output:
            return self._whole(value, config, kwargs)

        run: Any = self._call_with_config  # its types don't allow functions of input and config
        return dict(run(answer, input, config))

    @override
    async def ainvoke(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Output:
        """Async version of :meth:`invoke`."""

        async def answer(value: Input, config: RunnableConfig) -> Output:
            return await self._awhole(value, config, kwargs)

        run: Any = self._acall_with_config  # as above
        return dict(await run(answer, input, config))

    @override
    def stream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Output]:
        """Answer in pieces; closing the iterator aborts the answer."""

        def answer(values: Iterator[Input], config: RunnableConfig) -> Iterator[Output]:
            with closing(self._pieces(next(values), config, kwargs)) as pieces:
                yield from pieces

        run: Any = self._transform_stream_with_config  # as above
        yield from run(iter([input]), answer, config)

    @override
    async def astream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """Async version of :meth:`stream`."""

        async def inputs() -> AsyncIterator[Input]:
            yield input

        async def answer(
            values: AsyncIterator[Input], config: RunnableConfig
        ) -> AsyncIterator[Output]:
            async with aclosing(self._apieces(await anext(values), config, kwargs)) as pieces:
                async for piece in pieces:
                    yield piece

        run: Any = self._atransform_stream_with_config  # as above
        # It is a generator, although typed as an iterator: closing it aborts the answer.
        async with aclosing(run(inputs(), answer, config)) as pieces:
            async for piece in pieces:
                yield piece

    def _first_piece(self, inputs: Mapping[str, Any]) -> Output:
        """The first piece: the input without the keys of later pieces, which would be added."""
        return AddableDict({key: inputs[key] for key in inputs if key not in self._written})

    # Implemented by subclasses

    def _pieces(
        self, value: Input, config: RunnableConfig, call: dict[str, Any]
    ) -> Generator[Output]:
        """Answer in pieces, within one run; ``call`` has the model's arguments."""
        raise NotImplementedError

    def _apieces(
        self, value: Input, config: RunnableConfig, call: dict[str, Any]
    ) -> AsyncGenerator[Output]:
        """Async version of :meth:`_pieces`."""
        raise NotImplementedError

    def _whole(self, value: Input, config: RunnableConfig, call: dict[str, Any]) -> Output:
        """The whole answer, within one run."""
        with closing(self._pieces(value, config, call)) as pieces:
            return reduce(add, pieces)

    async def _awhole(self, value: Input, config: RunnableConfig, call: dict[str, Any]) -> Output:
        """Async version of :meth:`_whole`."""
        async with aclosing(self._apieces(value, config, call)) as pieces:
            return reduce(add, [piece async for piece in pieces])


def chunk_text(chunk: Any) -> str:
    """The text of a model's chunk: a string or a message."""
    return chunk if isinstance(chunk, str) else str(chunk.text)


def read_question(value: object, input_key: str) -> tuple[dict[str, Any], str]:
    """Read the input of a chain, a question or a dict with one.

    Args:
        value: The input.
        input_key: Name of the question in a dict.

    Returns:
        The input as a dict, and the question.

    Raises:
        ConfigurationError: There is no question.
    """
    inputs = dict(value) if isinstance(value, Mapping) else {input_key: value}
    question = inputs.get(input_key)
    if not isinstance(question, str):
        msg = f"the input must be a string, or a dict with {input_key!r}, got {value!r}"
        raise ConfigurationError(msg)
    return inputs, question
