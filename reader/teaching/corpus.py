"""Passages, and questions that people asked about them, as they are found in public files."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

__all__ = ["Asked", "Corpus", "nearest", "read_lines", "read_qamr", "read_squad"]

SENTENCES = 4
"""At most in a passage made of sentences that were asked about one by one."""
SAME = 0.6
"""Cosine from which on two passages are one."""
ROWS = 1024
"""Passages that are compared with all others at once."""


@dataclass(frozen=True)
class Asked:
    """A question that somebody asked about a passage.

    Attributes:
        text: The question.
        answers: Right answers, as the passage words them; none where it has none.
        passage: Which of the corpus's passages.
    """

    text: str
    answers: tuple[str, ...]
    passage: int


@dataclass
class Corpus:
    """Passages, and questions about some of them.

    Attributes:
        passages: To train on.
        titles: Of the passages; empty where there is none.
        near: Of each passage, those that share most with it, as a search would find them.
        asked: Questions about them.
    """

    passages: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    near: list[list[int]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def add(
        self, passage: str, questions: Iterable[tuple[str, Iterable[str]]] = (), title: str = ""
    ) -> None:
        """Take in a passage and what was asked about it."""
        self.passages.append(passage)
        self.titles.append(title)
        place = len(self.passages) - 1
        self.asked += [Asked(text, tuple(answers), place) for text, answers in questions]


def nearest(passages: Sequence[str], count: int) -> list[list[int]]:
    """Of each passage, which others share most with it: rare words count most (tf-idf, cosine).

    Args:
        passages: The passages.
        count: How many others, the nearest first; fewer where fewer share a word.
    """
    words = [re.findall(r"\w+", one.lower()) for one in passages]
    known = {word: place for place, word in enumerate(sorted({w for one in words for w in one}))}
    table = csr_array(
        (
            np.ones(sum(map(len, words)), np.float32),
            [known[word] for one in words for word in one],
            np.cumsum([0, *map(len, words)]),
        ),
        shape=(len(passages), len(known)),
    )
    table.sum_duplicates()
    rarity = np.log(len(passages) / np.bincount(table.indices, minlength=len(known)))
    table.data = np.log1p(table.data) * rarity[table.indices]
    length = np.sqrt(np.add.reduceat(np.append(table.data**2, 0.0), table.indptr[:-1]))
    table.data /= np.repeat(np.maximum(length, 1e-9), np.diff(table.indptr))
    found: list[list[int]] = []
    for begin in range(0, len(passages), ROWS):
        alike = (table[begin : begin + ROWS] @ table.T).tocsr()
        for row, place in enumerate(range(begin, begin + alike.shape[0])):
            span = slice(alike.indptr[row], alike.indptr[row + 1])
            others, scores = alike.indices[span], alike.data[span]
            likeliest = np.argsort(-scores, kind="stable")[: 4 * count]
            found.append(_different(table, place, others[likeliest])[:count])
    return found


def _different(table: csr_array, place: int, others: NDArray[np.int32]) -> list[int]:
    """Those that are not nearly the same passage from another source, nor as one before."""
    kept = [place]
    rows = table[others]
    alike = (rows @ table[[place, *others]].T).toarray()
    columns = [0]
    for row, other in enumerate(others.tolist()):
        if alike[row, columns].max() < SAME:
            kept.append(other)
            columns.append(row + 1)
    return kept[1:]


def read_squad(corpus: Corpus, content: dict[str, Any]) -> None:
    """Take in a file in SQuAD's format; a passage that is there twice is taken once."""
    known = set(corpus.passages)
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            if paragraph["context"] in known:
                continue
            asked = [
                (one["question"], tuple(dict.fromkeys(a["text"] for a in one["answers"])))
                for one in paragraph["qas"]
                if one["answers"] or one.get("is_impossible")
            ]
            corpus.add(paragraph["context"], asked, article.get("title", ""))


def read_qamr(corpus: Corpus, content: str) -> None:
    """Take in a readable file of QAMR: sentences with many questions each.

    Some of them together make a passage.
    """
    dice = random.Random(len(content))
    parts = [part.strip().splitlines() for part in content.split("\n#")]
    asked = [(lines[1], [re.split(r"\s{2,}|\t", one) for one in lines[2:]]) for lines in parts]
    begin = 0
    while begin < len(asked):
        together = asked[begin : begin + dice.randint(1, SENTENCES)]
        begin += len(together)
        corpus.add(
            " ".join(sentence for sentence, _ in together),
            (
                (question, dict.fromkeys(one for one in answers if one in sentence))
                for sentence, rows in together
                for question, *answers in rows
                if any(one in sentence for one in answers)
            ),
        )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, packed or not; none where there is no file."""
    if not path.exists():
        return []
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    return [json.loads(line) for line in text.splitlines() if line]
