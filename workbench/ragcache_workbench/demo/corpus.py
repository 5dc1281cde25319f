"""What the applications of the demo share: an exact index of passages, and their prompt.

The index has bundled passages and generated vectors. The prompt has first what never changes, and
the question last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import faiss
import numpy as np

from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.resources import Passage, load_passages, load_questions
from ragcache_workbench.evaluation.systems import cached_embeddings

__all__ = ["SYSTEM", "Corpus", "CountedIndex", "passage_text", "question_part", "user_text"]

SYSTEM = (
    "You answer questions from the passages that you are given. "
    "Keep to what they say, in a few words; say so if they do not tell."
)

Embed = Callable[[list[str]], Sequence[Sequence[float]]]

CHUNK = 10_000
"""Distractors generated in one batch."""

DISTRACTOR_LENGTH = 2.0
"""Questions and passages have length 1, so the square of their distance is at most 2 unless they
point away from each other. That of a question and a distractor is at least 5 - 4c for a cosine c,
which is beyond 3 for any c that random directions reach in 384 dimensions."""

SLACK = 1e-5
"""Squared distances closer than this are the same: a text embeds differently in a batch."""


class CountedIndex(faiss.IndexFlatL2):
    """An exact FAISS index that counts its searches; for one thread."""

    searches = 0  # here, not in __init__: FAISS objects take no new attributes

    def search(self, *args: Any, **kwargs: Any) -> Any:
        """Search as FAISS does, and count it."""
        self.searches += 1
        return super().search(*args, **kwargs)


def passage_text(passage: Passage) -> str:
    """Return the text of a passage that is embedded and shown to the model."""
    return f"{passage.title}\n{passage.text}"


def user_text(context: str, question: str) -> str:
    """The user's turn; the arguments are the names of a template's variables, in braces."""
    return f"{context}\n\n{question_part(question)}"


def question_part(question: str) -> str:
    """The part of the prompt after the documents."""
    return f"Question: {question}\nAnswer:"


class Corpus:
    """One index that the stores of both frameworks share, and the passages of its vectors.

    Distractors are vectors of random direction. They make searches take as long as in a store of
    that size. They have no text, so they are too far from every question to be found.

    Args:
        embed: Embeds texts with all-MiniLM-L6-v2, the class of either framework. The passages'
            embeddings are kept in the cache folder.
        distractors: Number of vectors to generate.
        passages: Number of passages, those that answer a question first; ``None`` for all.
        seed: The same seed generates the same vectors.

    Attributes:
        index: The index: passages first, in order, then distractors.
        ids: Document ids by position.
    """

    def __init__(
        self, embed: Embed, distractors: int, *, passages: int | None = None, seed: int = 0
    ) -> None:
        self._embed = embed
        answering = {question.passage_id for question in load_questions()}
        ordered = sorted(load_passages(), key=lambda passage: passage.id not in answering)
        self._passages = {passage.id: passage for passage in ordered[:passages]}
        self.index = CountedIndex(MiniLM.dim)
        texts = [passage_text(passage) for passage in self._passages.values()]
        self.index.add(cached_embeddings(texts, embed))
        rng = np.random.default_rng(seed)
        for start in range(0, distractors, CHUNK):
            count = min(CHUNK, distractors - start)
            vectors = rng.standard_normal((count, MiniLM.dim), np.float32)
            vectors *= DISTRACTOR_LENGTH / np.linalg.norm(vectors, axis=1, keepdims=True)
            self.index.add(vectors)
        self.ids = [*self._passages, *(f"distractor-{number}" for number in range(distractors))]
        self._positions = {document_id: at for at, document_id in enumerate(self.ids)}

    def passage(self, document_id: str) -> Passage:
        """Return the passage of an id.

        Raises:
            KeyError: There is none, or the id is a distractor's.
        """
        return self._passages[document_id]

    def nearest(self, questions: Sequence[str], k: int) -> list[list[str]]:
        """Return the ids of each question's k nearest documents; not counted as searches."""
        embeddings = np.array(self._embed(list(questions)), np.float32)
        places = faiss.IndexFlatL2.search(self.index, embeddings, k)[1]
        return [[self.ids[place] for place in row] for row in places]

    def recall(self, questions: Sequence[str], answers: Sequence[Sequence[str]], k: int) -> float:
        """Mean recall of retrieved documents against the exact top-k.

        A document counts if it is no farther from the question than the true k-th one, so that
        documents at equal distance are worth the same. Not counted as searches of the store.

        Args:
            questions: The questions; at least one.
            answers: Ids of the documents retrieved for each.
            k: Number of documents per question.
        """
        embeddings = np.array(self._embed(list(questions)), np.float32)
        limits = faiss.IndexFlatL2.search(self.index, embeddings, k)[0][:, -1]
        recalls = []
        for embedding, limit, ids in zip(embeddings, limits, answers, strict=True):
            positions = np.array([self._positions[document_id] for document_id in set(ids)])
            vectors = self.index.reconstruct_batch(positions)
            distances = np.square(vectors - embedding).sum(axis=1)
            recalls.append(np.count_nonzero(distances <= limit + SLACK) / k)
        return float(np.mean(recalls))
