"""Work that is the same for threads and coroutines, written once.

A flow is a generator that neither blocks nor awaits anything. It yields each call that may take a
while as a :class:`Step`, is sent the step's result or thrown its error, and returns its own result.
Who runs it decides how the calls are made: :func:`run` in its own thread, :func:`arun` without
blocking the event loop. A flow may also yield stages, which :func:`stages_of` and
:func:`astages_of` pass on to the caller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Hashable
from concurrent.futures import Executor
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ragcache_integrations.core.flows import raise_stop
from ragcache_integrations.core.single_flight import SingleFlight
from ragcache_integrations.core.threads import in_executor, in_thread

__all__ = ["Flow", "Step", "arun", "astages_of", "run", "stages_of", "step_next", "step_once"]

R = TypeVar("R")


class Step(NamedTuple):
    """A call that may take a while.

    Attributes:
        call: Makes the call.
        acall: Makes it without blocking; ``None``: a coroutine has ``call`` run in a thread.
    """

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]] | None = None


Flow = Generator[Any, Any, R]
"""Yields steps, or stages, and returns a result."""


def run(flow: Flow[R]) -> R:
    """Run a flow in this thread.

    Raises:
        Exception: Any error of the flow.
    """
    try:
        step = next(flow)
        while True:
            try:
                made = step.call()
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = flow.throw(error)
            else:
                step = flow.send(made)
    except StopIteration as end:
        result: R = end.value
        return result
    except RuntimeError as error:
        raise_stop(error)
        raise


async def arun(flow: Flow[R], executor: Executor) -> R:
    """Async version of :func:`run`.

    Args:
        flow: The flow.
        executor: Makes the calls that block. A cancelled caller does not wait for them.
    """
    try:
        call, acall = next(flow)
        while True:
            try:
                made = await (in_executor(executor, call) if acall is None else acall())
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                call, acall = flow.throw(error)
            else:
                call, acall = flow.send(made)
    except StopIteration as end:
        result: R = end.value
        return result


def stages_of(flow: Flow[None]) -> Generator[Any]:
    """Run a flow in this thread, and yield its stages. Closing the generator closes the flow."""
    with closing(flow), suppress(StopIteration):
        item = next(flow)
        while True:
            if not isinstance(item, Step):
                yield item
                item = next(flow)
                continue
            try:
                made = item.call()
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                item = flow.throw(error)
            else:
                item = flow.send(made)


async def astages_of(flow: Flow[None], executor: Executor) -> AsyncGenerator[Any]:
    """Async version of :func:`stages_of`."""
    with closing(flow), suppress(StopIteration):
        item = next(flow)
        while True:
            if not isinstance(item, Step):
                yield item
                item = next(flow)
                continue
            call, acall = item
            try:
                made = await (in_executor(executor, call) if acall is None else acall())
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                item = flow.throw(error)
            else:
                item = flow.send(made)


def step_once(
    flights: SingleFlight[R],
    key: Hashable,
    find: Callable[[], R | None],
    work: Flow[R],
    executor: Executor | None,
    *,
    looked: int,
) -> Step:
    """Return a step that does work once for all equal calls at the same time.

    Args:
        flights: The work under way.
        key: Identifies the result.
        find: Looks up the result, which a call that ended in the meantime may have stored.
        work: Does the work. It is not begun if another call does.
        executor: For the steps of a coroutine that block; ``None`` if no step of the work is a
            coroutine, so that all of it runs in a thread, and is shared with threads.
        looked: As for :meth:`~ragcache_integrations.core.single_flight.SingleFlight.do`.
    """
    lead = partial(run, work)
    alead = None if executor is None else partial(arun, work, executor)
    return Step(
        partial(flights.do, key, find, lead, looked=looked),
        partial(flights.ado, key, find, lead, alead, looked=looked),
    )


def step_next(pieces: Generator[Any]) -> Step:
    """Return the step to a blocking generator's next piece, ``None`` after the last.

    A cancelled coroutine waits for the piece, so that the generator can be closed afterwards.
    """
    return Step(partial(next, pieces, None), partial(in_thread, next, pieces, None))
