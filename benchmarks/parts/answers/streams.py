"""Streams of questions in which some ask the same and others only look like it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parts.traffic.near_duplicates import near_duplicates
from parts.traffic.questions import Question
from ragcache_workbench.evaluation.workloads import Kind, rephrase

__all__ = ["AnswerStream", "doctors_pairs", "rephrased_stream", "written_stream"]

KINDS: tuple[Kind, ...] = ("verbatim", "slight", "light", "medium", "heavy")
EXPONENT = 0.8


@dataclass(frozen=True)
class AnswerStream:
    """Questions in their order.

    Attributes:
        texts: Their words.
        meanings: What each asks, by number: those of one number have the same right answer.
    """

    texts: tuple[str, ...]
    meanings: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)


def rephrased_stream(
    questions: Sequence[Question], length: int, twins: int, seed: int
) -> AnswerStream:
    """Real questions and near-duplicates with other answers, by Zipf's law.

    A near-duplicate has another number, an opposite, or another subject. A fifth of the questions
    comes word for word, the others rephrased by rule, from slightly to heavily.

    Args:
        questions: The questions.
        length: Length of the stream.
        twins: How many near-duplicates are asked, too.
        seed: The same seed makes the same stream.
    """
    made = near_duplicates(questions, twins, seed)
    topics = [(question.text,) for question in (*questions, *made)]
    return _draw(topics, length, KINDS, seed)


def written_stream(
    pairs: Sequence[tuple[tuple[str, ...], tuple[str, ...]]], length: int, topics: int, seed: int
) -> AnswerStream:
    """Questions that people have put in other words, and turned into other ones, by Zipf's law.

    Args:
        pairs: The wordings of a question, and those of one that looks like it.
        length: Length of the stream.
        topics: How many pairs are asked.
        seed: The same seed makes the same stream.
    """
    rng = np.random.default_rng([seed, 3])
    chosen = rng.permutation(len(pairs))[:topics].tolist()
    wordings = [words for number in chosen for words in pairs[number]]
    return _draw(wordings, length, ("verbatim", "slight"), seed)


def _draw(
    topics: Sequence[tuple[str, ...]], length: int, kinds: Sequence[Kind], seed: int
) -> AnswerStream:
    rng = np.random.default_rng([seed, 4])
    weights = np.arange(1, len(topics) + 1) ** -EXPONENT
    popular = rng.permutation(len(topics))
    meanings = popular[rng.choice(len(topics), length, p=weights / weights.sum())].tolist()
    taken: set[str] = set()
    texts = []
    for meaning in meanings:
        words = topics[meaning][int(rng.integers(len(topics[meaning])))]
        kind = kinds[int(rng.integers(len(kinds)))]
        texts.append(words if kind == "verbatim" else rephrase(words, kind, rng, taken))
    return AnswerStream(tuple(texts), tuple(meanings))


def doctors_pairs(path: Path) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Read Medical Question Pairs: https://github.com/curai/medical-question-pair-dataset.

    Doctors have put patients' questions in other words with the same answer, and have written
    questions in similar words with another one.

    Args:
        path: The file ``mqp.csv``.
    """
    same: dict[str, tuple[str, ...]] = {}
    other: dict[str, tuple[str, ...]] = {}
    with path.open(newline="") as file:
        for _, question, written, label in csv.reader(file):
            (same if label == "1" else other)[question] = (question, written)[label != "1" :]
    pairs = [(same[question], other[question]) for question in same if question in other]
    # A text that two pairs share has two right answers.
    counts = Counter(text.casefold() for pair in pairs for texts in pair for text in texts)
    return [pair for pair in pairs if all(counts[text.casefold()] == 1 for text in sum(pair, ()))]
