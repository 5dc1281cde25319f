"""One question on its way through a cache of answers, in any framework."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from ragcache_integrations.core.background_checks import BackgroundChecks
from ragcache_integrations.core.forks import make_executor
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import FollowUpWarning

from .copies import copy_answer
from .core import AnswerCore, Near
from .entries import CachedAnswer, Question, Vector
from .types import AnswerTrace

__all__ = ["AnswerFlow", "Lookup", "plain_answer", "same_text", "says_same"]

logger = logging.getLogger(__name__)

A = TypeVar("A")

Judge = Callable[[Question, A, Question, A], object]
"""Says whether the answers to two questions are the same: a question, its answer, and another's.
See :func:`says_same` for what it returns."""

_UNCOPYABLE = "it can't be copied, so its receiver could change it for others"
_WORKERS = 4
_ARTICLES = re.compile(r"\b(?:a|an|the)\b|[^\w\s]")
_YES = re.compile(r"\s*yes\b", re.IGNORECASE)


def same_text(answer: str, other: str) -> bool:
    """Whether two answers are equal but for case, punctuation, articles and white space."""
    return plain_answer(answer) == plain_answer(other)


def plain_answer(answer: str) -> str:
    """Return an answer without differences of case, punctuation, articles and white space."""
    return " ".join(_ARTICLES.sub(" ", answer.casefold()).split())


def says_same(verdict: object) -> bool:
    """Whether somebody says that two answers are the same: true, or a text that begins with yes.

    Raises:
        ConfigurationError: It is neither a bool nor a text, such as a coroutine, which would count
            as true.
    """
    if isinstance(verdict, str):
        return _YES.match(verdict) is not None
    if isinstance(verdict, bool | np.bool_):
        return bool(verdict)
    msg = f"judge and same_answer must return True, False or a text, got {verdict!r:.100}"
    raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Lookup(Generic[A]):
    """What a cache has for a question.

    Attributes:
        question: The question.
        trace: What happens to it.
        entry: The answer that is to be served; ``None`` where it has to be answered.
        near: The nearest entry of its key, if there is one.
        embedding: The question's, where it was needed.
    """

    question: Question
    trace: AnswerTrace
    entry: CachedAnswer[A] | None = None
    near: Near[A] | None = None
    embedding: Vector | None = None


class AnswerFlow(Generic[A]):
    """Looks questions up, keeps their answers, and has some of them checked in the background.

    Args:
        core: Keeps the answers and decides.
        same: Whether two answers say the same.
        judge: Asked in the background about answers that are not the same; ``None``: they differ.
    """

    def __init__(
        self, core: AnswerCore[A], same: Callable[[A, A], object], judge: Judge[A] | None = None
    ) -> None:
        self.core = core
        self._same = same
        self._judge = judge
        self._warned: set[str] = set()
        self._follow_ups = FollowUpWarning()
        self._checks = BackgroundChecks(
            make_executor(_WORKERS, "ragcache-answers"),
            partial(core.count, "checks"),
            partial(core.count, "failed_checks"),
        )

    def look_up(self, question: Question, embed: Callable[[], Any] | None) -> Lookup[A]:
        """Look a question up.

        Args:
            question: The question.
            embed: Returns its embedding, of shape ``(dim,)``, or ``None`` where that is not all of
                it; a coroutine function for coroutines. ``None`` where only the same words are to
                count.

        Raises:
            Exception: Any error of the embedding model.
        """
        entry = self._find(question)
        if entry is not None or embed is None or not self.core.farthest:
            return self._without_embedding(question, entry)
        return self._with_embedding(question, embed())

    async def alook_up(self, question: Question, embed: Callable[[], Any] | None) -> Lookup[A]:
        """Async version of :meth:`look_up`."""
        entry = self._find(question)
        if entry is not None or embed is None or not self.core.farthest:
            return self._without_embedding(question, entry)
        return self._with_embedding(question, await embed())

    def _find(self, question: Question) -> CachedAnswer[A] | None:
        if not question.context:
            self._follow_ups.hear(question.text)
        return self.core.find(question)

    def _without_embedding(self, question: Question, entry: CachedAnswer[A] | None) -> Lookup[A]:
        if entry is None:
            reason = "these words were not answered from these documents before"
            return Lookup(question, AnswerTrace(hit=False, reason=reason))
        reason = "the same words were answered from the same documents"
        return Lookup(question, self._hit(entry, reason, 0.0), entry)

    def _with_embedding(self, question: Question, embedding: Vector | None) -> Lookup[A]:
        if embedding is None:
            return self._without_embedding(question, None)
        near = self.core.nearest(question, embedding)
        if near is None:
            reason = "no such question was answered from these documents before"
            return Lookup(question, AnswerTrace(hit=False, reason=reason), embedding=embedding)
        distance = (
            f"the nearest question with the same documents is at distance {near.distance:.4g}"
        )
        if near.served:
            trace, entry = self._hit(near.entry, distance, near.distance), near.entry
            return Lookup(question, trace, entry, near, embedding)
        trace = AnswerTrace(hit=False, reason=f"{distance}, which is too far")
        return Lookup(question, trace, None, near, embedding)

    def _hit(self, entry: CachedAnswer[A], reason: str, distance: float) -> AnswerTrace:
        age = self.core.age(entry)
        return AnswerTrace(
            hit=True, reason=reason, question=entry.question.text, distance=distance, age=age
        )

    def keep(self, lookup: Lookup[A], answer: A) -> None:
        """Keep a new answer, and learn from it. An error of ``same`` is logged.

        Args:
            lookup: The question, which was looked up before it was answered.
            answer: The answer, which nobody changes afterwards.
        """
        self.core.insert(lookup.question, lookup.embedding, answer)
        if lookup.near is not None:
            try:
                self._compare(lookup.question, lookup.near, answer)
            except Exception as error:  # noqa: BLE001 - the caller has an answer
                self._checks.fail(error)

    def keep_copy(self, lookup: Lookup[A], answer: A) -> None:
        """Keep a copy of a new answer, which its receiver may change.

        Args:
            lookup: As for :meth:`keep`.
            answer: The answer. One that can't be copied is not kept.
        """
        try:
            copied = copy_answer(answer)
        except Exception:  # noqa: BLE001 - whatever a copy may raise
            self.leave_out(_UNCOPYABLE)
        else:
            self.keep(lookup, copied)

    def leave_out(self, warning: str | None = None) -> None:
        """Count an answer that can't be kept.

        Args:
            warning: Why, for the log, which has it once; ``None`` where the trace says so.
        """
        self.core.count("unkept")
        if warning is not None:
            self.warn(f"An answer is not kept: {warning}")

    def warn(self, warning: str) -> None:
        """Log a warning, once."""
        if warning not in self._warned:
            self._warned.add(warning)
            logger.warning("%s", warning)

    def check(
        self,
        lookup: Lookup[A],
        answer: Callable[[], A],
        aanswer: Callable[[], Coroutine[Any, Any, A]] | None = None,
    ) -> None:
        """Answer a question that was served in the background, if that is to be checked.

        Args:
            lookup: The question.
            answer: Answers it again.
            aanswer: Async version of ``answer``, preferred if the caller is in an event loop.
        """
        near, question = lookup.near, lookup.question
        if near is None or not near.check:
            return

        def check() -> None:
            self._compare(question, near, answer())

        async def acheck() -> None:
            assert aanswer is not None  # noqa: S101 - BackgroundChecks starts this only if there is one
            self._compare(question, near, await aanswer())

        self._checks.start(check, None if aanswer is None else acheck)

    def _compare(self, question: Question, near: Near[A], answer: A) -> None:
        """Learn whether the nearest entry's answer is right for a question with this answer."""
        if says_same(self._same(near.entry.answer, answer)):
            self.core.learn(near, wrong=False)
        elif self._judge is None:
            self.core.learn(near, wrong=True)
        else:
            self._checks.start(partial(self._ask_judge, self._judge, question, near, answer), None)

    def _ask_judge(self, judge: Judge[A], question: Question, near: Near[A], answer: A) -> None:
        entry = near.entry
        same = says_same(judge(question, answer, entry.question, entry.answer))
        self.core.learn(near, wrong=not same)
