"""Real questions and documents for traces, read from files in their data sets' own formats.

- Natural Questions: passages as JSON lines of ``id``, ``title``, ``text``; questions as JSON lines
  of ``question``. The bundled sample needs no file.
- MMLU: CSV without a header: question, four choices, answer.
- PubMedQA: one JSON object of entries with ``QUESTION`` and ``CONTEXTS``.
- QMSum: JSON lines with ``meeting_transcripts`` and two lists of queries.

Files may be compressed by gzip.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_passages, load_questions

__all__ = [
    "bundled_documents",
    "bundled_questions",
    "join_documents",
    "lexical_top_k",
    "read_documents",
    "read_questions",
]

# BM25's usual constants (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009).
K1 = 1.2
B = 0.75


def bundled_documents() -> dict[str, str]:
    """The sample's passages, with their titles, by id."""
    return {passage.id: f"{passage.title}\n{passage.text}" for passage in load_passages()}


def bundled_questions() -> list[str]:
    """The sample's questions."""
    return [question.text for question in load_questions()]


def read_documents(path: str | Path) -> dict[str, str]:
    """Texts of a data set's documents, by id.

    Raises:
        ConfigurationError: The file cannot be read, or has none of the known formats.
    """
    path = Path(path)
    with _telling(path, "documents"):
        if _suffix(path) == ".json":
            entries = json.loads(_read(path))
            return {name: "\n".join(entry["CONTEXTS"]) for name, entry in entries.items()}
        documents = {}
        for number, row in enumerate(_rows(path)):
            if "meeting_transcripts" in row:
                turns = row["meeting_transcripts"]
                text = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in turns)
                documents[f"meeting-{number}"] = text
            else:
                documents[row["id"]] = f"{row['title']}\n{row['text']}"
        return documents


def read_questions(path: str | Path) -> list[str]:
    """A data set's questions; of MMLU's with their choices, and of a folder all test subjects.

    Raises:
        ConfigurationError: The file cannot be read, or has none of the known formats.
    """
    path = Path(path)
    with _telling(path, "questions"):
        if path.is_dir():
            subjects = sorted(path.glob("*_test.csv"))
            if not subjects:
                raise ConfigurationError(f"the folder {path} holds no *_test.csv")
            return [question for subject in subjects for question in read_questions(subject)]
        if _suffix(path) == ".csv":
            return ["\n".join(row[:5]) for row in csv.reader(io.StringIO(_read(path)))]
        if _suffix(path) == ".json":
            return [entry["QUESTION"] for entry in json.loads(_read(path)).values()]
        questions = []
        for row in _rows(path):
            if "meeting_transcripts" in row:
                queries = [*row["general_query_list"], *row["specific_query_list"]]
                questions += [query["query"] for query in queries]
            else:
                questions.append(row["question"])
        return questions


def join_documents(
    tokens: Mapping[str, int], *, low: int = 500, high: int = 4000, seed: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Join short documents to long ones, each of its neighbours, up to a length drawn alike.

    Args:
        tokens: Lengths of the documents, in order.
        low: The shortest a joined document is target.
        high: The longest.
        seed: The same seed joins the same documents.

    Returns:
        The joined documents' lengths, and for each document the one that it became part of. The
        last one may be shorter than ``low``, and one may be longer than ``high`` only if a
        single document is.

    Raises:
        ConfigurationError: ``low`` is below 1 or above ``high``.
    """
    if not 1 <= low <= high:
        raise ConfigurationError(f"lengths need 1 <= low <= high, got {low} and {high}")
    rng = np.random.default_rng(seed)
    joined: dict[str, int] = {}
    part_of: dict[str, str] = {}
    current, target = "", 0
    for name, length in tokens.items():
        if not current or joined[current] >= target or joined[current] + length > high:
            current, target = f"joined-{len(joined)}", int(rng.integers(low, high, endpoint=True))
            joined[current] = 0
        joined[current] += length
        part_of[name] = current
    return joined, part_of


def lexical_top_k(
    questions: Sequence[str], documents: Mapping[str, str], k: int
) -> list[list[str]]:
    """What a keyword search (BM25) retrieves: for when no embeddings are at hand.

    Args:
        questions: The questions.
        documents: Texts by id.
        k: How many documents to give for each question, at most.

    Returns:
        For each question the ids of its best documents, the best first; fewer than ``k`` only
        where there are fewer.

    Raises:
        ConfigurationError: ``k`` is below 1.
    """
    if k < 1:
        raise ConfigurationError(f"k must be at least 1 document, got {k}")
    counts = [Counter(_words(text)) for text in documents.values()]
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, count in enumerate(counts):
        damping = K1 * (1 - B + B * lengths[number] / mean)
        for word, times in count.items():
            postings[word].append((number, times * (K1 + 1) / (times + damping)))
    names = list(documents)
    result = []
    for question in questions:
        scores = dict.fromkeys(range(min(k, len(names))), 0.0)
        for word in set(_words(question)):
            holders = postings.get(word, [])
            rarity = math.log(1 + (len(names) - len(holders) + 0.5) / (len(holders) + 0.5))
            for number, weight in holders:
                scores[number] = scores.get(number, 0.0) + rarity * weight
        best = heapq.nsmallest(k, scores, key=lambda number: (-scores[number], number))
        result.append([names[number] for number in best])
    return result


def _words(text: str) -> Iterable[str]:
    return re.findall(r"\w+", text.lower())


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _read(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    # Not splitlines(): it also splits at characters that JSON may hold as they are.
    return (json.loads(line) for line in _read(path).split("\n") if line.strip())


@contextmanager
def _telling(path: Path, what: str) -> Iterator[None]:
    """Turn any error about a file into one that names the file."""
    try:
        yield
    except ConfigurationError:
        raise  # of a file in this folder
    except OSError as error:
        msg = f"cannot read {what} from {path} ({error.strerror or error})"
        raise ConfigurationError(msg) from error
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} holds no {what} in a known format (Natural Questions, MMLU, PubMedQA, QMSum): "
            f"{type(error).__name__}: {error}"
        ) from error
