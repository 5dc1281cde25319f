"""PubMedQA: questions on medical abstracts, answered by yes, no or maybe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.core.files import Row, reading, text_of

from .answers import score_option
from .base import BUNDLED, Answer, EvalDataset, EvalDocument, EvalQuestion, Scored
from .metrics import macro_f1
from .sources import (
    bundled_rows,
    find_file,
    find_folder,
    hub_name,
    hub_rows,
    passage_documents,
    read_json,
    texts_of,
)

__all__ = ["PubMedQA"]

HUB_NAME = "qiaojin/PubMedQA"
OPTIONS = ("yes", "no", "maybe")


class PubMedQA(EvalDataset):
    """Expert-labelled questions from the titles of articles (Jin et al. 2019).

    A folder holds ``pubmedqa.json`` or ``ori_pqal.json``. Each paragraph of each abstract is a
    document. The scores are accuracy, and macro-F1 over all answers.
    """

    name = "pubmedqa"
    title = "PubMedQA"
    metrics = ("accuracy",)
    max_tokens = 1
    system = (
        "You answer questions on medical research from the abstracts that you are given, "
        "by yes, no or maybe."
    )
    cue = "Answer (yes, no or maybe):"
    chooses = True

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        if data == BUNDLED:
            rows = bundled_rows("pubmedqa.jsonl.gz")
            return cls._of(((row["id"], row) for row in rows), "the bundled sample", documents)
        if (name := hub_name(data, HUB_NAME)) is not None:
            rows = hub_rows(name, "pqa_labeled", "train")
            return cls._of(_hub_entries(rows, name), f"the hub's {name}", documents)
        folder = find_folder(data, "pubmedqa", "*.json*")
        path = find_file(folder, "pubmedqa.json", "ori_pqal.json")
        entries = read_json(path)
        with reading(str(path)):
            return cls._of(entries.items(), f"{path.parent.name}/{path.name}", documents)

    @classmethod
    def _of(cls, entries: Iterable[tuple[str, Row]], source: str, documents: Path | None) -> Self:
        questions: list[EvalQuestion] = []
        paragraphs: dict[str, EvalDocument] = {}
        with reading(source):
            for key, entry in entries:
                ids = []
                for number, text in enumerate(texts_of(entry, "CONTEXTS")):
                    # The same paragraph under two questions is one document.
                    document = paragraphs.setdefault(text, EvalDocument(f"{key}-{number}", text))
                    ids.append(document.id)
                right = text_of(entry, "final_decision")
                if right not in OPTIONS:
                    msg = f"'final_decision' must be one of {', '.join(OPTIONS)}, got {right!r}"
                    raise ValueError(msg)
                questions.append(
                    EvalQuestion(
                        f"pubmedqa-{key}",
                        text_of(entry, "QUESTION"),
                        (right,),
                        options=OPTIONS,
                        gold_documents=tuple(ids),
                    )
                )
        passages = list(paragraphs.values()) if documents is None else passage_documents(documents)
        return cls(questions, passages, source)

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_option(question, answer)

    @override
    def summary_scores(
        self, questions: Sequence[EvalQuestion], scored: Sequence[Scored]
    ) -> dict[str, float]:
        labels = [question.answers[0] for question in questions]
        return {"macro_f1": macro_f1([score.prediction for score in scored], labels)}


def _hub_entries(rows: Sequence[Row], name: str) -> list[tuple[str, Row]]:
    with reading(f"{name!r} of the hub"):
        return [
            (
                str(row["pubid"]),
                {
                    "QUESTION": row["question"],
                    "CONTEXTS": row["context"]["contexts"],
                    "final_decision": row["final_decision"],
                },
            )
            for row in rows
        ]
