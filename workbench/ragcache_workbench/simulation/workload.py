"""A log of one's own traffic as a trace: questions and the documents that were retrieved for them.

The file holds JSON lines, one request each, in the order of the traffic::

    {"question": "who won?", "documents": [{"id": "a", "text": "..."}, {"id": "b", "tokens": 812}]}
    {"question": "and before?", "documents": ["b", {"text": "..."}]}

A document is ``{"id", "text"}``, ``{"id", "tokens"}`` where the text is not to be logged,
``{"text"}`` where there is no id, or the id alone of a document that another line describes: the
latest line before that one, else the first after it. Ids are texts or whole numbers. Documents
are in the order of the prompt. ``"session"`` may name the conversation or the user, which is only
used to simulate routing by session. Other fields are ignored, and so are empty lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.files import read_text, reading
from ragcache_integrations.core.texts import content_id, estimate_tokens
from ragcache_integrations.errors import ConfigurationError

from .traces import Trace, TraceRequest

__all__ = ["Workload", "load_workload"]

MOST_TOKENS = 10_000_000
"""The most tokens of a document that is logged without its text; each block is simulated."""

SNIPPET = 60


@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic read from a file.

    Attributes:
        trace: The requests.
        without_documents: How many of them brought no document.
        changed_documents: How many document ids came with more than one text or length; each
            version counts as a document of its own, as its KV cache is.
    """

    trace: Trace
    without_documents: int
    changed_documents: int


def load_workload(
    path: str | Path, count_tokens: Callable[[str], int] = estimate_tokens
) -> Workload:
    """Read a log of requests; the module's docstring has the format.

    Args:
        path: JSON lines in UTF-8.
        count_tokens: Gives the length of a text in tokens; see :func:`.estimate_tokens`.

    Raises:
        ConfigurationError: The file cannot be read, is empty, or a line is wrong; the message
            names the line.
    """
    path = Path(path)
    with reading(f"the workload {path}", "JSON lines in UTF-8"):
        # Not splitlines(): it also splits at characters that JSON may hold as they are.
        lines = read_text(path).split("\n")
    reader = _Reader(count_tokens)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            reader.read(line, number)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {number}: {error}") from error
    if not reader.requests:
        raise ConfigurationError(f"the workload {path} holds no request")
    return reader.finish(path)


@dataclass(slots=True)
class _LoggedRequest:
    line: int
    question: str
    documents: list[tuple[str, int] | str]
    session: str


class _Reader:
    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        self._count_tokens = count_tokens
        self._versions: dict[str, dict[object, tuple[str, int]]] = {}
        self._latest: dict[str, tuple[str, int]] = {}
        self.requests: list[_LoggedRequest] = []

    def read(self, line: str, number: int) -> None:
        """Take in one line."""
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"this is no JSON: {error}") from error
        if not isinstance(row, Mapping):
            raise ConfigurationError(f"a request must be an object, got {_shown(row)}")
        question, documents = row.get("question"), row.get("documents")
        if not _is_text(question):
            msg = f'"question" must be a text that is not empty, got {_shown(question)}'
            raise ConfigurationError(msg)
        if not isinstance(documents, list):
            raise ConfigurationError(f'"documents" must be a list, got {_shown(documents)}')
        session = _id_in(row, "session", '"session"')
        named = [self._document(entry) for entry in documents]
        self.requests.append(_LoggedRequest(number, question, named, session or ""))

    def finish(self, path: Path) -> Workload:
        """Resolve the ids that are described in later lines."""
        lengths: dict[str, int] = {}
        requests = []
        for logged in self.requests:
            documents = tuple(
                self._resolve(document, f"{path}, line {logged.line}")
                if isinstance(document, str)
                else document
                for document in logged.documents
            )
            if logged.question not in lengths:
                lengths[logged.question] = max(1, self._count_tokens(logged.question))
            requests.append(
                TraceRequest(
                    documents, lengths[logged.question], logged.question, session=logged.session
                )
            )
        return Workload(
            Trace(tuple(requests)),
            without_documents=sum(not request.documents for request in requests),
            changed_documents=sum(len(versions) > 1 for versions in self._versions.values()),
        )

    def _resolve(self, name: str, place: str) -> tuple[str, int]:
        """The first version of a document of which the request has only the id."""
        if name not in self._versions:
            msg = f"{place}: no line gives the text or the tokens of the document {name!r}"
            raise ConfigurationError(msg)
        return next(iter(self._versions[name].values()))

    def _document(self, entry: Any) -> tuple[str, int] | str:
        """The name and length of a document; the id alone where no line gives its length yet."""
        if (name := _as_id(entry)) is not None:
            return self._latest.get(name, name)
        if not isinstance(entry, Mapping):
            raise ConfigurationError(f"a document must be an object or an id, got {_shown(entry)}")
        name = _id_in(entry, "id", 'a document\'s "id"')
        text, tokens = entry.get("text"), entry.get("tokens")
        if _is_text(text):
            digest = content_id(text)
            return self._version(name or digest, digest, lambda: max(1, self._count_tokens(text)))
        if text is None and name is not None and is_whole(tokens) and 1 <= tokens <= MOST_TOKENS:
            return self._version(name, tokens, lambda: tokens)
        raise ConfigurationError(
            'a document needs a "text" that is not empty, or an "id" and "tokens" from 1 to '
            f"{MOST_TOKENS:,}, got {_shown(entry)}"
        )

    def _version(self, name: str, content: object, tokens: Callable[[], int]) -> tuple[str, int]:
        versions = self._versions.setdefault(name, {})
        if content not in versions:
            label = f"{name}#{len(versions) + 1}" if versions else name
            versions[content] = (label, tokens())
        self._latest[name] = versions[content]
        return versions[content]


def _id_in(row: Mapping[str, Any], field: str, what: str) -> str | None:
    """The id in a field; ``None`` if there is none."""
    value = row.get(field)
    name = _as_id(value)
    if name is None and value is not None:
        msg = f"{what} must be a text that is not empty, or a whole number, got {_shown(value)}"
        raise ConfigurationError(msg)
    return name


def _as_id(value: object) -> str | None:
    return str(value) if _is_text(value) or is_whole(value) else None


def _is_text(value: object) -> TypeGuard[str]:
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can name halves of characters
        return False
    return True


def _shown(value: object) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value)
    return text if len(text) <= SNIPPET else f"{text[:SNIPPET]}..."
