"""The body of a prompt program, read from its source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragcache_integrations.errors import MarkupError
from ragcache_integrations.prompts.pml import ROLES, Where, check_name, markup_error

from .annotations import role
from .parameters import visible_names
from .plan import (
    Branch,
    Branches,
    Call,
    ChoiceParameter,
    Condition,
    Constant,
    Flag,
    Parameter,
    ParameterReference,
    PlanNode,
    Program,
    RoleBlock,
    SlotOf,
    TextParameter,
)

__all__ = ["read_body"]

_ALLOWED = (
    "a prompt program consists of 'yield' of text, 'if' with flags, 'match' with choices, "
    "'yield from' other programs, 'with role(...)' and 'pass'"
)


def read_body(program: Program) -> tuple[PlanNode, ...]:
    """Read what a program yields, and under which conditions.

    Raises:
        MarkupError: The source cannot be found, or it uses a statement or expression that has no
            counterpart in a schema; the message names file, line and column.
    """
    return _Reader(program).read()


class _Names:
    """Names within a module; a name that is used again gets a number."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def new(self, name: str) -> str:
        number, unique = 1, name
        while unique in self._used:
            number += 1
            unique = f"{name}.{number}"
        self._used.add(unique)
        return unique


class _Scope:
    """The names of the modules and params within a module."""

    def __init__(self) -> None:
        self.modules = _Names()
        self.params = _Names()


class _Reader:
    """Turns the statements of a program's source into a plan."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._function = program.function
        self._parameters: Mapping[str, Parameter] = program.parameters
        self._names = visible_names(program.function)
        code = self._function.__code__
        self._file = code.co_filename
        self._line = code.co_firstlineno
        self._column = 0

    def read(self) -> tuple[PlanNode, ...]:
        body = self._definition().body
        match body:
            case [ast.Expr(ast.Constant(str())), *rest]:  # the docstring
                return self._body(rest, _Scope())
            case _:
                return self._body(body, _Scope())

    def _definition(self) -> ast.FunctionDef:
        try:
            lines, self._line = inspect.getsourcelines(self._function)
        except (OSError, TypeError):
            msg = (
                f"the source of the program {self._program.name!r} cannot be found: define it in "
                "a file or a notebook"
            )
            raise markup_error(msg, Where(self._line, 1, self._file)) from None
        source = "".join(lines)
        if lines[0][:1].isspace():  # a nested definition; dedenting would change its texts
            source = f"if True:\n{source}"
            self._line -= 1
        try:
            tree = ast.parse(source)
        except SyntaxError:
            tree = ast.Module([], [])
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef():
                    return node
                case ast.AsyncFunctionDef():
                    raise self._error(node, "'async def'")
        msg = f"the program {self._program.name!r} is not a function definition on its own"
        raise markup_error(msg, Where(self._line, 1, self._file))

    def _body(self, statements: Sequence[ast.stmt], scope: _Scope) -> tuple[PlanNode, ...]:
        return tuple(node for statement in statements for node in self._statement(statement, scope))

    def _statement(self, node: ast.stmt, scope: _Scope) -> Iterator[PlanNode]:
        match node:
            case ast.Expr(ast.Yield(ast.expr() as value)):
                yield from self._text(value, scope)
            case ast.Expr(ast.YieldFrom(ast.Call() as call)):
                yield self._call(call, scope)
            case ast.If():
                yield self._if(node, scope)
            case ast.Match():
                yield self._match(node, scope)
            case ast.With():
                yield self._with(node, scope)
            case ast.Pass():
                pass
            case _:
                raise self._error(node, f"'{ast.unparse(node).splitlines()[0]}'")

    # Text

    def _text(self, node: ast.expr, scope: _Scope) -> Iterator[PlanNode]:
        match node:
            case ast.Constant(str(text)):
                yield text
            case ast.Name(name) if isinstance(self._parameters.get(name), TextParameter):
                yield self._slot(name, node, scope)
            case ast.JoinedStr(parts):
                for part in parts:
                    yield from self._text(part, scope)
            case ast.FormattedValue(value, -1, None):
                yield from self._text(value, scope)
            case ast.FormattedValue(value):
                raise self._error(value, f"the text '{ast.unparse(node)}'")
            case ast.Name() | ast.Attribute():
                text = self._meaning(node)
                if not isinstance(text, str):
                    raise self._error(node, f"'{ast.unparse(node)}', which is not text")
                yield text
            case _:
                raise self._error(node, f"the text '{ast.unparse(node)}'")

    def _slot(self, name: str, node: ast.expr, scope: _Scope) -> SlotOf:
        parameter = self._parameters[name]
        assert isinstance(parameter, TextParameter)  # noqa: S101 - the caller looked
        return SlotOf(scope.params.new(name), name, parameter, self._where(node))

    # Branches

    def _if(self, node: ast.If, scope: _Scope) -> Branches:
        branches: list[Branch] = []
        rest: list[ast.stmt] = [node]
        first = ""
        while len(rest) == 1 and isinstance(rest[0], ast.If):
            test = rest[0]
            name, condition = self._condition(test.test)
            first = first or condition.source
            branches.append(self._branch(name, condition, test.body, test, scope))
            rest = test.orelse
        if rest:
            branches.append(self._branch(f"{first}.else", None, rest, node, scope))
        return Branches(tuple(branches), len(branches) > 1, self._where(node))

    def _condition(self, test: ast.expr) -> tuple[str, Condition]:
        match test:
            case ast.Name(name) if isinstance(self._parameters.get(name), Flag):
                return name, Condition(name, (True,))
            case ast.UnaryOp(ast.Not(), ast.Name(name)) if isinstance(
                self._parameters.get(name), Flag
            ):
                return f"not-{name}", Condition(name, (False,))
        raise self._error(test, f"the condition '{ast.unparse(test)}', which is not a flag")

    def _match(self, node: ast.Match, scope: _Scope) -> Branches:
        match node.subject:
            case ast.Name(name):
                parameter = self._parameters.get(name)
            case _:
                parameter = None
        if not isinstance(parameter, ChoiceParameter):
            raise self._error(
                node.subject, f"'match {ast.unparse(node.subject)}', which is not a choice"
            )
        branches = []
        for case in node.cases:
            if case.guard is not None:
                raise self._error(case.guard, "a guard of a case")
            values = self._values(case.pattern)
            for value in values or ():
                if value not in parameter.values:
                    raise self._error(case.pattern, f"the case {value!r}, not a value of {name}")
            condition = None if values is None else Condition(name, values)
            module = f"{name}.{'else' if values is None else values[0]}"
            check_name(module, "module", self._where(case.pattern))
            branches.append(self._branch(module, condition, case.body, case.pattern, scope))
        return Branches(tuple(branches), exclusive=True, where=self._where(node))

    def _values(self, pattern: ast.pattern) -> tuple[str, ...] | None:
        """The values that a case matches; ``None`` for any value."""
        match pattern:
            case ast.MatchValue(ast.Constant(str(value))):
                return (value,)
            case ast.MatchOr(patterns):
                alternatives = [self._values(alternative) for alternative in patterns]
                return tuple(value for values in alternatives if values for value in values)
            case ast.MatchAs(None, None):
                return None
        raise self._error(pattern, f"'case {ast.unparse(pattern)}', which is not text")

    def _branch(
        self,
        name: str,
        condition: Condition | None,
        body: Sequence[ast.stmt],
        node: ast.stmt | ast.pattern,
        scope: _Scope,
    ) -> Branch:
        nodes = self._body(body, _Scope())
        return Branch(scope.modules.new(name), condition, nodes, self._where(node))

    # Turns and calls

    def _with(self, node: ast.With, scope: _Scope) -> RoleBlock:
        match node.items:
            case [ast.withitem(ast.Call(function, [ast.Constant(speaker)], []), None)] if (
                speaker in ROLES and self._meaning(function) is role
            ):
                return RoleBlock(speaker, self._body(node.body, scope), self._where(node))
        raise self._error(node, "a 'with' of anything but role(\"system\"), of user or assistant")

    def _call(self, node: ast.Call, scope: _Scope) -> Call:
        program = self._meaning(node.func)
        if not isinstance(program, Program):
            raise self._error(node, f"'{ast.unparse(node.func)}', which is not a prompt program")
        positional = [self._argument(argument) for argument in node.args]
        named: dict[str, ParameterReference | Constant] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self._error(keyword.value, "'**'")
            named[keyword.arg] = self._argument(keyword.value)
        try:
            bound = inspect.signature(program.function).bind(*positional, **named)
        except TypeError as error:
            raise self._error(node, f"this call, {error}") from error
        arguments: dict[str, ParameterReference | Constant] = {}
        for name, parameter in inspect.signature(program.function).parameters.items():
            argument = bound.arguments.get(name, Constant(parameter.default))
            self._check_argument(name, argument, program, node)
            arguments[name] = argument
        name = scope.modules.new(program.name)
        check_name(name, "module", self._where(node))
        return Call(name, program, arguments, self._where(node))

    def _argument(self, node: ast.expr) -> ParameterReference | Constant:
        match node:
            case ast.Name(name) if name in self._parameters:
                return ParameterReference(name)
            case ast.Constant(str(value)) | ast.Constant(bool(value)):
                return Constant(value)
            case ast.Name() | ast.Attribute():
                value = self._meaning(node)
                if isinstance(value, str | bool):
                    return Constant(value)
        raise self._error(node, f"the argument '{ast.unparse(node)}'")

    def _check_argument(
        self, name: str, argument: ParameterReference | Constant, program: Program, node: ast.expr
    ) -> None:
        expected = program.parameters[name]
        if isinstance(argument, Constant):
            try:
                expected.check(name, argument.value)
            except MarkupError as error:
                raise self._error(node, f"this call, {error}") from error
            return
        passed = self._parameters[argument.source]
        if type(passed) is not type(expected) or (
            isinstance(passed, ChoiceParameter)
            and isinstance(expected, ChoiceParameter)
            and not {*passed.values} <= {*expected.values}
        ):
            raise self._error(node, f"this call, {argument.source} may be what {name} may not")

    def _meaning(self, node: ast.expr) -> Any:
        """The value of a name where the function was defined; ``None`` if it has none."""
        match node:
            case ast.Name(name) if name not in self._parameters and name in self._names:
                return self._names[name]
            case ast.Attribute(value, name):
                return getattr(self._meaning(value), name, None)
        return None

    def _where(self, node: ast.stmt | ast.expr | ast.pattern) -> Where:
        return Where(self._line + node.lineno - 1, node.col_offset + 1, self._file)

    def _error(self, node: ast.stmt | ast.expr | ast.pattern, what: str) -> MarkupError:
        msg = f"the program {self._program.name!r} has {what}; {_ALLOWED}"
        return markup_error(msg, self._where(node))
