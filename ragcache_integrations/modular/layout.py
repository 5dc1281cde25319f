"""The parts of a prompt: modules that were encoded on their own, and tokens to compute.

These classes are independent of the model. Schemas and lists of documents produce them; the encoder
and the prefill consume them (Prompt Cache §3.3-3.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from ragcache_integrations.errors import ConfigurationError

__all__ = ["Assembly", "Fresh", "Module", "Param", "Placed"]


@dataclass(frozen=True, slots=True)
class Param:
    """A slot in a module, which each prompt may fill.

    Attributes:
        name: Name of the argument that fills it.
        start: Offset of its first token among the module's tokens.
        length: The most tokens of an argument.
    """

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Module:
    """Tokens that are encoded on their own: they see only each other.

    The modules of a scaffold become a single one, so that they see each other.

    Attributes:
        name: Name, unique in its schema.
        token_ids: Tokens; in the slots of params, placeholders.
        positions: Position of each token, increasing; nested modules leave gaps.
        params: Slots, whose KV are never used.
        members: Names of the modules that a scaffold's module consists of.
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
                f"{len(self.positions)} positions; allowed: one position per token, at least 1"
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
        """Offsets of the tokens whose KV serve: all except those of params."""
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
        module: The module.
        shift: Added to its positions; its keys are moved if it is not 0.
    """

    module: Module
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """Tokens computed for this prompt: arguments and new text.

    Attributes:
        token_ids: The tokens.
        positions: Position of each token.
        fills: Name of the module whose param these tokens fill; empty for new text. An argument is
            masked and dropped together with its module.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    fills: str = ""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A prompt ready to be served.

    Attributes:
        parts: The parts, in which no two tokens that serve share a position. The last part is
            fresh, and its last token has the highest position, as it gives the first token of the
            answer.
    """

    parts: tuple[Placed | Fresh, ...]
