"""Reads data sets: from the bundled sample, a path, or the Hugging Face hub."""

from __future__ import annotations

import csv
import gzip
import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.files import (
    Row,
    json_lines,
    read_json_lines,
    read_text,
    reading,
    text_of,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_passages

from .base import HUB, EvalDocument

__all__ = [
    "bundled_rows",
    "find_file",
    "find_folder",
    "hub_name",
    "hub_rows",
    "passage_documents",
    "passages_from",
    "read_csv",
    "read_json",
    "sample_passages",
    "some_texts",
    "texts_of",
]


def hub_name(data: str, usual: str) -> str | None:
    """Return the name of a data set on the hub; ``None`` if ``data`` does not name the hub.

    Args:
        data: ``hub``, ``hub:NAME``, or something else.
        usual: The name for ``hub``.

    Raises:
        ConfigurationError: The name is empty.
    """
    head, mark, name = data.partition(":")
    if head != HUB:
        return None
    if mark and not name.strip():
        msg = f"hub: must be followed by the name of a data set, got {data!r}"
        raise ConfigurationError(msg)
    return name or usual


def find_folder(data: str, name: str, pattern: str) -> Path:
    """Find a data set's folder: the path itself, or the folder of its name in it.

    Args:
        data: The path.
        name: Name of the data set's folder.
        pattern: Pattern of a file that the folder must hold.

    Raises:
        ConfigurationError: There is no such folder.
    """
    path = Path(data).expanduser()
    for folder in (path, path / name):
        if folder.is_dir() and next(folder.glob(pattern), None) is not None:
            return folder
    msg = f"{data!r} must be a folder that holds {pattern}, or {name}/{pattern}"
    raise ConfigurationError(msg)


def find_file(folder: Path, *names: str) -> Path:
    """Find the first of some files that exists, also compressed as ``.gz``.

    Raises:
        ConfigurationError: None of them exists.
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    msg = f"{folder} must hold {' or '.join(names)}, also as .gz"
    raise ConfigurationError(msg)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    with reading(str(path)):
        return json.loads(read_text(path))


def read_csv(path: Path) -> list[list[str]]:
    """Rows of a CSV file without a header; quoted cells may hold line breaks."""
    with reading(str(path)):
        text = io.StringIO(read_text(path), newline="")
        return [row for row in csv.reader(text, strict=True) if row]


def bundled_rows(name: str) -> list[Row]:
    """Rows of a file of the bundled sample."""
    packed = files("ragcache_workbench.evaluation").joinpath("data", name).read_bytes()
    return json_lines(gzip.decompress(packed).decode())


def hub_rows(name: str, config: str | None, split: str) -> list[Row]:
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


def passages_from(path: Path | None) -> list[EvalDocument]:
    """Return the passages of a file; the bundled ones if there is no file."""
    return sample_passages() if path is None else passage_documents(path)


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


def texts_of(row: Row, name: str) -> tuple[str, ...]:
    """Return a field that must be a list of at least one text."""
    value = row.get(name)
    if isinstance(value, list | tuple) and value and all(isinstance(text, str) for text in value):
        return tuple(value)
    msg = f"{name!r} must be a list of texts, got {value!r:.60}"
    raise ValueError(msg)


def some_texts(row: Row, name: str) -> tuple[str, ...]:
    """Return a field that may be missing, ``None``, or a list of texts."""
    value = row.get(name)
    return () if value is None or value == [] else texts_of(row, name)
