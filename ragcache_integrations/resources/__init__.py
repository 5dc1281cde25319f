"""The bundled sample of Natural Questions: real questions over real Wikipedia passages.

It lets the demo, the tests and the examples run offline. ``data/ATTRIBUTION.md`` names its sources
and its licence, CC BY-SA 3.0; ``tools/samples/make_sample.py`` in the repository made it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["Passage", "Question", "load_passages", "load_questions"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a Wikipedia article.

    Attributes:
        id: Identifies the passage.
        title: Title of the article.
        text: The passage.
    """

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question that somebody asked a search engine.

    Attributes:
        text: The question: lower case, no question mark.
        answers: Short answers, each of them right.
        passage_id: The passage that holds an answer; no two questions share one.
    """

    text: str
    answers: tuple[str, ...]
    passage_id: str


def _rows(name: str) -> Iterator[dict[str, Any]]:
    packed = files(__name__).joinpath("data", name).read_bytes()
    return map(json.loads, gzip.decompress(packed).decode().splitlines())


@cache
def load_passages() -> tuple[Passage, ...]:
    """All passages, those that answer the questions among distractors. No two share a text."""
    return tuple(Passage(**row) for row in _rows("passages.jsonl.gz"))


@cache
def load_questions() -> tuple[Question, ...]:
    """All questions; the passage of each is among :func:`load_passages`."""
    return tuple(
        Question(row["question"], tuple(row["answers"]), row["passage_id"])
        for row in _rows("questions.jsonl.gz")
    )
