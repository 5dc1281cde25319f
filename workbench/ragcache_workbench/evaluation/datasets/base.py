"""The interface of data sets.

A data set has questions, documents to retrieve from, a prompt and a way to score an answer. A new
one is an entry in ``published.toml`` and a subclass of :class:`EvalDataset`, or of
:class:`.published.PublishedDataset`, which finds and reads the files that its authors publish.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ragcache_integrations.core.checks import (
    as_number,
    check_choice,
    check_int,
    check_text,
    check_type,
)
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "BUNDLED",
    "DATASETS",
    "HUB",
    "TABLE",
    "Answer",
    "EvalDataset",
    "EvalDocument",
    "EvalPrompt",
    "EvalQuestion",
    "Scored",
    "check_dataset",
    "checked_metrics",
    "checked_score",
    "digest_of",
    "load_dataset",
]

BUNDLED = "bundled"
HUB = "hub"
"""The first part of ``hub:NAME``, which reads a data set of that name."""

TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    files(__package__).joinpath("published.toml").read_text("utf-8")
)
"""How each data set is published."""

DATASETS: dict[str, str] = {name: facts["reader"] for name, facts in TABLE.items()}
"""The module and the class of each data set."""

PER_QUESTION = 10
LEAST_DOCUMENTS = 100
"""How many documents a sample of questions is asked over: for each question, and at least."""

SYSTEM = (
    "You answer questions from the passages that you are given. "
    "Keep to what they say, in a few words; say so if they do not tell."
)


@dataclass(frozen=True, slots=True)
class EvalDocument:
    """A document that can be retrieved.

    Attributes:
        id: Its id within the data set.
        text: The text that is embedded, and shown to the model.
    """

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class EvalQuestion:
    """A question and its right answers.

    Attributes:
        id: Its id within the data set.
        text: The question, for the retriever and the model.
        answers: Right answers, any of which is enough; of a question with options, the label of the
            right one.
        options: Labels of the options to choose from; empty for a free answer.
        choices: Texts of the options, if they have more than labels.
        gold_documents: Ids of the documents that answer it; empty if unknown.
        group: The part of the data set that it belongs to, such as a subject.
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
    """A prompt without its documents, the parts that change least first.

    Attributes:
        system: The system's turn; empty for none.
        before: Text before the documents in the user's turn.
        after: Text after the documents.
    """

    system: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer.

    Attributes:
        text: The answer.
        likeliest: Log-probabilities of the likeliest first tokens; empty if the model returned
            none.
    """

    text: str
    likeliest: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of an answer.

    Attributes:
        scores: The scores, by the metric's name.
        prediction: The option that the model chose, or its text; ``None`` if it chose none.
    """

    scores: dict[str, float]
    prediction: str | None = None


class EvalDataset(ABC):
    """Questions, documents, a prompt and scores.

    Args:
        questions: At least one, with different ids.
        documents: The documents to retrieve from; at least one. Those of the same id have the same
            text.
        source: Where the data comes from, in words.

    Attributes:
        name: Name on the command line.
        title: Name in text; of your own data in the same format, the name of its folder.
        metrics: Names of the scores of an answer.
        max_tokens: Limit of an answer in tokens, unless the settings have another.
        chooses: Whether answers are options, whose log-probabilities count.
        system: The system's turn of :meth:`prompt`.
        cue: The last line of :meth:`prompt`, which the answer completes.
        named_by_folder: Whether a folder of another name is data of your own, and gives the title.

    Raises:
        ConfigurationError: There is no question or no document, a question's id comes twice,
            documents of the same id differ, or an id or a text is no valid Unicode.
    """

    name: ClassVar[str]
    title: str
    metrics: ClassVar[tuple[str, ...]]
    max_tokens: int
    chooses: ClassVar[bool] = False
    system: ClassVar[str] = SYSTEM
    cue: ClassVar[str] = "Answer:"
    named_by_folder: ClassVar[bool] = True

    def __init__(
        self, questions: Sequence[EvalQuestion], documents: Sequence[EvalDocument], source: str
    ) -> None:
        # The same document may come twice, and is then retrieved twice, as from its own store.
        for kind, items in (("questions", questions), ("documents", set(documents))):
            if not items:
                raise ConfigurationError(f"the data set from {source} has no {kind}")
            ids = {item.id for item in items}
            if len(ids) != len(items):
                raise ConfigurationError(
                    f"the {kind} of the data set from {source} must have different ids, got "
                    f"{len(items)} with {len(ids)} different ids"
                )
            _check_unicode(source, kind, items)
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
            ConfigurationError: The data is not there, or not in its format.
        """

    def prompt(self, question: EvalQuestion, wording: str) -> EvalPrompt:
        """Return the prompt of a question.

        Args:
            question: The question.
            wording: Its wording in the workload, which may be a rephrasing.
        """
        del question
        return EvalPrompt(self.system, "", f"Question: {wording}\n{self.cue}")

    @abstractmethod
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        """Score an answer; a pure function. The names are those of :attr:`metrics`."""

    def summary_scores(
        self, questions: Sequence[EvalQuestion], scored: Sequence[Scored]
    ) -> dict[str, float]:
        """Return metrics of all answers together, besides the means of their scores.

        Args:
            questions: The questions; at least one.
            scored: The scores of their answers.
        """
        del questions, scored
        return {}

    def documents_of(
        self, questions: Sequence[EvalQuestion], seed: int
    ) -> tuple[EvalDocument, ...]:
        """Return the documents that answer a sample of questions, among others at random.

        So a small sample needs only a few embeddings. There are ten documents for each question,
        and at least a hundred; all if a question does not say which documents answer it.

        Args:
            questions: The sample.
            seed: Seed of the draw.
        """
        known = {document.id for document in self.documents}
        gold = {name for question in questions for name in question.gold_documents}
        if not gold <= known or not all(question.gold_documents for question in questions):
            return self.documents
        drawn = np.random.default_rng([seed, 3]).permutation(len(self.documents)).tolist()
        answering = [place for place in drawn if self.documents[place].id in gold]
        others = [place for place in drawn if self.documents[place].id not in gold]
        missing = max(LEAST_DOCUMENTS, PER_QUESTION * len(questions)) - len(answering)
        chosen = sorted((*answering, *others[: max(0, missing)]))
        return tuple(self.documents[place] for place in chosen)

    def sampled(self, count: int | None, seed: int) -> tuple[EvalQuestion, ...]:
        """Draw questions at random, and return them in their original order.

        Args:
            count: Number of questions; ``None`` for all.
            seed: Seed of the draw.

        Raises:
            ConfigurationError: There are fewer than ``count``, or it is below 1.
        """
        if count is None:
            return self.questions
        if not 1 <= count <= len(self.questions):
            msg = f"sample must be from 1 to the {len(self.questions)} questions, got {count}"
            raise ConfigurationError(msg)
        chosen = np.random.default_rng([seed, 2]).permutation(len(self.questions))[:count]
        return tuple(self.questions[number] for number in sorted(chosen.tolist()))


def _check_unicode(
    source: str, kind: str, items: Iterable[EvalQuestion] | Iterable[EvalDocument]
) -> None:
    """Refuse halves of characters, which JSON can name, but no file of a run can hold."""
    for item in items:
        for name, text in (("id", item.id), ("text", item.text)):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigurationError(
                    f"{source} must hold {kind} of valid Unicode, but the {name} of {item.id!r} "
                    f"has a lone surrogate at character {error.start}"
                ) from error


def digest_of(documents: Sequence[EvalDocument]) -> str:
    """Return a hash of documents."""
    content = "\0".join(f"{document.id}\t{document.text}" for document in documents)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def load_dataset(
    name: str,
    data: str | Path = BUNDLED,
    documents: Path | None = None,
) -> EvalDataset:
    """Read a data set.

    Args:
        name: One of :data:`DATASETS`.
        data: ``bundled`` for the sample that comes with the package; ``hub`` for the Hugging Face
            hub, or ``hub:NAME`` for another data set of the same fields there; or the path of the
            data set's folder, or of the folder above it.
        documents: Passages to retrieve from instead of the data set's own; ``None`` for its own.

    Raises:
        ConfigurationError: The name is unknown, or the data is not there or not in its format.
        MissingExtraError: The hub's library is not installed.
    """
    check_choice("dataset", name, list(DATASETS))
    module, _, kind = DATASETS[name].partition(":")
    loaded: EvalDataset = getattr(importlib.import_module(f"{__package__}.{module}"), kind).load(
        str(data), documents
    )
    folder = Path(data).expanduser().resolve()
    if (
        loaded.named_by_folder
        and str(data) != BUNDLED
        and folder.is_dir()
        and folder.name != name
        and not (folder / name).is_dir()
    ):
        loaded.title = folder.name
    return loaded


def check_dataset(dataset: EvalDataset) -> None:
    """Check the attributes of a user's data set, a prompt, and the scores of an empty answer.

    What it returns is read again from the folder of a run, after the last answer. So a mistake is
    reported before the first question where that is possible.

    Raises:
        ConfigurationError: It does not keep to the interface; the message names what is wrong.
    """
    allowed = "the name of a data set or an object of a subclass of EvalDataset"
    check_type("dataset", dataset, EvalDataset, allowed)
    kind = type(dataset).__name__
    for name in ("name", "title"):
        check_text(f"{kind}.{name}", getattr(dataset, name, None))
    check_int(f"{kind}.max_tokens", getattr(dataset, "max_tokens", None), 1)
    metrics: Any = getattr(dataset, "metrics", None)
    if not isinstance(metrics, tuple | list) or not all(isinstance(one, str) for one in metrics):
        msg = f"{kind}.metrics must be a tuple of the names of scores, got {metrics!r}"
        raise ConfigurationError(msg)
    question = dataset.questions[0]
    prompt = dataset.prompt(question, question.text)
    check_type(f"what {kind}.prompt returns", prompt, EvalPrompt, "an EvalPrompt")
    checked_score(dataset, question, Answer(""))


def checked_score(dataset: EvalDataset, question: EvalQuestion, answer: Answer) -> Scored:
    """Score an answer; truth values and NumPy's numbers become floats.

    Raises:
        ConfigurationError: A score is missing, or no finite number.
    """
    place = f"{type(dataset).__name__}.score"
    scored = dataset.score(question, answer)
    check_type(f"what {place} returns", scored, Scored, "a Scored")
    scores = checked_metrics(place, scored.scores)
    missing = [name for name in dataset.metrics if name not in scores]
    if missing:
        msg = f"{place} must return all of the metrics, but {', '.join(missing)} is not there"
        raise ConfigurationError(msg)
    if scored.prediction is not None:
        check_text(f"the prediction of {place}", scored.prediction, "a string or None")
    return Scored(scores, scored.prediction)


def checked_metrics(place: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers by their names as floats.

    Args:
        place: What returned them, for the message.
        values: The numbers.

    Raises:
        ConfigurationError: One is no finite number.
    """
    checked = {}
    for name, value in values.items():
        number = float(value) if isinstance(value, bool | np.bool_) else as_number(value)
        if not math.isfinite(number):
            msg = f"{place} must return finite numbers, got {value!r} for {name!r}"
            raise ConfigurationError(msg)
        checked[name] = number
    return checked
