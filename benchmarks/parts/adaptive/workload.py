"""Questions of different needs over the bundled passages, with recorded profiles.

A third of RAGServe's own data sets asks for one fact, others for several facts together. The
bundled questions all ask for one, so that others are made of them: pairs of questions whose answers
must both be found, and questions after what several have to do with each other. What each needs
is known from how it was made; that is what the recorded file says. With profiles replayed from the
file, two runs differ in their scheduling and in nothing else.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ragcache_integrations.adaptive import HeuristicProfiler, ProfileEstimate, QueryProfile
from ragcache_integrations.adaptive.profile import SUMMARY_RANGES
from ragcache_integrations.engine import PromptDocument
from ragcache_integrations.resources import load_passages, load_questions

from .recorded import RecordedProfiler, save_profiles

__all__ = ["RECORDED", "Corpus", "Material", "Workload", "f1", "record_profiles"]

RECORDED = Path(__file__).parents[2] / "recorded" / "adaptive_profiles.jsonl"

CHUNK_CHARACTERS = 1600
"""About 400 tokens, so that a few chunks make a prompt as long as RAGServe's (table 1)."""

SHARES = (0.5, 0.3, 0.2)
"""Of questions after one fact, after several, and after what they have to do with each other."""

_WORD = re.compile(r"[a-z0-9]+")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


class Corpus:
    """Chunks, and the words by which they are found.

    Retrieval is not what is measured: rare words in common decide, no embedding is computed.

    Args:
        texts: The texts; long ones are cut into chunks, short ones joined.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.chunks = [PromptDocument(chunk) for chunk in _chunks(texts) if chunk.strip()]
        self._counts = [Counter(_words(chunk.text)) for chunk in self.chunks]

    @cached_property
    def _weights(self) -> dict[str, float]:
        found = Counter(word for counts in self._counts for word in counts)
        return {word: math.log(len(self.chunks) / count) for word, count in found.items()}

    def find(self, question: str, count: int) -> list[PromptDocument]:
        """The chunks that have most in common with a question, the best first."""
        words = set(_words(question))
        scores = [
            sum(self._weights[word] for word in words if word in counts) for counts in self._counts
        ]
        order = sorted(range(len(scores)), key=lambda number: -scores[number])
        return [self.chunks[number] for number in order[:count]]


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    begun = ""
    for text in texts:
        begun += text + "\n\n"
        while len(begun) >= CHUNK_CHARACTERS:
            yield begun[:CHUNK_CHARACTERS]
            begun = begun[CHUNK_CHARACTERS:]
    yield begun


@dataclass(frozen=True)
class Workload:
    """Questions as they arrive.

    Attributes:
        questions: The questions.
        gaps: Time from one to the next, as a multiple of the mean.
    """

    questions: tuple[str, ...]
    gaps: tuple[float, ...]

    @classmethod
    def draw(cls, questions: Sequence[str], count: int, seed: int) -> Workload:
        """Draw questions, none twice while there are others, and exponential gaps."""
        rng = np.random.default_rng(seed)
        order = [int(one) for one in rng.permutation(len(questions))]
        picked = tuple(questions[order[number % len(order)]] for number in range(count))
        return cls(picked, tuple(float(gap) for gap in rng.exponential(1.0, size=count)))

    def arrivals(self, rate: float) -> list[float]:
        """Seconds after the start at which each arrives, for so many questions a second."""
        return [float(one) for one in np.cumsum(self.gaps) / rate]


def record_profiles(path: Path = RECORDED, count: int = 240, seed: int = 0) -> int:
    """Write questions with their profiles; returns how many."""
    rng = np.random.default_rng(seed)
    facts = [one.text.rstrip("?") for one in load_questions()]

    def some(number: int) -> list[str]:
        return [facts[int(one)] for one in rng.choice(len(facts), size=number, replace=False)]

    estimates: dict[str, ProfileEstimate] = {}
    while len(estimates) < count:
        kind = int(rng.choice(3, p=SHARES))
        if kind == 0:
            (question,) = some(1)
            profile = QueryProfile("low", joint_reasoning=False, pieces=1)
        elif kind == 1:
            pieces = int(rng.integers(2, 4))
            question = ", and ".join(some(pieces))
            profile = QueryProfile("low", joint_reasoning=True, pieces=pieces)
        else:
            pieces = int(rng.integers(2, 5))
            question = f"explain what these have in common: {'; '.join(some(pieces))}"
            words = SUMMARY_RANGES["short"]
            profile = QueryProfile("high", True, pieces, words)  # noqa: FBT003 - joint
        estimates[question] = ProfileEstimate(profile, "recorded", 1.0)
    return save_profiles(path, estimates.items())


@dataclass(frozen=True)
class Material:
    """What is asked, and what it is answered from.

    Attributes:
        corpus: What it is answered from.
        profiler: Gives the questions' profiles again.
        answers: Right answers of each question; none where they are not known.
    """

    corpus: Corpus
    profiler: RecordedProfiler
    answers: dict[str, tuple[str, ...]]

    @classmethod
    def bundled(cls, profiles: Path = RECORDED) -> Material:
        """The bundled passages, and the questions of a file of profiles."""
        profiler = RecordedProfiler.load(profiles)
        known = {one.text.rstrip("?"): tuple(one.answers) for one in load_questions()}
        corpus = Corpus(f"{passage.title}. {passage.text}" for passage in load_passages())
        return cls(corpus, profiler, {question: known.get(question, ()) for question in profiler})

    @classmethod
    def read(cls, folder: Path, name: str, profiles: Path | None = None) -> Material:
        """A data set: ``nq``, ``pubmedqa`` or ``qmsum``, in its own format.

        Args:
            folder: Holds the data sets' folders.
            name: Which.
            profiles: A file of profiles of its questions; rules of thumb where ``None``.
        """
        texts, answers = _READERS[name](folder / name)
        if profiles is not None:
            profiler = RecordedProfiler.load(profiles)
        else:
            rules = HeuristicProfiler()
            profiler = RecordedProfiler({question: rules.profile(question) for question in answers})
        return cls(Corpus(texts), profiler, answers)


def _rows(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.decode().split("\n") if line.strip()]


def _read_nq(folder: Path) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    passages = _rows(gzip.decompress((folder / "passages.jsonl.gz").read_bytes()))
    questions = _rows((folder / "questions.jsonl").read_bytes())
    texts = [f"{row['title']}. {row['text']}" for row in passages]
    return texts, {row["question"]: tuple(row["answers"]) for row in questions}


def _read_pubmedqa(folder: Path) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    rows = json.loads((folder / "pubmedqa.json").read_bytes()).values()
    texts = [text for row in rows for text in row["CONTEXTS"]]
    return texts, {row["QUESTION"]: (row["LONG_ANSWER"],) for row in rows}


def _read_qmsum(folder: Path) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    meetings = _rows(gzip.decompress((folder / "val.jsonl.gz").read_bytes()))
    texts = [
        "\n".join(
            f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"]
        )
        for meeting in meetings
    ]
    asked = [row for one in meetings for row in one["specific_query_list"]]
    return texts, {row["query"]: (row["answer"],) for row in asked}


_READERS = {"nq": _read_nq, "pubmedqa": _read_pubmedqa, "qmsum": _read_qmsum}


def f1(answer: str, expected: Sequence[str]) -> float:
    """Word F1 against the best of several right answers, as SQuAD counts it."""
    said = Counter(_words(answer))
    best = 0.0
    for one in expected:
        wanted = Counter(_words(one))
        common = sum((said & wanted).values())
        if common:
            best = max(best, 2 * common / (said.total() + wanted.total()))
    return best
