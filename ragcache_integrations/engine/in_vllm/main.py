"""The engine's process: ``python -m ragcache_integrations.engine.in_vllm.main FD``.

A process of its own keeps vLLM's memory, environment, signals and crashes away from the
application, needs no ``if __name__ == "__main__"`` guard, and can be replaced when it dies. It
reads messages (:mod:`..protocol`) from the socket ``FD`` and ends when the other end is gone.

Importing vLLM creates half a million objects that live as long as the process. A full collection
scans all of them, which takes a quarter of a second or more, and vLLM's start and end cause many;
so they are frozen, and the garbage collector leaves them alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from ragcache_integrations.engine.machine import device_name, unbound_while_loading
from ragcache_integrations.engine.process import ApplicationWatch, resume_when_orphaned
from ragcache_integrations.engine.protocol import (
    Abort,
    Answer,
    Begun,
    Control,
    EngineSettings,
    FailureKind,
    Heartbeat,
    Output,
    RequestFailed,
    Shutdown,
    StartFailed,
    Step,
    Submit,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import load_profile

__all__ = ["kept_without_collecting", "left_to_the_exit", "main"]

logger = logging.getLogger(__name__)


@contextmanager
def kept_without_collecting() -> Iterator[None]:
    """Freeze everything allocated here so that the garbage collector never scans it.

    Without this a small engine takes a fifth longer to start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def left_to_the_exit() -> None:
    """Keep frozen objects frozen until the process ends, which frees them anyway.

    vLLM's shutdown unfreezes and scans them, for applications that continue without it.
    """
    gc.unfreeze = lambda: None


if TYPE_CHECKING:
    from .driver import VLLM


SHUTDOWN_SECONDS = 10
ORPHAN_CHECK_SECONDS = 2.0
"""Seconds between an idle engine's checks that its application lives. The closed socket shows its
end immediately, unless a fork of the application still holds a copy of it."""
HEARTBEAT_SECONDS = 1.0
IDLE_SECONDS = 0.1
"""Seconds of rest before anything is computed that nobody waits for. An application that asks one
question after another comes back sooner, and would have to wait for the end of that step."""

_WORDS = tomllib.loads(Path(__file__).with_name("failures.toml").read_text("utf-8"))
"""Words in the messages of vLLM, torch and transformers, in lower case, by what they mean."""

_OUR_NAMES = (
    "(Here, the memory of the KV cache is kv_cache_gib, to which host_cache_gib is added on a CPU; "
    "what one prompt may need of it is limited by max_model_len.)"
)


def failed_start(error: BaseException) -> StartFailed:
    """Why vLLM did not start, by the words of its error."""
    described = describe(error)
    text = described.lower()
    if isinstance(error, MemoryError) or any(words in text for words in _WORDS["out_of_memory"]):
        return StartFailed(FailureKind.OUT_OF_MEMORY, f"{described} {_OUR_NAMES}")
    if any(words in text for words in _WORDS["model_not_found"]):
        return StartFailed(FailureKind.MODEL_NOT_FOUND, described)
    if isinstance(error, ValueError | TypeError):
        return StartFailed(FailureKind.INVALID, described)
    return StartFailed(FailureKind.OTHER, described)


def describe(error: BaseException) -> str:
    """An error's type and message."""
    return f"{type(error).__name__}: {error}"


def encoded_before(request: Submit) -> Output:
    """The output of a request whose documents are stored already."""
    return Output(
        request_id=request.request_id,
        text="",
        token_ids=(),
        logprobs=(),
        finish_reason="stop",
        cached_tokens=len(request.token_ids),
        attempt=request.attempt,
    )


@dataclass(eq=False)
class Host:
    """Passes messages to vLLM and its outputs back.

    A separate thread reports at regular intervals that the process lives, and how long its current
    step has taken. A stopped process, or one whose Python lock is held, falls silent; a process
    that waits for its device for ever reports a long step.

    Attributes:
        connection: The application's socket.
        vllm: The loaded engine.
        heartbeat_seconds: Seconds between two reports.
    """

    connection: Connection
    vllm: VLLM
    heartbeat_seconds: float = HEARTBEAT_SECONDS

    def __post_init__(self) -> None:
        self._parent = os.getppid()
        self._sending = threading.Lock()
        self._busy_since: float | None = None
        self._rests_until = 0.0
        self.vllm.on_begin = lambda request_ids: self._send(Begun(request_ids))

    def serve(self) -> None:
        """Run until the application asks for the end, or is gone itself."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        while True:
            while self._message_waiting():
                self._busy_since = time.monotonic()
                message = self.connection.recv()
                if isinstance(message, Shutdown):
                    return
                self._handle(message)
            self._busy_since = time.monotonic()
            outputs = self.vllm.step()
            if outputs:
                self._send(self.vllm.report(outputs))
                self._rests_until = time.monotonic() + IDLE_SECONDS

    def _send(self, message: object) -> None:
        with self._sending:
            self.connection.send(message)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # the main thread sees the same, and ends
            while True:
                time.sleep(self.heartbeat_seconds)
                since = self._busy_since
                self._send(Heartbeat(0.0 if since is None else time.monotonic() - since))

    def _message_waiting(self) -> bool:
        """Whether a message has arrived; waits for one while there is nothing to compute."""
        if self.vllm.busy:
            rest = self._rests_until - time.monotonic() if self.vllm.idles else 0
            return self.connection.poll(max(0.0, rest))
        self._busy_since = None
        while not self.connection.poll(ORPHAN_CHECK_SECONDS):
            if os.getppid() != self._parent:
                raise EOFError
        return True

    def _handle(self, message: Submit | Abort | Control) -> None:
        match message:
            case Submit():
                try:
                    if self.vllm.has_encoded(message):
                        self._send(Step((encoded_before(message),)))
                    else:
                        self.vllm.submit(message)
                except ConfigurationError as error:
                    self._fail(message, FailureKind.REFUSED, error)
                except ValueError as error:
                    self._fail(message, FailureKind.INVALID, error)
                except Exception as error:
                    logger.exception("request refused")
                    self._fail(message, FailureKind.OTHER, error)
            case Abort():
                self.vllm.abort(message.request_ids, retract=message.retract)
                # An abort has no output that could carry its effects on the tree.
                self._send(self.vllm.report())
            case Control():
                arguments = () if message.argument is None else (message.argument,)
                try:
                    value = getattr(self.vllm, message.operation)(*arguments)
                    self._send(Answer(message.request_id, value))
                except OSError:  # the application is gone
                    raise
                except Exception as error:
                    logger.exception("no answer to %r", message.operation)
                    self._fail(message, FailureKind.OTHER, error)

    def _fail(self, request: Submit | Control, kind: FailureKind, error: Exception) -> None:
        attempt = request.attempt if isinstance(request, Submit) else 0
        words = str(error) if kind is FailureKind.REFUSED else describe(error)
        self._send(RequestFailed(request.request_id, kind, words, attempt))


def start(settings: EngineSettings) -> VLLM:
    """Load the model and warm it up."""
    settings = with_profile(settings)
    with unbound_while_loading():
        with kept_without_collecting():
            from .driver import VLLM  # noqa: PLC0415 - seconds; its errors count

        vllm = VLLM(settings)
    vllm.warm_up()
    return vllm


def with_profile(settings: EngineSettings) -> EngineSettings:
    """Add the prefill times measured for this model on this device, if there are any."""
    if settings.cache is None or settings.cache.prefill_profile is not None:
        return settings
    profile = load_profile(settings.model, device_name())
    if profile is None:
        return settings
    cache = settings.cache.model_copy(update={"prefill_profile": profile.as_dict()})
    return dataclasses.replace(settings, cache=cache)


def main() -> int:
    """Serve one application."""
    resume_when_orphaned()
    connection = Connection(int(sys.argv[1]))
    settings = connection.recv()
    watch = ApplicationWatch(connection.fileno(), settings.folder)

    def become_worker() -> None:
        connection.close()  # a forked worker's copy would hide the engine's end
        resume_when_orphaned()

    os.register_at_fork(after_in_child=become_worker)
    try:
        vllm = start(settings)
    except Exception as error:
        logger.exception("the engine did not start")
        with contextlib.suppress(OSError):
            connection.send(failed_start(error))
        return 1
    watch.grace_seconds = SHUTDOWN_SECONDS
    gone = False
    try:
        connection.send(vllm.ready())
        Host(connection, vllm, settings.heartbeat_seconds).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        logger.info("the application is gone")
        gone = True
    except Exception:
        logger.exception("the engine failed")
        return 1  # without a shutdown: the supervisor waits to start another process
    if not gone:
        signal.alarm(SHUTDOWN_SECONDS)  # ends the process if the shutdown hangs
    left_to_the_exit()
    vllm.shutdown()
    if gone:
        watch.end_all()
    return 0


if __name__ == "__mp_main__":  # a process that vLLM spawns imports this module by that name
    resume_when_orphaned()

if __name__ == "__main__":
    logging.basicConfig()
    status = main()
    sys.stderr.flush()
    # Taking torch and vLLM apart takes seconds and frees nothing that exiting does not.
    os._exit(status)
