"""Data sets in the files that their authors publish: which there are, and how they are read."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from typing_extensions import override

from ragcache_integrations.core.files import MOST_ROWS, Row, json_lines, read_text, reading
from ragcache_integrations.errors import ConfigurationError

from .base import BUNDLED, EvalDataset, EvalQuestion
from .passages import Passages
from .sources import bundled_rows, hub_name, hub_rows, passage_documents

__all__ = ["Content", "Hub", "Published", "PublishedDataset"]

SHOWN_FILES = 5
"""Names of a folder's files in a message."""


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a data set is on the Hugging Face hub.

    Attributes:
        name: Its name; empty if the hub has no copy with the authors' fields, so that the user has
            to name one.
        split: The split that is read.
        configurations: The configurations that are read; ``None`` for the only one.
    """

    name: str
    split: str = "validation"
    configurations: tuple[str | None, ...] = (None,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How the authors publish a data set.

    Attributes:
        home: Where to get it.
        files: Names of its files, the first to look for first; they may have a folder.
        entry: What is in an entry, for messages.
        rows: Key of the list of entries; empty if the file itself is that list, or JSON lines.
        every: Whether all files that exist are read, instead of the first.
        hub: Where it is on the hub.
        bundled: File of the bundled sample; empty if there is none.
    """

    home: str
    files: tuple[str, ...]
    entry: str
    rows: str = ""
    every: bool = False
    hub: Hub = field(default_factory=lambda: Hub(""))
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
        rows: The entries.
        source: Where they come from, in words.
        path: The file; ``None`` for the bundled sample and the hub.
        part: Name of the file without its endings, or the configuration on the hub.
        others: What the file has next to the list of entries.
    """

    rows: list[Row]
    source: str
    path: Path | None = None
    part: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)


class PublishedDataset(EvalDataset):
    """A data set in its authors' files.

    A path may be a folder with the files, the folder above it, or a single file, each also packed
    as ``.gz``.

    Attributes:
        published: The files, and where they are.
    """

    published: ClassVar[Published]
    named_by_folder = False  # their files are known by their names

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        passages = Passages(cls.name)
        questions: list[EvalQuestion] = []
        sources: list[str] = []
        for content in cls._contents(data):
            with reading(content.source, cls.published.expected):
                questions += cls.questions_of(content, passages)
            sources.append(content.source)
        chosen = passages.documents if documents is None else passage_documents(documents)
        return cls(questions, chosen, ", ".join(sources))

    @classmethod
    @abstractmethod
    def questions_of(cls, content: Content, passages: Passages) -> Iterable[EvalQuestion]:
        """Return the questions of some entries, and add their documents to the passages.

        Raises:
            ValueError: An entry is not in its format; so are ``KeyError`` and ``TypeError``.
        """

    @classmethod
    def _contents(cls, data: str) -> Iterator[Content]:
        facts = cls.published
        if data == BUNDLED:
            if not facts.bundled:
                msg = (
                    f"{cls.title} comes without a sample: name a folder with "
                    f"{_listed(facts.files)}, from {facts.home}, or the hub"
                )
                raise ConfigurationError(msg)
            yield Content(bundled_rows(facts.bundled), "the bundled sample")
        elif (name := hub_name(data, facts.hub.name)) is not None:
            if not name:
                msg = (
                    f"the hub has no copy of {cls.title} that is known to have its authors' "
                    f"fields: name one with {facts.entry} as hub:NAME"
                )
                raise ConfigurationError(msg)
            for part in facts.hub.configurations:
                rows = hub_rows(name, part, facts.hub.split)
                yield Content(rows, f"the hub's {name}", part=part or "")
        else:
            for path in cls._paths(data):
                yield cls._read(path)

    @classmethod
    def _paths(cls, data: str) -> list[Path]:
        facts = cls.published
        path = Path(data).expanduser()
        if path.is_file():
            return [path]
        for folder in (path, path / cls.name):
            there = [_existing(folder / name) for name in facts.files]
            files = [file for file in there if file is not None]
            if files:
                return files if facts.every else files[:1]
        msg = (
            f"{data!r} must be a folder with {_listed(facts.files)}, also as .gz, or such a file, "
            f"but {_present(path)}. {cls.title} is published at {facts.home}"
        )
        raise ConfigurationError(msg)

    @classmethod
    def _read(cls, path: Path) -> Content:
        facts = cls.published
        name = path.name.removesuffix(".gz")
        with reading(str(path), facts.expected):
            text = read_text(path)
            if name.endswith(".jsonl"):
                rows: Any = json_lines(text)
                others: dict[str, Any] = {}
            else:
                rows, others = _split(json.loads(text), facts.rows)
            _check_rows(rows)
        part = name.rpartition(".")[0]
        return Content(rows, f"{path.absolute().parent.name}/{path.name}", path, part, others)


def _split(content: Any, key: str) -> tuple[Any, dict[str, Any]]:
    """Return the list of entries, and the other fields of the file."""
    if not key:
        return content, {}
    if not isinstance(content, dict) or key not in content:
        msg = f"it must be an object with {key!r}, got {_kind(content)}"
        raise ValueError(msg)
    return content[key], {name: value for name, value in content.items() if name != key}


def _check_rows(rows: Any) -> None:
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        msg = f"entries must be a list of at most {MOST_ROWS}, got {_kind(rows)}"
        raise ValueError(msg)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            msg = f"entry {number} must be an object, got {row!r:.60}"
            raise TypeError(msg)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {_listed([repr(name) for name in value]) or 'nothing'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return repr(value)[:60]


def _existing(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return next((file for file in (path, packed) if file.is_file()), None)


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
