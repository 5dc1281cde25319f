"""What an exact index retrieves for streams of real questions."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parts.traffic.embedded import Embedder
from parts.traffic.question_streams import zipf_stream
from parts.traffic.questions import Corpus, Question
from parts.vector_search.exact_store import ExactStore
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation.traces import zipf_ranks

__all__ = ["DEPTH", "RetrievalStream", "load_mmlu", "question_texts", "retrieve"]

DEPTH = 10
"""Passages retrieved for every question."""

EXPONENT = 0.8


@dataclass(frozen=True)
class RetrievalStream:
    """Requests in the order in which they come.

    Attributes:
        name: Whose questions, and how they repeat.
        requests: Row numbers of the passages of each, the most relevant first; ``DEPTH`` each.
    """

    name: str
    requests: tuple[tuple[int, ...], ...]

    def top(self, k: int) -> list[tuple[str, ...]]:
        """The k most relevant passages of each request, as ids."""
        return [tuple(map(str, request[:k])) for request in self.requests]


def load_mmlu(folder: Path) -> tuple[Question, ...]:
    """The test questions of all subjects of MMLU, without their choices, each text once.

    Raises:
        ConfigurationError: There are none, or a file cannot be read.
    """
    texts: dict[str, None] = {}
    try:
        for path in sorted((folder / "mmlu").glob("*_test.csv")):
            with path.open(encoding="utf-8", newline="") as rows:
                texts.update((row[0].strip(), None) for row in csv.reader(rows) if row)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"{folder} must hold mmlu/SUBJECT_test.csv: {error!r}") from error
    if not texts:
        raise ConfigurationError(f"{folder} must hold mmlu/SUBJECT_test.csv, there is none")
    return tuple(map(Question, texts))


def question_texts(
    questions: Mapping[str, Sequence[Question]], length: int, seed: int
) -> Iterator[tuple[str, list[str]]]:
    """Streams of questions by name.

    Of each data set: questions drawn by Zipf's law; the same in other words every time; and every
    question once. Of all data sets together: drawn by Zipf's law.

    Args:
        questions: By data set.
        length: Questions in a stream; fewer where each comes once.
        seed: The same seed draws the same streams.
    """
    rng = np.random.default_rng([seed, 1])
    together = [one for asked in questions.values() for one in asked]
    groups = {**questions, "together": together} if len(questions) > 1 else questions
    for name, asked in groups.items():
        texts = [one.text for one in asked]
        yield f"{name}, popular", _popular(texts, length, EXPONENT, rng)
        if name == "together":
            continue
        yield f"{name}, once", rng.permutation(texts)[:length].tolist()
        # Half of the stream asks each of so many once, the other half what is popular.
        stream = zipf_stream(asked[: length // 2], length, "medium", seed=seed)
        yield f"{name}, rephrased", list(stream.texts)
        if len(questions) == 1:
            yield f"{name}, very popular", _popular(texts, length, 2 * EXPONENT, rng)
            halves = (_popular(texts, length // 2, EXPONENT, rng) for _ in range(2))
            yield f"{name}, drifting", [text for half in halves for text in half]


def retrieve(
    corpus: Corpus,
    passages: Sequence[str],
    streams: Mapping[str, Sequence[str]],
    embed: Embedder,
) -> list[RetrievalStream]:
    """The passages nearest to every question of some streams.

    Args:
        corpus: Where the passages are from.
        passages: Texts to embed in their stead, in the same order: all or the first of them, whole
            or cut.
        streams: Questions by the name of their stream.
        embed: Embeds both.
    """
    if len(passages) > len(corpus.passages):
        raise ConfigurationError(f"there are {len(corpus.passages)} passages, got {len(passages)}")
    store = ExactStore(embed(passages))
    # All at once, so that they are kept in one file.
    distinct = sorted({text for texts in streams.values() for text in texts})
    vectors = embed(distinct)
    found: NDArray[np.int64] = store.answer(vectors, DEPTH).documents
    rows = dict(zip(distinct, map(tuple, found.tolist()), strict=True))
    return [
        RetrievalStream(name, tuple(rows[text] for text in texts))
        for name, texts in streams.items()
    ]


def _popular(
    texts: Sequence[str], length: int, exponent: float, rng: np.random.Generator
) -> list[str]:
    by_rank = rng.permutation(len(texts))
    return [texts[by_rank[rank]] for rank in zipf_ranks(len(texts), length, exponent, rng)]
