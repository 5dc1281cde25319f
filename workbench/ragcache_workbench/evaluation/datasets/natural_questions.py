"""Natural Questions in their open-domain form: short answers, scored by exact match and F1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.core.files import Row, read_json_lines, reading, text_of
from ragcache_integrations.resources import load_questions

from .answers import score_text
from .base import BUNDLED, Answer, EvalDataset, EvalQuestion, Scored
from .metrics import exact_match, token_f1
from .sources import find_file, find_folder, hub_name, hub_rows, passages_from, texts_of

__all__ = ["NaturalQuestions"]

HUB_NAME = "google-research-datasets/nq_open"


class NaturalQuestions(EvalDataset):
    """Questions that people asked a search engine (Kwiatkowski et al. 2019).

    A folder holds ``questions.jsonl`` (``question``, ``answers``, ``passage_id``) and
    ``passages.jsonl`` (``id``, ``title``, ``text``), also as ``.gz``. The hub's NQ-open has no
    passages: the bundled ones are used unless ``documents`` has others.
    """

    name = "nq"
    title = "Natural Questions"
    metrics = ("exact_match", "f1")
    max_tokens = 32  # enough for 99 % of the answers (RAGCache §7)

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        if data == BUNDLED:
            rows = [asdict(question) | {"question": question.text} for question in load_questions()]
            questions = _questions(rows, "answers")
            return cls(questions, passages_from(documents), "the bundled sample")
        if (name := hub_name(data, HUB_NAME)) is not None:
            with reading(f"{name!r} of the hub"):
                questions = _questions(hub_rows(name, None, "validation"), "answer")
            return cls(questions, passages_from(documents), f"the hub's {name}")
        folder = find_folder(data, "nq", "questions.jsonl*")
        path = find_file(folder, "questions.jsonl")
        with reading(str(path)):
            questions = _questions(read_json_lines(path), "answers")
        passages = passages_from(documents or find_file(folder, "passages.jsonl"))
        return cls(questions, passages, f"{path.parent.name}/{path.name}")

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_text(question, answer, exact_match=exact_match, f1=token_f1)


def _questions(rows: Sequence[Row], answers: str) -> list[EvalQuestion]:
    return [
        EvalQuestion(
            f"nq-{number}",
            text_of(row, "question"),
            texts_of(row, answers),
            gold_documents=(row["passage_id"],) if row.get("passage_id") else (),
        )
        for number, row in enumerate(rows)
    ]
