"""What this process knows of the store's changes, shard by shard.

Every shard of a shared cache numbers the changes of the store that it received, within a
generation. A lookup says which of them are known here, and gets the others with the answer. A
change is sent after it was made, so a search that begins after a version was received sees all
changes up to that version.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.query_cache.entries import ChangeLog

from .records import decode_change

__all__ = ["Known", "Shards"]


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
