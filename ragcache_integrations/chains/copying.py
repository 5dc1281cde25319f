"""Copies and pickles of LlamaIndex query engines and synthesizers: no pydantic models."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, Self

__all__ = ["CopiedBySettings"]


class CopiedBySettings:
    """Has deep copies and pickles made from an object's settings; what it has learnt stays behind.

    Its callbacks stand for something outside: a deep copy has the same, and a pickle none.
    """

    callback_manager: Any

    def __copy__(self) -> Self:
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        manager = self.callback_manager
        memo[id(manager)] = manager
        arguments = copy.deepcopy(self._arguments(), memo)
        return type(self)(**arguments | {"callback_manager": manager})

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments that make an object like this one, callbacks left out."""
        raise NotImplementedError
