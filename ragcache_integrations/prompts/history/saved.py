"""A conversation as it is saved: everything that its next prompts depend on.

Parts that belong to a process, such as a model, an engine or a function, are not saved. The
frameworks' classes list the parts that are missing, and accept them later.
"""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.files import MALFORMED
from ragcache_integrations.errors import ConfigurationError

from .policy import Entry, Truncation

__all__ = [
    "SavedConversation",
    "check_parts",
    "check_saved",
    "copy_parts",
    "dump_saved",
    "missing_parts",
    "parse_saved",
    "picklable_parts",
]

logger = logging.getLogger(__name__)

MAX_MESSAGES = 1_000_000
"""The most messages of a conversation that can be loaded."""

MAX_CHARACTERS = 1 << 28
"""The most characters of a conversation that can be loaded from a string."""

MAX_TOKENS = 1 << 40
"""The most tokens of a message; sums of them are exact in JSON."""

DAMAGED = "this is no saved conversation, or a damaged one"

_SAME = ("planned", "start", "working", "spoken", "summarises")
"""Fields that are written as they are."""

M = TypeVar("M")


class _Message(BaseModel):
    """A message in its framework's form, with its counted tokens and its tool calls."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    message: dict[str, Any]
    tokens: int = Field(ge=0, le=MAX_TOKENS, strict=True)
    role: str
    pinned: bool = Field(strict=True)
    calls: tuple[str, ...]
    answers: tuple[str, ...]

    def entry(self) -> Entry:
        return Entry(self.tokens, self.role, self.pinned, self.calls, self.answers)


class _Ready(BaseModel):
    """A new beginning of the history that the next turn takes, with its summary."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    start: int = Field(ge=0, strict=True)
    summary: dict[str, Any] | None


class _Conversation(BaseModel):
    """The form in which a conversation is written."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    version: Literal[1]
    messages: list[_Message] = Field(max_length=MAX_MESSAGES)
    planned: int = Field(ge=0, strict=True)
    start: int = Field(ge=0, strict=True)
    summary: dict[str, Any] | None
    ready: _Ready | None
    working: int | None = Field(ge=0, strict=True)
    spoken: bool = Field(strict=True)
    summarises: bool = Field(strict=True)
    limits: tuple[int, int, bool]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavedConversation(Generic[M]):
    """A conversation at one moment.

    Attributes:
        messages: All messages, including dropped ones but no summaries.
        entries: Tokens, role and tool calls of each message.
        policy: Decided what is kept. A restored history with another policy decides again.
        planned: Index of the message with which the history is to begin.
        start: Index of the message with which it begins now.
        summary: The summary in the prompt.
        ready: Beginning and summary that the next turn takes.
        working: Index of the message with which the history will begin as soon as the summary is
            written that was in progress; ``None`` if none was.
        spoken: Whether something was added since the last prompt.
        summarises: Whether there was a model that writes summaries.
        missing: Names of the parts that could not be saved, such as the model.
    """

    messages: tuple[M, ...]
    entries: tuple[Entry, ...]
    policy: Truncation
    planned: int = 0
    start: int = 0
    summary: M | None = None
    ready: tuple[int, M | None] | None = None
    working: int | None = None
    spoken: bool = True
    summarises: bool = False
    missing: tuple[str, ...] = ()

    def to_dict(self, dump: Callable[[M], dict[str, Any]]) -> dict[str, Any]:
        """Write it in a form that JSON can hold.

        Args:
            dump: Writes a message in such a form.

        Raises:
            ConfigurationError: A message holds an object that JSON has no form for.
        """
        kept = [
            {
                "message": _dump(message, dump, f"message {place}"),
                **asdict(entry),
                "calls": list(entry.calls),
                "answers": list(entry.answers),
            }
            for place, (message, entry) in enumerate(zip(self.messages, self.entries, strict=True))
        ]
        ready = self.ready and {
            "start": self.ready[0],
            "summary": self.ready[1] and _dump(self.ready[1], dump, "a summary"),
        }
        return {
            "version": 1,
            "messages": kept,
            "summary": self.summary and _dump(self.summary, dump, "a summary"),
            "ready": ready,
            "limits": [self.policy.budget, self.policy.limit, self.policy.half],
            "missing": list(self.missing),
            **{name: getattr(self, name) for name in _SAME},
        }

    @classmethod
    def from_dict(cls, content: object, load: Callable[[dict[str, Any]], M]) -> Self:
        """Read what :meth:`to_dict` wrote.

        Args:
            content: Its result.
            load: Reads a message.

        Raises:
            ConfigurationError: ``content`` has another form, or is damaged.
        """
        try:
            form = _Conversation.model_validate(content)
            messages = tuple(load(message.message) for message in form.messages)
            summary = None if form.summary is None else load(form.summary)
            ready: tuple[int, M | None] | None = None
            if form.ready is not None:
                text = form.ready.summary
                ready = form.ready.start, None if text is None else load(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"{DAMAGED}: {place or 'it'}: {first['msg']}") from error
        except MALFORMED as error:
            msg = f"{DAMAGED}: a message cannot be read ({type(error).__name__})"
            raise ConfigurationError(msg) from error
        # A beginning that still needs a summary must be a message: its text is quoted to the model.
        reached = max(form.start, ready[0] if ready else 0)
        target = max(form.planned if form.planned > reached else 0, form.working or 0)
        if reached > len(messages) or (target and target >= len(messages)):
            msg = f"{DAMAGED}: it begins at message {max(reached, target)} of {len(messages)}"
            raise ConfigurationError(msg)
        return cls(
            messages,
            tuple(message.entry() for message in form.messages),
            Truncation(*form.limits),
            summary=summary,
            ready=ready,
            missing=form.missing,
            **{name: getattr(form, name) for name in _SAME},
        )


def _dump(message: M, dump: Callable[[M], dict[str, Any]], what: str) -> dict[str, Any]:
    try:
        content = dump(message)
        json.dumps(content)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{what} cannot be written as JSON, pickle the conversation instead: {error}"
        raise ConfigurationError(msg) from error
    return content


def dump_saved(content: Mapping[str, Any]) -> str:
    """Write a saved conversation as a string that :func:`parse_saved` reads.

    Raises:
        ConfigurationError: It is too long to be read again.
    """
    text = json.dumps(content)
    if len(text) > MAX_CHARACTERS:
        msg = f"a saved conversation has at most {MAX_CHARACTERS} characters, got {len(text)}"
        raise ConfigurationError(msg)
    return text


def parse_saved(text: object) -> dict[str, Any]:
    """Read the JSON of a saved conversation.

    Raises:
        ConfigurationError: The text is too long, or no JSON object.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        msg = f"a saved conversation is a string of at most {MAX_CHARACTERS} characters, got {got}"
        raise ConfigurationError(msg)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{DAMAGED}: it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{DAMAGED}: it is a {type(content).__name__}")
    return content


def check_saved(content: object, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a history that is restored.

    Args:
        content: The result of its ``to_dict``.
        arguments: Arguments that replace saved ones, or are added to them.

    Raises:
        ConfigurationError: ``content`` is no mapping that holds a budget and a conversation.
    """
    if not isinstance(content, Mapping) or not {"budget", "saved"} <= content.keys():
        held = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise ConfigurationError(f"{DAMAGED}: it must hold a budget and what was saved, got {held}")
    if not isinstance(content["saved"], Mapping):
        msg = f"{DAMAGED}: saved must be a mapping, got {content['saved']!r:.100}"
        raise ConfigurationError(msg)
    return {**content, **arguments}


# Parts that belong to a process


def check_parts(parts: Mapping[str, object], model: type) -> None:
    """Check the types of a history's parts.

    Args:
        parts: Some of ``llm``, ``engine``, ``count_tokens`` and ``pin`` by name; ``None`` for a
            part that is missing.
        model: The class that ``llm`` must have.

    Raises:
        ConfigurationError: A part has another type.
    """
    for name, part in parts.items():
        if name == "llm":
            check_type(name, part, model | None, f"of the class {model.__name__}")
        if name in {"count_tokens", "pin"} and not (part is None or callable(part)):
            raise ConfigurationError(f"{name} must be a function, got {type(part).__name__}")


def missing_parts(
    kind: str, saved: SavedConversation[Any] | None, parts: Mapping[str, object]
) -> tuple[str, ...]:
    """Names of the parts that a restored history still needs; they are logged, too.

    Args:
        kind: Name of the history's class, for the log.
        saved: The conversation that it was restored from; ``None`` for a new history.
        parts: Its parts by name; ``None`` for a part that is missing.
    """
    names = () if saved is None else saved.missing
    missing = tuple(name for name in names if parts.get(name) is None)
    if missing:
        logger.warning(
            "a %s was restored without its %s, which cannot be saved: set them again",
            kind,
            ", ".join(missing),
        )
    return missing


def picklable_parts(parts: Mapping[str, object]) -> dict[str, Any]:
    """The parts that can be pickled, such as a model that runs on a server."""
    return {name: part for name, part in parts.items() if part is not None and _pickles(part)}


def _pickles(part: object) -> bool:
    try:
        pickle.dumps(part)
    except Exception:  # noqa: BLE001 - a part may raise anything; it is not pickled then
        return False
    return True


def copy_parts(parts: Mapping[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Deep copies of parts; the engine and parts that cannot be copied are shared."""
    return {name: part if name == "engine" else _copy(part, memo) for name, part in parts.items()}


def _copy(part: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(part, memo)
    except Exception:  # noqa: BLE001 - a part may raise anything; it is shared then
        return part
