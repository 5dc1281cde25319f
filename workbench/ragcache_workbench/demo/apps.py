"""The applications of the demo, and what they share: an exact index of passages, and their prompt.

The index has bundled passages and generated vectors. The prompt begins with the text that never
changes, and ends with the question.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.generation import Usage
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.resources import Passage, load_passages, load_questions
from ragcache_workbench.evaluation.datasets import SYSTEM, EvalDocument
from ragcache_workbench.evaluation.systems import CURRENT, Noted, cached_embeddings

__all__ = [
    "SYSTEM",
    "App",
    "Corpus",
    "Found",
    "Observation",
    "Piece",
    "passage_text",
    "question_part",
    "user_text",
]

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
        distractors: Number of vectors to generate.
        passages: Number of passages, those that answer a question first; ``None`` for all.
        seed: The same seed generates the same vectors.
        embed: Embeds texts; by all-MiniLM-L6-v2 by default. The passages' embeddings are kept in
            the cache folder.

    Attributes:
        index: The index: passages first, in order, then distractors.
        documents: The passages in that order.
    """

    def __init__(
        self,
        distractors: int,
        *,
        passages: int | None = None,
        seed: int = 0,
        embed: Embed | None = None,
    ) -> None:
        self._embed: Any = embed or MiniLM().embed_batch
        answering = {question.passage_id for question in load_questions()}
        ordered = sorted(load_passages(), key=lambda passage: passage.id not in answering)
        self._passages = {passage.id: passage for passage in ordered[:passages]}
        self.documents = [EvalDocument(one.id, passage_text(one)) for one in ordered[:passages]]
        self.index = CountedIndex(MiniLM.dim)
        self.index.add(cached_embeddings([one.text for one in self.documents], self._embed))
        rng = np.random.default_rng(seed)
        for start in range(0, distractors, CHUNK):
            count = min(CHUNK, distractors - start)
            vectors = rng.standard_normal((count, MiniLM.dim), np.float32)
            vectors *= DISTRACTOR_LENGTH / np.linalg.norm(vectors, axis=1, keepdims=True)
            self.index.add(vectors)

    def passage(self, document_id: str) -> Passage:
        """Return the passage of an id.

        Raises:
            KeyError: There is none.
        """
        return self._passages[document_id]

    def _search(self, questions: Sequence[str], k: int) -> tuple[Any, Any, Any]:
        """Embeddings of questions, and squared distances and positions; not counted."""
        embeddings = np.asarray(self._embed(list(questions)), np.float32)
        return embeddings, *faiss.IndexFlatL2.search(self.index, embeddings, k)

    def nearest(self, questions: Sequence[str], k: int) -> list[list[str]]:
        """Return the ids of each question's k nearest documents; not counted as searches."""
        _, _, places = self._search(questions, k)
        return [[self.documents[place].id for place in row] for row in places]

    def recall(self, questions: Sequence[str], answers: Sequence[Sequence[str]], k: int) -> float:
        """Mean recall of retrieved documents against the exact top-k.

        A document counts if it is no farther from the question than the true k-th one, so that
        documents at equal distance are worth the same. Not counted as searches of the store.

        Args:
            questions: The questions; at least one.
            answers: Ids of the documents retrieved for each.
            k: Number of documents per question.
        """
        positions = {document.id: at for at, document in enumerate(self.documents)}
        embeddings, distances, _ = self._search(questions, k)
        recalls = []
        for embedding, limit, ids in zip(embeddings, distances[:, -1], answers, strict=True):
            vectors = self.index.reconstruct_batch(np.array([positions[one] for one in set(ids)]))
            near = np.square(vectors - embedding).sum(axis=1) <= limit + SLACK
            recalls.append(np.count_nonzero(near) / k)
        return float(np.mean(recalls))


@dataclass(frozen=True, slots=True)
class Observation:
    """One question, answered by one application.

    Attributes:
        store_calls: Searches of the vector store.
        embedding_ms: Time to embed the question; next to 0 if its embedding was cached.
        retrieval_ms: Other time in the retriever: searching the store or the cache.
        ttft_ms: Time from the call of the LLM to its first token.
        first_token_ms: Time from the question to the first token.
        end_to_end_ms: Time from the question to the last token.
        prompt_tokens: Length of the prompt.
        cached_prompt_tokens: Prompt tokens whose KV cache was reused.
        hit: Whether the documents came from the query cache.
        document_ids: Ids of the retrieved documents, best first.
        answer: The model's answer.
    """

    store_calls: int
    embedding_ms: float
    retrieval_ms: float
    ttft_ms: float
    first_token_ms: float
    end_to_end_ms: float
    prompt_tokens: int
    cached_prompt_tokens: int
    hit: bool
    document_ids: tuple[str, ...]
    answer: str


Piece = tuple[str, Usage | None]
"""A piece of an answer, and the tokens of the call if it comes with them."""

Found = Callable[[Sequence[PromptDocument]], None]
"""Is called with a question's documents as soon as they are retrieved."""


@dataclass(frozen=True, slots=True)
class App:
    """A RAG application of either framework, which is measured.

    Attributes:
        corpus: Counts the searches.
        stream: Answers a question by the framework's own chain or query engine, piece by piece.
    """

    corpus: Corpus
    stream: Callable[[str, Found], Iterator[Piece]]

    def ask(self, question: str) -> Observation:
        """Answer a question."""
        searched, noted = self.corpus.index.searches, Noted()
        documents: Sequence[PromptDocument] = ()
        retrieved = math.nan
        texts: list[str] = []
        moments: list[float] = []
        usage = Usage(0, 0, 0)

        def found(some: Sequence[PromptDocument]) -> None:
            nonlocal documents, retrieved
            documents, retrieved = some, time.perf_counter()

        begun = time.perf_counter()
        with context_value(CURRENT, noted):
            for text, known in self.stream(question, found):
                moments.append(time.perf_counter())
                texts.append(text)
                usage = known or usage
        searches = self.corpus.index.searches - searched
        embedding = noted.embedding_seconds or 0.0
        return Observation(
            store_calls=searches,
            embedding_ms=1000 * embedding,
            retrieval_ms=1000 * (retrieved - begun - embedding),
            ttft_ms=1000 * (moments[0] - retrieved),
            first_token_ms=1000 * (moments[0] - begun),
            end_to_end_ms=1000 * (time.perf_counter() - begun),
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_tokens,
            hit=not searches,
            document_ids=tuple(document.id for document in documents),
            answer="".join(texts),
        )
