"""Runs configurations, and resumes those that were interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from ragcache_integrations.core.checks import check_choice, check_number
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import (
    ConfigurationError,
    PromptTooLongError,
)

from .datasets import DATASETS, EvalDataset, check_dataset, digest_of
from .records import Record, RunDirectory, describe_environment
from .rephrasings import check_rephraser, rephrased_by_model
from .runner import CHECKPOINT_SECONDS, Plan, Runner
from .runs import EvalRun
from .scores import PriceTable, scores_of, summarise
from .settings import BY_MODEL, EvalSettings, grid
from .systems import Builder
from .workloads import make_workload

__all__ = [
    "OUT",
    "aevaluate",
    "aevaluate_configurations",
    "aevaluate_grid",
    "digest_name",
    "evaluate",
    "evaluate_grid",
    "run_name",
    "until_done",
]

T = TypeVar("T")

OUT = Path("ragcache-eval")
NAME_LENGTH = 150
WARM_UP = "to warm up, what is this about"


def evaluate(
    dataset: str | EvalDataset,
    *,
    retriever: Any = None,
    model: Any = None,
    reference: Any = None,
    random_weights: bool | None = None,
    out: str | Path = OUT,
    prices: PriceTable | Mapping[str, float] | None = None,
    fresh: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    show_progress: bool = False,
    label: str = "",
    command: str = "",
    **knobs: Any,
) -> EvalRun:
    """Ask a data set's questions, and measure how well and how fast they are answered.

    The same call resumes a run that was interrupted, even by ``kill -9``, and reads one that is
    complete. With one user in a closed loop and a fixed tolerance, answers, quality and hits of the
    query cache are those of a run without an interruption; but a profiler forgets what golden
    feedback taught it. KV caches are empty after an interruption, which the ``session`` of the
    records shows.

    ::

        run = evaluate("nq", sample=50, tolerance=0.2)
        run = evaluate("nq", retriever=my_retriever, model=my_model, out="runs/mine")

    Args:
        dataset: One of :data:`~ragcache_workbench.evaluation.datasets.DATASETS`, or an object of
            your own.
        retriever: A LangChain or LlamaIndex retriever; a function of settings and documents that
            makes one; or ``cache``, ``plain`` or ``none``, as the setting of that name. By default
            FAISS with an approximate query cache.
        model: A LangChain or LlamaIndex model; a function that makes one; or a path or hub name for
            the bundled engine. By default the bundled engine with its default model.
        reference: For your own retriever: one that returns the documents of its store without a
            cache, for k-recall. That of LangChain's ``ApproximateCacheRetriever`` is known.
        random_weights: Whether the answers of your own model are noise; ``None`` to find out, which
            works for models of this package.
        out: Folder for runs; each run gets a folder in it.
        prices: Prices of tokens and searches, for the money saved.
        fresh: Whether to discard an existing run and start again.
        checkpoint_seconds: Seconds from one checkpoint to the next, at least 0. Questions since the
            last one are asked again after an interruption.
        show_progress: Whether to show progress bars on standard error.
        label: Part of the run's name. Your own retrievers and models need different labels if they
            differ only in the arguments that they were made with; otherwise two runs count as one.
        command: The command line, for the record.
        **knobs: Settings by their flat names, as
            :data:`~ragcache_workbench.evaluation.settings.KNOBS` lists them.

    Raises:
        ConfigurationError: An argument is unknown or out of its range, the data is not there, or
            ``out`` cannot be written to.
        MissingExtraError: A package that is needed is not installed.
        Exception: The retriever or the model raised it. The run can be resumed.
    """
    (run,) = evaluate_grid(
        dataset,
        {},
        retriever=retriever,
        model=model,
        reference=reference,
        random_weights=random_weights,
        out=out,
        prices=prices,
        fresh=fresh,
        checkpoint_seconds=checkpoint_seconds,
        show_progress=show_progress,
        label=label,
        command=command,
        **knobs,
    )
    return run


async def aevaluate(dataset: str | EvalDataset, **arguments: Any) -> EvalRun:
    """Async version of :func:`evaluate`; arguments and errors as there."""
    return (await aevaluate_grid(dataset, {}, **arguments))[0]


def evaluate_grid(
    dataset: str | EvalDataset, sweep: Mapping[str, Sequence[Any]], **arguments: Any
) -> list[EvalRun]:
    """Evaluate all combinations of some knobs' values, each as a separate run.

    Args:
        dataset: As for :func:`evaluate`.
        sweep: Values by knob, such as ``{"tolerance": [0, 0.2, 0.4], "k": [1, 5]}``.
        **arguments: As for :func:`evaluate`.

    Raises:
        ConfigurationError: As for :func:`evaluate`; of all configurations before the first is run.
        MissingExtraError: As for :func:`evaluate`.
        Exception: As for :func:`evaluate`.
    """
    return until_done(lambda: aevaluate_grid(dataset, sweep, **arguments))


async def aevaluate_grid(
    dataset: str | EvalDataset, sweep: Mapping[str, Sequence[Any]], **arguments: Any
) -> list[EvalRun]:
    """Async version of :func:`evaluate_grid`; arguments and errors as there."""
    names = {argument.name for argument in fields(_Evaluation)}
    own = {name: value for name, value in arguments.items() if name in names}
    knobs = {name: value for name, value in arguments.items() if name not in names}
    # A name is a setting; an object, or a function that makes one, is none.
    for name, kinds in (("retriever", str), ("model", str | Path)):
        if isinstance(own.get(name), kinds):
            knobs[name] = str(own.pop(name))
    if isinstance(dataset, str):
        check_choice("dataset", dataset, list(DATASETS))
    else:
        check_dataset(dataset)
    name = dataset if isinstance(dataset, str) else dataset.name
    configurations = grid(EvalSettings(dataset=name).set(**knobs), sweep)
    folders = [
        run_name(settings, sorted(sweep), own.get("label", "")) for settings in configurations
    ]
    return await aevaluate_configurations(dataset, configurations, folders, **own)


async def aevaluate_configurations(
    dataset: str | EvalDataset,
    configurations: Sequence[EvalSettings],
    names: Sequence[str],
    **arguments: Any,
) -> list[EvalRun]:
    """Run configurations one after another, each as a run in a folder of ``out``.

    Args:
        dataset: As for :func:`evaluate`.
        configurations: The configurations, in their order.
        names: Names of their folders, as :func:`run_name` returns them.
        **arguments: As for :func:`evaluate`, without knobs; a retriever or a model is an object, or
            a function that makes one.

    Raises:
        ConfigurationError: As for :func:`evaluate`; of all configurations before the first is run.
        MissingExtraError: As for :func:`evaluate`.
        Exception: As for :func:`evaluate`.
    """
    evaluation = _Evaluation(dataset=dataset, **arguments)
    builder = evaluation.builder
    try:
        for settings in configurations:
            builder.check(settings)
            if settings.synthesis is not None:
                _check_synthesis(settings, await asyncio.to_thread(builder.dataset, settings))
        evaluation.environment = await asyncio.to_thread(describe_environment)
        return [
            await evaluation.run(settings, Path(evaluation.out) / name)
            for settings, name in zip(configurations, names, strict=True)
        ]
    finally:
        await asyncio.to_thread(builder.close)


def _check_synthesis(settings: EvalSettings, dataset: EvalDataset) -> None:
    if dataset.chooses:
        raise ConfigurationError(
            f"synthesis={settings.synthesis!r} is for free answers: it would not show the options "
            f"of {dataset.name!r}, whose answers are one of them"
        )


def run_name(settings: EvalSettings, swept: Sequence[str] = (), label: str = "") -> str:
    """Name the folder of a configuration by its swept knobs and a hash of all settings.

    Args:
        settings: The configuration.
        swept: Names of the knobs to show.
        label: Text put before the settings in the name.
    """
    flat = settings.flat()
    shown = [f"{name}={flat.get(name)}" for name in swept]
    words = "-".join([settings.dataset, *([label] if label else []), *shown])
    return digest_name(words, json.dumps(settings.as_dict(), sort_keys=True))


def digest_name(words: str, content: str) -> str:
    """Name a folder or a file by some words and a hash.

    Args:
        words: What a reader sees; cut after 150 characters, with ``_`` for what names cannot have.
        content: All that distinguishes it from others.
    """
    digest = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
    return "-".join([re.sub(r"[^\w.=+-]+", "_", words)[:NAME_LENGTH], digest])


@dataclass(kw_only=True)
class _Evaluation:
    """What the runs of a call have in common: the arguments that :func:`evaluate` describes."""

    dataset: str | EvalDataset
    retriever: Any = None
    model: Any = None
    reference: Any = None
    random_weights: bool | None = None
    out: str | Path = OUT
    prices: PriceTable | Mapping[str, float] | None = None
    fresh: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    show_progress: bool = False
    label: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        check_number("checkpoint_seconds", self.checkpoint_seconds, 0, unit="seconds")
        prices = self.prices
        self.price_table = PriceTable.from_dict(prices) if isinstance(prices, Mapping) else prices
        self.environment: dict[str, Any] = {}
        self.builder = Builder(
            own_dataset=None if isinstance(self.dataset, str) else self.dataset,
            own_retriever=self.retriever,
            own_model=self.model,
            own_reference=self.reference,
            random_weights=self.random_weights,
            show_progress=self.show_progress,
        )

    async def run(self, settings: EvalSettings, path: Path) -> EvalRun:
        plan = await asyncio.to_thread(self._plan, settings)
        if settings.rephrasing == BY_MODEL:
            check_rephraser(plan)
            if settings.workload == "zipf":
                plan = await rephrased_by_model(plan, path.parent, show_progress=self.show_progress)
        config = self._config(plan)
        directory = await asyncio.to_thread(RunDirectory, path, config, fresh=self.fresh)
        with directory:
            _check_answered(directory.records, plan)
            plan.answerer(plan.max_tokens).remember(directory.records)
            if not directory.checkpoint.sessions:
                environment = self.environment | {"command": self.command}
                await asyncio.to_thread(directory.write_json, "environment.json", environment)
            done = directory.checkpoint.complete and (path / "summary.json").is_file()
            if done and self.price_table is None:
                return await asyncio.to_thread(EvalRun.load, path)
            if not directory.checkpoint.complete:
                await _warm_up(plan)
                runner = await asyncio.to_thread(
                    Runner,
                    plan,
                    directory,
                    self.environment,
                    checkpoint_seconds=self.checkpoint_seconds,
                    show_progress=self.show_progress,
                )
                await runner.run()
            await asyncio.to_thread(self._finish, plan, directory)
        return await asyncio.to_thread(EvalRun.load, path)

    def _plan(self, settings: EvalSettings) -> Plan:
        dataset = self.builder.dataset(settings)
        questions = dataset.sampled(settings.sample, settings.seed)
        workload = make_workload(
            [question.text for question in questions],
            settings.workload,
            length=settings.length,
            variants=settings.variants,
            # What the model does not rephrase well is rephrased by rules.
            rephrasing="medium" if settings.rephrasing == BY_MODEL else settings.rephrasing,
            exponent=settings.exponent,
            rate=settings.rate,
            minutes=settings.minutes,
            seed=settings.seed,
        )
        documents = dataset.documents
        if settings.sample is not None and settings.corpus == "sample":
            documents = dataset.documents_of(questions, settings.seed)
        retriever = self.builder.retriever(settings, documents)
        model = self.builder.model(settings, documents)
        return Plan(settings, dataset, questions, documents, workload, retriever, model)

    def _config(self, plan: Plan) -> dict[str, Any]:
        return {
            "label": self.label,
            "settings": plan.settings.as_dict(),
            "dataset": {
                "name": plan.dataset.name,
                "title": plan.dataset.title,
                "source": plan.dataset.source,
                "questions": len(plan.questions),
                "documents": len(plan.documents),
                "of_documents": len(plan.dataset.documents),
                "digest": digest_of(plan.documents),
            },
            "workload": {
                "questions": len(plan.workload),
                "digest": plan.workload.digest,
                **({} if plan.workload.refused is None else {"refused": plan.workload.refused}),
            },
            "given": self.builder.passed_parts,
            "retriever": plan.retriever.name,
            "model": Path(plan.model.name).name if plan.model.random_weights else plan.model.name,
            "random_weights": plan.model.random_weights,
            "max_tokens": plan.max_tokens,
        }

    def _finish(self, plan: Plan, directory: RunDirectory) -> None:
        scored = scores_of(
            plan.dataset,
            plan.questions,
            directory.records,
            k=plan.settings.k,
            reference=plan.retriever.reference,
            doubted=self.reference is not None,
        )
        scores = list(
            tqdm(
                scored,
                desc="Scoring",
                total=len(directory.records),
                unit="question",
                leave=False,
                disable=not self.show_progress,
            )
        )
        directory.write_json_lines("scores.jsonl", [asdict(score) for score in scores])
        summary = summarise(
            plan.dataset,
            plan.questions,
            directory.records,
            scores,
            directory.checkpoint,
            random_weights=plan.model.random_weights,
            prices=self.price_table,
        )
        priced = {} if self.price_table is None else {"prices": asdict(self.price_table)}
        directory.write_json("summary.json", summary | priced)


def _check_answered(records: Sequence[Record], plan: Plan) -> None:
    """Check that the records are of the workload's questions.

    Raises:
        ConfigurationError: A record is of another question.
    """
    items = {item.number: item for item in plan.workload.items}
    for record in records:
        expected = items[record.number]
        question = plan.questions[expected.question].id
        if (record.question, record.text) != (question, expected.text):
            got = f"one of {record.question!r}" if record.question != question else "other words"
            raise ConfigurationError(
                f"record {record.number} must be of question {question!r}, got {got}: the run is "
                "damaged. Start over with --fresh, or name another --out"
            )


async def _warm_up(plan: Plan) -> None:
    """Answer one question without measuring it, then empty all caches.

    Where documents are reused anywhere, those that will be retrieved are encoded ahead.

    Raises:
        PromptTooLongError: The prompt is too long even with a single document, so that hardly any
            question would be answered.
    """
    retrieval = await plan.retriever.retrieve(WARM_UP)
    try:
        await _ask_once(plan, retrieval.documents)
    except PromptTooLongError:
        await _ask_once(plan, retrieval.documents[:1])
    plan.retriever.clear()
    await asyncio.to_thread(plan.model.reset)
    if plan.settings.engine.get("reuse") == "anywhere":
        texts: dict[str, None] = {}
        for item in plan.workload.items:
            retrieval = await plan.retriever.retrieve(item.text)
            texts |= dict.fromkeys(document.text for document in retrieval.documents)
        plan.retriever.clear()
        await asyncio.to_thread(plan.model.encode, list(texts))


async def _ask_once(plan: Plan, documents: Sequence[PromptDocument]) -> None:
    async def retrieve(*_: object) -> Sequence[PromptDocument]:
        return documents

    answerer = plan.answerer(min(2, plan.max_tokens))
    await answerer.answer(plan.questions[0], WARM_UP, retrieve)


CANCEL_SECONDS = 1.0
"""The longest time that an interrupted caller waits for what it cancels."""


def until_done(begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end.

    If an event loop is already running, as in a notebook, the coroutine runs in a loop of its own,
    in another thread. An interruption of the waiting cancels the coroutine, and the process ends
    without waiting for the thread.

    Args:
        begin: Makes the coroutine.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(begin())
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    result: Future[T] = Future()

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this coroutine runs in one
        running.set_result((asyncio.get_running_loop(), task))
        return await begin()

    def work() -> None:
        try:
            result.set_result(asyncio.run(run()))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            result.set_exception(error)

    threading.Thread(target=work, name="ragcache-wait", daemon=True).start()
    try:
        return result.result()
    except KeyboardInterrupt:
        loop, task = running.result()
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile
            loop.call_soon_threadsafe(task.cancel)
        wait([result], CANCEL_SECONDS)
        raise
