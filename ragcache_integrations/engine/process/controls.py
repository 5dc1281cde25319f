"""Control messages: the engine's process does something of its own, and answers one value."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from typing import Any

from ragcache_integrations.engine.protocol import Answer, Control
from ragcache_integrations.errors import EngineError

from .requests import Received, expect
from .supervisor import Supervisor

__all__ = ["acontrol", "control"]

TIMEOUT_SECONDS = 60.0


def control(
    process: Supervisor,
    operation: str,
    argument: Any = None,
    *,
    timeout: float | None = TIMEOUT_SECONDS,
) -> Any:
    """Have the process do something between two steps of the model.

    Args:
        process: The process; after a restart the new one gets the message.
        operation: What to do, as in :class:`Control`.
        argument: With what, if it needs something.
        timeout: Seconds to wait for the answer; ``None`` for what may take longer than a step.

    Returns:
        The value that it answers.

    Raises:
        EngineError: There was no answer in time.
        EngineClosedError: The engine was closed.
        EngineDeadError: The process died and is not started again.
    """
    inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
    number = process.register(inbox.put, Control(0, operation, argument))
    process.exchange.send(number)
    try:
        return expect(Answer, inbox.get(timeout=timeout)).value
    except queue.Empty:
        raise _no_answer(process, operation, timeout) from None
    finally:
        process.exchange.forget(number)


async def acontrol(
    process: Supervisor,
    operation: str,
    argument: Any = None,
    *,
    timeout: float | None = TIMEOUT_SECONDS,
) -> Any:
    """Async version of :func:`control`."""
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Received] = asyncio.Queue()

    def receive(received: Received) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(inbox.put_nowait, received)

    number = process.register(receive, Control(0, operation, argument))
    process.exchange.send(number)
    try:
        async with asyncio.timeout(timeout):
            return expect(Answer, await inbox.get()).value
    except TimeoutError:
        raise _no_answer(process, operation, timeout) from None
    finally:
        process.exchange.forget(number)


def _no_answer(process: Supervisor, operation: str, timeout: float | None) -> EngineError:
    why = ": it is being restarted" if process.restarting else ""
    return EngineError(f"the engine did not answer {operation!r} in {timeout:g} s{why}")
