"""Golden feedback: the profiler learns from the most accurate answers (RAGServe §5)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError

from .asker import Asker
from .profile import EXAMPLE_CHARACTERS, Example, LLMProfiler
from .synthesis import SEPARATOR, SynthesisSettings, found_nothing, synthesise
from .types import SynthesisConfig

__all__ = ["GOLDEN_CONFIG", "GoldenFeedback"]

logger = logging.getLogger(__name__)

GOLDEN_CONFIG = SynthesisConfig("map_reduce", 30, 225)
"""The most expensive configuration: 30 chunks, summaries of 300 tokens (RAGServe §5)."""

IDLE_POLL_SECONDS = 0.1
MAX_WAIT_SECONDS = 60.0
"""If it is never idle for so long, the question is let go; others will come."""


class GoldenFeedback:
    """Answers one question in so many with the golden configuration, and teaches the profiler.

    In the background, one question at a time and one call after another, once there is nothing
    else to do. Thread-safe.

    Args:
        asker: The model that answers.
        profiler: Learns.
        every: One question in so many; RAGServe takes 30.
        token_budget: The most tokens, of prompts and answers, to spend over this object's life.
        is_idle: Whether there is nothing else to do.
        settings: As for the answers that users see.

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
        for name, value in (("every", every), ("token_budget", token_budget)):
            if not is_whole(value) or value < 1:
                msg = f"{name} must be a whole number of at least 1, got {value!r}"
                raise ConfigurationError(msg)
        self._asker = asker
        self._profiler = profiler
        self._every = every
        self._budget = token_budget
        self._is_idle = is_idle
        given = settings or SynthesisSettings()
        self._settings = SynthesisSettings(
            max_tokens=given.max_tokens,
            context_window=given.context_window,
            max_concurrency=1,  # whoever asks meanwhile waits for one call at most
            ranking=given.ranking,
            prompts=given.prompts,
        )
        self._lock = make_lock()
        self._asked = 0
        self._spent = 0
        self._worker: threading.Thread | None = None
        self._stopping = threading.Event()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        stopped, self._worker, self._stopping = self._stopping, None, threading.Event()
        if stopped.is_set():
            self._stopping.set()

    @property
    def spent_tokens(self) -> int:
        """Tokens spent so far."""
        return self._spent

    def is_due(self) -> bool:
        """Count a question; whether it is one to learn from."""
        with self._lock:
            self._asked += 1
            return (
                self._asked % self._every == 0
                and self._spent < self._budget
                and self._worker is None
                and not self._stopping.is_set()
            )

    def start(self, question: str, chunks: Sequence[PromptDocument]) -> bool:
        """Learn from a question in the background.

        Args:
            question: The question.
            chunks: What was retrieved for it, the most relevant first; 30 are read.

        Returns:
            Whether it began: not while another one is being learnt from, and not where it would
            take more than is left of the budget.
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
        """Wait until nothing is being learnt from any more; whether that is so."""
        worker = self._worker
        if worker is not None:
            worker.join(timeout)
        return self._worker is None

    def stop(self) -> None:
        """Begin no more, and end what waits for its turn."""
        self._stopping.set()

    def _run(self, question: str, chunks: Sequence[PromptDocument]) -> None:
        try:
            if self._wait_until_idle():
                self._learn(question, chunks)
        except Exception as error:  # noqa: BLE001 - nobody waits for it; users' answers go on
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
        if self._spent + expected + review > self._budget:
            logger.info(
                "nothing learnt from %r: it would take %d tokens", question, expected + review
            )
            return
        try:
            answer = synthesise(self._asker, question, chunks, GOLDEN_CONFIG, self._settings)
        except Exception:
            self._spent += expected  # some of its calls may have been answered
            raise
        self._spent += answer.usage.total_tokens if answer.usage else expected
        if found_nothing(answer.text):
            return  # it teaches nothing
        estimate = self._profiler.review(question, answer.text)
        usage = estimate.usage
        asked = self._profiler.review_tokens(question, answer.text)
        self._spent += usage.total_tokens if usage else asked
        if estimate.profile is None:
            return
        shown = answer.text[:EXAMPLE_CHARACTERS]
        self._profiler.learn(Example(question, shown, estimate.profile))

    @property
    def _answer_tokens(self) -> int:
        return self._settings.max_tokens or self._asker.limits().answer_tokens

    def _cost(self, question: str, chunks: Sequence[PromptDocument]) -> int:
        """Tokens that the golden configuration takes at most."""
        count, prompts = self._asker.count_prompt, self._settings.prompts
        words = GOLDEN_CONFIG.intermediate_length or 1
        mappers = sum(count(prompts.map(question, (chunk,), words)) for chunk in chunks)
        # Summaries are written, then read with what stands behind each.
        separator = self._asker.count_tokens(SEPARATOR)
        summaries = len(chunks) * (2 * GOLDEN_CONFIG.summary_tokens + separator)
        return mappers + summaries + count(prompts.combine(question, ())) + self._answer_tokens
