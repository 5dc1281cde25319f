"""Work that is the same for threads and for event loops, written once.

A flow is a generator that neither blocks nor awaits anything. It yields the next thing to do: a
:class:`Call`, whose result it is sent or whose error it is thrown, or :class:`Each`, a stream whose
items become outputs. Anything else that it yields is an output. Who drives it decides how things
are done: :func:`run` and :func:`outputs` by blocking, :func:`arun` and :func:`aoutputs` without
blocking the event loop. ``run`` is for flows that have no outputs, only a result.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterator,
)
from concurrent.futures import Executor
from contextlib import AsyncExitStack, ExitStack, aclosing, closing
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import TypeVar

from . import threads
from .single_flight import SingleFlight

__all__ = [
    "Call",
    "Each",
    "Flow",
    "aoutputs",
    "arun",
    "awhole_output",
    "call_once",
    "entering",
    "in_thread",
    "next_piece",
    "outputs",
    "raise_stop",
    "run",
    "whole_output",
]

R = TypeVar("R", default=None)

Flow: TypeAlias = Generator[Any, Any, R]

_END = object()


class Call(NamedTuple):
    """Something to do, whose result or error goes back into the flow.

    Attributes:
        blocking: Does it.
        awaited: The same for event loops; ``None``: ``blocking`` runs in a thread there.
        entered: Whether the result is a context that is to be entered until the flow ends.
    """

    blocking: Callable[[], Any]
    awaited: Callable[[], Awaitable[Any]] | None = None
    entered: bool = False


class Each(NamedTuple):
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
    return Call(partial(function, *arguments))


def entering(context: Any, acontext: Any = None) -> Call:
    """Enter a context that is there already, until the flow ends.

    Args:
        context: The context.
        acontext: That for event loops; ``None`` for the same.
    """

    async def given() -> Any:
        return context if acontext is None else acontext

    return Call(lambda: context, given, entered=True)


def call_once(
    flights: SingleFlight[R],
    key: Hashable,
    find: Callable[[], R | None],
    work: Flow[R],
    executor: Executor | None,
    *,
    looked: int,
) -> Call:
    """Do work once for all equal calls at the same time; the result says how it was got, too.

    Args:
        flights: The work under way.
        key: Identifies the result.
        find: Looks up the result, which a call that ended in the meantime may have stored.
        work: Does the work. It is not begun if another call does.
        executor: For what blocks in a coroutine's work; ``None`` if nothing in the work is a
            coroutine, so that all of it runs in a thread, and is shared with threads.
        looked: As for :meth:`~ragcache_integrations.core.single_flight.SingleFlight.do`.
    """
    lead = partial(run, work)
    alead = None if executor is None else partial(arun, work, executor)
    return Call(
        partial(flights.do, key, find, lead, looked=looked),
        partial(flights.ado, key, find, lead, alead, looked=looked),
    )


def next_piece(pieces: Generator[Any]) -> Call:
    """Get a blocking generator's next piece, ``None`` after the last.

    A cancelled coroutine waits for the piece, so that the generator can be closed afterwards.
    """
    return Call(partial(next, pieces, None), partial(threads.in_thread, next, pieces, None))


def run(flow: Flow[R]) -> R:
    """Return the result of a flow without outputs, whose calls block.

    Raises:
        Exception: Any error of the flow.
    """
    try:
        step = next(flow)
        while True:
            try:
                made = step.blocking()
            except BaseException as error:  # noqa: BLE001 - raised by the flow if it is not for it
                step = flow.throw(error)
            else:
                step = flow.send(made)
    except StopIteration as end:
        result: R = end.value
        return result
    except RuntimeError as error:
        raise_stop(error)
        raise


async def arun(flow: Flow[R], executor: Executor | None = None) -> R:
    """Async version of :func:`run`.

    Args:
        flow: The flow.
        executor: Makes the calls that block; ``None`` for the event loop's own. A cancelled caller
            does not wait for them.
    """
    try:
        step = next(flow)
        while True:
            try:
                made = await _awaited(step, executor)
            except BaseException as error:  # noqa: BLE001 - as above
                step = flow.throw(error)
            else:
                step = flow.send(made)
    except StopIteration as end:
        result: R = end.value
        return result


def outputs(flow: Flow[Any]) -> Generator[Any]:
    """Yield the outputs of a flow, whose calls block. Closing the generator closes the flow."""
    with ExitStack() as stack:
        stack.callback(flow.close)
        step = _advance(flow.send, None)
        while step is not _END:
            result = None
            if isinstance(step, Call):
                try:
                    result = step.blocking()
                except Exception as error:  # noqa: BLE001 - as above
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


async def aoutputs(flow: Flow[Any], executor: Executor | None = None) -> AsyncGenerator[Any]:
    """Async version of :func:`outputs`; the executor is as for :func:`arun`."""
    async with AsyncExitStack() as stack:
        stack.callback(flow.close)
        step = _advance(flow.send, None)
        while step is not _END:
            result = None
            if isinstance(step, Call):
                try:
                    result = await _awaited(step, executor)
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


def whole_output(flow: Flow[Any]) -> Any:
    """Return the sum of a flow's outputs, whose calls block."""
    return reduce(add, outputs(flow))


async def awhole_output(flow: Flow[Any]) -> Any:
    """Async version of :func:`whole_output`."""
    return reduce(add, [output async for output in aoutputs(flow)])


def raise_stop(error: RuntimeError) -> None:
    """Raise the application's own ``StopIteration``, if Python renamed it in a generator."""
    if isinstance(error.__cause__, StopIteration):
        raise error.__cause__ from None


def _awaited(call: Call, executor: Executor | None) -> Awaitable[Any]:
    return threads.in_executor(executor, call.blocking) if call.awaited is None else call.awaited()


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
