"""MMLU: four options, chosen by the log-probabilities of their letters, few-shot from dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.core.files import reading, text_of
from ragcache_integrations.errors import ConfigurationError

from .answers import score_option
from .base import (
    BUNDLED,
    Answer,
    EvalDataset,
    EvalDocument,
    EvalPrompt,
    EvalQuestion,
    Scored,
)
from .sources import (
    bundled_rows,
    find_file,
    find_folder,
    hub_name,
    hub_rows,
    passage_documents,
    passages_from,
    read_csv,
    sample_passages,
    texts_of,
)

__all__ = ["MMLU", "format_example"]

HUB_NAME = "cais/mmlu"
LETTERS = ("A", "B", "C", "D")
SHOTS = 5


class MMLU(EvalDataset):
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
        if data == BUNDLED:
            rows = bundled_rows("mmlu.jsonl.gz")
            cells = [[*row["cells"], row["subject"], row["split"]] for row in rows]
            return cls._of(cells, passages_from(documents), "the bundled sample")
        if (name := hub_name(data, HUB_NAME)) is not None:
            with reading(f"{name!r} of the hub"):
                cells = [
                    [
                        text_of(row, "question"),
                        *texts_of(row, "choices"),
                        LETTERS[row["answer"]],
                        text_of(row, "subject"),
                        split,
                    ]
                    for split in ("dev", "test")
                    for row in hub_rows(name, "all", split)
                ]
            return cls._of(cells, passages_from(documents), f"the hub's {name}")
        folder = find_folder(data, "mmlu", "*_test.csv")
        cells = []
        for split in ("dev", "test"):
            for path in sorted(folder.glob(f"*_{split}.csv")):
                subject = path.name.removesuffix(f"_{split}.csv")
                with reading(str(path)):
                    cells += [[*_six(row), subject, split] for row in read_csv(path)]
        return cls._of(cells, _passages(folder, documents), f"{folder.name}/*_test.csv")

    @classmethod
    def _of(
        cls, cells: Sequence[Sequence[str]], documents: Sequence[EvalDocument], source: str
    ) -> Self:
        questions: list[EvalQuestion] = []
        examples: dict[str, list[EvalQuestion]] = {}
        for number, (text, *choices, right, subject, split) in enumerate(cells):
            question = EvalQuestion(
                id=f"mmlu-{subject}-{number}",
                text=text,
                answers=(right,),
                options=LETTERS,
                choices=tuple(choices),
                group=subject,
            )
            if split == "dev":
                examples.setdefault(subject, []).append(question)
            else:
                questions.append(question)
        return cls(questions, documents, source, examples)

    @override
    def prompt(self, question: EvalQuestion, wording: str) -> EvalPrompt:
        return EvalPrompt("", self._heads[question.group], format_example(question, wording))

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_option(question, answer)


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


def _six(row: Sequence[str]) -> Sequence[str]:
    if len(row) != len(LETTERS) + 2 or row[-1] not in LETTERS or not row[0].strip():
        msg = (
            f"a row must be a question, four options and one of A, B, C, D, got {list(row)!r:.100}"
        )
        raise ValueError(msg)
    return row


def _passages(folder: Path, documents: Path | None) -> Sequence[EvalDocument]:
    if documents is not None:
        return passage_documents(documents)
    try:
        return passage_documents(find_file(folder.parent / "nq", "passages.jsonl"))
    except ConfigurationError:
        return sample_passages()
