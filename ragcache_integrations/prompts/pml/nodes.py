"""The parts of a schema: texts, slots, modules, unions, turns, scaffolds (Prompt Cache §3.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ragcache_integrations.core.texts import join_neighbours

from .markup import Where, markup_error, name_hint

__all__ = [
    "MAX_DEPTH",
    "OWN_TEXT",
    "ROLES",
    "Node",
    "Role",
    "Scaffold",
    "SchemaModule",
    "SchemaTree",
    "Slot",
    "Text",
    "Turn",
    "Union",
    "check_name",
    "join_texts",
]

OWN_TEXT = "#text"
"""The name of the schema's own text, the anonymous module that is in every prompt."""

EVERYTHING = "*"

MAX_DEPTH = 30
MAX_NAME = 128
MAX_SLOT = 65_536
MAX_RESERVED = 1_000_000
MAX_SCAFFOLD_MODULES = 100_000
MAX_PATHS = 16_000_000

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)

_Child = TypeVar("_Child")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_TAKEN = {"schema", "module", "param", "union", "scaffold", "prompt", *ROLES}


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a schema or prompt."""

    text: str
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise markup_error(f"text must be a string, got {type(self.text).__name__}", self.where)


@dataclass(frozen=True, slots=True)
class Slot:
    """``<param>``: room for an argument (Prompt Cache §3.2.2).

    Attributes:
        name: Unique in its module.
        length: The most tokens of an argument, from 1 to 65,536.
    """

    name: str
    length: int
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name, "param", self.where)
        if type(self.length) is not int or not 1 <= self.length <= MAX_SLOT:
            raise markup_error(
                f"the len of param {self.name!r} must be a whole number of tokens "
                f"from 1 to {MAX_SLOT}, got {self.length!r}",
                self.where,
            )


@dataclass(frozen=True, slots=True)
class SchemaModule:
    """``<module>``: content that a prompt may import; its nested modules are imported within it.

    Attributes:
        name: The tag that imports it; unique among the modules in the same place.
        children: Text, slots, modules, unions and turns.
    """

    name: str
    children: tuple[Node, ...] = ()
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name, "module", self.where)
        if self.name in _TAKEN:
            msg = f"no module can be called {self.name!r}: the tag has a meaning of its own"
            raise markup_error(msg, self.where)
        object.__setattr__(self, "children", join_texts(self.children))


@dataclass(frozen=True, slots=True)
class Union:
    """``<union>``: modules of which a prompt imports at most one; they start at one position."""

    members: tuple[SchemaModule, ...]
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        if not self.members or not all(isinstance(member, SchemaModule) for member in self.members):
            raise markup_error("a union holds modules, one or more, and nothing else", self.where)


@dataclass(frozen=True, slots=True)
class Turn:
    """``<system>``, ``<user>`` or ``<assistant>``: a turn in the format of the chat template.

    It belongs to the module around it. The modules within it are imported without naming the turn.
    """

    role: Role
    children: tuple[Node, ...] = ()
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            msg = f"role must be one of {', '.join(ROLES)}, got {self.role!r}"
            raise markup_error(msg, self.where)
        object.__setattr__(self, "children", join_texts(self.children))


Node: TypeAlias = Text | Slot | SchemaModule | Union | Turn


@dataclass(frozen=True, slots=True)
class Scaffold:
    """``<scaffold>``: modules that are also encoded together, so that they see each other (§3.3).

    If a prompt imports all of them, this encoding is used instead of their own.

    Attributes:
        modules: Paths of the modules (``trip/overseas/tokyo``); ``#text`` is the schema's own text,
            ``("*",)`` is everything.
    """

    modules: tuple[str, ...]
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "modules", tuple(self.modules))


@dataclass(frozen=True, slots=True)
class SchemaTree:
    """The checked parts of a schema; :class:`.schema.Schema` reads, writes and compiles them.

    Attributes:
        name: Name by which prompts refer to the schema.
        children: The schema's own content, and its modules.
        scaffolds: Sets of modules that are also encoded together.

    Raises:
        MarkupError: As for :class:`.schema.Schema`.
    """

    name: str
    children: tuple[Node, ...] = ()
    scaffolds: tuple[Scaffold, ...] = ()
    where: Where | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > MAX_NAME:
            msg = f"a schema's name must be a text of up to {MAX_NAME} characters"
            raise markup_error(msg, self.where)
        object.__setattr__(self, "children", join_texts(self.children))
        object.__setattr__(self, "scaffolds", tuple(self.scaffolds))
        check = _Check()
        check.scope(self.children, depth=1)
        for slot in slots_in(self.children):
            if slot.name == "schema":
                msg = "no param of a schema can be called 'schema': <prompt> has that attribute"
                raise markup_error(msg, slot.where)
        self._check_scaffolds()

    @property
    def modules(self) -> dict[str, SchemaModule]:
        """Every module by its path, in the order of the schema."""
        return {path: module for path, module, _ in _modules(self.children)}

    def members_of(self, scaffold: Scaffold) -> tuple[str, ...]:
        """The paths of a scaffold's modules; ``*`` gives the schema's own text and all modules."""
        if scaffold.modules == (EVERYTHING,):
            return (OWN_TEXT, *self.modules)
        return scaffold.modules

    def _check_scaffolds(self) -> None:
        if not self.scaffolds:
            return
        known = {path: unions for path, _, unions in _modules(self.children)}
        count = 0
        for scaffold in self.scaffolds:
            everything = scaffold.modules == (EVERYTHING,)
            members = (OWN_TEXT, *known) if everything else scaffold.modules
            count += len(members)
            if count > MAX_SCAFFOLD_MODULES:
                msg = f"the scaffolds name more than {MAX_SCAFFOLD_MODULES} modules in all"
                raise markup_error(msg, scaffold.where)
            self._check_scaffold(scaffold, members, known)

    def _check_scaffold(
        self, scaffold: Scaffold, members: tuple[str, ...], known: Mapping[str, dict[int, str]]
    ) -> None:
        for path in members:
            if path != OWN_TEXT and path not in known:
                meant = name_hint(path, [OWN_TEXT, *known])
                msg = f"a scaffold names {path!r}, which the schema does not have{meant}"
                raise markup_error(msg, scaffold.where)
        if len(set(members)) != len(members):
            msg = f"a scaffold names a module twice: {' '.join(members)}"
            raise markup_error(msg, scaffold.where)
        if len(members) < 2:  # noqa: PLR2004 - a set of one shares nothing
            raise markup_error("a scaffold needs two modules or more", scaffold.where)
        chosen: dict[int, str] = {}
        for path in members:
            for union, member in known.get(path, {}).items():
                other = chosen.setdefault(union, member)
                if other != member:
                    raise markup_error(
                        f"a scaffold holds {other!r} and {member!r}, two members of one union, "
                        "which no prompt can import together",
                        scaffold.where,
                    )


class _Check:
    """Checks a schema in a single walk over its parts."""

    def __init__(self) -> None:
        self._reserved = 0
        self._characters = 0

    def scope(
        self, children: Sequence[Node], *, depth: int, in_turn: bool = False, path: int = 0
    ) -> None:
        """Check the content of a module, including its turns.

        Args:
            children: The content.
            depth: Number of nested modules, including this one.
            in_turn: Whether the module is within a turn.
            path: Characters of the module's path and the slash after it.
        """
        if depth > MAX_DEPTH:
            msg = f"modules are nested more than {MAX_DEPTH} deep"
            raise markup_error(msg, _place(children))
        names: set[str] = set()
        slots: set[str] = set()
        for node, inside in _in_scope(children, in_turn=in_turn):
            match node:
                case Slot():
                    self._once(node.name, slots, "param", node.where)
                    self._reserved += node.length
                    if self._reserved > MAX_RESERVED:
                        msg = f"the params reserve more than {MAX_RESERVED} tokens"
                        raise markup_error(msg, node.where)
                case SchemaModule():
                    self._once(node.name, names, "module", node.where)
                    end = path + len(node.name)
                    self._characters += end
                    if self._characters > MAX_PATHS:
                        msg = f"the paths of the modules have more than {MAX_PATHS} characters"
                        raise markup_error(msg, node.where)
                    self.scope(node.children, depth=depth + 1, in_turn=inside, path=end + 1)
                case Turn() if inside:
                    raise markup_error(f"<{node.role}> is within another turn", node.where)
                case Text() | Turn():
                    pass
                case _:
                    msg = f"a schema holds text, params, modules, unions and turns, got {node!r}"
                    raise markup_error(msg, None)

    def _once(self, name: str, seen: set[str], kind: str, where: Where | None) -> None:
        if name in seen:
            raise markup_error(f"there are two {kind}s called {name!r} in one place", where)
        seen.add(name)


def check_name(name: object, kind: str, where: Where | None = None) -> None:
    """Refuse a name that cannot be a tag or an attribute.

    Args:
        name: The name.
        kind: What it denotes, such as ``module``, for the message.
        where: Its place in the source.

    Raises:
        MarkupError: It is not a valid name.
    """
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise markup_error(
            f"the name of a {kind} begins with an ASCII letter or '_', followed by letters, "
            f"digits, '.', '_' and '-', and has up to {MAX_NAME} characters; got {name!r:.200}",
            where,
        )


def join_texts(children: Iterable[_Child]) -> tuple[_Child | Text, ...]:
    """Merge neighbouring texts, and drop empty ones."""
    kept = (child for child in children if not isinstance(child, Text) or child.text)
    return tuple(join_neighbours(kept, lambda child: isinstance(child, Text), _merge_texts))


def _merge_texts(texts: list[Any]) -> Text:
    return Text("".join(text.text for text in texts), texts[0].where)


def slots_in(children: Sequence[Node]) -> Iterator[Slot]:
    """The slots of a module, including those in its turns."""
    return (node for node, _ in _in_scope(children) if isinstance(node, Slot))


def _in_scope(children: Sequence[Node], *, in_turn: bool = False) -> Iterator[tuple[Node, bool]]:
    """The nodes of a module, and whether each is within a turn; members stand for their union."""
    for child in children:
        if isinstance(child, Union):
            yield from ((member, in_turn) for member in child.members)
            continue
        yield child, in_turn
        if isinstance(child, Turn) and not in_turn:
            yield from _in_scope(child.children, in_turn=True)


def _modules(
    children: Sequence[Node], parent: str = "", unions: dict[int, str] | None = None
) -> Iterator[tuple[str, SchemaModule, dict[int, str]]]:
    """Modules by path, with the member that importing them chooses in each union around them."""
    for child in children:
        match child:
            case SchemaModule():
                path = f"{parent}{child.name}"
                yield path, child, unions or {}
                yield from _modules(child.children, f"{path}/", unions)
            case Union():
                for member in child.members:
                    chosen = {**(unions or {}), id(child): f"{parent}{member.name}"}
                    yield from _modules((member,), parent, chosen)
            case Turn():
                yield from _modules(child.children, parent, unions)
            case _:
                pass


def _place(children: Sequence[Node]) -> Where | None:
    return children[0].where if children else None
