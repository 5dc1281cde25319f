"""Schemas: the modules that prompts are put together from (Prompt Cache §3.2).

A schema is read from Prompt Markup Language, made by a prompt program (:mod:`.program`), or built
from the classes of :mod:`.nodes`. It knows no model: :meth:`Schema.compile` lays it out for one.
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
    """What prompts can be put together from, and where each part of it stands.

    Attributes:
        name: What prompts call it.
        children: Text outside of modules is in every prompt. A slot there is filled by an attribute
            of ``<prompt>``.
        scaffolds: Sets of modules that are encoded together as well.

    Raises:
        MarkupError: Two names are the same, a turn stands in a turn, a scaffold names what is not
            there or two members of a union, scaffolds name more than 100,000 modules in all, params
            reserve more than 1,000,000 tokens, modules stand in each other more than 30 deep, or
            their paths have more than 16,000,000 characters in all.
    """

    @classmethod
    def from_pml(
        cls, text: str, *, limits: Limits | None = None, source: str | None = None
    ) -> Schema:
        """Read ``<schema name="...">...</schema>``.

        Args:
            text: Prompt Markup Language, from anywhere.
            limits: How much is read; the defaults of :class:`~.markup.Limits` unless given.
            source: Name of the file, for messages.

        Raises:
            MarkupError: It is no schema; the message says where, and what was expected.
        """
        return cls(*read_schema(text, limits=limits, source=source))

    def to_pml(self) -> str:
        """The schema as markup, which reads back as an equal schema.

        Raises:
            MarkupError: A text holds a character that markup has no way to write.
        """
        return write_schema(self)

    def compile(self, tokenizer: Tokenizer) -> CompiledSchema:
        """Lay the schema out for a model: tokens and positions of each module (§3.3).

        Args:
            tokenizer: A tokenizer of Hugging Face transformers.

        Raises:
            ConfigurationError: The schema has turns, and the tokenizer no chat template or one that
                cannot be taken apart; or a text cannot be tokenised.
        """
        return CompiledSchema(self, tokenizer)

    async def acompile(self, tokenizer: Tokenizer) -> CompiledSchema:
        """As :meth:`compile`, in a thread."""
        return await asyncio.to_thread(self.compile, tokenizer)
