"""One question on its way through a cache of answers, in any framework."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from ragcache_integrations.core.flows import raise_stop
from ragcache_integrations.core.forks import make_executor
from ragcache_integrations.core.threads import BackgroundChecks, in_executor
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import (
    FollowUpWarning,
    StepWatch,
    Surroundings,
    normalize_text,
)

from .changes import CHANGED, ChangeWatch
from .core import AnswerCore, Near
from .entries import AnswerCodec, CachedAnswer, Group, Question, Vector, copy_answer
from .redis import SharedAnswers
from .types import (
    AnswerExplanation,
    AnswerStats,
    AnswerTrace,
    SharedAnswerStats,
    unkept_explanation,
)

__all__ = [
    "AWAITING",
    "BLOCKING",
    "AnswerFlow",
    "Lookup",
    "Way",
    "finished",
    "plain_answer",
    "same_text",
    "says_same",
]

logger = logging.getLogger(__name__)

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

Judge = Callable[[Question, A, Question, A], object]
"""Says whether the answers to two questions are the same: a question, its answer, and another's.
See :func:`says_same` for what it returns."""

_AWAY = "Redis does not say what was answered before"
_REDIS_WORKERS = 8
_UNCOPYABLE = "it can't be copied, so its receiver could change it for others"
_WORKERS = 4
_FIRST_WORD = re.compile(r"[^\W\d_][^\W\d_]+(?![\w+#-])")
_SHORT = frozenset({"yes.", "no.", "ja.", "nein.", "oui.", "non.", "sim.", "não."})
"""Answers whose full stop says nothing, though their word is short."""
_YES = re.compile(r"\s*yes\b", re.IGNORECASE)


def same_text(answer: str, other: str) -> bool:
    """Whether two answers are equal but for what cannot carry meaning, see :func:`plain_answer`."""
    return plain_answer(answer) == plain_answer(other)


def plain_answer(answer: str) -> str:
    """Return an answer without the differences that cannot carry meaning.

    A bound on wrong answers counts by it, so it is stricter than the metrics of data sets, to which
    ``C++`` is ``C#`` and ``-5`` is ``5``: signs, operators, symbols, articles and case count. See
    :func:`~ragcache_integrations.retrievers.keys.normalize_text`. Of the first word, the first
    letter's case is left out if the others are small: models write *Yes* and *yes*.
    """
    answer = answer.strip()
    first = _FIRST_WORD.match(answer)
    if first is not None and first[0][1:].islower():
        answer = first[0].lower() + answer[first.end() :]
    return normalize_text(answer.removesuffix(".") if answer in _SHORT else answer)


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
class Way:
    """How a flow waits for models, stores and Redis.

    A flow is written once, as a coroutine that makes no calls itself: it passes each call, with its
    async version, to the way. If the way is :data:`BLOCKING`, the coroutine never suspends, and
    :func:`finished` returns its result to code that is not a coroutine.

    Attributes:
        awaits: Whether async versions are called.
    """

    awaits: bool

    async def __call__(
        self,
        call: Callable[P, R],
        acall: Callable[P, Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a function, or its async version."""
        return await acall(*args, **kwargs) if self.awaits else call(*args, **kwargs)

    def function(self, flow: Callable[[], Coroutine[Any, Any, R]]) -> Callable[[], Any]:
        """Return a flow of this way as a function that blocks, or as an async one."""
        return flow if self.awaits else lambda: finished(flow())

    def again(
        self, ask: Callable[[Way], Coroutine[Any, Any, R]]
    ) -> tuple[Callable[[], R], Callable[[], Coroutine[Any, Any, R]] | None]:
        """Return a flow for the background: a function, and an async one if this way awaits."""
        return lambda: finished(ask(BLOCKING)), (lambda: ask(AWAITING)) if self.awaits else None


BLOCKING, AWAITING = Way(awaits=False), Way(awaits=True)


def finished(flow: Coroutine[Any, Any, R]) -> R:
    """Return the result of a flow whose way is :data:`BLOCKING`."""
    try:
        flow.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    except RuntimeError as error:
        raise_stop(error)
        raise
    flow.close()
    raise RuntimeError("a flow that blocks must not wait for an event loop")


@dataclass(frozen=True, slots=True)
class Lookup(Generic[A]):
    """What a cache has for a question.

    Attributes:
        question: The question.
        trace: What happens to it.
        entry: The answer that is to be served; ``None`` where it has to be answered.
        near: The nearest entry of its key, if there is one.
        embedding: The question's, where it was needed.
        moment: When that was, as the cache counts it, in memory or in Redis: an answer that was to
            be forgotten since is not kept. ``None`` where Redis does not say.
        around: What surrounds the call: an answer that used what its key does not hold is not kept.
    """

    question: Question
    trace: AnswerTrace
    entry: CachedAnswer[A] | None = None
    near: Near[A] | None = None
    embedding: Vector | None = None
    moment: Any = None
    around: Surroundings | None = None


class AnswerFlow(Generic[A]):
    """Looks questions up, keeps their answers, and has some of them checked in the background.

    Args:
        core: Keeps the answers and decides.
        same: Whether two answers say the same.
        judge: Asked in the background about answers that are not the same; ``None``: they differ.
        codec: Turns answers into plain data, for files and Redis; ``None``: there are neither.
        code: Says whether what answers has changed: if so, meanwhile, its answer is not kept.

    Attributes:
        core: Keeps the answers and decides.
        codec: As given.
        code: As given.
        watch: Reads what surrounds each call.

    Raises:
        ConfigurationError: ``cache`` can't be used: there is no ``tag``, or nothing turns answers
            into plain data.
        MissingExtraError: ``cache`` is given, and redis-py is not installed.
    """

    def __init__(
        self,
        core: AnswerCore[A],
        same: Callable[[A, A], object],
        judge: Judge[A] | None = None,
        codec: AnswerCodec[A] | None = None,
        code: ChangeWatch | None = None,
    ) -> None:
        self.core = core
        self.codec: Any = codec
        self.code: Any = code
        self.watch = StepWatch(core.knobs.ignores, code)
        self._shared: SharedAnswers[A] | None = None
        server = core.knobs.cache
        if server is not None:
            if codec is None:
                raise ConfigurationError(f"cache must be None for tools, got {server!r}")
            self._shared = SharedAnswers(server, core, codec)
            self._redis_threads = make_executor(_REDIS_WORKERS, "ragcache-answers-redis")
        self._same = same
        self._judge = judge
        self._warned: set[str] = set()
        self._follow_ups = FollowUpWarning()
        self._checks = BackgroundChecks(
            make_executor(_WORKERS, "ragcache-answers"),
            partial(core.count, "checks"),
            partial(core.count, "failed_checks"),
        )

    def look_up(
        self,
        question: Question,
        embed: Callable[[], Any] | None,
        around: Surroundings | None = None,
    ) -> Lookup[A]:
        """Look a question up.

        Args:
            question: The question.
            embed: Returns its embedding, of shape ``(dim,)``, or ``None`` where that is not all of
                it; a coroutine function for coroutines. ``None`` where only the same words are to
                count.
            around: What surrounds the call, if it is to be kept.

        Raises:
            Exception: Any error of the embedding model.
        """
        return finished(self._look_up(BLOCKING, question, embed, around))

    async def alook_up(
        self,
        question: Question,
        embed: Callable[[], Any] | None,
        around: Surroundings | None = None,
    ) -> Lookup[A]:
        """Async version of :meth:`look_up`."""
        return await self._look_up(AWAITING, question, embed, around)

    async def _look_up(
        self,
        way: Way,
        question: Question,
        embed: Callable[[], Any] | None,
        around: Surroundings | None,
    ) -> Lookup[A]:
        moment, farthest = self.core.moment, self.core.farthest
        among = await self._wait(way, self._fetch, question, near=embed is not None)
        if among is None and self._shared is not None:
            self.core.count("lookups")
            return Lookup(question, AnswerTrace(hit=False, reason=_AWAY))
        if not question.context:
            self._follow_ups.hear(question.text)
        entry, near, embedding = self.core.find(question, among), None, None
        if entry is not None:
            reason = "the same words were answered from the same documents"
            trace = self._hit(entry, reason, 0.0)
        else:
            if embed is not None and farthest:
                embedding = await way(embed, embed)
            if embedding is not None:
                near = self.core.nearest(question, embedding, among)
            entry = near.entry if near is not None and near.served else None
            trace = self._trace(near, embedded=embedding is not None)
        since = moment if among is None else among.moment
        return Lookup(question, trace, entry, near, embedding, since, around)

    async def _wait(
        self, way: Way, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call what may wait for Redis; if nothing may block and there is Redis, in a thread."""
        if self._shared is None or not way.awaits:
            return function(*args, **kwargs)
        return await in_executor(self._redis_threads, function, *args, **kwargs)

    def _fetch(self, question: Question, *, near: bool) -> Group[A] | None:
        """Return the answers that processes share; ``None``: Redis does not say, or is not used."""
        if self._shared is None:
            return None
        return self._shared.fetch(question, near=near and self.core.farthest > 0)

    def _trace(self, near: Near[A] | None, *, embedded: bool) -> AnswerTrace:
        """Say what happens to a question whose words were not answered before."""
        if near is None:
            what = "no such question was" if embedded else "these words were not"
            return AnswerTrace(hit=False, reason=f"{what} answered from these documents before")
        distance = (
            f"the nearest question with the same documents is at distance {near.distance:.4g}"
        )
        if near.served:
            return self._hit(near.entry, distance, near.distance)
        return AnswerTrace(hit=False, reason=f"{distance}, which is too far")

    def _hit(self, entry: CachedAnswer[A], reason: str, distance: float) -> AnswerTrace:
        age = self.core.age(entry)
        return AnswerTrace(
            hit=True, reason=reason, question=entry.question.text, distance=distance, age=age
        )

    def keep(self, lookup: Lookup[A], answer: A) -> None:
        """Keep a copy of a new answer, and learn from it. An error of ``same`` is logged.

        Args:
            lookup: The question, which was looked up before it was answered.
            answer: The answer, which its receiver may change. One that can't be copied is not kept.
        """
        for copied in self._copied(lookup, answer):
            self._keep(lookup, copied)

    async def akeep(self, lookup: Lookup[A], answer: A) -> None:
        """Async version of :meth:`keep`."""
        # Copied in the event loop, where no other task changes the answer meanwhile.
        for copied in self._copied(lookup, answer):
            await self._wait(AWAITING, self._keep, lookup, copied)

    def _copied(self, lookup: Lookup[A], answer: A) -> list[A]:
        """Return a copy of an answer, or none if the answer must not be kept."""
        if self.code is not None and self.code.version() != lookup.question.version:
            self.leave_out(CHANGED)
            return []
        try:
            return [copy_answer(answer)]
        except Exception:  # noqa: BLE001 - whatever a copy may raise
            self.leave_out(_UNCOPYABLE)
            return []

    def _keep(self, lookup: Lookup[A], copied: A) -> None:
        if self._insert(lookup, copied) and lookup.near is not None:
            try:
                self._compare(lookup.question, lookup.near, copied)
            except Exception as error:  # noqa: BLE001 - the caller has an answer
                self._checks.fail(error)

    def _insert(self, lookup: Lookup[A], answer: A) -> bool:
        """Put an answer in; return whether there is something to learn from it."""
        if lookup.around is not None and lookup.around.spoilt():
            self.leave_out()
            return False
        question, embedding, moment = lookup.question, lookup.embedding, lookup.moment
        if self._shared is None:
            kept = self.core.insert(question, embedding, answer, moment)
            if not kept:
                self.leave_out()
            return kept
        try:
            self._shared.insert(question, embedding, answer, moment)
        except ConfigurationError as error:
            reason, _, details = str(error).partition(": ")
            self.leave_out(reason, details)
            return False
        return True

    def leave_out(self, reason: str | None = None, details: str = "") -> None:
        """Count an answer that can't be kept.

        Args:
            reason: Why, for the log, which has it once; ``None`` where the trace says so.
            details: As for :meth:`warn`.
        """
        self.core.count("unkept")
        if reason is not None:
            self.warn(f"An answer is not kept: {reason}", details)

    def warn(self, warning: str, details: str = "") -> None:
        """Log a warning, once.

        Args:
            warning: The warning.
            details: What is said with it, and may be something else each time.
        """
        if warning not in self._warned:
            self._warned.add(warning)
            logger.warning("%s%s", warning, f": {details}" if details else "")

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
            await self._wait(AWAITING, self._compare, question, near, await aanswer())

        self._checks.start(check, None if aanswer is None else acheck)

    def _compare(self, question: Question, near: Near[A], answer: A) -> None:
        """Learn whether the nearest entry's answer is right for a question with this answer."""
        if says_same(self._same(near.entry.answer, answer)):
            self._learn(near, wrong=False)
        elif self._judge is None:
            self._learn(near, wrong=True)
        else:
            self._checks.start(partial(self._ask_judge, self._judge, question, near, answer), None)

    def _ask_judge(self, judge: Judge[A], question: Question, near: Near[A], answer: A) -> None:
        entry = near.entry
        same = says_same(judge(question, answer, entry.question, entry.answer))
        self._learn(near, wrong=not same)

    def _learn(self, near: Near[A], *, wrong: bool) -> None:
        self.core.learn(near, wrong=wrong)
        if wrong and self._shared is not None:
            self._shared.lower(near.entry)

    # Explanations and statistics, and what is forgotten

    def explain(self, question: Question, embedding: Vector | None) -> AnswerExplanation:
        """Explain why a question would be served an answer, or not.

        Args:
            question: The question.
            embedding: Its embedding, of shape ``(dim,)``; ``None`` where only the same words count.
        """
        among = self._fetch(question, near=embedding is not None)
        if among is None and self._shared is not None:
            return unkept_explanation(_AWAY)
        return self.core.explain(question, embedding, among)

    async def aexplain(self, question: Question, embedding: Vector | None) -> AnswerExplanation:
        """Async version of :meth:`explain`."""
        return await self._wait(AWAITING, self.explain, question, embedding)

    def stats(self) -> AnswerStats:
        """Return what was done so far."""
        stats = self.core.stats()
        if self._shared is None:
            return stats
        counts: dict[str, Any] = {name.name: getattr(stats, name.name) for name in fields(stats)}
        return SharedAnswerStats(**counts | self._shared.counts())

    def clear(self) -> None:
        """Forget all answers, for all processes that share them."""
        if self._shared is not None:
            self._shared.clear()
        self.core.clear()

    async def aclear(self) -> None:
        """Async version of :meth:`clear`."""
        await self._wait(AWAITING, self.clear)

    def forget(self, ids: Collection[str] | None, namespace: str | None) -> int:
        """Forget the answers for which everything given holds; return how many.

        In Redis, all answers of the namespace are forgotten, or all where there is none, and they
        are not counted.

        Args:
            ids: They come from one of these documents.
            namespace: They are of this tenant.

        Raises:
            ConfigurationError: An argument is something else, such as a single text for ``ids``.
        """
        count = self.core.forget(namespace=namespace, ids=ids)
        if self._shared is not None:
            self._shared.clear(namespace)
        return count

    async def aforget(self, ids: Collection[str] | None, namespace: str | None) -> int:
        """Async version of :meth:`forget`."""
        return await self._wait(AWAITING, self.forget, ids, namespace)

    def close(self) -> None:
        """Close the connections to Redis, if there are any."""
        if self._shared is not None:
            self._shared.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        await self._wait(AWAITING, self.close)

    def check_unshared(self, what: str) -> None:
        """Refuse what a cache that processes share can't do.

        Raises:
            ConfigurationError: It is shared.
        """
        if self._shared is not None:
            msg = f"{what} is for answers in memory: those that processes share are in Redis"
            raise ConfigurationError(msg)
