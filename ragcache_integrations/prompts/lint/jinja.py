"""Reads Jinja templates for the linter, without rendering anything.

The syntax tree is walked instead: each loop once, one branch of each condition, each macro at its
calls. So not even a hostile template can run code, loop, or fill the memory.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ConfigurationError

from .lint import (
    LONGEST_REASON,
    TemplatePiece,
    TemplateVariable,
    join_pieces,
)

if TYPE_CHECKING:
    from jinja2 import nodes

__all__ = ["MAX_TEMPLATE", "jinja_pieces"]

MAX_TEMPLATE = 2**20
"""The most characters of a template."""

MAX_REPEATED = 4
"""Budget of a walk for each character of a template. Each node and each piece costs 1, and each
sixteen characters of text 1 more: macros and variables may repeat others, and those others again,
which would take exponential time."""

SHORT = 10_000
"""Characters that the budget of a shorter template is computed with."""

BLOCKS = ("chat", "completion", "generation")
"""Tags with text in them that prompt libraries add: two of banks, and one of chat templates."""

_GLOBALS = frozenset({"range", "dict", "lipsum", "cycler", "joiner", "namespace", "loop", "caller"})
_MISSING = frozenset({"none", "undefined", "false"})

Scope = ChainMap[str, list[TemplatePiece]]
"""The values of the names that the template itself assigns."""


def jinja_pieces(text: str) -> list[TemplatePiece]:
    """Cut a Jinja template into text and variables.

    A loop becomes the variable that it iterates over; its text counts as that variable's. Of a
    condition, the branch counts that is taken if all variables have values.

    Raises:
        ConfigurationError: The text is no Jinja template, includes others, or is too large.
        MissingExtraError: Jinja is not installed.
    """
    if len(text) > MAX_TEMPLATE:
        msg = f"a Jinja template must have at most {MAX_TEMPLATE} characters, got {len(text)}"
        raise ConfigurationError(msg)
    jinja2 = require("jinja2", feature="linting Jinja templates", package="jinja2")
    ext = require("jinja2.ext", feature="linting Jinja templates", package="jinja2")
    environment = jinja2.Environment(  # used for parsing only
        extensions=[ext.do, ext.loopcontrols, _blocks(ext.Extension, jinja2.nodes)],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    try:
        tree = environment.parse(text)
        return join_pieces(_Walk(jinja2.nodes, len(text)).body(tree.body, ChainMap()))
    except ConfigurationError:
        raise
    # Python refuses to read or write an integer of thousands of digits: a plain ValueError.
    except (jinja2.TemplateError, ValueError) as error:
        msg = f"the Jinja template cannot be read: {str(error)[:LONGEST_REASON]}"
        raise ConfigurationError(msg) from error
    except RecursionError as error:
        raise ConfigurationError("the Jinja template is nested too deeply") from error


def _blocks(extension: Any, kinds: Any) -> type:
    """A Jinja extension that replaces :data:`BLOCKS` by their contents."""

    class Blocks(extension):  # type: ignore[misc]  # Jinja is loaded when it is needed
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
        self._called: set[str] = set()  # macros being walked: recursive calls are skipped
        self._numbered = False  # whether the current loop writes the number of its iteration
        self._readers: dict[type, Reader] = {}
        self._kinds: list[tuple[type | tuple[type, ...], Reader]] = [
            (kinds.Output, lambda node, scope: self.body(node.nodes, scope)),
            (kinds.TemplateData, lambda node, _: self._spend([node.data])),
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
        """The pieces of some nodes, in order."""
        return [piece for node in body for piece in self._walk(node, scope)]

    def _walk(self, node: nodes.Node, scope: Scope) -> list[TemplatePiece]:
        self._spend([""])
        kind = type(node)
        if kind not in self._readers:
            self._readers[kind] = next(r for base, r in self._kinds if issubclass(kind, base))
        return self._readers[kind](node, scope)

    def _spend(self, pieces: list[TemplatePiece]) -> list[TemplatePiece]:
        texts = (piece for piece in pieces if isinstance(piece, str))
        self._room -= len(pieces) + sum(map(len, texts)) // 16
        if self._room < 0:
            msg = "the Jinja template must not repeat itself so often: lint requests instead"
            raise ConfigurationError(msg)
        return pieces

    def _name(self, node: nodes.Name, scope: Scope) -> list[TemplatePiece]:
        if node.name in scope:
            return self._spend(scope[node.name])
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
            return self._expand(node, scope, [])
        return self.body([node.node], scope) + self._variables([*node.args, *node.kwargs], scope)

    def _expand(
        self, node: nodes.Call, scope: Scope, caller: list[TemplatePiece]
    ) -> list[TemplatePiece]:
        """The pieces of a macro that is called."""
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
        return self._take_branch(branches, scope)

    def _condition(self, node: nodes.If, scope: Scope) -> list[TemplatePiece]:
        branches = [(branch.test, branch.body) for branch in (node, *node.elif_)]
        return self._take_branch([*branches, (None, node.else_)], scope)

    def _take_branch(
        self, branches: Sequence[tuple[Any, Sequence[nodes.Node]]], scope: Scope
    ) -> list[TemplatePiece]:
        """The branch for variables that have values, and other variables of the other branches."""
        place = next(n for n, (test, _) in enumerate(branches) if not self._needs_missing(test))
        branch = self.body(branches[place][1], scope)
        others = [node for n, (_, body) in enumerate(branches) if n != place for node in body]
        return branch + self._missing_variables(branch, self._variables(others, scope))

    def _needs_missing(self, test: nodes.Node | None) -> bool:
        """Whether a test holds if a value is missing."""
        if isinstance(test, self._nodes.Not):
            return not self._needs_missing(test.node)
        return isinstance(test, self._nodes.Test) and test.name in _MISSING

    @staticmethod
    def _missing_variables(
        pieces: list[TemplatePiece], others: list[TemplatePiece]
    ) -> list[TemplatePiece]:
        """The variables of ``others`` that ``pieces`` lacks, each once."""
        known = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
        more = {p.name: p for p in others if isinstance(p, TemplateVariable)}
        return [piece for name, piece in more.items() if name not in known]

    def _filter(self, node: nodes.Filter, scope: Scope) -> list[TemplatePiece]:
        pieces = self._walk(node.node, scope) if node.node is not None else []
        return pieces + self._variables([*node.args, *node.kwargs], scope)

    def _loop(self, node: nodes.For, scope: Scope) -> list[TemplatePiece]:
        over = self._variables([node.iter], scope)
        outer, self._numbered = self._numbered, False
        inner = scope.new_child({**self._bindings(node.target, over), "loop": []})
        body = self.body(node.body, inner)
        numbered, self._numbered = self._numbered, outer
        if not over:
            return body
        place = [
            replace(piece, numbered=numbered or piece.numbered)
            for piece in over
            if isinstance(piece, TemplateVariable)
        ]
        return [*place, *self._missing_variables(over, body)]

    def _bindings(
        self, target: nodes.Node, value: list[TemplatePiece]
    ) -> dict[str, list[TemplatePiece]]:
        """The names that an assignment sets, all of them to its whole value."""
        if isinstance(target, self._nodes.Name):
            return {target.name: value}
        return dict.fromkeys([name.name for name in target.find_all(self._nodes.Name)], value)

    def _define(self, node: nodes.Macro, scope: Scope) -> list[TemplatePiece]:
        del scope  # a macro cannot use it
        self._macros[node.name] = node
        return []

    def _call_block(self, node: nodes.CallBlock, scope: Scope) -> list[TemplatePiece]:
        body = self.body(node.body, scope.new_child())
        name = getattr(node.call.node, "name", "")
        return self._expand(node.call, scope, body) if name in self._macros else body

    def _assign(self, node: nodes.Assign, scope: Scope) -> list[TemplatePiece]:
        scope.update(self._bindings(node.target, self._walk(node.node, scope)))
        return []

    def _assign_block(self, node: nodes.AssignBlock, scope: Scope) -> list[TemplatePiece]:
        scope.update(self._bindings(node.target, self.body(node.body, scope.new_child())))
        return []

    def _with(self, node: nodes.With, scope: Scope) -> list[TemplatePiece]:
        inner = scope.new_child()
        for target, value in zip(node.targets, node.values, strict=True):
            inner.update(self._bindings(target, self._walk(value, scope)))
        return self.body(node.body, inner)

    def _refuse(self, node: nodes.Node, scope: Scope) -> list[TemplatePiece]:
        del scope
        kind = type(node).__name__.lower()
        msg = f"the Jinja template has an {kind}, and no other template is read: lint requests"
        raise ConfigurationError(msg)

    def _others(self, node: nodes.Node, scope: Scope) -> list[TemplatePiece]:
        """The variables in any other expression."""
        return self._variables(node.iter_child_nodes(), scope)

    def _variables(self, children: Iterable[nodes.Node], scope: Scope) -> list[TemplatePiece]:
        """The variables in some nodes, each once."""
        return self._missing_variables([], self.body(children, scope))
