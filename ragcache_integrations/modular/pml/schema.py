"""Schemas: the modules that prompts are put together from (Prompt Cache §3.2).

A schema is read from Prompt Markup Language, made by a prompt program (:mod:`.program`), or built
from the classes of :mod:`.nodes`. It is independent of the model: :meth:`Schema.compile` lays it
out for one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ragcache_integrations.modular.tokens import Tokenizer

from .compiled import CompiledSchema
from .markup import Limits
from .nodes import (
    OWN_TEXT,
    ROLES,
    Role,
    Scaffold,
    SchemaModule,
    SchemaTree,
    Slot,
    Text,
    Turn,
    Union,
)
from .schema_markup import read_schema, write_schema

__all__ = [
    "OWN_TEXT",
    "ROLES",
    "Role",
    "Scaffold",
    "Schema",
    "SchemaModule",
    "Slot",
    "Text",
    "Turn",
    "Union",
]


@dataclass(frozen=True, slots=True)
class Schema(SchemaTree):
    """The modules that prompts are put together from, and the order of their places.

    Use it like this::

        schema = Schema.from_pml(text)
        compiled = schema.compile(tokenizer)
        answer = model.generate(compiled.assemble('<prompt schema="..."><user>...</user></prompt>'))

    Attributes:
        name: Name by which prompts refer to the schema.
        children: The schema's modules and own text. Text outside of modules is in every prompt; a
            slot there is filled by an attribute of ``<prompt>``.
        scaffolds: Sets of modules that are also encoded together.

    Raises:
        MarkupError: Two names are the same, a turn is within a turn, a scaffold names an unknown
            module or two members of a union, scaffolds name more than 100,000 modules in all,
            params reserve more than 1,000,000 tokens, modules are nested more than 30 deep, or
            their paths have more than 16,000,000 characters in all.
    """

    @classmethod
    def from_pml(
        cls, text: str, *, limits: Limits | None = None, source: str | None = None
    ) -> Schema:
        """Read ``<schema name="...">...</schema>``.

        Args:
            text: Prompt Markup Language, from any source.
            limits: Bounds on the markup; by default those of :class:`~.markup.Limits`.
            source: Name of the file, for messages.

        Raises:
            MarkupError: It is not a valid schema; the message says where, and what was expected.
        """
        return cls(*read_schema(text, limits=limits, source=source))

    def to_pml(self) -> str:
        """The schema as markup, which reads back as an equal schema.

        Raises:
            MarkupError: A text has a character that markup cannot contain.
        """
        return write_schema(self)

    def compile(self, tokenizer: Tokenizer) -> CompiledSchema:
        """Lay the schema out for a model: tokens and positions of each module (§3.3).

        Args:
            tokenizer: A tokenizer of Hugging Face transformers.

        Raises:
            ConfigurationError: The schema has turns, and the tokenizer has no chat template or one
                that cannot be split into turns; or a text cannot be tokenised.
        """
        return CompiledSchema(self, tokenizer)

    async def acompile(self, tokenizer: Tokenizer) -> CompiledSchema:
        """Async version of :meth:`compile`."""
        return await asyncio.to_thread(self.compile, tokenizer)
