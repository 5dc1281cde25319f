"""What this process knows of the store's changes, shard by shard, and what it still owes Redis.

Every shard of a shared cache numbers the changes of the store that it received, within a
generation. A lookup says which of them are known here, and gets the others with the answer. A
change is sent after it was made, so a search that begins after a version was received sees all
changes up to that version.

If a shard cannot be reached in time after a change, its entries may answer wrongly until they are
cleared. Until then this process does not ask that shard; a thread clears it as soon as it can.
Other processes that reach the server when this one cannot may get answers that are out of date.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.query_cache.entries import ChangeLog

from .link import Link, ScriptCall, UnreachableError
from .records import decode_change

__all__ = ["Debts", "Known", "Shards"]


logger = logging.getLogger(__name__)


class Debts:
    """Shards that have to be cleared. Thread-safe.

    Args:
        link: The link to the server.
        clearing: Makes the request that clears a shard.
    """

    def __init__(self, link: Link, clearing: Callable[[int], ScriptCall]) -> None:
        self._link = link
        self._clearing = clearing
        self._lock = make_lock()
        self._owed: dict[int, int] = {}  # how often each was owed, so that none gets lost
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._thread, self._closed = None, threading.Event()  # the next lookup starts a thread

    def __len__(self) -> int:
        return len(self._owed)

    def __contains__(self, shard: object) -> bool:
        return shard in self._owed

    def add(self, shards: Iterable[int]) -> None:
        """Have shards cleared as soon as possible, along with those owed already."""
        with self._lock:
            for shard in shards:
                self._owed[shard] = self._owed.get(shard, 0) + 1
            if self._owed and self._thread is None and not self._closed.is_set():
                self._begin()

    def _begin(self) -> None:
        """Start the thread; the lock is held. Where that fails, the next lookup tries again."""
        thread = threading.Thread(target=self._pay, name="ragcache-redis-changes", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as where there are too many threads
            logger.warning("What Redis has to forget cannot be sent to it yet: %s", error)
        else:
            self._thread = thread

    def close(self) -> None:
        """Stop trying until something is added. Shards still owed stay out of date."""
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._thread = None
        self._closed.clear()
        if self._owed:
            logger.warning(
                "The shared %s at %s did not receive changes, and holds what is out of date",
                self._link.what,
                self._link.server.where,
            )

    def _pay(self) -> None:
        pause = 0.0
        warned = False
        while not self._closed.wait(pause):
            try:
                self._pay_all()
            except Exception:  # of any kind: what is owed stays owed and is tried again
                level = logging.DEBUG if warned else logging.WARNING
                warned = True
                logger.log(level, "Redis cannot receive changes of the store", exc_info=True)
            with self._lock:
                if not self._owed:
                    self._thread = None
                    return
            pause = self._link.server.retry_after

    def _pay_all(self) -> None:
        for shard, times in list(self._owed.items()):
            if not self._pay_one(shard, times):
                return

    def _pay_one(self, shard: int, times: int) -> bool:
        try:
            self._link.call(self._clearing(shard), self._link.budget(patient=True))
        except UnreachableError:
            return False
        with self._lock:
            if self._owed.get(shard) == times:  # else it is owed once more since
                del self._owed[shard]
        return True


_REMEMBERED = 64  # versions
_MOST_NOTES = 64  # that wait for the next lookup


@dataclass(frozen=True, slots=True)
class Known:
    """What was known of a shard at one moment.

    Attributes:
        generation: Its name; empty where nothing is known.
        changes: Of this generation. Never changed: a newer log takes its place.
    """

    generation: bytes
    changes: ChangeLog


@dataclass
class _Shard:
    known: Known = field(default_factory=lambda: Known(b"", ChangeLog()))
    # As received by this process: its number then, generation, version.
    versions: deque[tuple[int, bytes, int]] = field(
        default_factory=lambda: deque(maxlen=_REMEMBERED)
    )
    # What the next lookup is to do in Redis besides: bucket and id of an entry, and what with it.
    notes: dict[tuple[str, bytes], bytes] = field(default_factory=dict)


class Shards:
    """The shards, as this process knows them. Thread-safe.

    Args:
        count: Number of shards.
        dim: Dimension of the embeddings.

    Attributes:
        number: Grows with every reply that holds news of a shard.
    """

    def __init__(self, count: int, dim: int) -> None:
        self._dim = dim
        self._lock = make_lock()
        self._all = [_Shard() for _ in range(count)]
        self.number = 0

    def known(self, shard: int) -> Known:
        """Return what is known of a shard now."""
        return self._all[shard].known

    def version_at(self, shard: int, number: int) -> tuple[bytes, int] | None:
        """Return the generation and version that a shard was known to have.

        Args:
            shard: Number of the shard, from 0.
            number: :attr:`number` at that moment.

        Returns:
            ``None`` where nothing was known, or that is forgotten.
        """
        with self._lock:
            for number_then, generation, version in reversed(self._all[shard].versions):
                if number_then <= number:
                    return generation, version
        return None

    def learn(
        self, shard: int, before: Known, generation: bytes, base: int, changes: list[bytes]
    ) -> Known | None:
        """Take in what a shard answered.

        Args:
            shard: Number of the shard, from 0.
            before: What was known when the request was made.
            generation: The shard's generation, as answered.
            base: The version before the first of the changes.
            changes: Those after it, as Redis keeps them.

        Returns:
            What is known now; ``None`` where the shard was reset meanwhile, and its answer may be
            out of date.
        """
        kept = self._all[shard]
        with self._lock:
            now = kept.known
            if now.generation not in {generation, before.generation}:
                return None
            version = base + len(changes)
            if now.generation == generation and now.changes.version >= version:
                return now
            if now.generation == generation and base <= now.changes.version:
                log = now.changes.copy()
            else:  # it is new, or some of its changes are forgotten already
                log = ChangeLog(base)
            for encoded in changes[log.version - base :]:
                change = decode_change(encoded, self._dim)
                if change is None:  # nobody knows what happened
                    log.clear()
                else:
                    log.note(*change)
            kept.known = Known(generation, log)
            self.number += 1
            kept.versions.append((self.number, generation, version))
            return kept.known

    def note(self, shard: int, bucket: str, entry_id: bytes, what: bytes) -> None:
        """Leave something for the next lookup to do, such as ``t`` for a touch."""
        notes = self._all[shard].notes
        with self._lock:
            if len(notes) < _MOST_NOTES:
                notes[bucket, entry_id] = what

    def take_notes(self, shard: int) -> list[tuple[str, bytes, bytes]]:
        """Return and forget the notes: bucket, entry id, and action."""
        kept = self._all[shard]
        if not kept.notes:
            return []
        with self._lock:
            notes, kept.notes = kept.notes, {}
        return [(bucket, entry_id, what) for (bucket, entry_id), what in notes.items()]
