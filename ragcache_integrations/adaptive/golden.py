"""Golden feedback: the profiler learns from the most accurate answers (RAGServe §5)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.prompt import PromptDocument

from .asker import Asker, ModelAnswer, ModelRequest
from .profile import Example, LLMProfiler
from .synthesis import SEPARATOR, SynthesisSettings, found_nothing, synthesise
from .types import SynthesisConfig

__all__ = ["GOLDEN_CONFIG", "GoldenFeedback"]

logger = logging.getLogger(__name__)

GOLDEN_CONFIG = SynthesisConfig("map_reduce", 30, 225)
"""The most expensive configuration: 30 chunks, summaries of 300 tokens (RAGServe §5)."""

IDLE_POLL_SECONDS = 0.1
MAX_WAIT_SECONDS = 60.0
"""If the model is not idle within this time the question is skipped; others will follow."""


class GoldenFeedback:
    """Answers some questions again with the golden configuration, and teaches the profiler.

    It works in the background while the model is idle, one question at a time and one call after
    another. Thread-safe.

    Args:
        asker: The model that answers.
        profiler: The profiler that learns.
        every: One in this many questions is answered again; 30 in RAGServe.
        token_budget: The most tokens, of prompts and answers, to spend over this object's life.
        is_idle: Returns whether the model is idle.
        settings: The settings of the answers that users see.

    Attributes:
        spent_tokens: Tokens spent so far.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    def __init__(
        self,
        asker: Asker,
        profiler: LLMProfiler,
        *,
        every: int,
        token_budget: int,
        is_idle: Callable[[], bool],
        settings: SynthesisSettings | None = None,
    ) -> None:
        self._asker = asker
        self._profiler = profiler
        self._every = check_int("every", every, 1)
        self._budget = check_int("token_budget", token_budget, 1)
        self._is_idle = is_idle
        # A user's question that comes meanwhile waits for one call at most.
        self._settings = replace(settings or SynthesisSettings(), max_concurrency=1)
        self._lock = make_lock()
        self._questions = 0
        self.spent_tokens = 0
        self._worker: threading.Thread | None = None
        self._stopping = threading.Event()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        stopped, self._worker, self._stopping = self._stopping, None, threading.Event()
        if stopped.is_set():
            self._stopping.set()

    def is_due(self) -> bool:
        """Count a question, and return whether to learn from it."""
        with self._lock:
            self._questions += 1
            return (
                self._questions % self._every == 0
                and self.spent_tokens < self._budget
                and self._worker is None
                and not self._stopping.is_set()
            )

    def start(self, question: str, chunks: Sequence[PromptDocument]) -> bool:
        """Learn from a question in the background.

        Args:
            question: The question.
            chunks: The chunks retrieved for it, the most relevant first; 30 are read.

        Returns:
            Whether a thread was started: not while another question is being learnt from, not
            without chunks, and not after :meth:`stop`. The thread skips a question that would take
            more tokens than are left of the budget.
        """
        chunks = tuple(chunks[: GOLDEN_CONFIG.num_chunks])
        with self._lock:
            if self._worker is not None or self._stopping.is_set() or not chunks:
                return False
            self._worker = threading.Thread(
                target=self._run, args=(question, chunks), name="ragcache-golden", daemon=True
            )
            worker = self._worker
        try:
            worker.start()
        except RuntimeError:  # the interpreter is shutting down
            self._worker = None
            return False
        return True

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for the current question; whether it is finished."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout)
        return self._worker is None

    def stop(self) -> None:
        """Start no more questions, and end the current one after the call that is under way."""
        self._stopping.set()

    def _run(self, question: str, chunks: Sequence[PromptDocument]) -> None:
        try:
            if self._wait_until_idle():
                self._learn(question, chunks)
        except Exception as error:  # noqa: BLE001 - no caller waits for it
            logger.info("nothing learnt from %r: %s: %s", question, type(error).__name__, error)
        finally:
            self._worker = None

    def _wait_until_idle(self) -> bool:
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        while not self._is_idle():
            if time.monotonic() > deadline or self._stopping.wait(IDLE_POLL_SECONDS):
                return False
        return not self._stopping.is_set()

    def _learn(self, question: str, chunks: Sequence[PromptDocument]) -> None:
        expected = self._cost(question, chunks)
        review = self._profiler.review_tokens(question) + self._answer_tokens
        if self.spent_tokens + expected + review > self._budget:
            logger.info(
                "nothing learnt from %r: it would take %d tokens", question, expected + review
            )
            return
        asker = cast("Asker", _UntilStopped(self._asker, self._stopping))
        try:
            answer = synthesise(asker, question, chunks, GOLDEN_CONFIG, self._settings)
        except Exception:
            self.spent_tokens += expected  # some of its calls may have been answered
            raise
        self.spent_tokens += answer.usage.total_tokens if answer.usage else expected
        if found_nothing(answer.text) or self._stopping.is_set():
            return  # it teaches nothing, or nobody any more
        estimate = self._profiler.review(question, answer.text)
        usage = estimate.usage
        most = self._profiler.review_tokens(question, answer.text)
        self.spent_tokens += usage.total_tokens if usage else most
        if estimate.profile is None:
            return
        self._profiler.learn(Example(question, answer.text, estimate.profile))

    @property
    def _answer_tokens(self) -> int:
        return self._settings.max_tokens or self._asker.limits().answer_tokens

    def _cost(self, question: str, chunks: Sequence[PromptDocument]) -> int:
        """The most tokens that the golden configuration takes."""
        count, prompts = self._asker.count_prompt, self._settings.prompts
        words = GOLDEN_CONFIG.intermediate_length or 1
        mappers = sum(count(prompts.map(question, (chunk,), words)) for chunk in chunks)
        # Each summary is generated, then read with the separator after it.
        separator = self._asker.count_tokens(SEPARATOR)
        summaries = len(chunks) * (2 * GOLDEN_CONFIG.summary_tokens + separator)
        return mappers + summaries + count(prompts.combine(question, ())) + self._answer_tokens


class _StoppedError(Exception):
    """Golden feedback was stopped between two calls."""


class _UntilStopped:
    """Asks a model until golden feedback is stopped, which makes no other calls than ``ask``."""

    def __init__(self, asker: Asker, stopping: threading.Event) -> None:
        self._asker = asker
        self._stopping = stopping

    def ask(self, request: ModelRequest) -> ModelAnswer:
        if self._stopping.is_set():
            msg = "it was closed meanwhile"
            raise _StoppedError(msg)
        return self._asker.ask(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._asker, name)
