"""A schema laid out for a model: the tokens and positions of its modules (Prompt Cache §3.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ragcache_integrations.core.prompt import RenderedPrompt
from ragcache_integrations.errors import ConfigurationError

from .assembling import Compilation, CompiledScaffold, PlacedTurn, Scope, assemble
from .layout import Assembly, Module, Param, render_assembly, render_modules
from .markup import markup_error
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
from .prompt import Prompt
from .tokens import Encoder, Tokenizer, has_chat_template

__all__ = ["CompiledSchema"]


class CompiledSchema(Compilation):
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
        return assemble(self, prompt)

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
