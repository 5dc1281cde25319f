"""Checks of arguments.

Each check returns the argument in its plain type, or raises a
:class:`~ragcache_integrations.errors.ConfigurationError` that shows the value, what is allowed, and
the name that a misspelled one may have meant::

    k = check_int("k", k, 1)
    timeout = check_seconds("timeout", timeout)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from reprlib import Repr
from types import UnionType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeGuard, TypeVar

import numpy as np

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = [
    "as_number",
    "check_choice",
    "check_field",
    "check_flag",
    "check_int",
    "check_names",
    "check_number",
    "check_one_of",
    "check_seconds",
    "check_share",
    "check_text",
    "check_type",
    "did_you_mean",
    "explain_error",
    "is_number",
    "is_whole",
    "or_none",
    "refuse_assignment",
    "unknown_name",
]


P = ParamSpec("P")
Value = TypeVar("Value")

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 100  # characters of a value that a message shows


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an int; ``True`` and ``False`` are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number that a float can hold; ``True`` and ``False`` are not."""
    return isinstance(value, int | float) and math.isfinite(as_number(value))


def as_number(value: object) -> float:
    """Return a real number as a float; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf if value == abs(value) else -math.inf


def check_int(
    name: str, value: object, low: int, high: int | None = None, *, unit: str = "", also: str = ""
) -> int:
    """Return ``value`` as an int from ``low`` to ``high``; NumPy's integers are accepted, too.

    Args:
        name: The argument's name.
        value: The argument.
        low: The smallest number allowed.
        high: The largest number allowed; ``None`` for no limit.
        unit: Unit of the number, in the plural, for the message.
        also: Another value that the caller accepts, for the message.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= low and (high is None or number <= high):
            return number
    limits = f" of at least {low}" + ("" if high is None else f" and at most {high}")
    raise _wrong(name, f"a whole number{_of(unit)}{limits}", also, value)


def check_number(
    name: str,
    value: object,
    low: float,
    high: float = math.inf,
    *,
    above: bool = False,
    unit: str = "",
    also: str = "",
) -> float:
    """Return ``value`` as a finite float from ``low`` to ``high``.

    Args:
        name: The argument's name.
        value: The argument.
        low: The smallest number allowed.
        high: The largest number allowed.
        above: Whether ``low`` itself is excluded.
        unit: Unit of the number, in the plural, for the message.
        also: Another value that the caller accepts, for the message.
    """
    number = as_number(value)
    if math.isfinite(number) and low <= number <= high and not (above and number == low):
        return number
    most = "" if math.isinf(high) else f" and at most {high:g}"
    limits = f" above {low:g}{most}" if above else f" of at least {low:g}{most}"
    raise _wrong(name, f"a number{_of(unit)}{limits}", also, value)


def check_seconds(name: str, value: object, *, also: str = "None") -> float | None:
    """Return a time in seconds above 0, or ``None`` for no limit.

    Args:
        name: The argument's name.
        value: The argument.
        also: Describes ``None``, for the message.
    """
    if value is None:
        return None
    return check_number(name, value, 0, above=True, unit="seconds", also=also)


def check_share(name: str, value: object, also: str = "") -> float:
    """Return ``value`` as a float above 0 and of at most 1; ``also`` as in :func:`check_int`."""
    return check_number(name, value, 0, 1, above=True, also=also)


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` as a bool; NumPy's are accepted, too."""
    if not isinstance(value, bool | np.bool_):
        raise _wrong(name, "True or False", "", value)
    return bool(value)


def check_choice(name: str, value: object, allowed: Sequence[str], *, also: str = "") -> str:
    """Return ``value`` if it is among ``allowed``; the message suggests the closest name.

    Args:
        name: The argument's name.
        value: The argument.
        allowed: The names that are allowed.
        also: Another value that the caller accepts, for the message.
    """
    if isinstance(value, str) and value in allowed:
        return value
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    other = f" or {also}" if also else ""
    msg = f"{name} must be one of {', '.join(allowed)}{other}, got {_REPR.repr(value)}{hint}"
    raise ConfigurationError(msg)


def or_none(
    check: Callable[Concatenate[str, object, P], Value],
) -> Callable[Concatenate[str, object, P], Value | None]:
    """The check that returns ``None`` for ``None``, and for other values what ``check`` returns."""

    def checked(name: str, value: object, /, *args: P.args, **kwargs: P.kwargs) -> Value | None:
        return None if value is None else check(name, value, *args, **kwargs)

    return checked


def check_field(
    owner: object,
    check: Callable[Concatenate[str, object, P], object],
    name: str,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Check a field of a frozen dataclass in its ``__post_init__``, and keep its plain type.

    Args:
        owner: The object.
        check: The check, such as :func:`check_int`.
        name: The field.
        args: Further arguments of the check.
        kwargs: Further arguments of the check.
    """
    object.__setattr__(owner, name, check(name, getattr(owner, name), *args, **kwargs))


def check_text(name: str, value: object, allowed: str = "a string") -> str:
    """Return ``value`` if it is a string; ``allowed`` says in the message what it must be."""
    if not isinstance(value, str):
        raise _wrong(name, allowed, "", value)
    return value


def check_names(name: str, value: object) -> frozenset[str]:
    """Return ``value``, several names, as a set. A single string is refused, and a mapping."""
    listed = list(value) if isinstance(value, list | tuple | set | frozenset) else [value, None]
    if not all(isinstance(item, str) for item in listed):
        raise _wrong(name, "several names, such as ['request_id']", "", value)
    return frozenset(map(str, listed))


def check_type(
    name: str,
    value: object,
    kind: type | UnionType,
    allowed: str,
    instead: Mapping[Any, str] | None = None,
) -> None:
    """Check the class of an argument; the message names the class that it has.

    Args:
        name: The argument's name.
        value: The argument.
        kind: The class that it must have.
        allowed: Describes the class, for the message.
        instead: What to do with objects of other classes, for the message.
    """
    if isinstance(value, kind):
        return
    msg = f"{name} must be {allowed}, got {type(value).__name__}"
    if isinstance(value, type):
        hint = ", not an object of it" if issubclass(value, kind) else ""
        msg = f"{name} must be {allowed}, got the class {value.__name__}{hint}"
    else:
        hints = (hint for other, hint in (instead or {}).items() if isinstance(value, other))
        msg = ": ".join((msg, *itertools.islice(hints, 1)))
    raise ConfigurationError(msg)


USUAL_NAMES = {"similarity_top_k": "k", "top_k": "k"}
"""Names that the frameworks have for arguments of ours."""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest allowed one, if any is close."""
    known = tuple(allowed)
    usual = [ours for theirs, ours in USUAL_NAMES.items() if theirs == name and ours in known]
    close = [*usual, *closest_names(name, known)]
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> str:
    """The message about an unknown name.

    Args:
        kind: What the name denotes, such as ``argument``.
        name: The unknown name.
        allowed: The known names.
    """
    names = sorted(allowed)
    hint = did_you_mean(name, names)
    return f"unknown {kind} {shortened(name)!r}: allowed are {', '.join(names)}{hint}"


def explain_error(
    error: ValidationError, allowed: Iterable[str], *, secrets: frozenset[str] = frozenset()
) -> ConfigurationError:
    """Make an error of ours from one of pydantic's.

    Args:
        error: The error that pydantic raised.
        allowed: Names of the known arguments.
        secrets: Names of the arguments whose values are not shown.
    """
    messages: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        place = [str(part) for part in detail["loc"]]
        name = ".".join(place)
        cause = detail.get("ctx", {}).get("error")
        if detail["type"] == "extra_forbidden":
            message = unknown_name("argument", name, allowed)
        elif isinstance(cause, ConfigurationError):
            message = str(cause)
        elif not name:
            message = detail["msg"]
        elif detail["type"] == "missing" and len(place) == 1:
            message = f"{name} is needed"
        else:
            shown = "something else" if place[0] in secrets else _REPR.repr(detail["input"])
            message = f"{name}: {detail['msg']}, got {shown}"
        messages.setdefault(
            place[0] if place else message, message
        )  # one message for each argument
    return ConfigurationError("; ".join(messages.values()))


def check_one_of(first: str, first_value: object, second: str, second_value: object) -> None:
    """Refuse two arguments of which one must be given, if none is, or both are."""
    if (first_value is None) == (second_value is None):
        given = "got neither" if first_value is None else "and not both"
        raise ConfigurationError(f"give either {first} or {second}, {given}")


def refuse_assignment(owner: object, name: str, instead: str) -> ConfigurationError:
    """The error for an assignment to a setting of a finished object.

    Args:
        owner: The object.
        name: The setting.
        instead: Code that makes an object with another value.
    """
    return ConfigurationError(
        f"{name} of a finished {type(owner).__name__} cannot be assigned: {instead} makes one with "
        "another value"
    )


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""


def _wrong(name: str, allowed: str, also: str, value: object) -> ConfigurationError:
    other = f", or {also}" if also else ""
    return ConfigurationError(f"{name} must be {allowed}{other}, got {_REPR.repr(value)}")
