"""What LangChain wants of a Runnable, for a pipeline that answers in pieces."""

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

from ragcache_integrations.retrievers.sharing.rebuilding import Rebuildable

__all__ = ["Output", "StreamedRunnable"]

Output = dict[str, Any]
Asked = TypeVar("Asked")


class StreamedRunnable(RunnableSerializable[Asked, Output], Rebuildable):
    """A Runnable whose output is a dict that comes in pieces, each a dict that can be added.

    Each run has callbacks of its own, given on to the pieces as ``config``. Subclasses say what
    the pieces are, and how the whole is had where there is a shorter way to it than adding them.
    What they learn and keep is in ``shared_state``, for the objects that LangChain makes from them.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of its range.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )
    _written: ClassVar[frozenset[str]] = frozenset()
    """The keys that the pieces have."""

    @override
    def invoke(self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any) -> Output:
        """Answer; other arguments are the model's."""

        def answer(given: Asked, config: RunnableConfig) -> Output:
            return self._whole(given, config, kwargs)

        run: Any = self._call_with_config  # typed as if no function took the config alone
        return dict(run(answer, input, config))

    @override
    async def ainvoke(
        self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Output:
        """Answer without blocking the event loop; otherwise as :meth:`invoke`."""

        async def answer(given: Asked, config: RunnableConfig) -> Output:
            return await self._awhole(given, config, kwargs)

        run: Any = self._acall_with_config  # as above
        return dict(await run(answer, input, config))

    @override
    def stream(
        self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Output]:
        """Answer piece by piece; closing the iterator gives it up."""

        def answer(given: Iterator[Asked], config: RunnableConfig) -> Iterator[Output]:
            with closing(self._pieces(next(given), config, kwargs)) as pieces:
                yield from pieces

        run: Any = self._transform_stream_with_config  # as above
        yield from run(iter([input]), answer, config)

    @override
    async def astream(
        self, input: Asked, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """Answer piece by piece without blocking; otherwise as :meth:`stream`."""

        async def inputs() -> AsyncIterator[Asked]:
            yield input

        async def answer(
            given: AsyncIterator[Asked], config: RunnableConfig
        ) -> AsyncIterator[Output]:
            async with aclosing(self._apieces(await anext(given), config, kwargs)) as pieces:
                async for piece in pieces:
                    yield piece

        run: Any = self._atransform_stream_with_config  # as above
        # A generator, whatever it says: closing it gives the answer up.
        async with aclosing(run(inputs(), answer, config)) as pieces:
            async for piece in pieces:
                yield piece

    def _passed_on(self, inputs: Mapping[str, Any]) -> Output:
        """The first piece: the input, without what the others would be added to."""
        return AddableDict({key: inputs[key] for key in inputs if key not in self._written})

    # What subclasses say

    def _pieces(
        self, given: Asked, config: RunnableConfig, call: dict[str, Any]
    ) -> Generator[Output]:
        """Answer piece by piece, within one run; ``call`` is for the model."""
        raise NotImplementedError

    def _apieces(
        self, given: Asked, config: RunnableConfig, call: dict[str, Any]
    ) -> AsyncGenerator[Output]:
        """The async twin of :meth:`_pieces`."""
        raise NotImplementedError

    def _whole(self, given: Asked, config: RunnableConfig, call: dict[str, Any]) -> Output:
        """Answer at once, within one run."""
        with closing(self._pieces(given, config, call)) as pieces:
            return reduce(add, pieces)

    async def _awhole(self, given: Asked, config: RunnableConfig, call: dict[str, Any]) -> Output:
        """The async twin of :meth:`_whole`."""
        async with aclosing(self._apieces(given, config, call)) as pieces:
            return reduce(add, [piece async for piece in pieces])
