"""What a prompt program is annotated with: lengths of arguments, and who speaks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.modular.pml import ROLES, Role, Slot

__all__ = ["Length", "role"]


@dataclass(frozen=True, slots=True)
class Length:
    """In ``Annotated[str, Length(20)]``: the most tokens of an argument (§3.2.2).

    Raises:
        MarkupError: It is no whole number that a param may have.
    """

    tokens: int

    def __post_init__(self) -> None:
        Slot("length", self.tokens)


def role(name: Role) -> nullcontext[None]:
    """Whose words follow, in a prompt program.

    What is yielded within ``with role("user"):`` is said by the user.

    Raises:
        MarkupError: There is no such role.
    """
    if name not in ROLES:
        msg = f"role must be one of {', '.join(ROLES)}, got {name!r}"
        raise MarkupError(msg)
    return nullcontext()
