"""What the schedulers, in the engines' processes, report to the API processes of their machine.

All of it goes through one folder, because vLLM's own messages have no room for it:

- Counts. A scheduler, one for each data-parallel rank, writes its counts to a file, which is
  replaced atomically. An API process that is asked for metrics reads the files.
- Refused pins. The middleware makes an empty file for each request that pins documents, and the
  scheduler writes into it, before the request's first output, why they can't be pinned. The
  middleware looks for it before it passes on the answer, and removes the file when the request
  ends, however it ends. The scheduler makes no file: what it reports after that is lost with the
  request.
- The pulse, by which a server notices engines that hang, and ends them. A thread of the engine's
  process reports at regular intervals that the process lives, and how long its current step has
  taken. A stopped process, or one whose Python lock is held, falls silent; a process that waits for
  its device for ever reports a long step. The reports are datagrams: they need no space on a disk,
  which may be full.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ragcache_integrations.engine.metrics import collect_stats
from ragcache_integrations.engine.process import Silence, why_hung
from ragcache_integrations.engine.protocol import EngineStats
from ragcache_integrations.knowledge_tree.shares import ShareStats
from ragcache_integrations.knowledge_tree.stats import TreeStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = [
    "Pulse",
    "PulseWatch",
    "awaited_pin_refusal",
    "metrics_text",
    "read_counts",
    "refuse_pin",
    "write_counts",
]


def write_counts(folder: str, rank: int, block_bytes: int, stats: TreeStats) -> None:
    """Replace the file of a scheduler's counts.

    Errors are ignored: lost counts are better than a failed request.

    Args:
        folder: Folder of the reports.
        rank: The scheduler's data-parallel rank.
        block_bytes: Size of a block of its KV cache.
        stats: The counts.
    """
    path = Path(folder) / f"{rank}.json"
    new = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        new.write_text(json.dumps([block_bytes, asdict(stats)]), encoding="utf-8")
        new.replace(path)


def read_counts(folder: str) -> dict[str, EngineStats]:
    """The trees' counts by rank; empty if there are none."""
    counts = {}
    for path in sorted(Path(folder).glob("*.json")) if folder else ():
        with contextlib.suppress(
            OSError, ValueError, TypeError, KeyError
        ):  # it may just have been removed
            block_bytes, tree = json.loads(path.read_text(encoding="utf-8"))
            tree["shares"] = tuple(ShareStats(*share) for share in tree.pop("shares", ()))
            counts[path.stem] = EngineStats(tree=TreeStats(**tree), block_bytes=block_bytes)
    return counts


@dataclass(eq=False)
class _Merged:
    """The metrics of several engines, each metric once.

    Requests are counted here, not by the engines, and have no label.
    """

    requests: EngineStats
    trees: dict[str, EngineStats]
    refused: Mapping[int, int]

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an extra

        counted = {each.name: each for each in collect_stats(replace(self.requests, tree=None), {})}
        families: dict[str, Metric] = {}
        for rank, stats in self.trees.items():
            for metric in collect_stats(stats, {"engine": rank}):
                if metric.name in families:
                    families[metric.name].samples += metric.samples
                elif metric.name not in counted:
                    families[metric.name] = metric
        yield from (counted | families).values()
        refused = CounterMetricFamily(
            "ragcache_refused_requests", "Requests that were refused", labels=["status"]
        )
        for status, number in sorted(self.refused.items()):
            refused.add_metric([str(status)], number)
        yield refused


def metrics_text(requests: EngineStats, folder: str, refused: Mapping[int, int]) -> bytes:
    """Our metrics in Prometheus's text format.

    Args:
        requests: Counts of this process's requests.
        folder: Folder of the schedulers' counts.
        refused: Requests that never reached vLLM, by HTTP status.
    """
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra

    registry = CollectorRegistry()
    registry.register(_Merged(requests, read_counts(folder), refused))
    text: bytes = generate_latest(registry)
    return text


_TICKET = re.compile(r"[0-9a-f]{32}")


@contextlib.contextmanager
def awaited_pin_refusal(folder: str, ticket: str) -> Iterator[Callable[[], str | None]]:
    """Let a scheduler report, while a request lasts, that its documents can't be pinned.

    Args:
        folder: Folder of the reports; empty for none.
        ticket: The request's ticket; empty for one that pins nothing.

    Yields:
        What returns the reason; ``None`` if nothing is known.
    """
    if not folder or not ticket:
        yield lambda: None
        return
    file = Path(folder) / ticket

    def read() -> str | None:
        with contextlib.suppress(OSError):
            return file.read_text(encoding="utf-8") or None
        return None

    with contextlib.suppress(OSError):
        file.touch()
    try:
        yield read
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def refuse_pin(folder: str, ticket: object, why: str) -> bool:
    """Report that a request's documents can't be pinned.

    Args:
        folder: Folder of the reports.
        ticket: The request's ticket, from the middleware.
        why: The reason.

    Returns:
        Whether it is reported; not if the request has ended.
    """
    if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
        return False
    try:
        file = os.open(Path(folder) / ticket, os.O_WRONLY)
    except OSError:
        return False
    with os.fdopen(file, "wb") as opened:
        opened.write(why.encode())
    return True


LISTENER = ".pulse"
ENGINE = ".engine"
_LONGEST_MESSAGE = 200


class Pulse:
    """Reports that an engine lives, from within its process.

    Args:
        folder: Folder of the sockets to which the reports are sent.
        seconds: Seconds between two reports.
        has_work: Whether there is anything to compute.
    """

    def __init__(self, folder: str, seconds: float, has_work: Callable[[], bool]) -> None:
        self._folder = Path(folder)
        self._seconds = seconds
        self._has_work = has_work
        self._moves = 0
        with contextlib.suppress(OSError):  # the first report makes it known, too
            (self._folder / f"{os.getpid()}{ENGINE}").touch()
        threading.Thread(target=self._beat, name="ragcache-pulse", daemon=True).start()

    def moved(self) -> None:
        """Note that a step begins or has ended."""
        self._moves += 1

    def _beat(self) -> None:
        busy, moves = 0.0, -1
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            while self._folder.is_dir():  # it is removed when the server ends
                time.sleep(self._seconds)
                same_step = moves == self._moves and self._has_work()
                busy, moves = (busy + self._seconds if same_step else 0.0), self._moves
                message = json.dumps([os.getpid(), busy]).encode()
                for listener in self._folder.glob(f"*{LISTENER}"):
                    with contextlib.suppress(OSError):  # it has gone, or is busy itself
                        sender.sendto(message, str(listener))


class _Engine:
    """The last report of one engine."""

    def __init__(self, pid: int, interval: float) -> None:
        # A handle keeps denoting this process; its id may belong to another by the time we kill it.
        self.handle = os.pidfd_open(pid)
        self.silence = Silence(interval)
        self.messages = 0
        self.busy_seconds = 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)


@dataclass(eq=False)
class PulseWatch:
    """Listens to the engines of this machine.

    Attributes:
        folder: Folder of its socket, and of those of the other API processes.
        interval: Seconds between two calls of :meth:`kill_hung`.
        hang_timeout: Seconds of silence after which an engine counts as hung; ``None`` for no
            limit.
        step_timeout: Seconds that one step may take; ``None`` for no limit.

    Raises:
        OSError: The socket cannot be made.
    """

    folder: str
    interval: float
    hang_timeout: float | None
    step_timeout: float | None

    def __post_init__(self) -> None:
        self._limits = self.hang_timeout, self.step_timeout
        self._engines: dict[int, _Engine] = {}
        self._path = Path(self.folder) / f"{os.getpid()}{LISTENER}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.settimeout(0)
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        for engine in Path(self.folder).glob(f"*{ENGINE}"):
            self._watch(int(engine.stem))

    def kill_hung(self) -> list[str]:
        """Read the reports and kill each engine that hangs; vLLM notices that immediately.

        Returns:
            A message about each engine that was killed.
        """
        self._listen()
        messages = []
        for pid, engine in list(self._engines.items()):
            silent = engine.silence.measure(engine.messages)
            why = why_hung(silent, engine.busy_seconds, *self._limits)
            if why is not None:
                engine.kill()
                self._forget(pid)
                messages.append(f"the engine's process {pid} hung: {why}")
        return messages

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        for pid in list(self._engines):
            self._forget(pid)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                pid, busy_seconds = json.loads(self._socket.recv(_LONGEST_MESSAGE))
                self._watch(pid)
                if (engine := self._engines.get(pid)) is not None:
                    engine.messages += 1
                    engine.busy_seconds = busy_seconds

    def _watch(self, pid: int) -> None:
        if pid not in self._engines:
            with contextlib.suppress(OSError):  # it has just gone, or cannot be watched
                self._engines[pid] = _Engine(pid, self.interval)

    def _forget(self, pid: int) -> None:
        os.close(self._engines.pop(pid).handle)
