"""What a data set is to the evaluation, whichever it is.

A data set has questions, documents to retrieve from, a prompt and a way to score an answer. A new
one is a class with these four and a line in :data:`DATASETS`: multi-hop questions (Musique) have
several gold documents, reports (FinSec) are documents, LongBench scores by ROUGE-L, and a log of
searches (TripClick) is a list of questions in its own order, which ``as_is`` keeps.
"""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "BUNDLED",
    "DATASETS",
    "HUB",
    "Answer",
    "EvalDataset",
    "EvalDocument",
    "EvalPrompt",
    "EvalQuestion",
    "Scored",
    "load_dataset",
]

BUNDLED = "bundled"
HUB = "hub"
"""The first part of ``hub:NAME``, which reads a data set of that name."""

DATASETS: dict[str, str] = {
    "nq": "ragcache_integrations.evaluation.datasets.natural_questions:NaturalQuestions",
    "mmlu": "ragcache_integrations.evaluation.datasets.mmlu:MMLU",
    "pubmedqa": "ragcache_integrations.evaluation.datasets.pubmedqa:PubMedQA",
    "qmsum": "ragcache_integrations.evaluation.datasets.qmsum:QMSum",
}
"""Where the class of each data set is."""

SYSTEM = (
    "You answer questions from the passages that you are given. "
    "Keep to what they say, in a few words; say so if they do not tell."
)


@dataclass(frozen=True, slots=True)
class EvalDocument:
    """A document that can be retrieved.

    Attributes:
        id: Identifies it.
        text: What is embedded, and shown to the model.
    """

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    """A question with what is known of its answer.

    Attributes:
        id: Identifies it within its data set.
        text: What is asked, of the retriever and of the model.
        answers: Right answers, each of them right by itself; of options, the label of the right
            one.
        options: Labels of the options to choose from; none for a free answer.
        choices: What the options say, where they say more than their labels.
        gold_documents: Ids of the documents that answer it, where they are known.
        group: A part of the data set, such as a subject.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    options: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    gold_documents: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """A prompt without its documents, from what changes least to what changes most.

    Attributes:
        system: The system's turn; none where empty.
        before: Stands before the documents in the user's turn.
        after: Stands after them.
    """

    system: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said.

    Attributes:
        text: The answer.
        likeliest: Log-probabilities of the likeliest first tokens; empty where the model gave none.
    """

    text: str
    likeliest: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scored:
    """What an answer is worth.

    Attributes:
        scores: By the metric's name.
        prediction: What the model chose or said, as far as it was understood.
    """

    scores: dict[str, float]
    prediction: str | None = None


class EvalDataset(ABC):
    """Questions, documents, a prompt and scores.

    Args:
        questions: At least one; no two have the same id.
        documents: What is retrieved from; at least one. Of the same id, all have the same text.
        source: Where it came from, in words.

    Attributes:
        name: Name on the command line.
        title: Name in text.
        metrics: Names of the scores of an answer.
        max_tokens: The most tokens of an answer, unless something else is asked for.
        chooses: Whether answers are options, whose log-probabilities count.

    Raises:
        ConfigurationError: There is no question or no document, a question's id comes twice, or
            documents of the same id differ.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    max_tokens: ClassVar[int]
    chooses: ClassVar[bool] = False

    def __init__(
        self, questions: Sequence[EvalQuestion], documents: Sequence[EvalDocument], source: str
    ) -> None:
        # A document that stands in it twice is found twice, as in the store that it came from.
        for what, listed in (("questions", questions), ("documents", set(documents))):
            ids = {one.id for one in listed}
            if not listed or len(ids) != len(listed):
                msg = (
                    f"{source} must hold {what} with ids of their own, got {len(listed)} with "
                    f"{len(ids)} different ids"
                )
                raise ConfigurationError(msg)
        self.questions = tuple(questions)
        self.documents = tuple(documents)
        self.source = source

    @classmethod
    @abstractmethod
    def load(cls, data: str, documents: Path | None = None) -> EvalDataset:
        """Read the data set.

        Args:
            data: :data:`BUNDLED`, ``hub:NAME``, or a path.
            documents: Passages to retrieve from instead of the data set's own, as JSON lines of
                ``id``, ``title`` and ``text``.

        Raises:
            ConfigurationError: It is not there, or not in its format.
        """

    @abstractmethod
    def prompt(self, question: EvalQuestion, asked: str) -> EvalPrompt:
        """The prompt of a question.

        Args:
            question: The question.
            asked: Its wording this time.
        """

    @abstractmethod
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        """Score an answer; a pure function. The names are those of :attr:`metrics`."""

    def summary_scores(
        self, questions: Sequence[EvalQuestion], scored: Sequence[Scored]
    ) -> dict[str, float]:
        """Metrics of all answers together, besides the means of the scores; at least one answer."""
        del questions, scored
        return {}

    @property
    def digest(self) -> str:
        """The same for the same documents."""
        content = "\0".join(f"{document.id}\t{document.text}" for document in self.documents)
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def sampled(self, count: int | None, seed: int) -> tuple[EvalQuestion, ...]:
        """So many of the questions, drawn at random, in their own order; all where ``None``.

        Raises:
            ConfigurationError: There are not so many, or ``count`` is below 1.
        """
        if count is None:
            return self.questions
        if not 1 <= count <= len(self.questions):
            msg = f"sample must be from 1 to the {len(self.questions)} questions, got {count}"
            raise ConfigurationError(msg)
        chosen = np.random.default_rng([seed, 2]).permutation(len(self.questions))[:count]
        return tuple(self.questions[number] for number in sorted(chosen.tolist()))


def load_dataset(
    name: str,
    data: str | Path = BUNDLED,
    documents: Path | None = None,
) -> EvalDataset:
    """Read a data set.

    Args:
        name: One of :data:`DATASETS`.
        data: ``bundled`` for the sample that comes with the package; ``hub`` for the Hugging Face
            hub, or ``hub:NAME`` for another data set of the same fields there; or a path, of the
            data set's folder or of the folder above it.
        documents: Passages to retrieve from instead of the data set's own.

    Raises:
        ConfigurationError: There is no such data set, it is not there, or not in its format.
        MissingExtraError: The hub's library is not installed.
    """
    if name not in DATASETS:
        msg = f"dataset must be one of {', '.join(DATASETS)}, got {name!r}"
        raise ConfigurationError(msg)
    module, _, kind = DATASETS[name].partition(":")
    loaded: EvalDataset = getattr(importlib.import_module(module), kind).load(str(data), documents)
    return loaded
