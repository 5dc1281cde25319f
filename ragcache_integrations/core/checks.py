"""Checks of arguments: what was given, what is allowed, and what a misspelled name may have meant.

Each returns the argument in its plain type, or raises
:class:`~ragcache_integrations.errors.ConfigurationError`::

    k = check_int("k", k, 1)
    timeout = check_seconds("timeout", timeout)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from reprlib import Repr
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = [
    "as_number",
    "check_choice",
    "check_flag",
    "check_int",
    "check_number",
    "check_seconds",
    "check_share",
    "did_you_mean",
    "explain_error",
    "is_number",
    "is_whole",
    "refuse_assignment",
    "unknown_name",
]


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 100  # characters of a value that a message shows


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an int; ``True`` and ``False`` are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite int or float; ``True`` and ``False`` are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
    """Return ``value`` as an int from ``low`` to ``high``; NumPy's integers are taken, too.

    Args:
        name: The argument's name.
        value: What was given.
        low: The least that is allowed.
        high: The most that is allowed; ``None`` for any number.
        unit: What is counted, in the plural, for the message.
        also: What else is allowed, for the message; whoever allows it has dealt with it before.
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
        value: What was given.
        low: The least that is allowed.
        high: The most that is allowed.
        above: Whether ``low`` itself is not allowed.
        unit: What is measured, in the plural, for the message.
        also: What else is allowed, for the message; whoever allows it has dealt with it before.
    """
    number = as_number(value)
    if math.isfinite(number) and low <= number <= high and not (above and number == low):
        return number
    most = "" if math.isinf(high) else f" and at most {high:g}"
    limits = f" above {low:g}{most}" if above else f" of at least {low:g}{most}"
    raise _wrong(name, f"a number{_of(unit)}{limits}", also, value)


def check_seconds(name: str, value: object, *, also: str = "None") -> float | None:
    """Return a time in seconds above 0; ``None``, for no limit, stays.

    Args:
        name: The argument's name.
        value: What was given.
        also: What ``None`` means, for the message.
    """
    if value is None:
        return None
    return check_number(name, value, 0, above=True, unit="seconds", also=also)


def check_share(name: str, value: object, also: str = "") -> float:
    """Return ``value`` as a float above 0 and of at most 1."""
    return check_number(name, value, 0, 1, above=True, also=also)


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` as a bool; NumPy's are taken, too."""
    if not isinstance(value, bool | np.bool_):
        raise _wrong(name, "True or False", "", value)
    return bool(value)


def check_choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is among ``allowed``; a misspelling is told what it may have meant."""
    if isinstance(value, str) and value in allowed:
        return value
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    msg = f"{name} must be one of {', '.join(allowed)}, got {_REPR.repr(value)}{hint}"
    raise ConfigurationError(msg)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """The end of a message about a name that there is not: what was meant, if any is close."""
    close = closest_names(name, allowed)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> str:
    """The message about a name that there is not.

    Args:
        kind: What is named, such as ``argument``.
        name: What was given.
        allowed: The names that there are.
    """
    names = sorted(allowed)
    hint = did_you_mean(name, names)
    return f"unknown {kind} {shortened(name)!r}: allowed are {', '.join(names)}{hint}"


def explain_error(
    error: ValidationError, allowed: Iterable[str], *, secrets: frozenset[str] = frozenset()
) -> ConfigurationError:
    """Say what pydantic found wrong: what was given, what is allowed.

    Args:
        error: What pydantic raised.
        allowed: Names of the arguments that there are.
        secrets: Arguments whose values are not shown.
    """
    messages: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        name = ".".join(str(part) for part in detail["loc"])
        cause = detail.get("ctx", {}).get("error")
        if detail["type"] == "extra_forbidden":
            message = unknown_name("argument", name, allowed)
        elif isinstance(cause, ConfigurationError):
            message = str(cause)
        elif not name:
            message = detail["msg"]
        else:
            shown = "something else" if name in secrets else _REPR.repr(detail["input"])
            message = f"{name}: {detail['msg']}, got {shown}"
        messages.setdefault(name or message, message)  # one for each argument
    return ConfigurationError("; ".join(messages.values()))


def refuse_assignment(owner: object, name: str, instead: str) -> ConfigurationError:
    """Say that a setting of a finished object cannot be assigned, and what to do instead.

    Args:
        owner: The object.
        name: The setting.
        instead: The code that makes an object with another value.
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
