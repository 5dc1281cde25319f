"""Caches of answers with one way of asking them: ours, and those of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from langchain_core.caches import InMemoryCache
from langchain_core.outputs import Generation
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm

from parts.answers.streams import AnswerStream
from ragcache_integrations.answers import AnswerCore, AnswerKnobs, AnswerStats, Question

__all__ = ["Cache", "FixedTolerance", "GPTCache", "LangChainCache", "Ours", "VCache"]

Vectors = NDArray[np.float32]


class Cache(Protocol):
    """Serves what it has, and takes the right answer to what it has not."""

    def ask(self, number: int) -> int | None:
        """Ask a question of the stream.

        Returns:
            The answer that is served, which is a meaning; ``None`` where the question is answered
            anew.
        """


class Ours:
    """The core of ``AnswerCache``. Hits that are to be checked are, as misses are learnt from."""

    def __init__(
        self,
        stream: AnswerStream,
        vectors: Vectors,
        documents: NDArray[np.int64],
        knobs: AnswerKnobs,
    ) -> None:
        self._stream, self._vectors = stream, vectors
        self._documents = [frozenset((str(name), "") for name in row) for row in documents.tolist()]
        self._core = AnswerCore[int](knobs)

    def ask(self, number: int) -> int | None:
        """Ask a question."""
        core, right = self._core, self._stream.meanings[number]
        question = Question(self._stream.texts[number], self._documents[number])
        same = core.find(question)
        if same is not None:
            return same.answer
        near = core.nearest(question, self._vectors[number])
        if near is not None and near.served:
            if near.check:
                core.count("checks")
                core.learn(near, wrong=near.entry.answer != right)
            return near.entry.answer
        core.insert(question, self._vectors[number], right)
        if near is not None:
            core.learn(near, wrong=near.entry.answer != right)
        return None

    def stats(self) -> AnswerStats:
        """What it has learnt."""
        return self._core.stats()


class _Keys:
    """Vectors of unit length, and which is nearest."""

    def __init__(self, capacity: int, dim: int) -> None:
        self._keys = np.zeros((capacity, dim), np.float32)
        self.answers: list[int] = []

    def nearest(self, vector: Vectors) -> tuple[int, float] | None:
        """Place of the nearest, and the cosine."""
        if not self.answers:
            return None
        similarities = self._keys[: len(self.answers)] @ vector
        place = int(similarities.argmax())
        return place, float(similarities[place])

    def put(self, vector: Vectors, answer: int) -> None:
        """Add a key."""
        self._keys[len(self.answers)] = vector
        self.answers.append(answer)


class FixedTolerance:
    """The answer to the nearest question, up to a distance: the rule of most answer caches."""

    def __init__(self, stream: AnswerStream, vectors: Vectors, tolerance: float) -> None:
        self._stream, self._vectors, self._tolerance = stream, vectors, tolerance
        self._keys = _Keys(*vectors.shape)

    def ask(self, number: int) -> int | None:
        """Ask a question."""
        near = self._keys.nearest(self._vectors[number])
        # Rounding keeps a text from being at distance 0 to itself.
        if near is not None and math.sqrt(max(0.0, 2 - 2 * near[1])) <= self._tolerance + 1e-3:
            return self._keys.answers[near[0]]
        self._keys.put(self._vectors[number], self._stream.meanings[number])
        return None


class LangChainCache:
    """LangChain's own ``InMemoryCache``, as ``set_llm_cache`` uses it: the same prompt alone."""

    def __init__(self, stream: AnswerStream) -> None:
        self._stream, self._cache = stream, InMemoryCache()

    def ask(self, number: int) -> int | None:
        """Ask a question. Its passages, which are in the prompt, too, follow from its text."""
        prompt = self._stream.texts[number]
        hit = self._cache.lookup(prompt, "model")
        if hit is not None:
            return int(hit[0].text)
        answer = Generation(text=str(self._stream.meanings[number]))
        self._cache.update(prompt, "model", [answer])
        return None


class VCache:
    """vCache's algorithm, written anew after the paper (Schroeder et al., 2025, algorithm 1).

    https://arxiv.org/abs/2502.03771. Each entry fits a logistic curve to what it has observed of
    its answers at similarities. A question explores with the probability that keeps the share of
    wrong answers below ``delta`` although the curve is uncertain; what it finds out is observed,
    and a new entry is made if the answer was another one. Where an entry has observed only right
    answers, or only wrong ones, the curve is fitted with a weak prior, as it has no maximum.

    Args:
        stream: The questions.
        vectors: Their embeddings, of unit length.
        delta: The bound on the share of wrong answers.
        seed: Decides which questions explore.
    """

    FEWEST = 6
    _EPSILONS = np.linspace(0.001, 0.999, 100)
    _PRIOR = 1e-2
    _STEPS = 25

    def __init__(self, stream: AnswerStream, vectors: Vectors, delta: float, seed: int) -> None:
        self._stream, self._vectors, self._delta = stream, vectors, delta
        self._keys = _Keys(*vectors.shape)
        self._observed: list[list[tuple[float, bool]]] = []
        self._random = np.random.default_rng(seed)

    def ask(self, number: int) -> int | None:
        """Ask a question."""
        near, right = self._keys.nearest(self._vectors[number]), self._stream.meanings[number]
        if near is None:
            self._put(number)
            return None
        place, similarity = near
        answer = self._keys.answers[place]
        if self._random.random() > self._exploration(self._observed[place], similarity):
            return answer
        self._observed[place].append((similarity, answer == right))
        if answer != right:
            self._put(number)
        return None

    def _put(self, number: int) -> None:
        self._keys.put(self._vectors[number], self._stream.meanings[number])
        self._observed.append([])

    def _exploration(self, observed: Sequence[tuple[float, bool]], similarity: float) -> float:
        """The probability of exploring, the paper's tau."""
        if len(observed) < self.FEWEST:
            return 1.0
        similarities, labels = np.array(observed, np.float64).T
        slope, intercept, covariance = self._fit(similarities, labels)
        if slope <= 0:
            return 1.0
        threshold = -intercept / slope
        gradient = np.array([intercept / slope**2, -1 / slope])  # of the threshold
        deviation = math.sqrt(max(0.0, float(gradient @ covariance @ gradient)))
        farthest = threshold + norm.ppf(1 - self._EPSILONS) * deviation
        right = (1 - self._EPSILONS) * expit(slope * (similarity - farthest))
        return float(max(0.0, np.min(1 - self._delta / np.maximum(1 - right, 1e-12))))

    def _fit(
        self, similarities: NDArray[np.float64], labels: NDArray[np.float64]
    ) -> tuple[float, float, NDArray[np.float64]]:
        """Slope, intercept and their covariance, by Newton's method."""
        design = np.stack([similarities, np.ones_like(similarities)], axis=1)
        weights = np.array([1.0, 0.0])
        prior = self._PRIOR * np.eye(2)
        for _ in range(self._STEPS):
            chances = expit(design @ weights)
            spread = chances * (1 - chances)
            curvature = design.T @ (design * spread[:, None]) + prior
            step = np.linalg.solve(curvature, design.T @ (labels - chances) - prior @ weights)
            weights = weights + np.clip(step, -10, 10)
        slope, intercept = weights.tolist()
        return slope, intercept, np.linalg.inv(curvature)


class GPTCache:
    """GPTCache as its quick start sets it up, with the same embeddings (SQLite and FAISS)."""

    _FARTHEST = 4.0

    def __init__(
        self, stream: AnswerStream, vectors: Vectors, tolerance: float, folder: Path
    ) -> None:
        api, manager = import_module("gptcache.adapter.api"), import_module("gptcache.manager")
        gptcache = import_module("gptcache")
        evaluation = import_module("gptcache.similarity_evaluation")
        by_text = dict(zip(stream.texts, vectors, strict=True))
        rows = manager.CacheBase("sqlite", sql_url=f"sqlite:///{folder}/answers.db")
        index = manager.VectorBase(
            "faiss", dimension=vectors.shape[1], index_path=str(folder / "faiss.index"), top_k=1
        )
        self._cache = gptcache.Cache()
        self._cache.init(
            pre_embedding_func=import_module("gptcache.processor.pre").get_prompt,
            embedding_func=lambda text, **_: by_text[text],
            data_manager=manager.get_data_manager(rows, index, max_size=len(stream)),
            similarity_evaluation=evaluation.SearchDistanceEvaluation(max_distance=self._FARTHEST),
            # A score is 4 less the squared distance, and enough from this share of 4 on.
            config=gptcache.Config(similarity_threshold=1 - tolerance**2 / self._FARTHEST),
        )
        self._get, self._put = api.get, api.put
        self._stream = stream

    def ask(self, number: int) -> int | None:
        """Ask a question."""
        text = self._stream.texts[number]
        answer: Any = self._get(text, cache_obj=self._cache)
        if answer is not None:
            return int(answer)
        self._put(text, str(self._stream.meanings[number]), cache_obj=self._cache)
        return None
