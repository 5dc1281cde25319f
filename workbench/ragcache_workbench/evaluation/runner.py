"""Asks the questions of a workload, one after another or as they arrive, and records everything.

A question has two stages, retrieval and answer. Checkpoints are written while no retrieval is
running, so that each question is in one of three states: the query cache has no entry for it; it
has one, and the checkpoint has the documents; or the question is answered and recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from tqdm import tqdm

from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.engine import EngineStats
from ragcache_integrations.errors import GenerationTimeoutError, PromptTooLongError
from ragcache_integrations.knowledge_tree import TreeStats
from ragcache_integrations.prompts.order import DocumentOrder

from .asking import Answerer
from .datasets import EvalDataset, EvalDocument, EvalQuestion
from .records import Checkpoint, Pending, Record, RunDirectory, now
from .settings import EvalSettings
from .systems import Model, Retriever
from .workloads import Workload, WorkloadItem

__all__ = ["CHECKPOINT_SECONDS", "Plan", "Runner"]

CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a run.

    Attributes:
        settings: The configuration that is evaluated.
        dataset: The data set, which makes the prompts and scores the answers.
        questions: The questions, by the positions that the workload has.
        documents: The documents to retrieve from.
        workload: The stream of questions, with their arrival times.
        retriever: The retriever.
        model: The model.
    """

    settings: EvalSettings
    dataset: EvalDataset
    questions: Sequence[EvalQuestion]
    documents: Sequence[EvalDocument]
    workload: Workload
    retriever: Retriever
    model: Model

    @property
    def max_tokens(self) -> int:
        """Limit of an answer in tokens."""
        return self.settings.max_tokens or self.dataset.max_tokens

    def answerer(self, max_tokens: int) -> Answerer:
        """Return what asks the model, for answers of at most as many tokens."""
        return Answerer(self.settings, self.dataset, self.model, max_tokens)


class Runner:
    """One process's part of a run.

    Args:
        plan: The parts of the run.
        directory: The run's folder; questions that it has answers for are not asked again.
        environment: The environment of this process.
        checkpoint_seconds: Seconds from one checkpoint to the next; 0 for one after every answer.
        show_progress: Whether to show a progress bar.
    """

    def __init__(
        self,
        plan: Plan,
        directory: RunDirectory,
        environment: dict[str, Any],
        *,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        show_progress: bool = False,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._checkpoint_seconds = checkpoint_seconds
        self._answerer = plan.answerer(plan.max_tokens)
        self._gate = _Gate()
        self._order = DocumentOrder(plan.settings.order)
        self._sequence = 0
        before = directory.checkpoint
        self._sessions = [*before.sessions, _session(before, len(directory.records), environment)]
        self._begun_with = plan.model.stats()
        self._pending = {pending.number: pending for pending in before.pending}
        self._broken = set(self._pending)
        self._checkpointing = False
        self._last_checkpoint = time.monotonic()
        self._show_progress = show_progress
        self._bar: Any = None
        self._restore()

    def _restore(self) -> None:
        """Restore the query cache and the document order of the checkpoint."""
        retriever = self._plan.retriever
        retriever.clear()
        if self._directory.cache_file is not None:
            retriever.load(self._directory.cache_file)
        for record in sorted(self._directory.records, key=lambda record: record.sequence):
            self._order.arrange(record.documents)
        known = [record.sequence for record in self._directory.records]
        known += [pending.sequence for pending in self._pending.values()]
        self._sequence = 1 + max(known, default=-1)

    async def run(self) -> None:
        """Ask all questions that are not answered yet.

        Raises:
            Exception: The retriever or the model raised it; but prompts that are too long and
                answers that take too long are recorded. The run can be resumed from its last
                checkpoint.
        """
        answered = {record.number for record in self._directory.records}
        left = [item for item in self._plan.workload.items if item.number not in answered]
        # Questions that were interrupted come first, as they did before.
        left.sort(key=lambda item: (item.number not in self._pending, item.number))
        with tqdm(
            desc=self._plan.dataset.title,
            total=len(self._plan.workload),
            initial=len(answered),
            unit="question",
            disable=not self._show_progress,
        ) as self._bar:
            try:
                if self._plan.workload.rate is None:
                    await self._closed_loop(left)
                else:
                    await self._open_loop(left)
            except (asyncio.CancelledError, KeyboardInterrupt):
                await self._checkpoint()  # what is answered is not asked again
                raise
            finally:
                self._answerer.close()
        await self._answerer.wait()
        await self._checkpoint(complete=True)

    async def _closed_loop(self, left: Sequence[WorkloadItem]) -> None:
        items = iter(left)

        async def user() -> None:
            for item in items:  # shared: each user takes the next one
                await self._ask(item, time.perf_counter())

        await _all(user() for _ in range(min(self._plan.settings.users, len(left))))

    async def _open_loop(self, left: Sequence[WorkloadItem]) -> None:
        new = [item for item in left if item.number not in self._pending]
        # A resumed run starts its clock at the arrival of the first question not asked yet.
        begun = time.perf_counter() - (new[0].arrival if new and self._directory.records else 0.0)

        async def arriving(item: WorkloadItem) -> None:
            due = begun + item.arrival
            if item.number in self._pending:
                due = time.perf_counter()
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self._ask(item, due)

        await _all(arriving(item) for item in left)

    async def _ask(self, item: WorkloadItem, arrived: float) -> None:
        question = self._plan.questions[item.question]
        error, answered = "", None
        retrieved: list[tuple[Pending, bool]] = []

        async def retrieve(*_: object) -> list[PromptDocument]:
            retrieved.append(await self._retrieve(item))
            documents = [PromptDocument(text, name) for name, text in retrieved[0][0].documents]
            arranged = self._order.arrange([document.id for document in documents])
            return [documents[place] for place in arranged]

        try:
            answered = await self._answerer.answer(question, item.text, retrieve)
        except PromptTooLongError as failure:  # or a subclass of the framework
            error = f"PromptTooLongError: {failure}"
        except GenerationTimeoutError as failure:
            error = f"GenerationTimeoutError: {failure}"
        pending, paused = retrieved[0]
        record = Record(
            number=item.number,
            question=question.id,
            text=item.text,
            session=len(self._sessions),
            sequence=pending.sequence,
            documents=tuple(name for name, _ in pending.documents),
            retrieval_seconds=pending.retrieval_seconds,
            error=error,
            disturbed=paused or item.number in self._broken,
            **pending.noted,
            **({} if answered is None else answered.facts(arrived)),
        )
        # No await between these two: a checkpoint sees the question in one place or the other.
        del self._pending[item.number]
        self._directory.append(record)
        self._bar.update()
        due = time.monotonic() - self._last_checkpoint >= self._checkpoint_seconds
        if due and not self._checkpointing:
            await self._checkpoint()

    async def _retrieve(self, item: WorkloadItem) -> tuple[Pending, bool]:
        """Return the retrieved documents, and whether a checkpoint delayed them."""
        before = self._pending.get(item.number)
        if before is not None:
            return before, False
        async with self._gate.passing() as paused:
            begun = time.perf_counter()
            retrieval = await self._plan.retriever.retrieve(item.text)
            seconds = time.perf_counter() - begun
            pending = Pending(
                number=item.number,
                sequence=self._sequence,
                documents=tuple((chunk.id, chunk.text) for chunk in retrieval.documents),
                noted=asdict(retrieval.noted),
                retrieval_seconds=seconds,
            )
            self._sequence += 1
            self._pending[item.number] = pending
        return pending, paused

    async def _checkpoint(self, *, complete: bool = False) -> None:
        self._checkpointing = True
        try:
            async with self._gate.closed():
                # Copied without an await in between: answers that come while the copy is written
                # belong to the next checkpoint.
                self._sessions[-1]["engine"] = _counted(self._begun_with, self._plan.model.stats())
                records = self._directory.take_unwritten()
                checkpoint = Checkpoint(
                    pending=list(self._pending.values()),
                    sessions=[dict(session) for session in self._sessions],
                    complete=complete,
                )
                await _to_its_end(asyncio.to_thread(self._write, checkpoint, records))
        finally:
            self._last_checkpoint = time.monotonic()
            self._checkpointing = False

    def _write(self, checkpoint: Checkpoint, records: list[Record]) -> None:
        if self._plan.retriever.has_state and not checkpoint.complete:
            file = self._directory.new_cache_file(len(self._sessions))
            with self._directory.writing():
                self._plan.retriever.save(file)
            checkpoint.cache = file.name
        self._directory.commit(checkpoint, records)


class _Gate:
    """Lets retrievals run concurrently, but never during a checkpoint."""

    def __init__(self) -> None:
        self._passing = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[bool]:
        """Surrounds a retrieval; yields whether it had to wait."""
        waited = not self._open.is_set()
        while not self._open.is_set():
            await self._open.wait()
        self._passing += 1
        self._empty.clear()
        try:
            yield waited
        finally:
            self._passing -= 1
            if self._passing == 0:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Surrounds a checkpoint: waits for running retrievals, and lets no other begin."""
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            while self._passing:
                await self._empty.wait()
            yield
        finally:
            self._open.set()


async def _all(coroutines: Iterator[Any]) -> None:
    """Wait for all; the first to fail cancels the others, and its exception is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_its_end(writing: Coroutine[Any, Any, None]) -> None:
    """Wait until a write has ended, even if the waiting task is cancelled: threads cannot be."""
    task = asyncio.ensure_future(writing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _session(before: Checkpoint, records: int, environment: dict[str, Any]) -> dict[str, Any]:
    """Describe this process's part of the run; the first one's environment has its own file."""
    session: dict[str, Any] = {"started": now(), "before": records, "engine": {}}
    if before.sessions:
        session["environment"] = environment
    return session


def _counted(before: EngineStats | None, after: EngineStats | None) -> dict[str, int]:
    """Return how much the engine's counters grew, including those of its knowledge tree."""
    if before is None or after is None:
        return {}
    return {name: count - _counts(before).get(name, 0) for name, count in _counts(after).items()}


_STATES = {
    *("block_bytes", "gpu_idle_blocks", "host_used_blocks", "host_blocks", "nodes"),
    "longest_overtaking",
}
"""Numbers that describe a state, rather than count events."""


def _counts(stats: EngineStats) -> dict[str, int]:
    of_tree = {} if stats.tree is None else _whole_numbers(stats.tree)
    return _whole_numbers(stats) | {f"tree_{name}": count for name, count in of_tree.items()}


def _whole_numbers(stats: EngineStats | TreeStats) -> dict[str, int]:
    values = {counter.name: getattr(stats, counter.name) for counter in fields(stats)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and name not in _STATES
    }
