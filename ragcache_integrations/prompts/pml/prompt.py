"""Prompts: imports of a schema's modules, with arguments, and new text (Prompt Cache §3.2.1).

Prompts that are built from these classes need no escaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ragcache_integrations.errors import MarkupError

from .markup import (
    DEFAULT_LIMITS,
    Characters,
    Element,
    Limits,
    Where,
    attributes_of,
    markup_error,
    parse_markup,
    text_and_blocks,
    to_markup,
)
from .nodes import (
    MAX_DEPTH,
    ROLES,
    Role,
    Text,
    Turn,
    check_name,
    join_texts,
)

__all__ = ["Import", "Prompt"]


@dataclass(frozen=True, slots=True)
class Import:
    """``<name param="argument"/>``: an import of a module of the schema.

    Attributes:
        name: The module's name.
        arguments: Texts by param; a param without an argument stays empty.
        children: Imports of nested modules, and new text in place of those left out.
    """

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    children: tuple[Text | Import, ...] = ()
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name, "module", self.where)
        object.__setattr__(self, "arguments", _arguments(self.arguments, self.where))
        object.__setattr__(self, "children", join_texts(self.children))
        for child in self.children:
            if not isinstance(child, Text | Import):
                msg = f"an import holds imports and text, got {child!r}"
                raise markup_error(msg, getattr(child, "where", self.where))


PromptNode: TypeAlias = Text | Import | Turn


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a schema.

    Attributes:
        schema: The schema's name.
        children: Imports and new text, followed by turns and more text. Turns contain only text.
        arguments: Texts by param, for params that are outside of modules.

    Raises:
        MarkupError: An import comes after a turn or within one, imports are nested too deep, or an
            argument is not text.
    """

    schema: str
    children: tuple[PromptNode, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", _arguments(self.arguments, self.where))
        object.__setattr__(self, "children", join_texts(self.children))
        turn: Turn | None = None
        for child in self.children:
            match child:
                case Turn():
                    turn = child
                    if not all(isinstance(part, Text) for part in child.children):
                        raise markup_error(
                            f"<{child.role}> in a prompt contains only text: put imports before "
                            "it, or the turn into the schema",
                            child.where,
                        )
                case Import() if turn is not None:
                    raise markup_error(
                        f"<{child.name}> comes after <{turn.role}>: put imports before the turns "
                        "of a prompt",
                        child.where,
                    )
                case Import():
                    _check_depth(child)
                case Text():
                    pass
                case _:
                    msg = f"a prompt holds imports, text and turns, got {child!r}"
                    raise markup_error(msg, self.where)

    @classmethod
    def from_pml(
        cls, text: str, *, limits: Limits | None = None, source: str | None = None
    ) -> Prompt:
        """Read ``<prompt schema="...">...</prompt>``.

        Args:
            text: Prompt Markup Language. Apply :func:`~.markup.escape` to text from elsewhere
                before you insert it.
            limits: Bounds on the markup; by default those of :class:`~.markup.Limits`.
            source: Name of the file, for messages.

        Raises:
            MarkupError: It is not a valid prompt; the message says where, and what was expected.
        """
        root = parse_markup(text, limits=limits or DEFAULT_LIMITS, source=source)
        if root.tag != "prompt":
            raise markup_error(f'expected <prompt schema="...">, found <{root.tag}>', root.where)
        arguments = dict(root.attributes)
        schema = arguments.pop("schema", "")
        if not schema.strip():
            raise markup_error("<prompt> needs the attribute 'schema'", root.where)
        children = tuple(_read(item) for item in text_and_blocks(root.children, prompt=True))
        return cls(schema, children, arguments, root.where)

    def to_pml(self) -> str:
        """The prompt as markup, which reads back as an equal prompt.

        Raises:
            MarkupError: A text has a character that markup cannot contain.
        """
        head = f' schema="{to_markup(self.schema, attribute=True)}"{_attributes(self.arguments)}'
        return _element_markup("prompt", head, self.children)

    def with_text(self, text: str, *, role: Role | None = None) -> Prompt:
        """This prompt with new text at its end.

        Args:
            text: Any text; it is never parsed as markup.
            role: Role of a new turn for the text; ``None`` for text without a turn.

        Raises:
            MarkupError: There is no such role, or ``text`` is not a string.
        """
        new = Text(text)
        return replace(self, children=(*self.children, new if role is None else Turn(role, (new,))))


def _arguments(arguments: Mapping[str, str], where: Where | None) -> dict[str, str]:
    for name, value in arguments.items():
        check_name(name, "param", where)
        if not isinstance(value, str):
            msg = f"the argument {name!r} must be a string, got {type(value).__name__}"
            raise markup_error(msg, where)
    return dict(arguments)


def _check_depth(import_: Import) -> None:
    level: Sequence[Import] = [import_]
    for _ in range(MAX_DEPTH):
        level = [
            child for parent in level for child in parent.children if isinstance(child, Import)
        ]
        if not level:
            return
    raise markup_error(f"imports are nested more than {MAX_DEPTH} deep", level[0].where)


def _read(item: Element | Characters) -> PromptNode:
    if isinstance(item, Characters):
        return Text(item.text, item.where)
    if item.tag in ROLES:
        attributes_of(item)
        texts: list[Text] = []
        for child in text_and_blocks(item.children, prompt=True):
            if isinstance(child, Element):
                raise markup_error(
                    f"<{item.tag}> in a prompt contains only text, found <{child.tag}>: put "
                    "imports before it, or the turn into the schema",
                    child.where,
                )
            texts.append(Text(child.text, child.where))
        return Turn(item.tag, tuple(texts), item.where)
    return _import(item)


def _import(element: Element) -> Import:
    children: list[Text | Import] = []
    for item in text_and_blocks(element.children, prompt=True):
        if isinstance(item, Characters):
            children.append(Text(item.text, item.where))
        elif item.tag in ROLES:
            msg = f"<{item.tag}> is within an import: put a prompt's turns directly into <prompt>"
            raise markup_error(msg, item.where)
        else:
            children.append(_import(item))
    return Import(element.tag, element.attributes, tuple(children), element.where)


def _attributes(arguments: Mapping[str, str]) -> str:
    return "".join(
        f' {name}="{to_markup(value, attribute=True)}"' for name, value in arguments.items()
    )


def _node(node: object) -> str:
    match node:
        case Import():
            return _element_markup(node.name, _attributes(node.arguments), node.children)
        case Turn():
            return _element_markup(node.role, "", node.children)
        case Text():
            return to_markup(node.text)
    raise MarkupError(f"a prompt holds imports, text and turns, got {node!r}")


def _element_markup(tag: str, attributes: str, children: Sequence[object]) -> str:
    if not children:
        return f"<{tag}{attributes}/>"
    inner = "".join(_node(child) for child in children)
    return f"<{tag}{attributes}>{inner}</{tag}>"
