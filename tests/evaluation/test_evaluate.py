"""Evaluations with the real engine and either framework, and without it where it has no part."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from rich.console import Console

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError, PromptTooLongError
from ragcache_integrations.langchain import ApproximateCacheRetriever, ChatRAGCache, RAGCacheLLM
from ragcache_integrations.llama_index import RAGCacheLLM as LlamaIndexLLM
from ragcache_workbench.evaluation import (
    EvalRun,
    PriceTable,
    aevaluate,
    compare,
    evaluate,
    evaluate_grid,
    throughputs,
)
from ragcache_workbench.evaluation.datasets import EvalDocument
from ragcache_workbench.evaluation.evaluate import until_done
from ragcache_workbench.evaluation.report import show
from ragcache_workbench.evaluation.report.labels import chosen_by
from ragcache_workbench.evaluation.report.report import gather, render, verdicts
from ragcache_workbench.evaluation.report.tables import remarks
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY
from ragcache_workbench.evaluation.settings import EvalSettings

from .world import Echo, make_retriever, store

SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "k": 3}

ADAPTIVE: dict[str, Any] = {
    "synthesis": "adaptive",
    "profiler": "heuristic",
    "k": 3,
    "sample": 5,
}

MODELS: dict[str, Any] = {
    "langchain": ChatRAGCache,
    "langchain text": RAGCacheLLM,
    "llama_index": LlamaIndexLLM,
}


@pytest.mark.engine
@pytest.mark.parametrize("dataset", ["nq", "mmlu"])
def test_both_frameworks_say_the_same(dataset: str, engine: RAGCacheEngine, tmp_path: Path) -> None:
    runs = {}
    for framework in ("langchain", "llama_index"):
        model = MODELS[framework](engine=engine, max_tokens=4)
        before = engine.stats()
        tokens: dict[str, Any] = {"max_tokens": 4} if dataset == "nq" else {}
        run = evaluate(dataset, model=model, framework=framework, out=tmp_path, **SMALL, **tokens)
        runs[framework] = run
        after = engine.stats()
        asked = after.requests - before.requests
        assert asked == 12 + 1  # and one to warm up
        # What the records say is what the engine counted.
        assert run.summary["engine"]["requests"] == 12
        assert run.figures["tokens_saved"] == run.summary["engine"]["cached_prompt_tokens"]
        assert run.figures["prompt_tokens"] == run.summary["engine"]["prompt_tokens"]
        assert 0 < run.figures["tokens_saved"] < run.figures["prompt_tokens"]
        assert 0 < run.figures["gpu_hit_rate"] < 1
        assert run.figures["host_hit_rate"] == 0
        assert run.quality is None
        assert run.summary["quality"] == MECHANICS_ONLY
        for record in run.records:
            assert record.output_tokens is not None
            assert record.prompt_tokens is not None
            assert record.ttft_seconds is not None
            assert record.model_ttft_seconds is not None
            assert record.end_to_end_seconds is not None
            assert record.embedding_seconds is not None
            assert 0 < record.embedding_seconds <= record.retrieval_seconds
            assert 0 < record.model_ttft_seconds < record.ttft_seconds <= record.end_to_end_seconds
            assert (record.tpot_seconds is None) == (record.output_tokens == 1)
            assert len(record.likeliest) == (20 if dataset == "mmlu" else 0)
    first_run, other = runs["langchain"], runs["llama_index"]
    assert [(a.answer, a.hit, a.documents) for a in first_run.records] == [
        (b.answer, b.hit, b.documents) for b in other.records
    ]
    for first, second in zip(first_run.records, other.records, strict=True):
        assert dict(first.likeliest) == pytest.approx(dict(second.likeliest), abs=1e-4)
    assert first_run.scores == other.scores
    assert first_run.figures["gpu_hit_rate"] == other.figures["gpu_hit_rate"]


@pytest.mark.engine
def test_a_text_model_is_asked_in_one_text(engine: RAGCacheEngine, tmp_path: Path) -> None:
    model = RAGCacheLLM(engine=engine, max_tokens=4)
    run = evaluate("pubmedqa", model=model, retriever="plain", out=tmp_path, sample=4, k=2)
    assert all(len(record.likeliest) == 20 for record in run.records)
    assert "cache_hit_rate" not in run.figures
    assert run.figures["k_recall"] == 1


@pytest.mark.engine
def test_synthesis_and_no_retrieval(engine: RAGCacheEngine, tmp_path: Path) -> None:
    model = ChatRAGCache(engine=engine)
    knobs: dict[str, Any] = {"model": model, "out": tmp_path, "sample": 3, "max_tokens": 4}
    reduced = evaluate("nq", synthesis="map_reduce", intermediate_length=4, k=2, **knobs)
    # Two summaries and an answer.
    assert reduced.summary["engine"]["requests"] == 9
    assert all(record.ttft_seconds is not None for record in reduced.records)
    # Tokens of the summaries came before the first one of the answer.
    assert all(one.tpot_seconds is None for one in reduced.records)
    alone = evaluate("nq", retriever="none", **knobs)
    assert alone.summary["engine"]["requests"] == 3
    assert {one.documents for one in alone.records} == {()}
    assert "k_recall" not in alone.figures
    assert "gold_recall" not in alone.figures


@pytest.mark.engine
def test_a_configuration_for_each_question(
    engine: RAGCacheEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ChatRAGCache(engine=engine)
    knobs: dict[str, Any] = {"out": tmp_path, "sample": 6, "max_tokens": 4, "k": 4}
    chosen, fixed = evaluate_grid("nq", {"synthesis": ["adaptive", "stuff"]}, model=model, **knobs)
    methods = {record.configuration.split()[0] for record in chosen.records}
    assert methods <= {"stuff", "map_reduce", "map_rerank"}
    assert {one.configuration for one in fixed.records} == {""}
    assert all(1 <= int(one.configuration.split()[1]) <= 4 for one in chosen.records)
    assert sum(chosen.summary["configurations"].values()) == 6
    assert chosen.summary["engine"]["requests"] >= 12, "a profile and an answer for each"
    assert all(len(one.documents) == 4 for one in chosen.records)
    for one in chosen.records:
        assert one.ttft_seconds is not None
        assert one.model_ttft_seconds is not None
        assert one.ttft_seconds > one.retrieval_seconds + one.model_ttft_seconds
    show([chosen, fixed], Console())
    most = max(chosen.summary["configurations"].values())
    told = chosen_by(chosen)
    assert told.split(",")[0].endswith(f" ({most})")
    assert f"{chosen.name} chose {told}" in capsys.readouterr().out.replace("\n", "")
    assert f"<dt>chosen</dt><dd>{told}</dd>" in render(gather([chosen]))
    assert "<dt>chosen</dt>" not in render(gather([fixed]))


@pytest.mark.engine
def test_link_tokens_are_swept_over_documents_encoded_ahead(
    engine: RAGCacheEngine, tmp_path: Path
) -> None:
    with ExitStack() as stack:

        def model(settings: EvalSettings, documents: Sequence[EvalDocument]) -> ChatRAGCache:
            if settings.engine["reuse"] == "prefix":
                return ChatRAGCache(engine=engine, max_tokens=2)
            eager = {"enforce_eager": True}
            made = ChatRAGCache(kv_cache_gib=0.1, max_tokens=2, vllm_args=eager, **settings.engine)
            return stack.enter_context(closing(made))

        knobs: dict[str, Any] = {"out": tmp_path, "sample": 3, "k": 2}
        exact, anywhere = evaluate_grid(
            "nq", {"link_tokens": [0]}, model=model, retriever=make_retriever, **knobs
        )
    assert exact.settings.engine == {"reuse": "prefix"}
    for before, after in zip(exact.records, anywhere.records, strict=True):
        assert before.documents == after.documents
        assert (before.cached_tokens or 0) < 100 < (after.cached_tokens or 0)
    (verdict,) = verdicts([exact, anywhere])
    assert "fewer prompt tokens to compute" in verdict.text


def test_a_model_of_ones_own_gets_the_middle_of_what_suits(tmp_path: Path) -> None:
    run = evaluate(
        "nq",
        model=Echo(),
        retriever=make_retriever,
        **ADAPTIVE,
        out=tmp_path,
    )
    assert all(record.configuration for record in run.records)
    assert all(one.answer for one in run.records)
    again = evaluate(
        "nq",
        model=Echo(),
        retriever=make_retriever,
        **ADAPTIVE,
        out=tmp_path / "again",
    )
    assert [one.answer for one in again.records] == [one.answer for one in run.records]


@pytest.mark.parametrize(
    ("knobs", "chosen"),
    [
        ({"method": "stuff", "mode": "largest"}, {"stuff 3"}),
        ({"method": "stuff", "mode": "gradual"}, {"stuff 1"}),
        ({"method": "map_reduce", "intermediate_length": 40}, {"map_reduce 2 40"}),
        ({"num_chunks": 1, "mode": "median"}, {"map_rerank 1", "stuff 1"}),
    ],
)
def test_a_knob_is_held_for_all_questions(
    tmp_path: Path, knobs: dict[str, Any], chosen: set[str]
) -> None:
    run = evaluate(
        "nq",
        model=Echo(),
        retriever=make_retriever,
        **ADAPTIVE,
        out=tmp_path,
        **knobs,
    )
    assert {record.configuration for record in run.records} <= chosen


@pytest.mark.engine
def test_open_loop_at_several_rates(engine: RAGCacheEngine, tmp_path: Path) -> None:
    model = ChatRAGCache(engine=engine)
    knobs: dict[str, Any] = {"out": tmp_path, "sample": 8, "max_tokens": 2, "k": 2}
    runs = evaluate_grid("nq", {"rate": [8.0, 40.0]}, model=model, **knobs)
    assert [one.settings.rate for one in runs] == [8.0, 40.0]
    for run in runs:
        assert sorted(record.number for record in run.records) == list(range(8))
        assert run.figures["errors"] == 0
    (found,) = throughputs(runs)
    assert [rate for rate, _ in found.points] == [8.0, 40.0]
    assert 8.0 <= found.throughput <= 40.0
    assert found.limit_ms == pytest.approx(5 * runs[0].figures["ttft_ms_mean"])


@pytest.mark.engine
def test_a_prompt_that_is_too_long_is_recorded(tmp_path: Path, engine: RAGCacheEngine) -> None:
    long: Any = RunnableLambda(lambda _: [Document("word " * 20_000, id="long")])
    model = ChatRAGCache(engine=engine)
    with pytest.raises(PromptTooLongError):  # the warm-up says so before anything is measured
        evaluate("nq", retriever=long, model=model, out=tmp_path, sample=2)

    def sometimes(text: str) -> list[Document]:
        return [Document("word " * (20_000 if len(text) % 3 == 1 else 20), id="x")]

    run = evaluate(
        "nq", retriever=RunnableLambda(sometimes), model=model, out=tmp_path / "b", sample=12
    )
    assert 0 < run.figures["errors"] < 12
    for record, score in zip(run.records, run.scores, strict=True):
        assert record.error.startswith("PromptTooLongError") == (len(record.text) % 3 == 1)
        assert score.scores["exact_match"] == 0 or not record.error


# Without the engine: retrievers and models of one's own.


def test_any_retriever_and_model(tmp_path: Path) -> None:
    held = store()
    plain = held.as_retriever(search_kwargs={"k": 3})
    cached = ApproximateCacheRetriever.from_vectorstore(held, k=3, tolerance=0.9, rerank_factor=1)
    knobs: dict[str, Any] = {**SMALL, "model": Echo(), "random_weights": False}
    runs = [
        evaluate("nq", retriever=one, out=tmp_path / name, **knobs)
        for name, one in (("plain", plain), ("cached", cached))
    ]
    before, after = runs
    assert "cache_hit_rate" not in before.figures
    assert before.figures["k_recall"] == 1
    assert after.figures["cache_hits"] > 0
    assert after.figures["k_recall"] < 1
    assert after.figures["hit_k_recall"] < after.figures["k_recall"]
    # By hand: what the store says to a question that hit, against what was served.
    for one, score in zip(after.records, after.scores, strict=True):
        nearest = {document.id for document in plain.invoke(one.text)}
        assert score.recall == pytest.approx(len(nearest & set(one.documents)) / 3)
    assert before.quality == {"exact_match": 0.0, "f1": 0.0}
    names = {one.metric for one in compare(runs)}
    assert {"exact_match", "f1", "k_recall", "ttft_ms", "end_to_end_ms", "cached_tokens"} <= names
    recall = next(one for one in compare(runs) if one.metric == "k_recall")
    assert recall.baseline is before
    assert recall.pairs == 12
    assert recall.difference.value == pytest.approx(after.figures["k_recall"] - 1)
    assert recall.difference.low <= recall.difference.value <= recall.difference.high <= 0
    assert recall.ratio is None
    assert json.loads(json.dumps(recall.as_dict()))["other"] == after.name


class Nodes(BaseRetriever):
    """A LlamaIndex retriever of one's own; it has only what it must have."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=f"about {query_bundle.query_str}", id_="n"))]


def test_frameworks_may_be_mixed(tmp_path: Path) -> None:
    run = evaluate("qmsum", retriever=Nodes(), model=Echo(), out=tmp_path, k=1)
    assert run.config["retriever"] == "Nodes"
    assert run.config["model"] == "Echo"
    assert {record.documents for record in run.records} == {("n",)}
    assert set(run.quality or {}) == {"rouge_l", "f1", "by_group"}


def test_a_function_makes_a_part_for_every_configuration(tmp_path: Path) -> None:
    runs = evaluate_grid(
        "nq",
        {"tolerance": [0.0, 1.2], "k": [1, 2]},
        retriever=make_retriever,
        model=lambda settings, documents: Echo(seconds=0.0),
        out=tmp_path,
        sample=8,
        workload="uniform",
    )
    assert len(list(tmp_path.iterdir())) == 4
    hits = {(run.settings.cache["tolerance"], run.settings.k): run.figures for run in runs}
    for k in (1, 2):
        assert hits[0.0, k]["cache_hits"] == 0
        assert hits[1.2, k]["cache_hits"] > 8
    assert {len(one.records[0].documents) for one in runs} == {1, 2}


def test_the_environment_is_told_and_names_nobody(tmp_path: Path) -> None:
    run = evaluate(
        "nq", retriever=make_retriever, model=Echo(), out=tmp_path, sample=2, command="ragcache x"
    )
    told = json.loads((run.path / "environment.json").read_text())
    assert told["command"] == "ragcache x"
    assert told["packages"]["numpy"]
    assert {"python", "system", "device", "cores", "memory_gib", "revision"} <= set(told)
    assert "node" not in told
    assert EvalRun.load(run.path).settings == run.settings


def test_a_sample_is_asked_over_a_part_of_the_documents_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    shown: list[int] = []

    def counting(settings: EvalSettings, documents: Sequence[EvalDocument]) -> Any:
        shown.append(len(documents))
        return make_retriever(settings, documents)

    knobs: dict[str, Any] = {"retriever": counting, "model": Echo(), "out": tmp_path}
    part, whole = evaluate_grid("nq", {"corpus": ["sample", "all"]}, sample=12, **knobs)
    assert shown == [120, 1200]
    assert [run.config["dataset"]["documents"] for run in (part, whole)] == shown
    numbers = {str(part.path): 1, str(whole.path): 2}
    remark, *_ = remarks([part, whole], numbers, ())
    assert remark.startswith("Run 1: the questions are a sample")
    assert "<dt>documents</dt><dd>120 of 1,200</dd>" in render(gather([part]))
    assert "<dt>documents</dt><dd>1,200</dd>" in render(gather([whole]))


def test_prices_may_come_later(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"retriever": make_retriever, "out": tmp_path, **SMALL}
    run = evaluate("nq", model=Echo(), **knobs)
    assert "money_saved" not in run.figures
    silent = Echo(called=lambda _: pytest.fail("it was asked"))
    priced = evaluate("nq", model=silent, prices={"input": 2.0, "cached_input": 0.5}, **knobs)
    saved = 1.5e-6 * run.figures["tokens_saved"]
    assert priced.figures["money_saved"] == pytest.approx(saved)
    table = PriceTable(input=2.0, cached_input=0.5)
    assert evaluate("nq", model=silent, prices=table, **knobs).figures == priced.figures


async def test_the_async_twin_and_a_running_loop(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"retriever": make_retriever, "sample": 3}
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    one = await aevaluate("nq", model=Echo(seconds=0.01), out=tmp_path / "a", **knobs)
    ticking.cancel()
    assert ticks > 10
    other = evaluate("nq", model=Echo(), out=tmp_path / "b", **knobs)  # as in a notebook
    assert [a.answer for a in one.records] == [b.answer for b in other.records]


async def test_cancelled_it_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"retriever": make_retriever, "sample": 20, "out": tmp_path}
    under_way = asyncio.Event()

    def called(number: int) -> None:
        if number == 6:
            under_way.set()

    model = Echo(seconds=0.01, called=called)
    running = asyncio.create_task(aevaluate("nq", model=model, checkpoint_seconds=0.0, **knobs))
    await under_way.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    run = await aevaluate("nq", model=Echo(), **knobs)
    assert len(run.records) == 20
    assert len(run.summary["breaks"]) == 1


def interrupt_an_evaluation(folder: Path) -> None:
    """Press Ctrl-C during the fifth question, long before a checkpoint is due."""
    knobs: dict[str, Any] = {"retriever": make_retriever, "sample": 20, "out": folder}
    main_thread = threading.main_thread().ident or 0

    def called(number: int) -> None:
        if number == 6:
            signal.pthread_kill(main_thread, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate("nq", model=Echo(seconds=0.05, called=called), checkpoint_seconds=1e6, **knobs)
    finally:
        signal.signal(signal.SIGINT, before)
    rest = Echo()
    assert len(evaluate("nq", model=rest, **knobs).records) == 20
    # Both times the first call warms the model up.
    assert len(rest.calls) == 20 - 4 + 1


def test_interrupted_it_keeps_every_answer(tmp_path: Path) -> None:
    interrupt_an_evaluation(tmp_path)


async def test_interrupted_in_a_notebook_it_ends_its_thread(tmp_path: Path) -> None:
    interrupt_an_evaluation(tmp_path)
    assert "ragcache-wait" not in [thread.name for thread in threading.enumerate()]


def test_runs_of_different_objects_are_not_taken_for_each_other(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"model": Echo(), "out": tmp_path, "sample": 3}
    held = store()
    evaluate("nq", retriever=held.as_retriever(), **knobs)
    cached = ApproximateCacheRetriever.from_vectorstore(held, k=4)
    with pytest.raises(ConfigurationError, match="retriever is 'ApproximateCacheRetriever' here"):
        evaluate("nq", retriever=cached, **knobs)
    other = evaluate("nq", retriever=cached, label="with a cache", **knobs)
    assert "with_a_cache" in other.name
    assert len(list(tmp_path.iterdir())) == 2


def test_different_questions_cannot_be_compared(tmp_path: Path) -> None:
    runs = [
        evaluate("nq", retriever=make_retriever, model=Echo(), out=tmp_path, sample=3, seed=seed)
        for seed in (0, 1)
    ]
    with pytest.raises(ConfigurationError, match="do not have the same questions"):
        compare(runs)
    with pytest.raises(ConfigurationError, match="at least 2 runs, got 1"):
        compare(runs[:1])
    with pytest.raises(ConfigurationError, match="baseline must be from 0 to 1, got 2"):
        compare([run.path for run in runs], baseline=2)
    assert throughputs(runs) == []


def test_a_metric_that_there_is_not_is_refused(tmp_path: Path) -> None:
    runs = [
        evaluate("nq", retriever=make_retriever, model=Echo(), out=tmp_path, sample=3, label=label)
        for label in ("a", "b")
    ]
    with pytest.raises(
        ConfigurationError, match=r"metrics must be among .*k_recall.*, got 'rouge'"
    ):
        compare(runs, metrics=["k_recall", "rouge"])
    assert {one.metric for one in compare(runs, metrics=["k_recall"])} == {"k_recall"}


def test_quality_may_be_asked_for_where_it_is_left_out(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {"retriever": make_retriever, "model": Echo(), "out": tmp_path}
    runs = [
        evaluate("nq", sample=3, random_weights=True, label=label, **knobs) for label in ("a", "b")
    ]
    assert {one.metric for one in compare(runs, metrics=["f1", "k_recall"])} == {"k_recall"}


def test_throughputs_keep_systems_apart_that_differ_in_their_labels(tmp_path: Path) -> None:
    runs = [
        evaluate(
            "nq",
            retriever=make_retriever,
            model=Echo(),
            out=tmp_path,
            sample=3,
            label=label,
            rate=rate,
        )
        for label in ("a", "b")
        for rate in (20.0, 40.0)
    ]
    assert [throughput.knobs["label"] for throughput in throughputs(runs)] == ["a", "b"]


def test_a_given_reference_is_asked_though_the_retriever_tells_no_hits(tmp_path: Path) -> None:
    """A retriever of the user's own may be a cache, too, of which we know nothing."""
    held = store()
    knobs: dict[str, Any] = {"model": Echo(), "out": tmp_path, "sample": 3, "k": 4}
    first = held.as_retriever(search_kwargs={"k": 4})
    always: RunnableLambda[str, list[Document]] = RunnableLambda(
        lambda _: first.invoke("the same for all")
    )
    run = evaluate("nq", retriever=always, reference=first, label="doubted", **knobs)
    assert run.figures["k_recall"] < 1
    run = evaluate("nq", retriever=always, label="believed", **knobs)
    assert run.figures["k_recall"] == 1


@pytest.mark.parametrize("dataset", ["mmlu", "pubmedqa"])
def test_synthesis_does_not_drop_options(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="would not show the options"):
        evaluate(dataset, synthesis="stuff", model=Echo(), out=tmp_path, sample=3)
    with pytest.raises(ConfigurationError, match="would not show the options"):
        evaluate_grid(
            dataset,
            {"synthesis": [None, "stuff"]},
            retriever=make_retriever,
            model=Echo(),
            out=tmp_path,
            sample=3,
        )
    assert not list(tmp_path.iterdir())  # before the first was run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dataset": "trivia"}, "dataset must be one of nq"),
        ({"colour": "red"}, "unknown knob 'colour'"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds"),
        ({"prices": {"tea": 1}}, "must name input"),
        ({"retriever": 5}, "retriever must be one of LangChain's or LlamaIndex's"),
        ({"model": 5}, "model must be one of LangChain's or LlamaIndex's"),
        ({"reference": Nodes(), "retriever": None}, "reference is for a retriever of yours"),
        ({"retriever": Nodes(), "tolerance": 0.1}, "tolerance cannot be set on a retriever"),
        ({"model": Echo(), "policy": "lru"}, "policy cannot be set on a model"),
        ({"retriever": None, "k": 5000}, "k must be at most 1200"),
        ({"sample": 5000}, "sample must be from 1 to the 300 questions"),
        ({"data": "/no/such/folder"}, "must be a folder with questions.jsonl.*no such folder"),
    ],
)
def test_bad_input_leaves_nothing(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    usual = {"dataset": "nq", "retriever": make_retriever, "model": Echo(), "out": tmp_path}
    with pytest.raises(ConfigurationError, match=words):
        evaluate(**{**usual, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_the_terminal(tmp_path: Path) -> None:
    runs = evaluate_grid(
        "nq",
        {"tolerance": [0.0, 1.2]},
        retriever=make_retriever,
        model=Echo(),
        out=tmp_path,
        **SMALL,
    )
    console = Console(width=160, record=True, file=StringIO())
    show(runs, console)
    text = console.export_text()
    assert "exact match" in text
    assert "tolerance" in text
    assert "1.2" in text
    assert "cache hit rate" in text
    assert "95 % intervals" in text


def test_many_runs_fit_the_terminal(tmp_path: Path) -> None:
    runs = evaluate_grid(
        "nq",
        {"tolerance": [0.0, 1.2], "capacity": [2, 25]},
        retriever=make_retriever,
        model=Echo(),
        out=tmp_path,
        **SMALL,
    )
    console = Console(width=80, record=True, file=StringIO())
    show(runs, console)
    text = console.export_text()
    assert "4 runs" in text
    assert "…" not in text
    assert "capacity" in text
    for run in runs:
        assert f" {run.settings.cache['capacity']} " in text
        assert f"{100 * run.figures['cache_hit_rate']:.1f} %" in text


async def test_while_a_loop_is_running_a_coroutine_runs_in_a_thread() -> None:
    async def work() -> str:
        return threading.current_thread().name

    assert until_done(work) == "ragcache-wait"


async def test_what_a_coroutine_raises_is_raised() -> None:
    async def work() -> None:
        msg = "gone"
        raise OSError(msg)

    with pytest.raises(OSError, match="gone"):
        until_done(work)
