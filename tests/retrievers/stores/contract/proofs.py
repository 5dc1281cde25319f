"""Random lookups under a guarantee while a store changes, checked against all documents.

``PROOF_LOOKUPS=20000 pytest tests/retrievers/stores/contract -k breach -s`` looks up that many
times in each store and prints what came of it.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contents", "Writer", "check_no_breach"]

LOOKUPS = int(os.environ.get("PROOF_LOOKUPS", "120"))
CLUSTERS = 5
CHANGES = 0.12  # per lookup
_FIRST_NEW = 1000
_ROUNDING = 1e-4  # of distances, which stores compute with 32 bits


@dataclass
class Writer:
    """Changes a store through one of its connections.

    Attributes:
        add: Adds a document of a number with a text.
        delete: Deletes that of a number.
        written: Called after each change.
    """

    add: Callable[[int, str], object]
    delete: Callable[[int], object]
    written: Callable[[], object]


@dataclass
class Contents:
    """What a store holds, and what it therefore has to answer.

    Attributes:
        metric: By what it ranks.
        embed: Embeds documents' texts.
        texts: The documents' texts, by number.
    """

    metric: str
    embed: Callable[[list[str]], Sequence[Sequence[float]]]
    texts: dict[int, str]
    _vectors: dict[str, NDArray[Any]] = field(default_factory=dict)

    def distances(self, question: Sequence[float], texts: Sequence[str]) -> NDArray[Any]:
        """Return texts' distances to a question, in the order of the texts."""
        for text in set(texts) - self._vectors.keys():
            self._vectors[text] = np.array(self.embed([text])[0], dtype=np.float64)
        rows, point = np.stack([self._vectors[text] for text in texts]), np.array(question)
        if self.metric == "ip":
            return np.asarray(-rows @ point)
        if self.metric == "cosine":
            cosines = rows @ point / np.linalg.norm(rows, axis=1) / np.linalg.norm(point)
            return np.asarray(1 - cosines)
        return np.asarray(np.linalg.norm(rows - point, axis=1))

    def recall(self, question: Sequence[float], answer: Sequence[str], k: int) -> float:
        """Return the share of the k nearest documents in an answer, up to ties."""
        texts = list(self.texts.values())
        if Counter(answer) - Counter(texts):
            return 0.0  # it is not there, or not as often
        limit = np.sort(self.distances(question, texts))[:k][-1]
        near = self.distances(question, answer) <= limit + _ROUNDING * (1 + abs(limit))
        return float(near.sum()) / min(k, len(texts))


def check_no_breach(
    ask: Callable[[str], Sequence[str]],
    embed_question: Callable[[str], Sequence[float]],
    contents: Contents,
    writers: Sequence[Writer],
    *,
    k: int,
    share: float,
    hits: Callable[[], int],
    name: str,
    seed: int = 0,
) -> None:
    """Look up at random while documents come and go, and count answers that break a guarantee.

    Some changes are made while a question is answered: then it may answer for before or after.

    Args:
        ask: Returns the texts of the documents that answer a question.
        embed_question: Embeds a question.
        contents: What the store holds at first.
        writers: The connections through which it changes.
        k: How many documents are wanted.
        share: The guaranteed share of the store's own answer.
        hits: Returns how many questions were answered from the cache.
        name: Names the store.
        seed: Decides everything.
    """
    chance, breaches, new = random.Random(seed), [], _FIRST_NEW

    def change() -> Callable[[], object]:
        """Return a change of the store, after the contents were changed."""
        nonlocal new
        writer = chance.choice(writers)
        if chance.random() < 0.5 and len(contents.texts) > 2 * k:
            number = chance.choice(list(contents.texts))
            del contents.texts[number]
            return lambda: (writer.delete(number), writer.written())
        number = new = new + 1
        near = chance.random() < 0.3  # of others there are several with the same distance
        text = f"question {chance.randrange(CLUSTERS)}" if near else f"text {number}"
        contents.texts[number] = text
        return lambda: (writer.add(number, text), writer.written())

    with ThreadPoolExecutor(1) as pool:
        for lookup in range(LOOKUPS):
            states = [dict(contents.texts)]
            question = f"question {chance.randrange(CLUSTERS)}~{chance.randrange(100)}"
            if chance.random() < CHANGES:
                written = pool.submit(change())
                states.append(dict(contents.texts))
                if chance.random() < 0.5:
                    written.result()
                    del states[0]
                answer = ask(question)
                written.result()
            else:
                answer = ask(question)
            point = embed_question(question)
            seen = [
                Contents(contents.metric, contents.embed, state, contents._vectors)
                for state in states
            ]
            recall = max(state.recall(point, answer, k) for state in seen)
            if recall < share:
                breaches.append((lookup, question, recall))
    counts = f"{LOOKUPS:,} lookups, {hits():,} hits, {len(breaches)} breaches"
    sys.stdout.write(f"\n{name}: {counts}\n")
    assert breaches == []
    assert hits() > LOOKUPS / 10
