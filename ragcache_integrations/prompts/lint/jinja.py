"""Reading Jinja templates for the linter: what stands where, without rendering anything.

The syntax tree is walked instead: each loop once, the first branch of each condition, each macro
where it is called. So no template, whoever wrote it, runs code, loops or fills the memory.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.lint.templates import (
    TemplatePiece,
    TemplateVariable,
    joined_pieces,
)

if TYPE_CHECKING:
    from jinja2 import nodes

__all__ = ["MAX_TEMPLATE", "jinja_pieces"]

MAX_TEMPLATE = 2**20
"""Characters of a template."""

MAX_REPEATED = 4
"""Nodes and pieces that are walked for each character of a template, and as many for each sixteen
that are repeated: macros and variables may repeat others, and those others in turn."""

SHORT = 10_000
"""Characters up to which a template may repeat itself as if it had as many."""

BLOCKS = ("chat", "completion", "generation")
"""Tags that prompt libraries add, which hold text: banks' two and that of chat templates."""

_GLOBALS = frozenset({"range", "dict", "lipsum", "cycler", "joiner", "namespace", "loop", "caller"})
_MISSING = frozenset({"none", "undefined", "false"})

Scope = ChainMap[str, list[TemplatePiece]]
"""What names stand for that the template itself gives to something."""


def jinja_pieces(text: str) -> list[TemplatePiece]:
    """Cut a Jinja template into text and variables.

    A loop is one place, where the variable stands that it runs over; its text is counted as that
    variable's. Of a condition the branch counts that is taken where there are values.

    Raises:
        ConfigurationError: It is none, it includes other templates, or it is too large.
        MissingExtraError: Jinja is not installed.
    """
    if len(text) > MAX_TEMPLATE:
        msg = f"a Jinja template must have at most {MAX_TEMPLATE} characters, got {len(text)}"
        raise ConfigurationError(msg)
    jinja2 = require("jinja2", feature="linting Jinja templates", extra="eval")
    ext = require("jinja2.ext", feature="linting Jinja templates", extra="eval")
    environment = jinja2.Environment(  # it parses, and renders nothing
        extensions=[ext.do, ext.loopcontrols, _blocks(ext.Extension, jinja2.nodes)],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        tree = environment.parse(text)
        return joined_pieces(_Walk(jinja2.nodes, len(text)).body(tree.body, ChainMap()))
    except jinja2.TemplateError as error:
        msg = f"the Jinja template cannot be read: {error}"
        raise ConfigurationError(msg) from error
    except RecursionError as error:
        msg = "the Jinja template is nested too deeply"
        raise ConfigurationError(msg) from error


def _blocks(extension: Any, kinds: Any) -> type:
    """An extension that reads :data:`BLOCKS` as what they hold."""

    class Blocks(extension):  # type: ignore[misc]  # loaded when it is needed
        tags = frozenset(BLOCKS)

        def parse(self, parser: Any) -> Any:
            tag = next(parser.stream)
            while parser.stream.current.type not in {"block_end", "eof"}:
                next(parser.stream)
            body = parser.parse_statements((f"name:end{tag.value}",), drop_needle=True)
            return kinds.Scope(body, lineno=tag.lineno)

    return Blocks


Reader = Callable[..., list[TemplatePiece]]
"""Reads a node of one kind in a scope."""


class _Walk:
    """One walk through a template's syntax tree."""

    def __init__(self, kinds: Any, length: int) -> None:
        self._room = MAX_REPEATED * max(SHORT, length)
        self._macros: dict[str, nodes.Macro] = {}
        self._called: set[str] = set()  # a macro that calls itself is not walked again inside
        self._numbered = False  # whether the loop that is walked writes the number of its turn
        self._readers: dict[type, Reader] = {}
        self._kinds: list[tuple[type | tuple[type, ...], Reader]] = [
            (kinds.Output, lambda node, scope: self.body(node.nodes, scope)),
            (kinds.TemplateData, lambda node, _: self._spent([node.data])),
            (kinds.Const, lambda node, _: [] if node.value is None else [str(node.value)]),
            (kinds.Name, self._name),
            ((kinds.Getattr, kinds.Getitem), self._part),
            (kinds.Call, self._call),
            ((kinds.Concat, kinds.Add), lambda n, scope: self.body(n.iter_child_nodes(), scope)),
            (kinds.CondExpr, self._choice),
            (kinds.Filter, self._filter),
            (kinds.Test, lambda *_: []),
            (kinds.For, self._loop),
            (kinds.If, self._condition),
            (kinds.Macro, self._define),
            (kinds.CallBlock, self._call_block),
            (kinds.Assign, self._assign),
            (kinds.AssignBlock, self._assign_block),
            (kinds.With, self._with),
            (kinds.ExprStmt, lambda *_: []),
            ((kinds.Include, kinds.Extends, kinds.Import, kinds.FromImport), self._refuse),
            (
                (kinds.Block, kinds.FilterBlock, kinds.Scope, kinds.ScopedEvalContextModifier),
                lambda node, scope: self.body(node.body, scope.new_child()),
            ),
            (kinds.Node, self._others),
        ]
        self._nodes = kinds

    def body(self, body: Iterable[nodes.Node], scope: Scope) -> list[TemplatePiece]:
        """What stands in all of these, one after the other."""
        return [piece for node in body for piece in self._walk(node, scope)]

    def _walk(self, node: nodes.Node, scope: Scope) -> list[TemplatePiece]:
        self._spent([""])
        kind = type(node)
        if kind not in self._readers:
            self._readers[kind] = next(r for base, r in self._kinds if issubclass(kind, base))
        return self._readers[kind](node, scope)

    def _spent(self, pieces: list[TemplatePiece]) -> list[TemplatePiece]:
        texts = (piece for piece in pieces if isinstance(piece, str))
        self._room -= len(pieces) + sum(map(len, texts)) // 16
        if self._room < 0:
            msg = "the Jinja template must not repeat itself so often: lint requests instead"
            raise ConfigurationError(msg)
        return pieces

    def _name(self, node: nodes.Name, scope: Scope) -> list[TemplatePiece]:
        if node.name in scope:
            return self._spent(scope[node.name])
        return [] if node.name in _GLOBALS else [TemplateVariable(node.name)]

    def _part(self, node: nodes.Getattr, scope: Scope) -> list[TemplatePiece]:
        whole = node.node
        if isinstance(whole, self._nodes.Name) and whole.name == "loop" and "loop" in scope:
            self._numbered |= "index" in str(getattr(node, "attr", ""))
            return []
        return self._variables([whole], scope)

    def _call(self, node: nodes.Call, scope: Scope) -> list[TemplatePiece]:
        name = node.node.name if isinstance(node.node, self._nodes.Name) else ""
        if name in self._macros:
            return self._expanded(node, scope, [])
        return self.body([node.node], scope) + self._variables([*node.args, *node.kwargs], scope)

    def _expanded(
        self, node: nodes.Call, scope: Scope, caller: list[TemplatePiece]
    ) -> list[TemplatePiece]:
        """A macro where it is called."""
        macro = self._macros[getattr(node.node, "name", "")]
        if macro.name in self._called:
            return []
        names = [argument.name for argument in macro.args]
        defaults = zip(reversed(names), reversed(macro.defaults), strict=False)
        inner: dict[str, list[TemplatePiece]] = {name: [] for name in names}
        inner |= {name: self._walk(default, scope) for name, default in defaults}
        inner |= {n: self._walk(a, scope) for n, a in zip(names, node.args, strict=False)}
        inner |= {pair.key: self._walk(pair.value, scope) for pair in node.kwargs}
        self._called.add(macro.name)
        pieces = self.body(macro.body, ChainMap({**inner, "caller": caller}))
        self._called.discard(macro.name)
        return pieces

    def _choice(self, node: nodes.CondExpr, scope: Scope) -> list[TemplatePiece]:
        branches = [(node.test, [node.expr1]), (None, [node.expr2] if node.expr2 else [])]
        return self._taken(branches, scope)

    def _condition(self, node: nodes.If, scope: Scope) -> list[TemplatePiece]:
        branches = [(branch.test, branch.body) for branch in (node, *node.elif_)]
        return self._taken([*branches, (None, node.else_)], scope)

    def _taken(
        self, branches: Sequence[tuple[Any, Sequence[nodes.Node]]], scope: Scope
    ) -> list[TemplatePiece]:
        """The branch for what has a value; of the others the variables that it lacks."""
        place = next(n for n, (test, _) in enumerate(branches) if not self._asks_for_nothing(test))
        taken = self.body(branches[place][1], scope)
        others = [node for n, (_, body) in enumerate(branches) if n != place for node in body]
        return taken + self._lacking(taken, self._variables(others, scope))

    def _asks_for_nothing(self, test: nodes.Node | None) -> bool:
        """Whether a test holds where a value is missing."""
        if isinstance(test, self._nodes.Not):
            return not self._asks_for_nothing(test.node)
        return isinstance(test, self._nodes.Test) and test.name in _MISSING

    @staticmethod
    def _lacking(pieces: list[TemplatePiece], others: list[TemplatePiece]) -> list[TemplatePiece]:
        known = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
        more = {p.name: p for p in others if isinstance(p, TemplateVariable)}
        return [piece for name, piece in more.items() if name not in known]

    def _filter(self, node: nodes.Filter, scope: Scope) -> list[TemplatePiece]:
        given = self._walk(node.node, scope) if node.node is not None else []
        return given + self._variables([*node.args, *node.kwargs], scope)

    def _loop(self, node: nodes.For, scope: Scope) -> list[TemplatePiece]:
        over = self._variables([node.iter], scope)
        names = [name.name for name in self._targets(node.target)]
        outer, self._numbered = self._numbered, False
        inner = scope.new_child({**dict.fromkeys(names, over), "loop": []})
        body = self.body(node.body, inner)
        numbered, self._numbered = self._numbered, outer
        if not over:
            return body
        place = [
            replace(piece, numbered=numbered or piece.numbered)
            for piece in over
            if isinstance(piece, TemplateVariable)
        ]
        return [*place, *self._lacking(over, body)]

    def _targets(self, target: nodes.Node) -> list[nodes.Name]:
        if isinstance(target, self._nodes.Name):
            return [target]
        return list(target.find_all(self._nodes.Name))

    def _define(self, node: nodes.Macro, scope: Scope) -> list[TemplatePiece]:
        del scope  # a macro does not see it
        self._macros[node.name] = node
        return []

    def _call_block(self, node: nodes.CallBlock, scope: Scope) -> list[TemplatePiece]:
        body = self.body(node.body, scope.new_child())
        name = getattr(node.call.node, "name", "")
        return self._expanded(node.call, scope, body) if name in self._macros else body

    def _assign(self, node: nodes.Assign, scope: Scope) -> list[TemplatePiece]:
        value = self._walk(node.node, scope)
        for name in self._targets(node.target):
            scope[name.name] = value
        return []

    def _assign_block(self, node: nodes.AssignBlock, scope: Scope) -> list[TemplatePiece]:
        value = self.body(node.body, scope.new_child())
        for name in self._targets(node.target):
            scope[name.name] = value
        return []

    def _with(self, node: nodes.With, scope: Scope) -> list[TemplatePiece]:
        inner = scope.new_child()
        for target, value in zip(node.targets, node.values, strict=True):
            pieces = self._walk(value, scope)
            inner.update({name.name: pieces for name in self._targets(target)})
        return self.body(node.body, inner)

    def _refuse(self, node: nodes.Node, scope: Scope) -> list[TemplatePiece]:
        del scope
        kind = type(node).__name__.lower()
        msg = f"the Jinja template has an {kind}, and no other template is read: lint requests"
        raise ConfigurationError(msg)

    def _others(self, node: nodes.Node, scope: Scope) -> list[TemplatePiece]:
        """Of any other expression, the variables in it."""
        return self._variables(node.iter_child_nodes(), scope)

    def _variables(self, given: Iterable[nodes.Node], scope: Scope) -> list[TemplatePiece]:
        """The variables in these, each once."""
        return self._lacking([], self.body(given, scope))
