"""Copies of a search's arguments, which the retriever's owner may change at any time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, NamedTuple

from .cache_keys import FrozenArguments, freeze_arguments

__all__ = ["Snapshot", "Snapshots"]


class Snapshot(NamedTuple):
    """The arguments of a search at one time.

    Attributes:
        frozen: Their key.
        arguments: A copy of them that nobody changes; where some are opaque, they themselves.
    """

    frozen: FrozenArguments
    arguments: Mapping[str, Any]

    def copies(self) -> Callable[[], Mapping[str, Any]]:
        """Return a function that returns the arguments as they are now, even if they change later.

        Each search gets a separate copy, as a store may change its arguments.
        """
        if not self.arguments:
            return dict
        if self.frozen.opaque:
            return partial(dict, copy.deepcopy(dict(self.arguments)))
        return partial(copy.deepcopy, self.arguments)


_NOTHING = Snapshot(freeze_arguments({}), {})


class Snapshots:
    """Copies arguments where they differ from those of the last question.

    Equal keys of plain data mean equal arguments, also deep within. Thread-safe.
    """

    def __init__(self) -> None:
        # The key of the last arguments, and a copy of them that nobody else has.
        self._last: tuple[Hashable, Mapping[str, Any]] = (None, {})

    def of(self, arguments: Mapping[str, Any]) -> Snapshot:
        """Return arguments as they are now: a later change affects no answer under their key."""
        if not arguments:
            return _NOTHING
        frozen = freeze_arguments(arguments)
        if frozen.opaque:  # opaque ones have equal keys although they are not
            return Snapshot(frozen, arguments)
        last, copied = self._last
        if last != frozen.key:
            copied = copy.deepcopy(dict(arguments))
            # Of the copy: another thread may have changed them while they were copied.
            frozen = freeze_arguments(copied)
            if not frozen.opaque:
                self._last = frozen.key, copied  # as one: another thread must not mix two of them
        return Snapshot(frozen, copied)
