"""Data sets whose answers are one of several options: MMLU and PubMedQA."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.core.files import Row, reading, text_of

from .base import EvalDocument, EvalPrompt, EvalQuestion, Scored
from .metrics import macro_f1
from .published import (
    Content,
    Passages,
    PublishedDataset,
    passages_in,
    sample_passages,
    texts_of,
)

__all__ = ["MMLU", "PubMedQA", "format_example"]

LETTERS = ("A", "B", "C", "D")
SHOTS = 5
DECISIONS = ("yes", "no", "maybe")


class MMLU(PublishedDataset):
    """Multiple-choice questions on many subjects (Hendrycks et al. 2021).

    A folder holds ``SUBJECT_dev.csv`` and ``SUBJECT_test.csv``: question, four options, letter.
    The prompt is that of the benchmark's own code, with the retrieved documents, if any, between
    its examples and the question. MMLU has no documents: unless ``documents`` has others, they are
    the passages of an ``nq`` folder next to it, else the bundled ones.

    Args:
        questions: At least one, with different ids.
        documents: The documents to retrieve from; at least one.
        source: Where the data comes from, in words.
        examples: Questions of each subject's dev split; the first five are shown.
    """

    name = "mmlu"
    title = "MMLU"
    metrics = ("accuracy",)
    max_tokens = 1
    chooses = True
    named_by_folder = True

    def __init__(
        self,
        questions: Sequence[EvalQuestion],
        documents: Sequence[EvalDocument],
        source: str,
        examples: Mapping[str, Sequence[EvalQuestion]],
    ) -> None:
        super().__init__(questions, documents, source)
        self._heads = {
            question.group: _head(question.group, examples.get(question.group, ()))
            for question in questions
        }

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        questions: list[EvalQuestion] = []
        examples: dict[str, list[EvalQuestion]] = defaultdict(list)
        number = 0
        for content in cls.contents(data):
            with reading(content.source, cls.published.expected):
                for row in content.rows:
                    question, split = _choice(row, content.part, number)
                    (examples[question.group] if split == "dev" else questions).append(question)
                    number += 1
        path = content.path
        source = content.source if path is None else f"{path.absolute().parent.name}/*_test.csv"
        chosen = cls._documents(documents, path, Passages(cls.name))
        return cls(questions, chosen, source, examples)

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterable[EvalQuestion]:
        raise NotImplementedError  # they are told from the examples by `load`

    @classmethod
    @override
    def documents_beside(cls, path: Path | None) -> Sequence[EvalDocument]:
        beside = None if path is None else passages_in(path.parent.parent / "nq")
        return sample_passages() if beside is None else beside

    @override
    def prompt(self, question: EvalQuestion, wording: str) -> EvalPrompt:
        return EvalPrompt("", self._heads[question.group], format_example(question, wording))


def _choice(row: Row, part: str, number: int) -> tuple[EvalQuestion, str]:
    """Return a question, and whether its split is ``dev`` or ``test``."""
    subject, _, split = part.rpartition("_")  # of a file
    if "cells" not in row:
        cells = [text_of(row, "question"), *texts_of(row, "choices"), LETTERS[row["answer"]]]
    else:
        cells = row["cells"]
    if len(cells) != len(LETTERS) + 2 or cells[-1] not in LETTERS or not cells[0].strip():
        msg = f"a row must be a question, four options and one of A, B, C, D, got {cells!r:.100}"
        raise ValueError(msg)
    text, *choices, right = cells
    subject = text_of(row, "subject", subject)
    question = EvalQuestion(
        id=f"mmlu-{subject}-{number}",
        text=text,
        answers=(right,),
        options=LETTERS,
        choices=tuple(choices),
        group=subject,
    )
    return question, text_of(row, "split", split)


def format_example(
    question: EvalQuestion, wording: str | None = None, *, solved: bool = False
) -> str:
    """Format a question as MMLU's own code does.

    Args:
        question: The question.
        wording: Another wording of it; ``None`` for its own.
        solved: Whether to add its answer, as in an example.
    """
    lines = [question.text if wording is None else wording]
    options = zip(question.options, question.choices, strict=True)
    lines += [f"{label}. {choice}" for label, choice in options]
    text = "\n".join(lines) + "\nAnswer:"
    return f"{text} {question.answers[0]}\n\n" if solved else text


def _head(subject: str, examples: Sequence[EvalQuestion]) -> str:
    # Two spaces, as in the prompts of the results that are compared with.
    about = "".join(f" {word}" for word in subject.split("_"))
    head = f"The following are multiple choice questions (with answers) about {about}.\n\n"
    return head + "".join(format_example(example, solved=True) for example in examples[:SHOTS])


class PubMedQA(PublishedDataset):
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
    named_by_folder = True

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for row in content.rows:
            entry = _from_hub(row) if "pubid" in row else row
            key, right = text_of(entry, "id"), text_of(entry, "final_decision")
            if right not in DECISIONS:
                msg = f"'final_decision' must be one of {', '.join(DECISIONS)}, got {right!r}"
                raise ValueError(msg)
            yield EvalQuestion(
                f"pubmedqa-{key}",
                text_of(entry, "QUESTION"),
                (right,),
                options=DECISIONS,
                gold_documents=tuple(
                    passages.add(text, name=f"{key}-{number}")
                    for number, text in enumerate(texts_of(entry, "CONTEXTS"))
                    if text.strip()
                ),
            )

    @override
    def summary_scores(
        self, questions: Sequence[EvalQuestion], scored: Sequence[Scored]
    ) -> dict[str, float]:
        labels = [question.answers[0] for question in questions]
        return {"macro_f1": macro_f1([score.prediction for score in scored], labels)}


def _from_hub(row: Row) -> Row:
    """Return an entry of the hub with the names of the authors' file."""
    return {
        "id": str(row["pubid"]),
        "QUESTION": row["question"],
        "CONTEXTS": row["context"]["contexts"],
        "final_decision": row["final_decision"],
    }
