"""Schemas: the modules that prompts are put together from (Prompt Cache §3.2).

A schema is read from Prompt Markup Language, or built from the classes of :mod:`.nodes`. It is
independent of the model: :meth:`Schema.compile` lays it out for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from .compiled import CompiledSchema
from .markup import (
    DEFAULT_LIMITS,
    Characters,
    Element,
    Limits,
    attributes_of,
    markup_error,
    name_hint,
    parse_markup,
    text_and_blocks,
    to_markup,
)
from .nodes import (
    OWN_TEXT,
    ROLES,
    Node,
    Role,
    Scaffold,
    SchemaModule,
    SchemaTree,
    Slot,
    Text,
    Turn,
    Union,
)
from .tokens import Tokenizer

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
        root = parse_markup(text, limits=limits or DEFAULT_LIMITS, source=source)
        if root.tag != "schema":
            raise markup_error(f'expected <schema name="...">, found <{root.tag}>', root.where)
        (name,) = attributes_of(root, "name")
        scaffolds = [child for child in root.children if _is_scaffold(child)]
        others = [child for child in root.children if not _is_scaffold(child)]
        return cls(name, _children(others), tuple(map(_scaffold, scaffolds)), root.where)

    def to_pml(self) -> str:
        """The schema as markup, which reads back as an equal schema.

        Raises:
            MarkupError: A text has a character that markup cannot contain.
        """
        head = tuple(
            f'<scaffold modules="{to_markup(" ".join(scaffold.modules), attribute=True)}"/>'
            for scaffold in self.scaffolds
        )
        name = to_markup(self.name, attribute=True)
        return _element_markup("schema", f' name="{name}"', self.children, 0, head)

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


_TAGS = ("module", "param", "union", *ROLES)


def _children(children: Sequence[Element | Characters], *, turn: bool = False) -> tuple[Node, ...]:
    return tuple(
        _element(item) if isinstance(item, Element) else Text(item.text, item.where)
        for item in text_and_blocks(children, turn=turn)
    )


def _element(element: Element) -> Node:
    match element.tag:
        case "module":
            (name,) = attributes_of(element, "name")
            return SchemaModule(name, _children(element.children), element.where)
        case "param":
            return _slot(element)
        case "union":
            return _union(element)
        case "system" | "user" | "assistant" as role:
            attributes_of(element)
            return Turn(role, _children(element.children, turn=True), element.where)
        case "scaffold":
            raise markup_error("put <scaffold> directly into <schema>", element.where)
        case tag:
            raise markup_error(f"a schema has no <{tag}>{name_hint(tag, _TAGS)}", element.where)


def _slot(element: Element) -> Slot:
    name, length = attributes_of(element, "name", "len")
    _must_be_empty(element)
    # int() is slow for very many digits, and no allowed length has as many as ten.
    number = int(length) if length.isascii() and length.isdigit() and len(length) < 10 else 0  # noqa: PLR2004
    if not number:
        msg = f"the len of param {name!r} must be a whole number of tokens, got {length!r:.40}"
        raise markup_error(msg, element.where)
    return Slot(name, number, element.where)


def _union(element: Element) -> Union:
    attributes_of(element)
    members: list[SchemaModule] = []
    for item in text_and_blocks(element.children):
        child = _element(item) if isinstance(item, Element) else None
        if not isinstance(child, SchemaModule):
            content = f"<{item.tag}>" if isinstance(item, Element) else "text"
            msg = f"a union holds modules and nothing else, found {content}"
            raise markup_error(msg, item.where)
        members.append(child)
    return Union(tuple(members), element.where)


def _is_scaffold(item: Element | Characters) -> TypeGuard[Element]:
    return isinstance(item, Element) and item.tag == "scaffold"


def _scaffold(element: Element) -> Scaffold:
    (modules,) = attributes_of(element, "modules")
    _must_be_empty(element)
    return Scaffold(tuple(modules.split()), element.where)


def _must_be_empty(element: Element) -> None:
    if element.children:
        msg = f"<{element.tag}> must be empty: expected <{element.tag} .../>"
        raise markup_error(msg, element.where)


def _node(node: Node, level: int | None) -> str:
    match node:
        case Text():
            return to_markup(node.text)
        case Slot():
            return f'<param name="{node.name}" len="{node.length}"/>'
        case SchemaModule():
            return _element_markup("module", f' name="{node.name}"', node.children, level)
        case Union():
            return _element_markup("union", "", node.members, level)
        case Turn():
            return _element_markup(node.role, "", node.children, level)


def _element_markup(
    tag: str,
    attributes: str,
    children: Sequence[Node],
    level: int | None,
    head: tuple[str, ...] = (),
) -> str:
    """Write an element; its children get separate lines unless text or params are among them."""
    if not children and not head:
        return f"<{tag}{attributes}/>"
    opened, closed = f"<{tag}{attributes}>", f"</{tag}>"
    if level is None or any(isinstance(child, Text | Slot) for child in children):
        return "".join([opened, *head, *(_node(child, None) for child in children), closed])
    within = [*head, *(_node(child, level + 1) for child in children)]
    indent = "  " * level
    return "\n".join([opened, *(f"{indent}  {line}" for line in within), f"{indent}{closed}"])
