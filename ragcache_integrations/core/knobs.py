"""Knobs, each declared once: as a field of a pydantic model, with its check and its sentence.

The model's docstring says what each field means, under ``Attributes``. Constructors get their
signatures from the fields (:func:`takes_fields_of`), ``ragcache`` gets its options from them, and
the documentation its tables::

    class CacheKnobs(CheckedSettings):
        capacity: Positive = 1000
        policy: Annotated[str, checked(check_choice, POLICIES)] = "lru"

Errors are those of this package. Some settings are checked when an object is made, and changed only
by making another object.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, ParamSpec, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo

from ragcache_integrations.errors import ConfigurationError

from .checks import (
    check_flag,
    check_int,
    check_number,
    check_seconds,
    check_share,
    explain_error,
    or_none,
    refuse_assignment,
    unknown_name,
)

__all__ = [
    "Accepts",
    "CheckedSettings",
    "Count",
    "FixedSettings",
    "Flag",
    "Positive",
    "PositiveOrNone",
    "Seconds",
    "SecondsOrNone",
    "Share",
    "assignment_error",
    "checked",
    "explained_errors",
    "knob_names",
    "meanings",
    "read_knobs",
    "settings_of",
    "takes_fields_of",
    "unless_none",
]

P = ParamSpec("P")
Fields = TypeVar("Fields")
Knobs = TypeVar("Knobs", bound=BaseModel)


def checked(
    check: Callable[Concatenate[str, Any, P], object], *args: P.args, **kwargs: P.kwargs
) -> BeforeValidator:
    """The annotation of a field that one of our checks reads, by the field's own name.

    Args:
        check: The check, such as :func:`~ragcache_integrations.core.checks.check_int`.
        args: Further arguments of the check.
        kwargs: Further arguments of the check.
    """

    def read(value: Any, info: ValidationInfo) -> object:
        return check(info.field_name or "", value, *args, **kwargs)

    return BeforeValidator(read)


def unless_none(check: Callable[[Any], object]) -> BeforeValidator:
    """The annotation of a field that is ``None``, or is read by a function of the value alone."""
    return BeforeValidator(lambda value: None if value is None else check(value))


@dataclass(frozen=True)
class Accepts:
    """Added to a field's annotation if its argument may have other types than the field.

    Attributes:
        kind: The types.
    """

    kind: Any


Flag = Annotated[bool, checked(check_flag)]
Count = Annotated[int, checked(check_int, 0)]
Positive = Annotated[int, checked(check_int, 1)]
PositiveOrNone = Annotated[int | None, checked(or_none(check_int), 1, also="None")]
Share = Annotated[float, checked(check_share)]
Seconds = Annotated[float, checked(check_number, 0, above=True, unit="seconds")]
SecondsOrNone = Annotated[float | None, checked(check_seconds)]


def knob_names(kind: type[BaseModel]) -> list[str]:
    """The fields that users set; those without a ``repr`` are for internal use."""
    return [name for name, field in kind.model_fields.items() if field.repr]


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """The sentences about a model's fields, as its docstring and those of its bases have them."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        text = inspect.cleandoc(base.__doc__ or "") if "__doc__" in vars(base) else ""
        section = re.search(r"^Attributes:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
        entries = re.split(r"^    (\w+): ", section[1] if section else "", flags=re.MULTILINE)[1:]
        for name, meaning in zip(entries[::2], entries[1::2], strict=True):
            found.setdefault(name, " ".join(meaning.split()))
    return {name: found[name] for name in found if name in kind.model_fields}


def takes_fields_of(
    kind: Callable[P, Fields], *positional: str
) -> Callable[[Callable[[Any, Fields], None]], Callable[Concatenate[Any, P], None]]:
    """Let a constructor take the fields of a model as its arguments, and get the model.

    Type checkers and ``help`` show each argument, though it is declared in the model alone.

    Args:
        kind: The model, or a dataclass.
        positional: Names of the model's fields that may be given without their names.
    """
    fields = inspect.signature(kind)
    parameters = [
        parameter.replace(
            kind=parameter.POSITIONAL_OR_KEYWORD if name in positional else parameter.kind,
            annotation=_plain(parameter.annotation),
        )
        for name, parameter in fields.parameters.items()
    ]
    parameters.sort(key=lambda parameter: parameter.kind)  # of one kind, they keep their order
    others = inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)
    reports = isinstance(kind, type) and issubclass(kind, BaseModel)  # what it does not know
    binding = fields.replace(parameters=[*parameters, others] if reports else parameters)

    def decorate(init: Callable[[Any, Fields], None]) -> Callable[Concatenate[Any, P], None]:
        def __init__(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:  # noqa: N807 - is one
            try:
                given = binding.bind(*args, **kwargs).arguments
            except TypeError as error:  # would name the model
                raise TypeError(f"{type(self).__name__}() {error}") from None
            make: Callable[..., Fields] = kind
            init(self, make(**given.pop("others", {}), **given))

        own, *_ = inspect.signature(init).parameters.values()
        __init__.__signature__ = fields.replace(parameters=[own, *parameters])  # type: ignore[attr-defined] # for help()
        return __init__

    return decorate


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


@contextmanager
def explained_errors(
    kind: type[BaseModel], *, secrets: frozenset[str] = frozenset()
) -> Iterator[None]:
    """Raise an error of ours instead of pydantic's.

    Args:
        kind: The class of the settings that are read.
        secrets: Names of the arguments whose values are not shown.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    try:
        yield
    except ValidationError as error:
        raise explain_error(error, kind.model_fields, secrets=secrets) from error


def read_knobs(kind: type[Knobs], arguments: Mapping[str, Any]) -> Knobs:
    """Read keyword arguments.

    Args:
        kind: The class of the settings.
        arguments: The keyword arguments.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    with explained_errors(kind):
        return kind(**arguments)


def settings_of(kind: type[Knobs], knobs: object, **others: Any) -> Knobs:
    """Make settings of the knobs that have the same names.

    Args:
        kind: The class of the settings.
        knobs: The object with the knobs.
        **others: Settings that are no knobs.
    """
    names = kind.model_fields.keys() - others.keys()
    return kind(**{name: getattr(knobs, name) for name in names}, **others)


def assignment_error(owner: BaseModel, name: str) -> ConfigurationError:
    """The error for an assignment to a setting of a finished object.

    Args:
        owner: The object.
        name: The name that was assigned to; it may not be a setting at all.
    """
    kind = type(owner)
    if name not in kind.model_fields:
        return ConfigurationError(
            unknown_name(f"field of {kind.__name__}", name, kind.model_fields)
        )
    return refuse_assignment(owner, name, f"model_copy(update={{{name!r}: ...}})")


class FixedSettings(BaseModel):
    """A model whose fields cannot be assigned, and whose copies are checked.

    Fields of a framework's own base class can be assigned: query engines do that.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in _frameworks_fields(type(self)):
            super().__setattr__(name, value)
        else:
            raise assignment_error(self, name)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it.

        Args:
            update: Values of fields that differ in the copy; they are checked.
            deep: Whether mutable values are copied, too.

        Raises:
            ConfigurationError: A field is unknown, or its value out of range.
        """
        origin = super().model_copy(deep=deep)
        if not update:
            return origin
        fields = {name: getattr(origin, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **update})


class CheckedSettings(FixedSettings):
    """Fixed settings whose errors are :class:`ConfigurationError`."""

    model_config = ConfigDict(extra="forbid")

    def __init__(self, **settings: Any) -> None:
        with explained_errors(type(self)):
            super().__init__(**settings)


def _frameworks_fields(kind: type[BaseModel]) -> set[str]:
    return {
        name
        for base in kind.__mro__
        if not base.__module__.startswith("ragcache_integrations.")
        for name in getattr(base, "model_fields", ())
    }
