"""Reads the questions of a log, with what is known of their answers.

The file holds JSON lines, plain or compressed with gzip; all but the question may be missing::

    {"question": "who won?", "answer": "Homer", "documents": ["a", {"id": "b", "text": "..."}],
     "tenant": "shop", "time": "2026-03-01T09:30:00Z", "seconds": 1.8, "cost": 0.002}

Other logs are those that the linter reads (requests to OpenAI and others, exports of LangSmith and
Langfuse): the question is the last message of the user, and all that the request holds before it
must be the same for an answer to be shared.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ragcache_integrations.answers import plain_answer
from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.core.texts import content_id, without_surrogates
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.logs import Log, decoded, read_log, recorded_requests

__all__ = ["LEAST_QUESTIONS", "LoggedQuestion", "questions_of", "read_questions"]

LEAST_QUESTIONS = 30
"""Fewer show nothing about traffic."""

MAX_QUESTION = 32_000
"""The most characters of a question; the embedding reads the first 256 tokens."""

MAX_DOCUMENTS = 1_000
"""The most documents of a question."""

MAX_TENANT = 100
"""The most characters of a tenant's name."""
MOST = 10**12
"""Seconds or dollars of an answer."""

MAX_DEPTH = 12
"""The most envelopes around an answer; LangSmith's have about six."""

_PLACES = ("response", "output", "outputs", "completion", "answer")
"""Where a record of a call has what the model returned."""

_INNER = (
    *("body", "choices", "generations", "candidates", "message", "kwargs"),
    *("content", "parts", "text", "output_text", "output", "answer"),
)
"""Where that has the text, from the outside in."""

_BLOCKS = ("text", "output_text")
"""Types of the blocks that together are one text."""

_TIMES = ("time", "timestamp", "start_time", "startTime", "created_at", "created")
_ENDS = ("end_time", "endTime")
_SECONDS = ("seconds",)
_COSTS = ("cost", "total_cost", "totalCost", "calculatedTotalCost", "spend", "response_cost")


@dataclass(frozen=True, slots=True)
class LoggedQuestion:
    """A question of a log.

    Attributes:
        text: Its words.
        answer: Hash of its answer, equal for answers that say the same; ``None`` if it is not
            known.
        documents: Id and hash of the text of each document; ``None`` if they are not known.
        scope: What else must be equal for an answer to be shared.
        tenant: Whose question it is; empty for nobody's in particular.
        time: When it came; ``None`` if that is not known.
        seconds: How long its answer took; ``None`` if that is not known.
        cost: What its answer cost, in dollars; ``None`` if that is not known.
    """

    text: str
    answer: str | None = None
    documents: frozenset[tuple[Hashable, str | None]] | None = None
    scope: str = ""
    tenant: str = ""
    time: datetime | None = None
    seconds: float | None = None
    cost: float | None = None


def questions_of(value: object, where: str) -> list[LoggedQuestion]:
    """Return the questions of a line or an entry; see :class:`.Log`."""
    if isinstance(value, Mapping) and "question" in value:
        return [_question(value, value["question"], "", _answer(value.get("answer")))]
    return _requested(value, where)


def read_questions(path: Path) -> Log[LoggedQuestion]:
    """Read a log; the module's docstring has its form.

    Questions are sorted by their time, if all have one.

    Raises:
        ConfigurationError: The file cannot be read, or has fewer than 30 questions.
    """
    log = read_log(path, questions_of)
    if len(log) < LEAST_QUESTIONS:
        why = f"; {log.skipped} entries were skipped: {log.remarks[0]}" if log.remarks else ""
        raise ConfigurationError(
            f"{path} has {len(log)} usable questions, and a report needs at least "
            f"{LEAST_QUESTIONS}{why}"
        )
    if all(question.time is not None for question in log):
        log.sort(key=lambda question: question.time or datetime.max.replace(tzinfo=UTC))
    return log


def _requested(value: object, where: str) -> list[LoggedQuestion]:
    """Return the questions of a recorded request."""
    requests = recorded_requests(value, where)
    if not requests or any(request.token_ids for request in requests):
        raise ConfigurationError(f"{where} has no question as text")
    around = value if isinstance(value, Mapping) else {}
    answer = None
    if len(requests) == 1:
        replies = [text for role, text in requests[0].rest if role == "assistant" and text]
        answer = replies[-1] if replies else _recorded_answer(around)
    # What several requests took together says nothing about each.
    around = around if len(requests) == 1 else {}
    return [
        _question(
            around,
            request.last,
            content_id(f"{request.model}\n{request.tools}\n{request.system}\n{request.history}"),
            _answer(answer),
        )
        for request in requests
    ]


def _recorded_answer(entry: Mapping[str, object]) -> str | None:
    """Return the answer in a record of a call; ``None`` if there is none that can be read.

    Args:
        entry: A line of a batch of OpenAI's, a row of LiteLLM, an observation of Langfuse, a run
            of LangSmith, or anything like them. Values may be JSON in a string.
    """
    return next((text for name in _PLACES if (text := _text(entry.get(name), 0))), None)


def _text(value: object, depth: int) -> str | None:
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        content = decoded(value)
        return value if content is value else _text(content, depth + 1) or value
    if isinstance(value, list):
        texts = [text for item in value if (text := _text(item, depth + 1))]
        blocks = any(isinstance(item, Mapping) and item.get("type") in _BLOCKS for item in value)
        return "".join(texts if blocks else texts[:1]) or None  # of several answers the first
    if isinstance(value, Mapping):
        return next((text for name in _INNER if (text := _text(value.get(name), depth + 1))), None)
    return None


def _question(
    entry: Mapping[str, Any], text: object, scope: str, answer: str | None
) -> LoggedQuestion:
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError("a question must be a text that is not empty")
    if len(text) > MAX_QUESTION:
        msg = f"a question must have at most {MAX_QUESTION:,} characters, got {len(text):,}"
        raise ConfigurationError(msg)
    time = _time(_first(entry, _TIMES))
    seconds, end = _amount(entry, _SECONDS), _time(_first(entry, _ENDS))
    if seconds is None and time is not None and end is not None and end >= time:
        seconds = (end - time).total_seconds()
    return LoggedQuestion(
        text=without_surrogates(text),
        answer=answer,
        documents=_documents(entry.get("documents")),
        scope=scope,
        tenant=_tenant(entry.get("tenant")),
        time=time,
        seconds=seconds,
        cost=_amount(entry, _COSTS),
    )


def _answer(answer: object) -> str | None:
    if answer is None:
        return None
    if not isinstance(answer, str):
        raise ConfigurationError(f"an answer must be a text, got a {type(answer).__name__}")
    return content_id(plain_answer(answer))


def _documents(documents: object) -> frozenset[tuple[Hashable, str | None]] | None:
    if documents is None:
        return None
    if not isinstance(documents, list) or len(documents) > MAX_DOCUMENTS:
        raise ConfigurationError(f"documents must be a list of at most {MAX_DOCUMENTS:,}")
    return frozenset(map(_document, documents))


def _document(document: object) -> tuple[Hashable, str | None]:
    name, text = document, None
    if isinstance(document, Mapping):
        name, text = document.get("id"), document.get("text")
    named = isinstance(name, str) or is_whole(name)
    if not (named or (name is None and text is not None)) or not isinstance(text, str | None):
        msg = 'a document must be an id, or {"id", "text"} with at least one of them'
        raise ConfigurationError(msg)
    return None if name is None else str(name), None if text is None else content_id(text)


def _tenant(tenant: object) -> str:
    if tenant is None:
        return ""
    if not (isinstance(tenant, str) or is_whole(tenant)) or len(str(tenant)) > MAX_TENANT:
        msg = f"a tenant must be a name of at most {MAX_TENANT} characters, or a whole number"
        raise ConfigurationError(msg)
    return without_surrogates(str(tenant))


def _first(entry: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _time(value: object) -> datetime | None:
    """Read a time in ISO 8601, or in seconds since 1970; one without a zone is taken for UTC."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        if is_number(value):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise ConfigurationError("a time must be in ISO 8601, or in seconds since 1970")


def _amount(entry: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    value = _first(entry, names)
    if isinstance(value, str):  # as the exports of databases write decimal numbers
        with suppress(ValueError):
            value = float(value)
    if value is None:
        return None
    if not is_number(value) or not 0 <= value <= MOST:
        raise ConfigurationError(f"{names[0]} must be a number from 0 to {MOST:,}")
    return float(value)
