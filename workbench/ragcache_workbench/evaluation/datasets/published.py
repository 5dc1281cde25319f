"""Reads data sets in the files that their authors publish, from the samples, or from the hub."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self

from typing_extensions import override

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.files import (
    MOST_ROWS,
    Row,
    json_lines,
    read_json_lines,
    read_text,
    reading,
    text_of,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_passages

from .base import BUNDLED, HUB, TABLE, Answer, EvalDataset, EvalDocument, EvalQuestion, Scored
from .metrics import score_option

__all__ = [
    "Content",
    "Passages",
    "Published",
    "PublishedDataset",
    "answering",
    "chunked",
    "passage_documents",
    "passages_in",
    "pieces",
    "sample_passages",
    "some_texts",
    "texts_of",
]

SHOWN_FILES = 5
"""Names of a folder's files in a message."""

CHUNK_CHARACTERS = 2000
"""About 500 tokens."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How the authors publish a data set; the table is in ``published.toml``.

    Attributes:
        reader: The module and the class that reads it.
        words: What it is, for the help of ``ragcache eval``.
        home: Where to get it.
        files: Names of its files, the first to look for first; they may have a folder, and ``*``.
        entry: What is in an entry, for messages.
        rows: Key of the list of entries; empty if the file itself is that list, or JSON lines.
        keyed: Whether the file is an object that has the entries by their ids.
        every: Whether all files that exist are read, instead of the first.
        hub: Its name on the Hugging Face hub; empty if the hub has no copy with the authors'
            fields, so that the user has to name one.
        parts: The configurations and splits on the hub that are read, in this order; an empty name
            for the only configuration.
        bundled: File of the bundled sample; empty if there is none.
    """

    reader: str
    words: str
    home: str
    files: Sequence[str]
    entry: str
    rows: str = ""
    keyed: bool = False
    every: bool = False
    hub: str = ""
    parts: Sequence[tuple[str, str]] = (("", "validation"),)
    bundled: str = ""

    @property
    def expected(self) -> str:
        """The format in words, for messages."""
        place = f" of the list {self.rows!r}" if self.rows else ""
        return f"entries{place} with {self.entry}, as from {self.home}"


@dataclass(frozen=True, slots=True)
class Content:
    """The entries of a file, or of a part of the hub.

    Attributes:
        rows: The entries; those of a CSV file have their ``cells``.
        source: Where they come from, in words.
        path: The file; ``None`` for the bundled sample and the hub.
        part: Name of the file without its endings, or the split on the hub.
        others: What the file has next to the list of entries.
    """

    rows: list[Row]
    source: str
    path: Path | None = None
    part: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)


class Passages:
    """Documents in the order in which they come; the same text of two questions is one document.

    Args:
        prefix: Begins their ids.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._documents: dict[str, EvalDocument] = {}

    def add(self, text: str, title: str = "", name: str = "") -> str:
        """Add a document, unless it is there, and return its id.

        Args:
            text: Its text.
            title: A line before the text; empty for none.
            name: Its id, unless it is there; empty for its number.

        Raises:
            ValueError: It is no text, or empty.
        """
        if not isinstance(title, str) or not isinstance(text, str) or not text.strip():
            msg = f"a passage must be a text that is not empty, got {(title, text)!r:.60}"
            raise ValueError(msg)
        whole = f"{title}\n{text}" if title else text
        name = name or f"{self._prefix}-{len(self._documents)}"
        return self._documents.setdefault(whole, EvalDocument(name, whole)).id

    def add_long(self, text: str, title: str = "") -> dict[str, str]:
        """Add a long text in :func:`pieces`, and return these by their ids."""
        return {self.add(piece, title): piece for piece in pieces(text)}

    @property
    def documents(self) -> list[EvalDocument]:
        """The documents, each once."""
        return list(self._documents.values())


class PublishedDataset(EvalDataset):
    """A data set in its authors' files.

    A path may be a folder with the files, the folder above it, or a single file, each also packed
    as ``.gz``.

    Attributes:
        published: The files, and where they are, as the table has them for its name.
        scoring: How a free answer is scored by the right answers, for each of :attr:`metrics`.
    """

    published: ClassVar[Published]
    scoring: ClassVar[tuple[Callable[[str, Sequence[str]], float], ...]] = ()
    named_by_folder = False  # most files are known by their names

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if (facts := TABLE.get(vars(cls).get("name", ""))) is not None:
            cls.published = Published(**facts)

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        passages = Passages(cls.name)
        questions: list[EvalQuestion] = []
        contents = []
        for content in cls.contents(data):
            with reading(content.source, cls.published.expected):
                questions += cls.questions_of(content, passages)
            contents.append(content)
        source = ", ".join(content.source for content in contents)
        return cls(questions, cls._documents(documents, contents[0].path, passages), source)

    @classmethod
    @abstractmethod
    def questions_of(cls, content: Content, passages: Passages) -> Iterable[EvalQuestion]:
        """Return the questions of some entries, and add their documents to the passages.

        Raises:
            ValueError: An entry is not in its format; so are ``KeyError`` and ``TypeError``.
        """

    @classmethod
    def _documents(
        cls, documents: Path | None, path: Path | None, passages: Passages
    ) -> Sequence[EvalDocument]:
        """Return the user's own documents, else those that belong to the file of the questions."""
        if documents is not None:
            return passage_documents(documents)
        return passages.documents or cls.documents_beside(path)

    @classmethod
    def documents_beside(cls, path: Path | None) -> Sequence[EvalDocument]:
        """Return the documents where none came with the questions.

        Args:
            path: The file of the questions; ``None`` for the bundled sample and the hub.
        """
        del path
        return ()

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        if self.chooses:
            return score_option(question, answer)
        text = answer.text.strip()
        scored = zip(self.metrics, self.scoring, strict=True)
        return Scored({name: score(text, question.answers) for name, score in scored}, text)

    @classmethod
    def bundled(cls) -> list[Row]:
        """Return the entries of the bundled sample; none if there is no sample."""
        name = cls.published.bundled
        if not name:
            return []
        packed = files("ragcache_workbench.evaluation").joinpath("data", name).read_bytes()
        return json_lines(gzip.decompress(packed).decode())

    @classmethod
    def contents(cls, data: str) -> Iterator[Content]:
        """Read the entries of the bundled sample, the hub, or all files of a path."""
        facts = cls.published
        hub, mark, name = data.partition(":")
        if data == BUNDLED:
            rows = cls.bundled()
            if not rows:
                raise ConfigurationError(
                    f"{cls.title} comes without a sample: name a folder with "
                    f"{_listed(facts.files)}, from {facts.home}, or the hub"
                )
            yield Content(rows, "the bundled sample")
        elif hub == HUB:
            if mark and not name.strip():
                msg = f"hub: must be followed by the name of a data set, got {data!r}"
                raise ConfigurationError(msg)
            name = name or facts.hub
            if not name:
                raise ConfigurationError(
                    f"the hub has no copy of {cls.title} that is known to have its authors' "
                    f"fields: name a copy with {facts.entry} as hub:NAME"
                )
            for configuration, split in facts.parts:
                rows = _hub_rows(name, configuration or None, split)
                yield Content(rows, f"the hub's {name}", part=split)
        else:
            yield from map(cls._read, cls._paths(data))

    @classmethod
    def _paths(cls, data: str) -> list[Path]:
        facts = cls.published
        path = Path(data).expanduser()
        if path.is_file():
            return [path]
        for folder in (path, path / cls.name):
            found = [file for name in facts.files for file in _existing(folder, name)]
            if found:
                return found if facts.every else found[:1]
        raise ConfigurationError(
            f"{data!r} must be a folder with {_listed(facts.files)}, also as .gz, or such a file, "
            f"but {_present(path)}. {cls.title} is published at {facts.home}"
        )

    @classmethod
    def _read(cls, path: Path) -> Content:
        facts = cls.published
        name = path.name.removesuffix(".gz")
        others: dict[str, Any] = {}
        with reading(str(path), facts.expected):
            text = read_text(path)
            if name.endswith(".csv"):  # without a header; quoted cells may hold line breaks
                lines = csv.reader(io.StringIO(text, newline=""), strict=True)
                rows: Any = [{"cells": cells} for cells in lines if cells]
            elif name.endswith(".jsonl"):
                rows = json_lines(text)
            else:
                rows, others = _split(json.loads(text), facts)
            _check_rows(rows)
        part = name.rpartition(".")[0]
        return Content(rows, f"{path.absolute().parent.name}/{path.name}", path, part, others)


def _split(content: Any, facts: Published) -> tuple[Any, dict[str, Any]]:
    """Return the list of entries, and the other fields of the file."""
    key = facts.rows
    if facts.keyed and isinstance(content, dict):
        return [entry | {"id": name} for name, entry in content.items()], {}
    if not key and not facts.keyed:
        return content, {}
    if not isinstance(content, dict) or key not in content:
        wanted = f"an object with {key!r}" if key else "an object of entries by their ids"
        raise ValueError(f"it must be {wanted}, got {_kind(content)}")
    return content[key], {name: value for name, value in content.items() if name != key}


def _check_rows(rows: Any) -> None:
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise ValueError(f"entries must be a list of at most {MOST_ROWS}, got {_kind(rows)}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TypeError(f"entry {number} must be an object, got {row!r:.60}")


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {_listed([repr(name) for name in value]) or 'nothing'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return repr(value)[:60]


def _existing(folder: Path, name: str) -> list[Path]:
    """Files of a name or a pattern; a packed one only if it is not there unpacked."""
    packed = {path.with_suffix(""): path for path in folder.glob(f"{name}.gz") if path.is_file()}
    plain = {path: path for path in folder.glob(name) if path.is_file()}
    return [path for _, path in sorted((packed | plain).items())]


def _present(path: Path) -> str:
    """What is at a path that does not hold the data set, in words."""
    if not path.is_dir():
        return "there is no such folder or file" if not path.exists() else "it is neither"
    return f"it has {_listed(sorted(file.name for file in path.iterdir())) or 'no files'}"


def _listed(names: Iterable[str]) -> str:
    shown = list(names)
    more = len(shown) - SHOWN_FILES
    end = f" and {more} more" if more > 0 else ""
    return ", ".join(shown[:SHOWN_FILES]) + end


def _hub_rows(name: str, config: str | None, split: str) -> list[Row]:
    """Rows of a data set of the Hugging Face hub, by its own ``datasets`` library.

    Raises:
        MissingExtraError: The library is not installed.
        ConfigurationError: There is no such data set, or the hub cannot be reached.
    """
    library = require("datasets", feature="Data from the Hugging Face hub", package="datasets")
    try:
        return [dict(row) for row in library.load_dataset(name, config, split=split)]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        msg = f"cannot read {name!r} ({split}) from the hub: {reason}"
        raise ConfigurationError(msg) from error


def sample_passages() -> list[EvalDocument]:
    """The bundled passages of Wikipedia."""
    return [
        EvalDocument(passage.id, f"{passage.title}\n{passage.text}") for passage in load_passages()
    ]


def passage_documents(path: Path) -> list[EvalDocument]:
    """Passages from JSON lines of ``id``, ``title`` and ``text``."""
    with reading(str(path)):
        documents = []
        for row in read_json_lines(path):
            title = text_of(row, "title", "") if "title" in row else ""
            body = text_of(row, "text")
            text = f"{title}\n{body}" if title else body
            documents.append(EvalDocument(text_of(row, "id"), text))
        return documents


def passages_in(folder: Path) -> list[EvalDocument] | None:
    """Return the passages of a folder of Natural Questions; ``None`` if it has no such file."""
    there = _existing(folder, "passages.jsonl")
    return passage_documents(there[0]) if there else None


def texts_of(row: Row, name: str) -> tuple[str, ...]:
    """Return a field that must be a list of at least one text."""
    value = row.get(name)
    if isinstance(value, list | tuple) and value and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise ValueError(f"{name!r} must be a list of texts, got {value!r:.60}")


def some_texts(row: Row, name: str) -> tuple[str, ...]:
    """Return a field that may be missing, ``None``, or a list of texts."""
    value = row.get(name)
    return () if value is None or value == [] else texts_of(row, name)


def chunked(turns: Sequence[str], size: int = CHUNK_CHARACTERS) -> list[tuple[int, int]]:
    """Cut a transcript between turns, or a text between its lines.

    Args:
        turns: The turns of a meeting.
        size: A chunk ends with the turn that reaches this many characters.

    Returns:
        For each chunk the number of its first turn, and of the first turn after it.
    """
    ranges, start, length = [], 0, 0
    for number, turn in enumerate(turns, start=1):
        length += len(turn) + 1
        if length >= size or number == len(turns):
            ranges.append((start, number))
            start, length = number, 0
    return ranges


def pieces(text: str, size: int = CHUNK_CHARACTERS) -> list[str]:
    """Cut a long text between lines; a line that is too long, between sentences.

    Args:
        text: The text.
        size: A piece ends with the line or sentence that reaches this many characters.

    Returns:
        The pieces, none of which is empty. None is longer than twice ``size``.
    """
    units = [unit for line in text.split("\n") if line.strip() for unit in _units(line, size)]
    return ["\n".join(units[first:end]) for first, end in chunked(units, size)]


def _units(line: str, size: int) -> list[str]:
    if len(line) <= size:
        return [line]
    sentences = (sentence for sentence in _SENTENCE.split(line) if sentence.strip())
    return [
        part
        for sentence in sentences
        for start in range(0, len(sentence), size)
        if (part := sentence[start : start + size]).strip()
    ]


def answering(texts: dict[str, str], answers: Sequence[str]) -> tuple[str, ...]:
    """Ids of the texts that hold an answer word for word, in any case; all if none does.

    Args:
        texts: Texts by their ids.
        answers: Right answers.
    """
    lowered = [answer.lower() for answer in answers if answer.strip()]
    holding = tuple(
        name for name, text in texts.items() if any(map(text.lower().__contains__, lowered))
    )
    return holding or tuple(texts)
