"""Per-query configuration from the question to the answer (RAGServe §4, figure 6).

With ``gradual``, a question is answered from few chunks first, and from more only if the answer is
not in those. Cascades of models do the same with a cheap model and an expensive one (FrugalGPT,
section 3, https://arxiv.org/abs/2305.05176). Here each later prompt begins as the earlier one did,
so an engine with a prefix cache computes the further chunks alone.

Golden feedback: the profiler learns from the most accurate answers (RAGServe §5).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

from ragcache_integrations.core.flows import (
    Call,
    Flow,
    aoutputs,
    awhole_output,
    entering,
    outputs,
    whole_output,
)
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError

from .answers import AdaptiveAnswer, AdaptiveCost, Explanation, Why
from .asker import Asker, ChangedAsker, ModelRequest, add_usage
from .best_fit import (
    DEFAULT_PROFILE,
    BestFit,
    Choice,
    ChunkFacts,
    Measures,
    PrunedSpace,
    RecentSpaces,
    Situation,
    next_step,
    pruned_space,
)
from .profile import Example, LLMProfiler, ProfileEstimate, Profiler, failed_estimate
from .resources import CachedChunks, LoadReader, MemoryLoad, Reservations, Resources, Seen
from .settings import AdaptiveSettings
from .synthesis import (
    SEPARATOR,
    Answered,
    SynthesisSettings,
    astream_synthesis,
    asynthesise,
    found_nothing,
    stream_synthesis,
    synthesise,
)
from .types import SynthesisConfig, Synthesised

__all__ = [
    "GOLDEN_CONFIG",
    "AdaptivePipeline",
    "GoldenFeedback",
    "Job",
    "Profiled",
    "Retrieve",
    "after",
    "inner_asker",
    "late_profile",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profiler's estimate, and how long it took in seconds."""

    estimate: ProfileEstimate | None
    seconds: float


@dataclass(slots=True, eq=False, weakref_slot=True)
class Job:
    """One question: times by the performance counter, what is known of it, what was decided."""

    question: str
    to_retrieve: int
    to_read: int
    golden: bool
    began: float = field(default_factory=time.perf_counter)
    documents: tuple[PromptDocument, ...] = ()
    retrieved: float = 0.0
    profiled: Profiled = Profiled(None, 0.0)
    estimated: float = 0.0
    space: PrunedSpace | None = None
    trusted: bool = False
    facts: ChunkFacts | None = None
    decided: float = 0.0
    chosen: float = 0.0
    answered: float = 0.0
    pace: float = 1.0
    ticket: int = 0
    cancelled: bool = False
    reader_seconds: float = 0.0
    tried: tuple[SynthesisConfig, ...] = ()
    insufficient: list[Synthesised] = field(default_factory=list)
    known: Answered = field(default_factory=dict)
    explanation: Explanation = field(init=False)

    @property
    def chunks(self) -> tuple[PromptDocument, ...]:
        """The chunks that the answer may read; golden feedback may read more."""
        return self.documents[: self.to_read]

    @contextmanager
    def timing_reader(self) -> Iterator[None]:
        """Surrounds a ``yield``: adds up the time that the stream's reader takes."""
        began = time.perf_counter()
        yield
        self.reader_seconds += time.perf_counter() - began

    @property
    def config(self) -> SynthesisConfig:
        """What is read now."""
        return self.explanation.config

    @property
    def is_step(self) -> bool:
        """Whether more may be read after what is read now."""
        return self.explanation.why == "enough"

    @property
    def read(self) -> int:
        """How many chunks were read before."""
        return self.tried[-1].num_chunks if self.tried else 0


def late_profile(job: Job) -> Profiled:
    """Return what stands for the profile of a question that did not come in time."""
    estimate = ProfileEstimate(None, "none", problem="the profiler did not answer in time")
    return Profiled(estimate, time.perf_counter() - job.began)


def after(answer: Synthesised, earlier: Sequence[Synthesised]) -> Synthesised:
    """Return an answer with the calls of earlier ones, which had found nothing."""
    every = (*earlier, answer)
    usages = [each.usage for each in every if each.usage is not None]
    return replace(
        answer,
        calls=sum(each.calls for each in every),
        usage=add_usage(usages) if len(usages) == len(every) else None,
        steps=tuple(step for each in every for step in each.steps),
    )


def inner_asker(asker: Asker) -> Asker:
    """Return a model whose answers may turn out to be none, so that they are not streamed."""
    return cast("Asker", ChangedAsker(asker, lambda request: replace(request, inner=True)))


GOLDEN_CONFIG = SynthesisConfig("map_reduce", 30, 225)
"""The most expensive configuration: 30 chunks, summaries of 300 tokens (RAGServe §5)."""

IDLE_POLL_SECONDS = 0.1
MAX_WAIT_SECONDS = 60.0
"""If the model is not idle within this time the question is skipped; others will follow."""


@dataclass(eq=False, kw_only=True)
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
    """

    asker: Asker
    profiler: LLMProfiler
    every: int
    token_budget: int
    is_idle: Callable[[], bool]
    settings: SynthesisSettings
    spent_tokens: int = field(default=0, init=False)
    _lock: Any = field(default_factory=make_lock, init=False)
    _questions: int = field(default=0, init=False)
    _worker: threading.Thread | None = field(default=None, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        # A user's question that comes meanwhile waits for one call at most.
        self.settings = self.settings.model_copy(update={"max_concurrency": 1})
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
                self._questions % self.every == 0
                and self.spent_tokens < self.token_budget
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
        while not self.is_idle():
            if time.monotonic() > deadline or self._stopping.wait(IDLE_POLL_SECONDS):
                return False
        return not self._stopping.is_set()

    def _learn(self, question: str, chunks: Sequence[PromptDocument]) -> None:
        expected = self._cost(question, chunks)
        review = self.profiler.review_tokens(question) + self._answer_tokens
        if self.spent_tokens + expected + review > self.token_budget:
            logger.info(
                "nothing learnt from %r: it would take %d tokens", question, expected + review
            )
            return
        asker = cast("Asker", ChangedAsker(self.asker, self._unless_stopped))
        try:
            answer = synthesise(asker, question, chunks, GOLDEN_CONFIG, self.settings)
        except Exception:
            self.spent_tokens += expected  # some of its calls may have been answered
            raise
        self.spent_tokens += answer.usage.total_tokens if answer.usage else expected
        if found_nothing(answer.text) or self._stopping.is_set():
            return  # it teaches nothing, or the pipeline is closing
        estimate = self.profiler.review(question, answer.text)
        usage = estimate.usage
        most = self.profiler.review_tokens(question, answer.text)
        self.spent_tokens += usage.total_tokens if usage else most
        if estimate.profile is None:
            return
        self.profiler.learn(Example(question, answer.text, estimate.profile))

    def _unless_stopped(self, request: ModelRequest) -> ModelRequest:
        if self._stopping.is_set():
            raise _StoppedError("it was closed meanwhile")
        return request

    @property
    def _answer_tokens(self) -> int:
        return self.settings.max_tokens or self.asker.limits().answer_tokens

    def _cost(self, question: str, chunks: Sequence[PromptDocument]) -> int:
        """The most tokens that the golden configuration takes."""
        count, prompts = self.asker.count_prompt, self.settings.prompts
        words = GOLDEN_CONFIG.intermediate_length or 1
        mappers = sum(count(prompts.map(question, (chunk,), words)) for chunk in chunks)
        # Each summary is generated, then read with the separator after it.
        separator = self.asker.count_tokens(SEPARATOR)
        summaries = len(chunks) * (2 * GOLDEN_CONFIG.summary_tokens + separator)
        return mappers + summaries + count(prompts.combine(question, ())) + self._answer_tokens


class _StoppedError(Exception):
    """Golden feedback was stopped between two calls."""


MAX_READER_SHARE = 0.1
"""Share of an answer's time: the pace is not learnt from a stream whose reader was slower."""

Chunks = Sequence[PromptDocument]
Retrieve = Callable[[str, int], Chunks | Awaitable[Chunks]]
"""Finds about this many chunks for a question, most relevant first; async methods await it."""

Load = Seen[MemoryLoad] | None
Chosen = TypeVar("Chosen")


class AdaptivePipeline:
    """Profiles a question while its chunks are being retrieved, chooses a configuration, answers.

    Thread-safe, and safe for any number of event loops. ::

        pipeline = AdaptivePipeline(EngineAsker(engine), HeuristicProfiler())
        answer = pipeline.answer(question, retrieve)  # retrieve(question, 18) returns documents
        print(answer.text, answer.explanation)

    Args:
        asker: The model that answers.
        profiler: Estimates profiles; not used and may be ``None`` if the mode is ``fixed``.
        settings: How configurations are chosen.
        synthesis: How answers are made.
        resources: Returns what best fit reads. Called once, before the first choice and never on an
            event loop, since it may start an engine.
        namespace: Tenant whose cached chunks count.
        teaches: The profiler that golden feedback teaches, if ``profiler`` only wraps it.

    Raises:
        ConfigurationError: A profiler is missing, or golden feedback is set and it cannot learn.
    """

    def __init__(
        self,
        asker: Asker,
        profiler: Profiler | None = None,
        settings: AdaptiveSettings | None = None,
        synthesis: SynthesisSettings | None = None,
        *,
        resources: Callable[[], Resources] = Resources,
        namespace: str = "",
        teaches: LLMProfiler | None = None,
    ) -> None:
        self._asker = asker
        self._settings = settings or AdaptiveSettings()
        self._profiler = None if self._settings.mode == "fixed" else profiler
        self._synthesis = synthesis or SynthesisSettings()
        if profiler is None and self._settings.mode != "fixed":
            raise ConfigurationError(f"mode={self._settings.mode!r} needs a profiler, got None")
        self._measures = Measures(asker, self._synthesis)
        self._recent = RecentSpaces(pruned_space(DEFAULT_PROFILE, self._settings.held))
        self._reservations = Reservations()
        self._make_resources = resources
        self._namespace = namespace
        self._lock = make_lock()
        self._environment: _Environment | None = None
        # Without a lock, and weak: the garbage collector closes streams that were given up in the
        # midst of anything that a thread does, and not at all if their event loop has ended.
        self._answering: weakref.WeakSet[Job] = weakref.WeakSet()
        self.golden = self._golden(teaches)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._answering = weakref.WeakSet()  # the parent answers them

    def answer(
        self, question: str, retrieve: Retrieve, asker: Asker | None = None
    ) -> AdaptiveAnswer:
        """Answer a question.

        Args:
            question: The question.
            retrieve: Finds its chunks.
            asker: The answering model for this question; ``None`` for that of the constructor.

        Raises:
            ConfigurationError: The question is empty.
            PromptTooLongError: Question and instructions alone fill the context window.
            RAGCacheError: The model failed.
            Exception: ``retrieve`` raised it.
        """
        answer: AdaptiveAnswer = whole_output(self._flow(question, retrieve, asker))
        return answer

    async def aanswer(
        self, question: str, retrieve: Retrieve, asker: Asker | None = None
    ) -> AdaptiveAnswer:
        """Async version of :meth:`answer`; cancelling it cancels the profile and all calls."""
        answer: AdaptiveAnswer = await awhole_output(self._flow(question, retrieve, asker))
        return answer

    def stream(
        self, question: str, retrieve: Retrieve, asker: Asker | None = None
    ) -> Generator[Explanation | str | AdaptiveAnswer]:
        """Answer a question piece by piece; closing the generator cancels the rest.

        Raises what :meth:`answer` does.

        Args:
            question: The question.
            retrieve: Finds its chunks.
            asker: The answering model for this question; ``None`` for that of the constructor.

        Yields:
            The chosen configuration; then the pieces of the answer; then the complete answer.
        """
        return outputs(self._flow(question, retrieve, asker, streamed=True))

    def astream(
        self, question: str, retrieve: Retrieve, asker: Asker | None = None
    ) -> AsyncGenerator[Explanation | str | AdaptiveAnswer]:
        """Async version of :meth:`stream`."""
        return aoutputs(self._flow(question, retrieve, asker, streamed=True))

    def _flow(
        self, question: str, retrieve: Retrieve, asker: Asker | None, *, streamed: bool = False
    ) -> Flow:
        arguments = (question, retrieve, asker)
        job = yield Call(partial(self._prepare, *arguments), partial(self._aprepare, *arguments))
        try:
            answer = yield from self._read_less(job, asker)
            if streamed:
                with job.timing_reader():
                    yield job.explanation
            if answer is None and streamed:
                answer = yield from self._pieces(job, asker)
            elif answer is None:
                asked = self._synthesis_arguments(job, asker)
                answer = yield Call(partial(synthesise, *asked), partial(asynthesise, *asked))
            elif streamed:
                with job.timing_reader():
                    yield answer.text
            yield self._finish(job, answer)
        finally:
            self._leave(job)

    def _pieces(self, job: Job, asker: Asker | None) -> Generator[Any, Any, Synthesised]:
        """Yield the pieces of an answer while it is made; returns it at the end."""
        asked = self._synthesis_arguments(job, asker)
        stream, astream = stream_synthesis(*asked), astream_synthesis(*asked)
        yield entering(closing(stream), aclosing(astream))
        while isinstance(
            piece := (yield Call(partial(next, stream), partial(anext, astream))), str
        ):
            with job.timing_reader():
                yield piece
        answer: Synthesised = piece
        return answer

    def close(self) -> None:
        """Stop learning in the background. Idempotent."""
        if self.golden is not None:
            self.golden.stop()

    async def aclose(self) -> None:
        """Async version of :meth:`close`; neither of them waits."""
        self.close()

    def __deepcopy__(self, memo: dict[int, object]) -> AdaptivePipeline:
        return self  # a copy would have the same model, and must count the same memory

    # Before the answer

    def _prepare(self, question: str, retrieve: Retrieve, asker: Asker | None) -> Job:
        job = self._begin(question, asker)
        profiling = self._start_profile(question)
        job.documents = tuple(cast("Chunks", retrieve(question, job.to_retrieve)))
        job.retrieved = time.perf_counter()
        try:
            job.profiled = profiling.result(self._seconds_left(job))
        except FutureTimeoutError:
            job.profiled = late_profile(job)
        job.estimated = time.perf_counter()
        self._choosing(job, partial(self._decide, job))
        return job

    async def _aprepare(self, question: str, retrieve: Retrieve, asker: Asker | None) -> Job:
        job = self._begin(question, asker)
        profiling = asyncio.ensure_future(self._aprofile(question))
        try:
            job.documents = tuple(
                await cast("Awaitable[Chunks]", retrieve(question, job.to_retrieve))
            )
            job.retrieved = time.perf_counter()
            done, _ = await asyncio.wait({profiling}, timeout=self._seconds_left(job))
            job.profiled = profiling.result() if done else late_profile(job)
        finally:
            if profiling.cancel():
                await asyncio.wait({profiling})
        job.estimated = time.perf_counter()
        await self._achoosing(job, partial(self._decide, job))
        return job

    def _begin(self, question: str, asker: Asker | None) -> Job:
        if not isinstance(question, str) or not question.strip():
            raise ConfigurationError(f"the question must be a non-empty string, got {question!r}")
        to_read = self._settings.most_chunks
        due = self.golden is not None and self._is_ours(asker) and self.golden.is_due()
        to_retrieve = max(to_read, GOLDEN_CONFIG.num_chunks) if due else to_read
        return Job(question, to_retrieve, to_read, due)

    def _is_ours(self, asker: Asker | None) -> bool:
        """Whether a question is not of another tenant, so that the profiler may learn from it.

        What it has learnt is in its prompts for all questions.
        """
        tenant = getattr(asker, "namespace", None)  # only models of this package know tenants
        return tenant is None or tenant == self._namespace

    # What to read

    def _choosing(self, job: Job, choose: Callable[[Load], Chosen]) -> Chosen:
        """Read the load, and choose."""
        return choose(self._get_environment().load.read() if self._reads_load(job) else None)

    async def _achoosing(self, job: Job, choose: Callable[[Load], Chosen]) -> Chosen:
        """Async version of :meth:`_choosing`; chooses in a thread."""
        load: Load = None
        if self._reads_load(job):
            environment = await asyncio.to_thread(self._get_environment)
            ids, lengths = await asyncio.to_thread(self._ids_and_lengths, job)
            job.facts = await environment.cached.afacts(ids, lengths)
            load = await environment.load.aread()  # last, since it changes fastest
        try:
            return await asyncio.shield(asyncio.to_thread(self._choose_for, job, choose, load))
        except BaseException:  # cancelled, or closed with its event loop, which is no cancellation
            job.cancelled = True
            self._leave(job)
            raise

    def _choose_for(self, job: Job, choose: Callable[[Load], Chosen], load: Load) -> Chosen:
        """Choose in a thread, which cannot be cancelled, even if its event loop ends before it.

        Whichever comes last, the choice or the cancellation, releases the memory.
        """
        try:
            return choose(load)
        except Exception as error:
            if job.cancelled:
                logger.info("no configuration for a cancelled question: %s", error)
            raise
        finally:
            if job.cancelled:
                self._leave(job)

    def _decide(self, job: Job, load: Load) -> None:
        """Choose what to read first."""
        job.space, job.trusted = self._space(job.profiled.estimate)
        try:
            self._choose(job, load)
            self._answering.add(job)
            job.decided = time.perf_counter()
        except BaseException:  # an interruption by the user
            self._leave(job)
            raise

    def _reads_on(self, job: Job, answer: Synthesised, load: Load) -> bool:
        """Choose what to read after an answer that was none; ``False`` if no more suits and fits.

        The memory and time that are left after the earlier steps decide it.
        """
        self._reservations.leave(job.ticket)
        tried, explanation = job.tried, job.explanation
        job.tried = (*tried, job.config)
        left = self._budget_left(job)
        if (left is None or left > 0) and self._choose(job, load):
            job.insufficient.append(answer)
            return True
        job.tried, job.explanation = tried, replace(explanation, why="no more")
        return False

    def _choose(self, job: Job, load: Load) -> bool:
        """Choose what to read next; ``False`` if it would be no more than before."""
        choice: Choice | None = None
        config, why = self._without_best_fit(job)
        if load is not None and job.space is not None:
            choice = self._fit(job, job.space, load)
            if choice is None:
                return False
            # A step is enough, unless the answer turns out not to be there.
            config, why = choice.config, "enough" if choice.reason == "step" else choice.reason
        elif self._is_gradual(job) and job.space is not None:
            step = next_step(job.space.ordered(len(job.chunks)), config, job.read)
            if step is None:
                return False
            config, why = step, why if step == config else "enough"
        job.explanation = Explanation(
            self._settings.mode,
            config,
            why,
            len(job.documents),
            job.profiled.estimate,
            job.trusted,
            job.space,
            choice,
            None if load is None else load.value,
            job.tried,
        )
        job.chosen = time.perf_counter()
        return True

    def _fit(self, job: Job, space: PrunedSpace, load: Seen[MemoryLoad]) -> Choice | None:
        environment = self._get_environment()
        sizes = self._measures.sizes(job.question, space)
        facts = job.facts or environment.cached.facts(*self._ids_and_lengths(job))
        facts = replace(facts, tried=job.tried)

        def choose(situation: Situation) -> Choice | None:
            job.pace = situation.pace
            best_fit = environment.best_fit
            if self._is_gradual(job):
                return best_fit.choose_step(space, facts, sizes, situation, job.read)
            return best_fit.choose(space, facts, sizes, situation)

        choice, job.ticket = self._reservations.choose(
            load.value,
            self._budget_left(job),
            environment.best_fit.prefill,
            choose,
            as_of=load.began,
        )
        return choice

    def _is_gradual(self, job: Job) -> bool:
        return self._settings.mode == "gradual" and bool(job.documents)

    def _budget_left(self, job: Job) -> float | None:
        """Seconds that the answer may still take; the budget is for all of its steps."""
        budget = self._settings.latency_budget
        if budget is None or not job.tried:
            return budget
        return budget - (time.perf_counter() - job.decided)

    def _without_best_fit(self, job: Job) -> tuple[SynthesisConfig, Why]:
        space = job.space
        if self._settings.config is not None:
            return self._settings.config, "fixed"
        assert space is not None  # noqa: S101 - for type checkers: no config, so a profile
        if not job.documents:
            return space.median(1), "nothing found"
        if self._settings.mode == "largest":
            return space.largest(len(job.chunks)), "largest"
        median = space.median(len(job.chunks))
        return median, "median" if self._settings.mode == "median" else "load unknown"

    def _space(self, estimate: ProfileEstimate | None) -> tuple[PrunedSpace | None, bool]:
        """The configurations that suit a question, and whether they come from its own profile."""
        if estimate is None:
            return None, False
        confidence = estimate.confidence
        sure = confidence is None or confidence >= self._settings.min_confidence
        if estimate.profile is None or not sure:
            return self._recent.space(), False
        space = pruned_space(estimate.profile, self._settings.held)
        self._recent.note(space)
        return space, True

    def _reads_load(self, job: Job) -> bool:
        return self._settings.mode in {"adaptive", "gradual"} and bool(job.documents)

    def _ids_and_lengths(self, job: Job) -> tuple[list[str], tuple[int, ...]]:
        return [chunk.id for chunk in job.chunks], self._measures.lengths(job.chunks)

    def _get_environment(self) -> _Environment:
        with self._lock:
            if self._environment is None:
                resources = self._make_resources()
                self._environment = _Environment(
                    LoadReader(resources.load),
                    CachedChunks(resources.tree, self._namespace),
                    resources.best_fit,
                )
            return self._environment

    def _synthesis_arguments(
        self, job: Job, asker: Asker | None, *, inner: bool = False
    ) -> tuple[Asker, str, Chunks, SynthesisConfig, SynthesisSettings, Answered]:
        model = asker or self._asker
        asking = inner_asker(model) if inner else model
        return asking, job.question, job.chunks, job.config, self._synthesis, job.known

    def _read_less(self, job: Job, asker: Asker | None) -> Generator[Any, Any, Synthesised | None]:
        """Answer step by step; ``None`` where the most is to be read next, maybe as a stream."""
        while job.is_step:
            asked = self._synthesis_arguments(job, asker, inner=True)
            answer: Synthesised = yield Call(
                partial(synthesise, *asked), partial(asynthesise, *asked)
            )
            job.answered = time.perf_counter()
            self._learn_pace(job)
            if not found_nothing(answer.text):
                return answer
            reads_on = partial(self._reads_on, job, answer)
            if not (
                yield Call(
                    partial(self._choosing, job, reads_on), partial(self._achoosing, job, reads_on)
                )
            ):
                return answer
        return None

    # The profile

    def _start_profile(self, question: str) -> Future[Profiled]:
        """Profile a question in a thread; a copy of the context keeps the frameworks' callbacks."""
        future: Future[Profiled] = Future()
        if self._profiler is None:
            future.set_result(Profiled(None, 0.0))
            return future
        context = contextvars.copy_context()
        name = "ragcache-profile"
        target = lambda: future.set_result(context.run(self._profile, question))  # noqa: E731 - short
        threading.Thread(target=target, name=name, daemon=True).start()
        return future

    def _profile(self, question: str) -> Profiled:
        began = time.perf_counter()
        assert self._profiler is not None  # noqa: S101 - for type checkers
        try:
            estimate = self._profiler.profile(question)
        except BaseException as error:  # noqa: BLE001 - a profile must not cost the user the answer
            estimate = failed_estimate("none", error)
        return Profiled(estimate, time.perf_counter() - began)

    async def _aprofile(self, question: str) -> Profiled:
        began = time.perf_counter()
        if self._profiler is None:
            return Profiled(None, 0.0)
        try:
            estimate = await self._profiler.aprofile(question)
        except (Exception, asyncio.CancelledError) as error:  # as above
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            estimate = failed_estimate("none", error)
        return Profiled(estimate, time.perf_counter() - began)

    def _seconds_left(self, job: Job) -> float:
        return max(0.0, job.began + self._settings.profile_timeout - time.perf_counter())

    # After the answer

    def _finish(self, job: Job, result: Synthesised) -> AdaptiveAnswer:
        ended = time.perf_counter()
        if job.explanation.why not in {"enough", "no more"}:  # or else it was learnt before
            job.answered = ended
            self._learn_pace(job)
        result = after(result, job.insufficient)
        estimate = job.profiled.estimate
        cost = AdaptiveCost(
            total_seconds=ended - job.began,
            profile_seconds=job.profiled.seconds,
            profile_wait_seconds=job.estimated - job.retrieved,
            retrieval_seconds=job.retrieved - job.began,
            choice_seconds=job.decided - job.estimated,
            synthesis_seconds=ended - job.decided,
            calls=result.calls,
            usage=result.usage,
            profile_usage=estimate.usage if estimate else None,
        )
        self._leave(job)
        if job.golden and self.golden is not None:
            self.golden.start(job.question, job.documents)
        return AdaptiveAnswer(result, job.explanation, cost)

    def _learn_pace(self, job: Job) -> None:
        """Learn from the last step how long the model takes, unless a stream's reader was slow."""
        choice, measured = job.explanation.choice, job.answered - job.chosen
        if choice is not None and job.reader_seconds <= MAX_READER_SHARE * measured:
            self._reservations.note(choice.seconds / job.pace, measured)

    def _leave(self, job: Job) -> None:
        self._answering.discard(job)
        self._reservations.leave(job.ticket)

    def _golden(self, teaches: LLMProfiler | None) -> GoldenFeedback | None:
        settings = self._settings
        if settings.golden_every is None:
            return None
        learner = teaches or self._profiler
        if not isinstance(learner, LLMProfiler):
            kind = type(learner).__name__
            msg = f"golden_every needs a profiler that learns, an LLMProfiler, got {kind}"
            raise ConfigurationError(msg)
        return GoldenFeedback(
            asker=self._asker,
            profiler=learner,
            every=settings.golden_every,
            token_budget=settings.golden_token_budget,
            is_idle=self._is_idle,
            settings=self._synthesis,
        )

    def _is_idle(self) -> bool:
        if self._answering:
            return False
        load = self._get_environment().load.now()
        return load is None or load.idle


@dataclass(frozen=True)
class _Environment:
    """What best fit reads: the load, the cached chunks, the cost model."""

    load: LoadReader
    cached: CachedChunks
    best_fit: BestFit
