"""Copies of a search's arguments, which the retriever's owner may change at any time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

from .cache_keys import FrozenArguments

__all__ = ["Snapshots"]


class Snapshots:
    """Copies arguments where they differ from those of the last question.

    Equal keys of plain data mean equal arguments, also deep within. Thread-safe.
    """

    def __init__(self) -> None:
        # The key of the last arguments, and a copy of them that nobody else has.
        self._last: tuple[Hashable, Mapping[str, Any]] = (None, {})

    def of(
        self, frozen: FrozenArguments, arguments: Mapping[str, Any]
    ) -> Callable[[], Mapping[str, Any]]:
        """Return a function that returns the arguments as they are now, even if they change later.

        A change while the question is embedded affects no answer under their key. Each search gets
        a separate copy, as a store may change its arguments.

        Args:
            frozen: Their key, which may be that of more arguments.
            arguments: What a search is called with.
        """
        if not arguments:
            return dict
        if frozen.opaque:  # whose keys are equal although they are not
            return partial(dict, copy.deepcopy(dict(arguments)))
        last, copied = self._last
        if last != frozen.key:
            copied = copy.deepcopy(dict(arguments))
            self._last = frozen.key, copied  # as one: another thread must not mix two of them
        return partial(copy.deepcopy, copied)
