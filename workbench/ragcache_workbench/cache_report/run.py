"""From a log to the findings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

from ragcache_integrations.core.checks import check_number
from ragcache_integrations.embeddings import MiniLM
from ragcache_integrations.retrievers.keys import (
    may_share,
    normalize_text,
    question_marks,
    window_of,
)

from .questions import LoggedQuestion, read_questions
from .replay import LEAST_ERROR, Proof, prove, replay
from .report import Findings, Judge, Rule, can_be_wrong

__all__ = ["report_on_log"]


def report_on_log(path: Path, error: float = 0.01, *, show_progress: bool = False) -> Findings:
    """Find out what a cache of answers would have served on a log, and what of it was wrong.

    Args:
        path: The log; :mod:`ragcache_workbench.cache_report.questions` has the format.
        error: The share of wrong hits to stay below, from 1e-9 to 0.5.
        show_progress: Show a progress bar.

    Raises:
        ConfigurationError: ``error`` is out of its range, the file cannot be read, or has fewer
            than 30 questions.
        MissingExtraError: The extra ``embeddings`` is not installed.
    """
    error = check_number("error", error, LEAST_ERROR, 0.5)
    questions = read_questions(path)
    texts = list(dict.fromkeys(question.text for question in questions))
    model = MiniLM()
    embedded = model.embed_batch(texts, show_progress=show_progress)
    vectors = embedded[_numbers(question.text for question in questions)]
    judge = _judge(questions)
    # A question that the model can't read is near to no other one, as in the cache of answers.
    leaves_out = window_of(model)
    alone = {text: text if leaves_out(text) else None for text in texts}
    words = _numbers(normalize_text(question.text) for question in questions)
    labels = _labels(questions, judge)

    def rule(
        key: Callable[[LoggedQuestion], Hashable],
        guard: Callable[[int, int], bool] | None = None,
    ) -> Rule:
        keys = _numbers((key(question), alone[question.text]) for question in questions)
        replayed = replay(vectors, words, keys, labels, may_share=guard)
        proof = prove(replayed.wrong_counts(), error)
        return Rule(replayed, proof if can_be_wrong(questions, judge) else Proof(None, None, None))

    def guard(one: int, other: int) -> bool:
        return may_share(questions[one].text, questions[other].text)

    return Findings(
        name=path.name,
        questions=questions,
        judge=judge,
        error=error,
        guarded=rule(partial(_guarded_key, judge), guard),
        plain=rule(attrgetter("tenant")),
        skipped=questions.skipped,
        remarks=questions.remarks,
    )


def _judge(questions: Sequence[LoggedQuestion]) -> Judge:
    """Return what shows wrong hits: what is known of at least half of the questions."""
    if 2 * sum(question.answer is not None for question in questions) >= len(questions):
        return "answers"
    if 2 * sum(question.documents is not None for question in questions) >= len(questions):
        return "documents"
    return None


def _guarded_key(judge: Judge, question: LoggedQuestion) -> Hashable:
    """Return what must be equal for an answer to be shared.

    Documents that are to show which hits are wrong can't be a part of it: none would be.
    """
    documents = None if judge == "documents" else question.documents
    return question.tenant, question.scope, documents, question_marks(question.text)


def _labels(questions: Sequence[LoggedQuestion], judge: Judge) -> list[int]:
    """Return a number for each answer, -1 for an unknown one."""
    if judge is None:
        return [-1] * len(questions)
    known: list[Hashable] = [
        question.answer if judge == "answers" else question.documents for question in questions
    ]
    return [
        -1 if value is None else number
        for number, value in zip(_numbers(known), known, strict=True)
    ]


def _numbers(values: Iterable[Hashable]) -> list[int]:
    """Return a number for each value, equal for equal ones."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
