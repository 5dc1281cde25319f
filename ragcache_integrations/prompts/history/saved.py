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
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

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

DAMAGED = "this is no saved conversation, or a damaged one"

M = TypeVar("M")
Count = Annotated[int, Field(ge=0, strict=True)]
Flag = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True, slots=True)
class SavedConversation(Generic[M]):
    """A conversation at one moment. With its messages in JSON, pydantic reads and writes it.

    Attributes:
        version: That of the fields.
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

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", hide_input_in_errors=True
    )

    version: Literal[1]
    messages: Annotated[tuple[M, ...], Field(max_length=MAX_MESSAGES)]
    entries: tuple[Entry, ...]
    policy: Truncation
    planned: Count
    start: Count
    summary: M | None
    ready: tuple[Count, M | None] | None
    working: Count | None
    spoken: Flag
    summarises: Flag
    missing: tuple[str, ...]

    def to_dict(self, dump: Callable[[M], dict[str, Any]]) -> dict[str, Any]:
        """Write it in a form that JSON can hold.

        Args:
            dump: Writes a message in such a form.

        Raises:
            ConfigurationError: A message holds an object that JSON has no form for.
        """
        messages = [
            _dump(message, dump, f"message {place}") for place, message in enumerate(self.messages)
        ]
        summary = self.summary and _dump(self.summary, dump, "a summary")
        ready = self.ready and [
            self.ready[0],
            self.ready[1] and _dump(self.ready[1], dump, "a summary"),
        ]
        rest = _FORM.dump_python(replace(self, messages=(), summary=None, ready=None), mode="json")
        return {**rest, "messages": messages, "summary": summary, "ready": ready}

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
            form: Any = _FORM.validate_python(content)
            messages = tuple(map(load, form.messages))
            summary = None if form.summary is None else load(form.summary)
            ready = form.ready
            if ready is not None:
                ready = ready[0], None if ready[1] is None else load(ready[1])
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(f"{DAMAGED}: {place or 'it'}: {first['msg']}") from error
        except MALFORMED as error:
            msg = f"{DAMAGED}: a message cannot be read ({type(error).__name__})"
            raise ConfigurationError(msg) from error
        if len(messages) != len(form.entries):
            msg = f"{DAMAGED}: it has {len(messages)} messages, and counts {len(form.entries)}"
            raise ConfigurationError(msg)
        # A beginning that still needs a summary must be a message: its text is quoted to the model.
        reached = max(form.start, ready[0] if ready else 0)
        target = max(form.planned if form.planned > reached else 0, form.working or 0)
        if reached > len(messages) or (target and target >= len(messages)):
            msg = f"{DAMAGED}: it begins at message {max(reached, target)} of {len(messages)}"
            raise ConfigurationError(msg)
        restored: Self = replace(form, messages=messages, summary=summary, ready=ready)
        return restored


_FORM: TypeAdapter[Any] = TypeAdapter(SavedConversation[dict[str, Any]])


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
