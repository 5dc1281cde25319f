"""The positions of a schema's parts for a model: plain data of a compiled schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.modular.layout import Module
from ragcache_integrations.modular.tokens import Encoder, Tokenizer

from .chat_roles import ChatRoles, Markers
from .markup import Where, markup_error
from .nodes import Role, SchemaTree

__all__ = ["Compilation", "CompiledScaffold", "PlacedTurn", "Scope"]


@dataclass(frozen=True, slots=True)
class CompiledScaffold:
    """Modules that were encoded together.

    Attributes:
        module: The tokens of all of them.
        members: The paths of the modules.
    """

    module: Module
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    """A turn of the schema.

    Attributes:
        start: Its first position.
        role: Who speaks.
        markers: The markers before and after its text.
    """

    start: int
    role: Role
    markers: Markers


@dataclass(slots=True)
class Scope:
    """The layout of a module, or of the schema itself.

    Attributes:
        path: Names from the outermost module to this one; empty for the schema.
        start: Its first position.
        end: The position after its last, including nested modules.
        module: Its own tokens; ``None`` if it has none.
        slots: Positions of its params, by name.
        children: Modules within it, by name.
        union: Number of the union that it is a member of; ``None`` if it is in no union.
        turns: Turns among its own tokens.
    """

    path: str
    start: int
    end: int
    module: Module | None = None
    slots: dict[str, range] = field(default_factory=dict)
    children: dict[str, Scope] = field(default_factory=dict)
    union: int | None = None
    turns: list[PlacedTurn] = field(default_factory=list)


class Compilation:
    """What prompts are assembled from; see :class:`.compiled.CompiledSchema`.

    Attributes:
        schema: The schema that was compiled.
        root: The schema's own text and all modules.
        scaffolds: Modules that are also encoded together.
        encoder: Makes tokens of text.
    """

    schema: SchemaTree
    root: Scope
    scaffolds: tuple[CompiledScaffold, ...]
    encoder: Encoder
    _tokenizer: Tokenizer

    @cached_property
    def roles(self) -> ChatRoles:
        """The model's chat template.

        Raises:
            ConfigurationError: The tokenizer has no chat template.
        """
        return ChatRoles(self._tokenizer)

    def tokens(self, text: str, where: Where | None) -> tuple[int, ...]:
        """The tokens of a text.

        Raises:
            MarkupError: It cannot be tokenised.
        """
        try:
            return self.encoder.text(text)
        except ConfigurationError as error:
            raise markup_error(str(error), where) from error
