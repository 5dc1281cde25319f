"""Streams of questions as in the papers, with arrival times if they have a request rate.

Questions are rephrased by rules, so that a stream repeats no text.

The kinds of repetition, from near to far:

- ``verbatim``: the same text (the only kind that repeats texts).
- ``prefixed``: up to three short prefixes, as in Proximity §4.2.2.
- ``slight``: a prefix, an ending, another question mark, or a contraction.
- ``light``: two of these.
- ``medium``: a word or phrase replaced by a synonym, or a part moved; then as ``light``.
- ``heavy``: two such changes, and the question turned around or cut down to its keywords; then as
  ``light``.

If a question has no more texts of its kind, further slight changes are added. Texts that differ
only in capitals and spaces count as the same, since the embedding model does not distinguish them.
The rules' words are in ``evaluation/data/rephrasing.json``; each rule keeps the meaning, not always
the grammar.

One workload has the order in which people repeated their searches, from TripClick's logs or one
like them. TripClick (Rekabsaz et al. 2021) has the logs of a search engine for health, a file of
JSON lines for each day. A record is a click, with these fields among others::

    {"DateCreated": ..., "SessionId": "x1", "Keywords": "asthma", "DocumentId": 7, "Documents": ...}

``Keywords`` is the query. Records of the same ``SessionId`` and query that follow each other are
clicks of one search. Queries that differ only in capitals and spaces are the same. Records without
a query are left out, and so are brackets and commas around records, as in the authors' own reader.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

import numpy as np

from ragcache_integrations.core.checks import check_choice, check_int, check_number, or_none
from ragcache_integrations.core.files import open_regular, reading
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation import zipf_ranks

__all__ = [
    "KINDS",
    "Kind",
    "Workload",
    "WorkloadItem",
    "WorkloadKind",
    "check_workload",
    "make_workload",
    "normal_form",
    "query_ranks",
    "rephrase",
]

Kind = Literal["verbatim", "prefixed", "slight", "light", "medium", "heavy"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_TABLES: dict[str, Any] = json.loads(
    files("ragcache_workbench.evaluation").joinpath("data/rephrasing.json").read_text("utf-8")
)
GREETINGS, REASONS, OPENINGS, CLOSINGS = (
    tuple(_TABLES[name]) for name in ("greetings", "reasons", "openings", "closings")
)
CONTRACTIONS: dict[str, str] = _TABLES["contractions"]
SYNONYMS: dict[str, str] = {
    **_TABLES["synonyms in encyclopaedic questions"],
    **_TABLES["synonyms in medical questions"],
}
# Words that are left out of a search by keywords.
FUNCTION_WORDS = frozenset(_TABLES["function words"])

Edit = Callable[[str], list[str]]


def _bare(text: str) -> str:
    return text.rstrip("?. ")


def _lead(text: str, openings: Sequence[str]) -> list[str]:
    return [f"{opening} {text}" for opening in openings]


def _end(text: str) -> list[str]:
    mark = "?" if text.endswith("?") else ""
    bare = _bare(text)
    return [f"{bare}{separator}{end}{mark}" for end in CLOSINGS for separator in (" ", ", ")]


def _mark(text: str) -> list[str]:
    return [variant for end in ("", "?", "??", "...") if (variant := _bare(text) + end) != text]


def _substitute(table: Mapping[str, str], text: str) -> list[str]:
    """The text with one entry of the table replaced, for every entry that it holds."""
    lower = text.casefold()
    variants = (
        re.sub(rf"\b{re.escape(old)}\b", new, text, count=1, flags=re.IGNORECASE)
        for old, new in table.items()
        if old in lower  # quicker to see
    )
    return [variant for variant in variants if variant != text]


def _contract(text: str) -> list[str]:
    return _substitute(CONTRACTIONS, text)


def _swap_word(text: str) -> list[str]:
    return _substitute(SYNONYMS, text)


def _rewrite(patterns: Mapping[str, Sequence[str]], text: str) -> list[str]:
    """The bare text in all other orders, for every pattern that it has the form of."""
    matches = ((re.fullmatch(pattern, _bare(text)), forms) for pattern, forms in patterns.items())
    return [match.expand(form) for match, forms in matches if match for form in forms]


def _move(text: str) -> list[str]:
    """``Amblyopia: is loss permanent?`` -> ``is loss permanent, Amblyopia``, and the like."""
    return _rewrite(_TABLES["moves"], text)


def _turn(text: str) -> list[str]:
    """``who is the owner of it`` -> ``the owner of it is who``; or only the keywords."""
    turned = _rewrite(_TABLES["turns"], text)
    words = re.findall(r"[\w'-]+", text)
    keywords = [word for word in words if word.casefold() not in FUNCTION_WORDS]
    if 2 < len(keywords) < len(words):  # noqa: PLR2004 - two words are no question
        turned += [" ".join(keywords)]
    return turned


def _slight(rng: np.random.Generator) -> Edit:
    edits: tuple[Edit, ...] = (
        lambda text: _lead(text, OPENINGS),
        lambda text: _lead(text, GREETINGS),
        _end,
        _mark,
        _contract,
    )
    return edits[int(rng.choice(len(edits), p=(0.3, 0.2, 0.35, 0.1, 0.05)))]


def _apply(edit: Edit, text: str, rng: np.random.Generator) -> str:
    variants = edit(text)
    return variants[int(rng.integers(len(variants)))] if variants else text


def _draw(text: str, kind: Kind, extra: int, rng: np.random.Generator) -> str:
    """One rephrasing, which may be the text itself or have been drawn before."""
    if kind == "prefixed":
        for table in (OPENINGS, REASONS, GREETINGS):
            if rng.random() < 0.5:  # noqa: PLR2004 - a coin
                text = f"{table[int(rng.integers(len(table)))]} {text}"
        return text
    for _ in range({"medium": 1, "heavy": 2}.get(kind, 0)):
        text = _apply(lambda question: [*_swap_word(question), *_move(question)], text, rng)
    if kind == "heavy":
        text = _apply(_turn, text, rng)
    for _ in range((1 if kind == "slight" else 2) + extra):
        text = _apply(_slight(rng), text, rng)
    return text


def normal_form(text: str) -> str:
    """The same for texts that differ in nothing but capitals and spaces."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text.casefold()))


ATTEMPTS = 200
ATTEMPTS_PER_CHANGE = 10
"""Attempts without a new text after which one more slight change is made."""


def rephrase(text: str, kind: Kind, rng: np.random.Generator, taken: set[str]) -> str:
    """Put a question in other words.

    Args:
        text: The question.
        kind: How far from it; see above.
        rng: The source of chance.
        taken: Normal forms of texts that must not come again; the new one's is added.

    Returns:
        A text whose normal form is neither in ``taken`` nor the question's; for ``verbatim`` always
        the question itself.

    Raises:
        ConfigurationError: There is no such kind, or no new text was found.
    """
    check_choice("kind", kind, KINDS)
    if kind == "verbatim":
        return text
    original = normal_form(text)
    for attempt in range(ATTEMPTS):
        drawn = _draw(text, kind, attempt // ATTEMPTS_PER_CHANGE, rng)
        form = normal_form(drawn)
        if form not in taken and form != original:
            taken.add(form)
            return drawn
    raise ConfigurationError(f"no new {kind} rephrasing found of {text!r}")


WorkloadKind = Literal["as_is", "uniform", "zipf"]

LOG = "tripclick"
"""The first part of ``tripclick:PATH``, which replays the order of a log."""

_RATE_LIMIT = 1e6

HOME = "https://tripdatabase.github.io/tripclick/ (logs.tar.gz)"
LONGEST_LINE = 1 << 20
"""Bytes of a record, at most."""
MOST_SEARCHES = 1_000_000
"""Searches that are read, at most."""
MOST_LINES = 10_000_000
"""Lines of a file that are read, at most; those without a query are no searches, and count."""
SHOWN_NAMES = 5
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\.json(\.gz)?")


@dataclass(frozen=True, slots=True)
class WorkloadItem:
    """One question of the stream.

    Attributes:
        number: Its position in the stream, from 0.
        text: Its wording, which may be a rephrasing.
        question: Position of the question in the data set.
        arrival: Seconds from the start of the stream to its arrival; 0 in a closed loop.
    """

    number: int
    text: str
    question: int
    arrival: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions in the order in which they are asked.

    Attributes:
        items: The questions; at least one.
        rate: Requests per second, as a Poisson process; ``None`` for a closed loop.
        refused: For rephrasings by a model: how many were refused and made by rules instead, by
            the reason; ``None`` if all were made by rules, or there are none.
    """

    items: tuple[WorkloadItem, ...]
    rate: float | None = None
    refused: Mapping[str, int] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def digest(self) -> str:
        """A hash of the questions and their order, without their arrival times."""
        content = "\0".join(f"{item.question}\t{item.text}" for item in self.items)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def check_workload(kind: object) -> None:
    """Check the name of a workload.

    Raises:
        ConfigurationError: It is neither a :data:`WorkloadKind` nor ``tripclick:PATH``.
    """
    if not _log_path(kind):
        names = get_args(WorkloadKind)
        check_choice("workload", kind, names, also="tripclick:PATH, with the path of a log")


def make_workload(
    texts: Sequence[str],
    kind: str = "as_is",
    *,
    length: int | None = None,
    variants: int = 4,
    rephrasing: Kind = "medium",
    exponent: float = 0.8,
    rate: float | None = None,
    minutes: float | None = None,
    seed: int = 0,
) -> Workload:
    """Make a stream out of a data set's questions.

    - ``as_is``: each once, in the data set's order.
    - ``uniform``: each ``variants`` times with different short prefixes, in random order
      (Proximity §4.2.2, MMLU and MedRAG).
    - ``zipf``: drawn independently by Zipf's law, each at least once, each time in other words
      (Proximity §4.2.2, MedRAG-Zipf).
    - ``tripclick:PATH``: in the order of a log of queries, such as TripClick's, whose r-th most
      popular query becomes the r-th of the questions in random order, in the data set's own words.
      The stream is the longest beginning of the log with as many different queries as there are
      questions (:func:`~ragcache_workbench.evaluation.workloads.query_ranks`).

    With ``minutes``, the stream is a trace of that length at ``rate`` (RAGCache §7 has hours):
    ``zipf`` draws as many questions as arrive, a log has to have as many searches, and the other
    kinds start again in random order when all questions have been asked.

    Args:
        texts: The questions; at least one.
        kind: The kind of stream; see above.
        length: Number of questions in the stream; ``None`` for all of ``as_is``, ``uniform`` and a
            log, and for four times the number of questions of ``zipf``.
        variants: For ``uniform``: number of times that each question comes.
        rephrasing: For ``zipf``: how far from the question its rephrasings are.
        exponent: For ``zipf``: the r-th most popular question is drawn with a probability
            proportional to ``r ** -exponent``; at least 0.
        rate: Requests per second, arriving as a Poisson process; ``None`` for a closed loop.
        minutes: Length of a trace in minutes; needs ``rate`` and excludes ``length``.
        seed: The same seed gives the same stream.

    Raises:
        ConfigurationError: An argument is out of its range, or a question has not enough
            rephrasings, or a log cannot be read or is too short.
    """
    if not texts:
        raise ConfigurationError("a workload needs at least one question, got none")
    check_workload(kind)
    or_none(check_int)("length", length, 1, unit="questions", also="None")
    check_int("variants", variants, 1)
    check_number("exponent", exponent, 0)
    or_none(check_number)("minutes", minutes, 0, above=True, also="None")
    unit = "requests per second"
    or_none(check_number)("rate", rate, 0, _RATE_LIMIT, above=True, unit=unit, also="None")
    if minutes is not None and (rate is None or length is not None):
        msg = "minutes needs a rate, and excludes length: the trace determines the length"
        raise ConfigurationError(msg)
    arrivals = _arrivals(rate, minutes, seed)
    if minutes is not None:
        length = len(arrivals)
    rng = np.random.default_rng([seed, 0])
    order = _order(kind, len(texts), length, variants, exponent, rng)
    if len(arrivals) == 0:
        arrivals = _times(rate, len(order), seed)
    words: Kind = {"uniform": "prefixed", "zipf": rephrasing}.get(kind, "verbatim")
    taken: set[str] = set()
    return Workload(
        tuple(
            WorkloadItem(number, rephrase(texts[question], words, rng, taken), question, arrival)
            for number, (question, arrival) in enumerate(zip(order, arrivals, strict=True))
        ),
        rate,
    )


def _order(
    kind: str,
    questions: int,
    length: int | None,
    variants: int,
    exponent: float,
    rng: np.random.Generator,
) -> list[int]:
    if path := _log_path(kind):
        by_rank = rng.permutation(questions)
        replayed: list[int] = by_rank[query_ranks(path, questions, length)].tolist()
        return replayed
    if kind == "zipf":
        return _zipf(questions, length or 4 * questions, exponent, rng)
    first = np.arange(questions) if kind == "as_is" else _shuffled(questions, variants, rng)
    rounds = [first]
    while sum(map(len, rounds)) < (length or 0):
        rounds.append(_shuffled(questions, 1 if kind == "as_is" else variants, rng))
    order: list[int] = np.concatenate(rounds)[:length].tolist()
    return order


def _log_path(kind: object) -> str:
    """The path of ``tripclick:PATH``; empty for another workload."""
    name, _, path = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    return path.strip() if name == LOG else ""


def _shuffled(questions: int, times: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.repeat(np.arange(questions), times))


def _zipf(questions: int, length: int, exponent: float, rng: np.random.Generator) -> list[int]:
    if length < questions:
        raise ConfigurationError(
            f"a Zipf stream of {length} cannot hold each of {questions} questions once: ask for a "
            "longer one, or for a smaller sample"
        )
    ranks = [*range(questions), *zipf_ranks(questions, length - questions, exponent, rng)]
    by_rank = rng.permutation(questions)
    order: list[int] = rng.permutation(by_rank[ranks]).tolist()
    return order


def _arrivals(rate: float | None, minutes: float | None, seed: int) -> list[float]:
    """Arrival times within the minutes; empty without a limit."""
    if rate is None or minutes is None:
        return []
    end = 60 * minutes
    expected = rate * end
    # The number of arrivals is never ten standard deviations above its mean.
    times = _times(rate, int(expected + 10 * math.sqrt(expected) + 20), seed)
    within = [time for time in times if time < end]
    if not within:
        msg = f"no request arrives within {minutes:g} minutes at {rate:g} requests per second"
        raise ConfigurationError(msg)
    return within


def _times(rate: float | None, count: int, seed: int) -> list[float]:
    if rate is None:
        return [0.0] * count
    # From another generator than the order, so that the questions are the same at every rate.
    gaps = np.random.default_rng([seed, 1]).exponential(1.0, count)
    times: list[float] = (np.cumsum(gaps) / rate).tolist()
    return times


# Logs of queries.


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
        raise ConfigurationError(
            f"a workload of {length or 1} searches needs a longer log or more questions: {path} "
            f"has {len(order)} searches of at most {most} different queries in a row, one for each "
            "question"
        )
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
    raise ConfigurationError(
        f"{str(path)!r} must be a file of records with 'Keywords', or a folder of YYYY-MM-DD.json, "
        f"but {present}. TripClick's logs are at {HOME}"
    )


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
                    raise ValueError(f"a file must have at most {MOST_LINES:,} lines, but has more")
                record = _record(line)
            if not line:
                return
            if record is not None:
                yield record


def _record(line: bytes) -> dict[str, Any] | None:
    if len(line) > LONGEST_LINE:
        raise ValueError(f"a record must have at most {LONGEST_LINE} bytes, but has more")
    text = line.decode("utf-8").strip().strip(",").removeprefix("[").removesuffix("]").strip()
    if not text:
        return None
    record = json.loads(text)
    if not isinstance(record, dict) or not isinstance(record.get("Keywords", 0), str | None):
        names = ", ".join(map(str, record)) if isinstance(record, dict) else repr(record)
        raise TypeError(f"it must be an object whose 'Keywords' are a text, got {names:.100}")
    return record
