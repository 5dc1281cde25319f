"""The order in which people repeated their searches, from TripClick's logs or one like them.

TripClick (Rekabsaz et al. 2021) has the logs of a search engine for health, a file of JSON lines
for each day. A record is a click, with these fields among others::

    {"DateCreated": ..., "SessionId": "x1", "Keywords": "asthma", "DocumentId": 7, "Documents": ...}

``Keywords`` is the query. Records of the same ``SessionId`` and query that follow each other are
clicks of one search. Queries that differ only in capitals and spaces are the same. Records without
a query are left out, and so are brackets and commas around records, as in the authors' own reader.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from ragcache_integrations.core.files import open_regular, reading
from ragcache_integrations.errors import ConfigurationError

__all__ = ["query_ranks"]

HOME = "https://tripdatabase.github.io/tripclick/ (logs.tar.gz)"
LONGEST_LINE = 1 << 20
"""Bytes of a record, at most."""
MOST_SEARCHES = 1_000_000
"""Searches that are read, at most."""
MOST_LINES = 10_000_000
"""Lines of a file that are read, at most; those without a query are no searches, and count."""
SHOWN_NAMES = 5
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\.json(\.gz)?")


def query_ranks(path: str | Path, most: int, length: int | None = None) -> list[int]:
    """Read the beginning of a log, as ranks of its queries by popularity.

    It ends before the first query that would be one too many, so all repetitions in it, and the
    distances between them, are those of the log.

    Args:
        path: A file of records, or a folder of files named ``YYYY-MM-DD.json``, which are read in
            this order; each also as ``.gz``.
        most: The most different queries, at least 1.
        length: Number of searches; ``None`` for as many as ``most`` allows, up to 1,000,000.

    Returns:
        For each search, how many queries of this beginning come more often, or as often and
        earlier: 0 for the most popular.

    Raises:
        ConfigurationError: There is no log, a record is not in its format, or there are fewer than
            ``length`` searches.
    """
    numbers: dict[str, int] = {}
    order: list[int] = []
    for query in _searches(Path(path).expanduser()):
        if len(order) == (length or MOST_SEARCHES) or (
            query not in numbers and len(numbers) == most
        ):
            break
        order.append(numbers.setdefault(query, len(numbers)))
    if not order or len(order) < (length or 0):
        msg = (
            f"a workload of {length or 1} searches needs a longer log or more questions: {path} "
            f"has {len(order)} searches of at most {most} different queries in a row, one for each "
            "question"
        )
        raise ConfigurationError(msg)
    popular = [number for number, _ in Counter(order).most_common()]
    ranks = {number: rank for rank, number in enumerate(popular)}
    return [ranks[number] for number in order]


def _searches(path: Path) -> Iterator[str]:
    """Queries in the order of the log, those of several clicks once."""
    before: tuple[str, str] | None = None
    for file in _files(path):
        for record in _records(file):
            query = " ".join(str(record["Keywords"] or "").casefold().split())
            session = record.get("SessionId")
            # Without a session, each record is a search.
            search = None if session is None else (str(session), query)
            if query and (search is None or search != before):
                yield query
            before = search


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    there = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    days = [name for name in there if _DAY.fullmatch(name)]
    if days:
        return [path / name for name in days]
    shown = ", ".join(there[:SHOWN_NAMES])
    present = (
        f"it has {shown or 'no files'}" if path.is_dir() else "there is no such file or folder"
    )
    msg = (
        f"{str(path)!r} must be a file of records with 'Keywords', or a folder of YYYY-MM-DD.json, "
        f"but {present}. TripClick's logs are at {HOME}"
    )
    raise ConfigurationError(msg)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        with reading(str(path)):
            file: BinaryIO = stack.enter_context(open_regular(path))
        if path.suffix == ".gz":
            file = cast("BinaryIO", stack.enter_context(gzip.GzipFile(fileobj=file)))
        number = 0
        while True:
            number += 1
            with reading(
                f"line {number} of {path}", f"a JSON object with 'Keywords', as in {HOME}"
            ):
                line = file.readline(LONGEST_LINE + 1)
                if line and number > MOST_LINES:
                    msg = f"a file must have at most {MOST_LINES:,} lines, but has more"
                    raise ValueError(msg)
                record = _record(line)
            if not line:
                return
            if record is not None:
                yield record


def _record(line: bytes) -> dict[str, Any] | None:
    if len(line) > LONGEST_LINE:
        msg = f"a record must have at most {LONGEST_LINE} bytes, but has more"
        raise ValueError(msg)
    text = line.decode("utf-8").strip().strip(",").removeprefix("[").removesuffix("]").strip()
    if not text:
        return None
    record = json.loads(text)
    if not isinstance(record, dict) or not isinstance(record.get("Keywords", 0), str | None):
        names = ", ".join(map(str, record)) if isinstance(record, dict) else repr(record)
        msg = f"it must be an object whose 'Keywords' are a text, got {names:.100}"
        raise TypeError(msg)
    return record
