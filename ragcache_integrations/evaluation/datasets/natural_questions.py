"""Natural Questions in their open-domain form: short answers, scored by exact match and F1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.resources import load_questions

from .base import (
    SYSTEM,
    Answer,
    EvalDataset,
    EvalDocument,
    EvalPrompt,
    EvalQuestion,
    Scored,
)
from .metrics import exact_match, token_f1
from .sources import (
    Row,
    find_file,
    find_folder,
    hub_name,
    hub_rows,
    is_bundled,
    passage_documents,
    read_json_lines,
    reading,
    sample_passages,
    text_of,
    texts_of,
)

__all__ = ["NaturalQuestions"]

HUB_NAME = "google-research-datasets/nq_open"


class NaturalQuestions(EvalDataset):
    """Questions that people asked a search engine (Kwiatkowski et al. 2019).

    A folder holds ``questions.jsonl`` (``question``, ``answers``, ``passage_id``) and
    ``passages.jsonl`` (``id``, ``title``, ``text``), also as ``.gz``. The hub's NQ-open has no
    passages: the bundled ones serve, unless others are given.
    """

    name = "nq"
    title = "Natural Questions"
    metrics = ("exact_match", "f1")
    max_tokens = 32  # 99 % of the answers are no longer (RAGCache §7)

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        if is_bundled(data):
            questions = [
                EvalQuestion(
                    f"nq-{number}",
                    question.text,
                    question.answers,
                    gold_documents=(question.passage_id,),
                )
                for number, question in enumerate(load_questions())
            ]
            return cls(questions, _passages(documents, None), "the bundled sample")
        if (name := hub_name(data, HUB_NAME)) is not None:
            with reading(f"{name!r} of the hub"):
                questions = _questions(hub_rows(name, None, "validation"), "answer")
            return cls(questions, _passages(documents, None), f"the hub's {name}")
        folder = find_folder(data, "nq", "questions.jsonl*")
        path = find_file(folder, "questions.jsonl")
        with reading(str(path)):
            questions = _questions(read_json_lines(path), "answers")
        return cls(questions, _passages(documents, folder), f"{path.parent.name}/{path.name}")

    @override
    def prompt(self, question: EvalQuestion, asked: str) -> EvalPrompt:
        return EvalPrompt(SYSTEM, "", f"Question: {asked}\nAnswer:")

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        text = answer.text.strip()
        scores = {
            "exact_match": exact_match(text, question.answers),
            "f1": token_f1(text, question.answers),
        }
        return Scored(scores, text)


def _passages(documents: Path | None, folder: Path | None) -> Sequence[EvalDocument]:
    if documents is not None:
        return passage_documents(documents)
    if folder is None:
        return sample_passages()
    return passage_documents(find_file(folder, "passages.jsonl"))


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
