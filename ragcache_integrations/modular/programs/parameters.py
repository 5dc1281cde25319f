"""The parameters of a prompt program, from its annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

from ragcache_integrations.errors import MarkupError

from .annotations import Length
from .plan import (
    ChoiceParameter,
    Flag,
    Parameter,
    TextParameter,
)

__all__ = ["read_parameters", "visible_names"]

_KINDS = (
    "a text is annotated Annotated[str, Length(tokens)], a flag bool, a choice Literal['a', 'b']"
)


def read_parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a function, by name.

    Raises:
        MarkupError: A parameter has an annotation that means nothing here, or takes any number of
            arguments.
    """
    return {
        name: _parameter(function, parameter)
        for name, parameter in inspect.signature(function).parameters.items()
    }


def visible_names(function: Callable[..., Any]) -> dict[str, Any]:
    """The values of all names that a function sees: globals, and variables of its closure."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    names = dict(function.__globals__)
    for name, cell in cells:
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue  # not yet assigned
    return names


def _parameter(function: Callable[..., Any], parameter: inspect.Parameter) -> Parameter:
    annotation = parameter.annotation
    if isinstance(annotation, str):  # from __future__ import annotations
        try:
            annotation = eval(annotation, visible_names(function))  # noqa: S307 - the user's own code
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise _error(function, f"{parameter.name}: {error}") from error
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise _error(function, f"{parameter.name} takes any number of arguments")
    if annotation is bool:
        return Flag()
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        if all(isinstance(value, str) for value in values):
            return ChoiceParameter(values)
    if get_origin(annotation) is Annotated:
        kind, *notes = get_args(annotation)
        lengths = [note for note in notes if isinstance(note, Length)]
        if kind is str and len(lengths) == 1:
            return TextParameter(lengths[0].tokens)
    raise _error(function, f"{parameter.name} has no annotation that means something here")


def _error(function: Callable[..., Any], what: str) -> MarkupError:
    code = function.__code__
    msg = f"the program {function.__name__!r}: {what}; {_KINDS}"
    return MarkupError(msg, code.co_firstlineno, 1, code.co_filename)
