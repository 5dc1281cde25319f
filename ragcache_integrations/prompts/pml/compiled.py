"""A schema laid out for a model, and the prompts that are put together from it.

The layout has the tokens and positions of the schema's modules (Prompt Cache §3.3). A prompt
consists of modules that it imports and of new tokens (§3.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from types import MappingProxyType

from ragcache_integrations.core.prompt import RenderedPrompt
from ragcache_integrations.errors import ConfigurationError

from .layout import Assembly, Fresh, Module, Param, Placed, render_assembly, render_modules
from .markup import Where, markup_error, name_hint
from .nodes import (
    OWN_TEXT,
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
from .prompt import Import, Prompt
from .tokens import ChatRoles, Encoder, Markers, Tokenizer, has_chat_template

__all__ = ["CompiledSchema", "Scope"]


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


class CompiledSchema:
    """A schema with tokens and positions. Thread-safe; made by :meth:`.schema.Schema.compile`.

    Attributes:
        schema: The schema that was compiled.
        root: The schema's own text and all modules.
        modules: The modules to encode, by path; ``#text`` is the schema's own text. A module that
            consists only of modules has no tokens and is not among them.
        scaffolds: Modules to encode together as well.
        encoder: Makes tokens of text.
    """

    def __init__(self, schema: SchemaTree, tokenizer: Tokenizer) -> None:
        self.schema = schema
        self.encoder = Encoder.of(tokenizer)
        self._tokenizer = tokenizer
        builder = _Builder(self)
        head = self.encoder.head
        if not head and has_chat_template(tokenizer) and self.roles.begins_text:
            head = (tokenizer.bos_token_id,)
        self.root = builder.build(schema, head)
        self.modules: Mapping[str, Module] = MappingProxyType(builder.modules)
        self.scaffolds = tuple(
            scaffold for scaffold in map(self._scaffold, schema.scaffolds) if scaffold is not None
        )

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

    @property
    def length(self) -> int:
        """Number of positions that the schema takes; new text may take those after it."""
        return self.root.end

    def assemble(self, prompt: Prompt | str) -> Assembly:
        """Put a prompt together (§3.4).

        An argument takes the positions of its param. New text between two imports takes the first
        gap after the first of them that is long enough, such as the positions of a module that was
        left out. Text and turns at the end come after everything that is imported. A turn of the
        user is followed by the opening of the model's answer.

        Args:
            prompt: A prompt of this schema, or its markup.

        Raises:
            MarkupError: The prompt does not conform to the schema, an argument is longer than its
                param, new text finds no room, or nothing is left to compute at the end.
            ConfigurationError: The chat template refuses the turns.
        """
        if isinstance(prompt, str):
            prompt = Prompt.from_pml(prompt)
        return _Assembler(self, prompt).assemble()

    def render(self, prompt: Prompt | str) -> RenderedPrompt:
        """Put a prompt together for the vLLM engine with ``reuse="anywhere"``.

        Its modules are its documents; the schema's own text, arguments and new text are computed.
        The tokens are those of :meth:`assemble`, in the order of their positions, without the
        positions that stay empty. A param, or a module within, cuts a module in two documents, each
        of which is encoded on its own.

        If no position stays empty, no module is cut, and all of the schema's own text comes first,
        the answers with ``link_tokens=0`` are those of the strategy ``prompt_cache``.

        Args:
            prompt: A prompt of this schema, or its markup.

        Raises:
            MarkupError: As :meth:`assemble`.
            ConfigurationError: As :meth:`assemble`.
        """
        return render_assembly(self.assemble(prompt), self.schema.name, [OWN_TEXT])

    def documents(self) -> list[RenderedPrompt]:
        """The documents that :meth:`render` makes of the modules, for ``engine.encode``."""
        modules = [module for name, module in self.modules.items() if name != OWN_TEXT]
        modules += (scaffold.module for scaffold in self.scaffolds)
        return render_modules(modules, self.schema.name)

    def _scaffold(self, scaffold: Scaffold) -> CompiledScaffold | None:
        members = self.schema.members_of(scaffold)
        modules = [self.modules[path] for path in members if path in self.modules]
        if not modules:
            return None
        name = f"scaffold({' '.join(scaffold.modules)})"
        return CompiledScaffold(_merge_modules(name, modules), frozenset(members))


class _Builder:
    """Lays modules out one after the other, from position 0."""

    def __init__(self, compiled: CompiledSchema) -> None:
        self._compiled = compiled
        self._encoder = compiled.encoder
        self._roles: list[Role] = []  # of the turns before the current place
        self._unions = 0
        self.modules: dict[str, Module] = {}

    def build(self, schema: SchemaTree, head: tuple[int, ...]) -> Scope:
        return self._scope("", OWN_TEXT, schema.children, 0, head)

    def _scope(
        self,
        path: str,
        name: str,
        children: Sequence[Node],
        start: int,
        head: tuple[int, ...] = (),
    ) -> Scope:
        scope = Scope(path, start, start)
        own = _OwnTokens(start)
        self.modules[name] = _UNFINISHED  # in the order of the schema
        own.add(head)
        self._lay(children, scope, own)
        scope.end = own.next
        if own.token_ids:
            module = Module(name, tuple(own.token_ids), tuple(own.positions), tuple(own.params))
            self.modules[name] = scope.module = module
        else:
            del self.modules[name]
        return scope

    def _lay(self, children: Sequence[Node], scope: Scope, own: _OwnTokens) -> None:
        for child in children:
            match child:
                case Text():
                    own.add(self._compiled.tokens(child.text, child.where))
                case Slot():
                    scope.slots[child.name] = range(own.next, own.next + child.length)
                    own.params.append(Param(child.name, len(own.token_ids), child.length))
                    own.add([self._encoder.blank] * child.length)
                case SchemaModule():
                    own.next = self._nested(child, scope, own.next).end
                case Union():
                    own.next = self._members(child, scope, own.next)
                case Turn():
                    self._turn(child, scope, own)

    def _members(self, union: Union, scope: Scope, start: int) -> int:
        """Lay out the members of a union from the same position; return the end of the longest."""
        number = self._unions
        self._unions += 1
        before, longest, end = self._roles, self._roles, start
        for module in union.members:
            self._roles = before.copy()  # a prompt has no turns of the other members
            member = self._nested(module, scope, start)
            member.union = number
            end = max(end, member.end)
            longest = max(longest, self._roles, key=len)
        self._roles = longest
        return end

    def _nested(self, module: SchemaModule, scope: Scope, start: int) -> Scope:
        path = f"{scope.path}/{module.name}" if scope.path else module.name
        nested = self._scope(path, path, module.children, start)
        scope.children[module.name] = nested
        return nested

    def _turn(self, turn: Turn, scope: Scope, own: _OwnTokens) -> None:
        self._roles.append(turn.role)
        try:
            markers = self._compiled.roles.markers(self._roles)[-1]
        except ConfigurationError as error:
            raise markup_error(str(error), turn.where) from error
        scope.turns.append(PlacedTurn(own.next, turn.role, markers))
        own.add(self._encoder.markup(markers.opening))
        self._lay(turn.children, scope, own)
        own.add(self._encoder.markup(markers.closing))


class _OwnTokens:
    """The tokens of a module itself; modules within it leave gaps."""

    def __init__(self, start: int) -> None:
        self.next = start
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.params: list[Param] = []

    def add(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self.token_ids.append(token_id)
            self.positions.append(self.next)
            self.next += 1


_UNFINISHED = Module("unfinished", (0,), (0,))


def _merge_modules(name: str, modules: Sequence[Module]) -> Module:
    """Merge modules into one, in the order of their positions."""
    tokens = sorted(
        (position, token_id)
        for module in modules
        for position, token_id in zip(module.positions, module.token_ids, strict=True)
    )
    positions = tuple(position for position, _ in tokens)
    at = {position: offset for offset, position in enumerate(positions)}
    params = sorted(
        (
            Param(f"{module.name}.{param.name}", at[module.positions[param.start]], param.length)
            for module in modules
            for param in module.params
        ),
        key=lambda param: param.start,
    )
    token_ids = tuple(token_id for _, token_id in tokens)
    members = tuple(module.name for module in modules)
    return Module(name, token_ids, positions, tuple(params), members)


@dataclass(slots=True)
class _ResolvedImport:
    """A module that the prompt imports, with the content of its import."""

    scope: Scope
    where: Where | None
    children: list[Text | _ResolvedImport] = field(default_factory=list)


class _Assembler:
    """Assembles a single prompt."""

    def __init__(self, compiled: CompiledSchema, prompt: Prompt) -> None:
        self._compiled = compiled
        self._prompt = prompt
        self._scopes: list[Scope] = []
        self._fresh: list[Fresh] = []
        self._used = _UsedPositions()

    def assemble(self) -> Assembly:
        prompt = self._prompt
        schema = self._compiled.schema
        if prompt.schema != schema.name:
            msg = f"the prompt is of schema {prompt.schema!r}, this is {schema.name!r}"
            raise markup_error(msg, prompt.where)
        root = _ResolvedImport(self._compiled.root, prompt.where)
        self._scopes.append(root.scope)
        self._fill(root.scope, prompt.arguments, prompt.where)
        inner, tail = _split(prompt)
        root.children = list(self._resolve(root.scope, inner))
        for scope in self._scopes:
            if scope.module is not None:
                self._used.add(scope.module.positions)
        self._place_texts(root)
        self._place_tail(tail)
        return Assembly(self._parts())

    # Imports

    def _resolve(
        self, scope: Scope, children: Sequence[Text | Import]
    ) -> Iterator[Text | _ResolvedImport]:
        seen: dict[str, Import] = {}
        chosen: dict[int, Import] = {}
        for child in children:
            if isinstance(child, Text):
                yield child
                continue
            module = self._module(scope, child)
            if child.name in seen:
                raise markup_error(f"{child.name!r} is imported twice", child.where)
            seen[child.name] = child
            if module.union is not None:
                other = chosen.setdefault(module.union, child)
                if other is not child:
                    raise markup_error(
                        f"{other.name!r} and {child.name!r} are members of one union: import one "
                        "of them",
                        child.where,
                    )
            self._scopes.append(module)
            self._fill(module, child.arguments, child.where)
            children_of = list(self._resolve(module, child.children))
            yield _ResolvedImport(module, child.where, children_of)

    def _module(self, scope: Scope, import_: Import) -> Scope:
        module = scope.children.get(import_.name)
        if module is not None:
            return module
        place = f"module {scope.path!r}" if scope.path else "the schema"
        elsewhere = [
            path.rpartition("/")[0]
            for path in self._compiled.schema.modules
            if path.rpartition("/")[2] == import_.name
        ]
        if elsewhere:
            parents = " or ".join(repr(path) if path else "the prompt itself" for path in elsewhere)
            msg = f"{import_.name!r} is not a module of {place}: import it within {parents}"
        else:
            msg = f"{place} has no module {import_.name!r}"
            msg += name_hint(import_.name, scope.children)
        raise markup_error(msg, import_.where)

    def _fill(self, scope: Scope, arguments: Mapping[str, str], where: Where | None) -> None:
        name = f"module {scope.path!r}" if scope.path else "the schema"
        for param, argument in arguments.items():
            slot = scope.slots.get(param)
            if slot is None:
                msg = f"{name} has no param {param!r}{name_hint(param, scope.slots)}"
                raise markup_error(msg, where)
            tokens = self._compiled.tokens(argument, where)
            if len(tokens) > len(slot):
                raise markup_error(
                    f"the argument {param!r} of {name} has {len(tokens)} tokens; "
                    f"allowed: {len(slot)}",
                    where,
                )
            self._compute(tokens, slot.start, scope.path or OWN_TEXT)

    # New text

    def _place_texts(self, import_: _ResolvedImport) -> None:
        """Put text into the gaps of modules that were left out."""
        scope = import_.scope
        children = import_.children
        after, name = scope.start, ""
        for at, child in enumerate(children):
            if isinstance(child, _ResolvedImport):
                after, name = child.scope.end, child.scope.path
                self._place_texts(child)
                continue
            follower = next(
                (later for later in children[at:] if isinstance(later, _ResolvedImport)), None
            )
            before = scope.end if follower is None else follower.scope.start
            if follower is not None and name and before < after:
                raise markup_error(
                    f"text comes between {name!r} and {follower.scope.path!r}, which the schema "
                    "has in the other order",
                    child.where,
                )
            tokens = self._compiled.tokens(child.text, child.where)
            start, longest = self._used.gap(after, before, len(tokens))
            if start is None:
                raise markup_error(
                    f"new text of {len(tokens)} tokens finds no room between positions {after} and "
                    f"{before}: at most {longest} are free in a row; leave out a module, put the "
                    "text at the prompt's end, or add a param to the schema",
                    child.where,
                )
            self._compute(tokens, start)
            self._used.add(range(start, start + len(tokens)))
            after = start + len(tokens)

    def _place_tail(self, tail: Sequence[Text | Turn]) -> None:
        turns = self._turns()
        roles = [turn.role for turn in turns]
        roles += (item.role for item in tail if isinstance(item, Turn))
        markers = self._compiled.roles.markers(roles) if roles else ()
        if any(turn.markers != other for turn, other in zip(turns, markers, strict=False)):
            raise markup_error(
                "the model's chat template writes the turns of these modules in another way when "
                "others are left out: put such turns into the schema itself",
                self._prompt.where,
            )
        at = self._used.end
        following = iter(markers[len(turns) :])
        for number, item in enumerate(tail):
            if isinstance(item, Text):
                pieces = [self._compiled.tokens(item.text, item.where)]
            else:
                marker = next(following)
                text = "".join(child.text for child in item.children if isinstance(child, Text))
                pieces = [self._compiled.encoder.markup(marker.opening)]
                pieces.append(self._compiled.tokens(text, item.where))
                # A last turn of the assistant stays open, so that the model continues it.
                if item.role != "assistant" or number < len(tail) - 1:
                    pieces.append(self._compiled.encoder.markup(marker.closing))
            at = self._compute([token for piece in pieces for token in piece], at)
        last = tail[-1] if tail else None
        if roles and not isinstance(last, Text) and not (last and last.role == "assistant"):
            self._compute(self._compiled.encoder.markup(self._compiled.roles.answer(roles)), at)

    def _turns(self) -> list[PlacedTurn]:
        turns = [turn for scope in self._scopes for turn in scope.turns]
        return sorted(turns, key=lambda turn: turn.start)

    def _compute(self, tokens: Sequence[int], start: int, fills: str = "") -> int:
        end = start + len(tokens)
        if tokens:
            self._fresh.append(Fresh(tuple(tokens), tuple(range(start, end)), fills))
        return end

    # The whole

    def _parts(self) -> tuple[Placed | Fresh, ...]:
        placed = (Placed(module) for module in self._modules_to_serve())
        parts: list[Placed | Fresh] = [part for part in placed if _last(part) >= 0]
        parts = sorted([*parts, *self._fresh], key=_first)
        last = max(self._fresh, key=_last, default=None)
        if last is None or any(_last(part) > _last(last) for part in parts):
            raise markup_error(
                "the prompt ends in a module, so there is nothing to compute an answer from: end "
                "it with text, a turn, or an argument at the end of its last module",
                self._prompt.where,
            )
        parts.remove(last)
        return (*parts, last)

    def _modules_to_serve(self) -> Iterator[Module]:
        """Scaffolds all of whose modules are imported, longest first; then the other modules."""
        waiting = {scope.path or OWN_TEXT: scope.module for scope in self._scopes}
        for scaffold in sorted(
            self._compiled.scaffolds, key=lambda scaffold: -len(scaffold.module.token_ids)
        ):
            if scaffold.members <= waiting.keys():
                for path in scaffold.members:
                    del waiting[path]
                yield scaffold.module
        yield from (module for module in waiting.values() if module is not None)


class _UsedPositions:
    """Positions that are in use, as sorted ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return max((end for _, end in self._ranges), default=0)

    def add(self, positions: Sequence[int]) -> None:
        for _, run in groupby(enumerate(positions), lambda pair: pair[1] - pair[0]):
            ends = [position for _, position in run]
            self._ranges.append((ends[0], ends[-1] + 1))
        self._ranges.sort()

    def gap(self, start: int, end: int, length: int) -> tuple[int | None, int]:
        """The start of the first gap of ``length`` positions, and how many are free there.

        Without such a gap: ``None``, and the size of the largest gap.
        """
        longest = 0
        within = [(a, b) for a, b in self._ranges if b > start and a < end]
        edges = [(start, start), *within, (end, end)]
        for (_, free), (used, _) in pairwise(edges):
            at = max(free, start)
            room = min(used, end) - at
            if room >= length:
                return at, room
            longest = max(longest, room)
        return None, longest


def _split(prompt: Prompt) -> tuple[list[Text | Import], list[Text | Turn]]:
    """Split a prompt: imports and the text among them, and everything after the last import."""
    count = 1 + max(
        (at for at, child in enumerate(prompt.children) if isinstance(child, Import)), default=-1
    )
    inner = [child for child in prompt.children[:count] if not isinstance(child, Turn)]
    tail = [child for child in prompt.children[count:] if not isinstance(child, Import)]
    return inner, tail


def _first(part: Placed | Fresh) -> int:
    return (part.module.positions if isinstance(part, Placed) else part.positions)[0]


def _last(part: Placed | Fresh) -> int:
    """The last position that serves; -1 if there is none."""
    if isinstance(part, Fresh):
        return part.positions[-1]
    at = len(part.module.positions) - 1
    for param in reversed(part.module.params):
        if param.start + param.length - 1 == at:
            at = param.start - 1
    return part.module.positions[at] if at >= 0 else -1
