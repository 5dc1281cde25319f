"""How a prompt is put together: modules that were encoded by themselves, and tokens computed anew.

Nothing here knows a model: a schema or a list of documents makes these, the encoder and the server
of this room consume them (Prompt Cache §3.3-3.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from ragcache_integrations.errors import ConfigurationError

__all__ = ["Assembly", "Fresh", "Module", "Param", "Placed"]


@dataclass(frozen=True, slots=True)
class Param:
    """A slot in a module, to be filled per prompt.

    Attributes:
        name: What a prompt fills it by.
        start: Offset of its first token among the module's tokens.
        length: Most tokens of an argument.
    """

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Module:
    """Tokens that are encoded by themselves: they see each other and nothing else.

    Several modules of a scaffold make one of these, so that they see each other.

    Attributes:
        name: Unique in its schema.
        token_ids: In the slots of params, tokens that only hold the place.
        positions: One per token, increasing; children of a module leave gaps.
        params: Slots, whose KV never serve.
        members: Names of the modules that a scaffold's consists of.
    """

    name: str
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    params: tuple[Param, ...] = ()
    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.token_ids or len(self.token_ids) != len(self.positions):
            msg = (
                f"module {self.name!r} has {len(self.token_ids)} tokens and "
                f"{len(self.positions)} positions; allowed: as many, at least 1"
            )
            raise ConfigurationError(msg)
        if self.positions[0] < 0 or any(
            after <= before
            for before, after in zip(self.positions, self.positions[1:], strict=False)
        ):
            msg = f"positions of module {self.name!r} must not be negative, and must increase"
            raise ConfigurationError(msg)

    @property
    def served(self) -> tuple[int, ...]:
        """Offsets of the tokens whose KV serve: all but those of params."""
        slots = set(
            chain.from_iterable(
                range(param.start, param.start + param.length) for param in self.params
            )
        )
        return tuple(at for at in range(len(self.token_ids)) if at not in slots)


@dataclass(frozen=True, slots=True)
class Placed:
    """A module in a prompt.

    Attributes:
        module: What was encoded.
        shift: Added to its positions; other than 0, its keys are rotated again.
    """

    module: Module
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """Tokens computed for this prompt: arguments and new text.

    Attributes:
        token_ids: What is computed.
        positions: One per token.
        fills: Name of the module whose param an argument fills; it goes where the module goes.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    fills: str = ""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A prompt ready to be served.

    Attributes:
        parts: No two tokens that serve share a position; the last part is fresh and its last token
            stands at the highest position, as it gives the first token of the answer.
    """

    parts: tuple[Placed | Fresh, ...]
