"""Reads schemas from markup, and writes them."""

from __future__ import annotations

from collections.abc import Sequence

from .markup import (
    DEFAULT_LIMITS,
    Characters,
    Element,
    Limits,
    Where,
    attributes_of,
    markup_error,
    name_hint,
    parse_markup,
    to_markup,
)
from .nodes import (
    ROLES,
    Node,
    Scaffold,
    SchemaModule,
    SchemaTree,
    Slot,
    Text,
    Turn,
    Union,
)
from .white_space import text_and_blocks

__all__ = ["read_schema", "write_schema"]

_TAGS = ("module", "param", "union", *ROLES)


def read_schema(
    text: str, *, limits: Limits | None = None, source: str | None = None
) -> tuple[str, tuple[Node, ...], tuple[Scaffold, ...], Where]:
    """Read a schema: its name, children, scaffolds, and place in the source.

    See :meth:`.schema.Schema.from_pml`.
    """
    root = parse_markup(text, limits=limits or DEFAULT_LIMITS, source=source)
    if root.tag != "schema":
        msg = f'expected <schema name="...">, found <{root.tag}>'
        raise markup_error(msg, root.where)
    (name,) = attributes_of(root, "name")
    scaffolds = []
    others: list[Element | Characters] = []
    for child in root.children:
        if isinstance(child, Element) and child.tag == "scaffold":
            scaffolds.append(_scaffold(child))
        else:
            others.append(child)
    return name, _children(others), tuple(scaffolds), root.where


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
            msg = "put <scaffold> directly into <schema>"
            raise markup_error(msg, element.where)
        case tag:
            msg = f"a schema has no <{tag}>{name_hint(tag, _TAGS)}"
            raise markup_error(msg, element.where)


def _slot(element: Element) -> Slot:
    name, length = attributes_of(element, "name", "len")
    _must_be_empty(element)
    try:
        # int() is slow for very many digits, and no allowed length has as many as ten.
        number = int(length) if length.isascii() and length.isdigit() and len(length) < 10 else 0  # noqa: PLR2004
    except ValueError:
        number = 0
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


def _scaffold(element: Element) -> Scaffold:
    (modules,) = attributes_of(element, "modules")
    _must_be_empty(element)
    return Scaffold(tuple(modules.split()), element.where)


def _must_be_empty(element: Element) -> None:
    if element.children:
        msg = f"<{element.tag}> must be empty: expected <{element.tag} .../>"
        raise markup_error(msg, element.where)


def write_schema(schema: SchemaTree) -> str:
    """See :meth:`.schema.Schema.to_pml`."""
    head = tuple(
        f'<scaffold modules="{to_markup(" ".join(scaffold.modules), attribute=True)}"/>'
        for scaffold in schema.scaffolds
    )
    name = to_markup(schema.name, attribute=True)
    return _element_markup("schema", f' name="{name}"', schema.children, 0, head)


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
