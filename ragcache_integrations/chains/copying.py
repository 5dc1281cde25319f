"""Copies and pickles of LlamaIndex query engines and synthesizers, which are no pydantic models."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar, Self

from pydantic import BaseModel

__all__ = ["CopiedBySettings"]


class CopiedBySettings:
    """Makes deep copies and pickles from an object's settings, without what it has learnt.

    A deep copy has the same callback manager; a pickle has none. Subclasses name the arguments of
    their constructors, which they keep under these names after an underscore. Arguments that are
    knobs are kept together.
    """

    callback_manager: Any
    _argument_names: ClassVar[tuple[str, ...]]
    _knobs: BaseModel | None = None

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
        """The constructor's arguments for an equal object, except the callback manager."""
        kept = {name: getattr(self, f"_{name}") for name in self._argument_names}
        return {**kept, **dict(self._knobs or ())}
