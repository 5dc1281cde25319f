"""Annotations of prompt programs: the lengths of arguments, and who speaks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.prompts.pml import ROLES, Role, Slot

__all__ = ["Length", "role"]


@dataclass(frozen=True, slots=True)
class Length:
    """In ``Annotated[str, Length(20)]``: the most tokens of an argument (§3.2.2).

    Raises:
        MarkupError: It is not a whole number from 1 to 65,536.
    """

    tokens: int

    def __post_init__(self) -> None:
        Slot("length", self.tokens)


def role(name: Role) -> nullcontext[None]:
    """Mark text of a prompt program as a turn of a role.

    Text that is yielded within ``with role("user"):`` belongs to the user's turn.

    Args:
        name: ``system``, ``user`` or ``assistant``.

    Raises:
        MarkupError: There is no such role.
    """
    if name not in ROLES:
        msg = f"role must be one of {', '.join(ROLES)}, got {name!r}"
        raise MarkupError(msg)
    return nullcontext()
