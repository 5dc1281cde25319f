"""One flow of an answer for both kinds of callers, those that block and those that await.

A flow is a generator that makes no calls itself. It yields the next thing to do: a :class:`Call`,
whose result it is sent, or :class:`Each`, a stream whose items become outputs. Anything else that
it yields is an output. :func:`outputs` does these things by blocking, :func:`aoutputs` by awaiting.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
)
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, TypeAlias

__all__ = [
    "Call",
    "Each",
    "Flow",
    "aoutputs",
    "awhole_output",
    "entering",
    "in_thread",
    "outputs",
    "raise_stop",
    "whole_output",
]

Flow: TypeAlias = Generator[Any, Any, None]

_END = object()


@dataclass(frozen=True, slots=True)
class Call:
    """Something to do, whose result or error goes back into the flow.

    Attributes:
        blocking: Does it.
        awaited: The same for event loops.
        entered: Whether the result is a context that is to be entered until the flow ends.
    """

    blocking: Callable[[], Any]
    awaited: Callable[[], Awaitable[Any]]
    entered: bool = False


@dataclass(frozen=True, slots=True)
class Each:
    """A stream whose items become outputs; it is closed at its end, or with the flow.

    Attributes:
        blocking: Begins it.
        awaited: The same for event loops; a coroutine or an async iterator.
        output: Makes the output of an item; ``None`` for no output.
    """

    blocking: Callable[[], Any]
    awaited: Callable[[], Any]
    output: Callable[[Any], Any]


def in_thread(function: Callable[..., Any], *arguments: Any) -> Call:
    """A call that would block an event loop, and is made in a thread there."""
    return Call(partial(function, *arguments), partial(asyncio.to_thread, function, *arguments))


def entering(context: Any, acontext: Any = None) -> Call:
    """Enter a context that is there already, until the flow ends.

    Args:
        context: The context.
        acontext: That for event loops; ``None`` for the same.
    """

    async def given() -> Any:
        return context if acontext is None else acontext

    return Call(lambda: context, given, entered=True)


def outputs(flow: Flow) -> Generator[Any]:
    """Yield the outputs of a flow, whose calls block."""
    with ExitStack() as stack:
        stack.callback(flow.close)
        step = _advance(flow.send, None)
        while step is not _END:
            result = None
            if isinstance(step, Call):
                try:
                    result = step.blocking()
                except Exception as error:  # noqa: BLE001 - raised by the flow if it is not for it
                    step = _advance(flow.throw, error)
                    continue
                result = stack.enter_context(result) if step.entered else result
            elif isinstance(step, Each):
                with _closed(step.blocking()) as items:
                    for item in items:
                        if (output := step.output(item)) is not None:
                            yield output
            else:
                yield step
            step = _advance(flow.send, result)


async def aoutputs(flow: Flow) -> AsyncGenerator[Any]:
    """Async version of :func:`outputs`."""
    async with AsyncExitStack() as stack:
        stack.callback(flow.close)
        step = _advance(flow.send, None)
        while step is not _END:
            result = None
            if isinstance(step, Call):
                try:
                    result = await step.awaited()
                except Exception as error:  # noqa: BLE001 - as above
                    step = _advance(flow.throw, error)
                    continue
                result = await stack.enter_async_context(result) if step.entered else result
            elif isinstance(step, Each):
                stream = step.awaited()
                stream = await stream if inspect.isawaitable(stream) else stream
                async with _aclosed(stream) as items:
                    async for item in items:
                        if (output := step.output(item)) is not None:
                            yield output
            else:
                yield step
            step = _advance(flow.send, result)


def whole_output(flow: Flow) -> Any:
    """Return the sum of a flow's outputs, whose calls block."""
    return reduce(add, outputs(flow))


async def awhole_output(flow: Flow) -> Any:
    """Async version of :func:`whole_output`."""
    return reduce(add, [output async for output in aoutputs(flow)])


def raise_stop(error: RuntimeError) -> None:
    """Raise the application's own ``StopIteration``, if Python renamed it in a generator."""
    if isinstance(error.__cause__, StopIteration):
        raise error.__cause__ from None


def _advance(go_on: Callable[[Any], Any], value: Any) -> Any:
    try:
        return go_on(value)
    except StopIteration:
        return _END


def _closed(stream: Iterator[Any]) -> Any:
    """A context that closes a stream, by which a backend ends its request."""
    return closing(stream if hasattr(stream, "close") else (item for item in stream))


def _aclosed(stream: AsyncIterator[Any]) -> Any:
    """Async version of :func:`_closed`."""
    return aclosing(stream if hasattr(stream, "aclose") else (item async for item in stream))
