"""Whether what came back is an answer at all, and what of it counts what the model consumed.

An answer that was cut off, filtered, refused or left empty helps the one who gets it little, and
everybody after them not at all. So it is served once, and not kept.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.resources import files
from typing import Any

import numpy as np
from pydantic import BaseModel

__all__ = [
    "ANSWER_KEYS",
    "EMPTY",
    "WORDS",
    "attributes_of",
    "forget_usage",
    "gave_up",
    "is_blank",
    "is_something",
    "unfinished",
    "why_none",
    "why_unkept",
]

ANSWER_KEYS = ("answer", "output", "result", "text")
"""Names under which the text of an answer is looked for in a dict."""
EMPTY = "it is empty"

_MOST_DEPTH = 6
_MOST_VALUES = 1_000
"""Values of a provider's metadata that are looked at."""

WORDS: dict[str, list[str]] = tomllib.loads(
    files(__package__).joinpath("words.toml").read_text("utf-8")
)
"""Words of providers and frameworks, by what they say; see the file."""

_PREFIX = re.compile(r"^(?:finish|stop|done)?reason")
# Twice the same is what the sum of a stream's pieces makes of it.
_FINISHED = re.compile(f"(?:{'|'.join(WORDS['ended'])})+")
_NOTHING_SAID = re.compile(r"|.*unspecified", re.IGNORECASE)
_GAVE_UP = re.compile("|".join(WORDS["gave_up"]), re.DOTALL)
_USAGE = re.compile("|".join(WORDS["usage"]), re.IGNORECASE)


def unfinished(told: object) -> str | None:
    """Return why an answer is none, by what its provider reports; ``None``: it is one.

    Without any reason it is one. A reason that is not known to be good counts as bad.

    Args:
        told: Metadata of a framework, or a provider's response: mappings, lists, objects.
    """
    waiting: list[tuple[object, int]] = [(told, _MOST_DEPTH)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            break
        value, depth = waiting.pop()
        if isinstance(value, list | tuple):
            waiting.extend((item, depth) for item in value)
            continue
        named = attributes_of(value)
        if not named or not depth:
            continue
        short = {_short(name): item for name, item in named.items() if isinstance(name, str)}
        reason = _why_unfinished(short)
        if reason is not None:
            return reason
        inner = short.keys() - {*WORDS["of_content"], *WORDS["of_prompts"]}
        waiting.extend((short[name], depth - 1) for name in inner)
    return None


def why_none(
    answer: Any,
    of_framework: Callable[[Any], str | None],
    answer_key: str | None = None,
    inputs: Collection[Any] = (),
    depth: int = _MOST_DEPTH,
) -> str | None:
    """Return why what a chain, a query engine or a tool returned is no answer; ``None``: it is one.

    Args:
        answer: What it returned.
        of_framework: Returns the same for objects of a framework, an empty text for those that are
            answers, and ``None`` for everything else.
        answer_key: Name of the answer in a dict, if it is known.
        inputs: Names of what it was given, which a dict may have, too.
        depth: How deep parts are looked at.
    """
    known = of_framework(answer)
    if known is None:
        known = _why_no_value(answer) or ""
        if not known and isinstance(answer, Mapping) and depth:
            parts = _answers_in(answer, answer_key, inputs)
            whys = [why_none(part, of_framework, None, (), depth - 1) for part in parts]
            known = "" if None in whys else next(iter(whys), EMPTY) or EMPTY
    return known or None


def _why_no_value(value: Any) -> str | None:
    """Return why a value of no framework is no answer; ``None``: it may be one."""
    named = attributes_of(value)
    reason = unfinished(named) if named.keys() & set(WORDS["client_names"]) else None
    if reason is None and isinstance(value, str):
        reason = gave_up(value)
    if reason is None and isinstance(value, Mapping):
        errors = (value.get("error"), value.get("parsing_error"))
        if any(error and isinstance(error, str | Mapping | BaseException) for error in errors):
            reason = "it reports an error"
    return reason if reason is not None or is_something(value) else EMPTY


def _answers_in(
    answer: Mapping[Any, Any], answer_key: str | None, inputs: Collection[Any]
) -> list[Any]:
    """Return what of a dict may be the answer."""
    if answer_key is not None:
        names: tuple[str, ...] = (answer_key,)
    elif {"raw", "parsed"} <= answer.keys():
        names = ("parsed",)  # of LangChain's structured output
    else:
        names = (*ANSWER_KEYS, *WORDS["other_answers"])
    named = [answer[name] for name in names if name in answer and name not in inputs]
    if named:
        return named[:1]
    own = [value for name, value in answer.items() if name not in inputs]
    # Documents say where an answer comes from; alone, they are what was looked for.
    return [value for value in own if not _are_documents(value)] or own


def _are_documents(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(hasattr(item, "page_content") or hasattr(item, "node") for item in value)


def _why_unfinished(told: Mapping[str, Any]) -> str | None:
    for name in WORDS["reasons"]:
        reason = _reason(told.get(name))
        if reason is None:
            continue
        if not _FINISHED.fullmatch(_PREFIX.sub("", _short(reason))):
            return f"its finish reason is {reason!r:.100}"
        break
    state = told.get("status")
    if isinstance(state, str | Enum) and _short(_reason(state) or "") in WORDS["states"]:
        return f"its status is {_reason(state)!r:.100}"
    if str(told.get("amazonbedrockguardrailaction", "")).casefold() == "intervened":
        return "a guardrail intervened"
    for name in told.keys() & set(WORDS["flags"]):
        value = told[name]
        if value and not (isinstance(value, str | Enum) and _reason(value) is None):
            return f"its provider names {name}"
    return None


def _reason(value: object) -> str | None:
    """Return a reason as a text; ``None`` where there is none."""
    if isinstance(value, Enum):
        value = value.name
    if not isinstance(value, str) or _NOTHING_SAID.fullmatch(value) or value == "null":
        return None
    return value


def _short(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def attributes_of(value: object) -> Mapping[Any, Any]:
    """Return what a mapping, a model or a dataclass holds, by name; nothing for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return {}


def gave_up(text: str) -> str | None:
    """Return why a text is no answer, if an agent of a framework writes it in place of one."""
    return f"its agent gave up: {text:.100}" if _GAVE_UP.fullmatch(text.strip()) else None


def is_blank(text: str) -> bool:
    """Whether a text has nothing that can be seen."""
    return not text.strip() or all(unicodedata.category(sign)[0] in "ZC" for sign in text)


def is_something(value: object, depth: int = _MOST_DEPTH) -> bool:
    """Whether a value says anything: a number, a text that can be seen, or what holds such a one.

    Objects of other classes do, unless their length is 0.
    """
    if value is None or isinstance(value, BaseException):
        return False
    if isinstance(value, str):
        return not is_blank(value)
    held = _held(value)
    if held is not None and depth:
        return any(is_something(item, depth - 1) for item in held)
    return not (isinstance(value, Sized) and len(value) == 0)


def _held(value: object) -> Iterator[Any] | None:
    """Return the parts of a container; ``None`` for anything else, or an object without parts."""
    if isinstance(value, list | tuple | set | frozenset):
        return iter(value)
    named = attributes_of(value)
    return iter(named.values()) if named or isinstance(value, Mapping) else None


def why_unkept(keep: Callable[[Any], object], answer: Any) -> str | None:
    """Return why an answer is not kept, by a function of the application; ``None``: it is.

    An error of the function is a reason, as the caller has an answer.
    """
    try:
        kept = keep(answer)
    except Exception as error:  # noqa: BLE001 - whatever somebody's function may raise
        return f"keep failed with a {type(error).__name__}"
    if not isinstance(kept, bool | np.bool_):
        return f"keep must return True or False, and returned a {type(kept).__name__}"
    return None if kept else "keep says so"


def forget_usage(told: object) -> None:
    """Set all that a provider counts to 0, in metadata that may be changed.

    Names and forms stay, so that code which adds them up can.

    Args:
        told: Metadata of a framework, or a provider's response.
    """
    named: Any = told.__dict__ if isinstance(told, BaseModel) else told
    if isinstance(named, dict):
        for name in list(named):
            if isinstance(name, str) and _USAGE.search(name):
                named[name] = _zeroed(named[name])


def _zeroed(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return type(value)(0)
    if isinstance(value, dict):
        return {name: _zeroed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_zeroed(item) for item in value]
    if isinstance(value, BaseModel):
        return value.model_copy(
            update={name: _zeroed(item) for name, item in value.__dict__.items()}
        )
    return value
