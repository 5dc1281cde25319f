"""Each paper's tables, from made-up runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from papers import results
from papers.base import Table, Tables
from papers.metis import best_fixed, profiler_shares
from papers.plan import PRESETS, plan_preset
from papers.results import Results

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import EvalRun
from ragcache_workbench.evaluation.settings import EvalSettings

from .made import made_run

COUNT = 6


@pytest.fixture(autouse=True)
def few_questions_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FEWEST", COUNT)


def tables_of(
    preset: str, make: Callable[[str, EvalSettings], EvalRun], dataset: str = "nq"
) -> Tables:
    return PRESETS[preset].tables(results_of(preset, make, dataset))


def results_of(
    preset: str, make: Callable[[str, EvalSettings], EvalRun], dataset: str = "nq"
) -> Results:
    plan = plan_preset(dataset, preset)
    pairs = zip(plan.variants, plan.configurations, strict=True)
    return Results(
        dataset, {variant.name: (make(variant.name, settings),) for variant, settings in pairs}
    )


def row_of(table: Table, name: str) -> dict[str, str]:
    (row,) = (row for row in table.rows if row[0].text == name)
    return dict(zip(table.columns, (cell.text for cell in row), strict=True))


def check_papers(table: Table) -> None:
    """Every figure of a paper says where the paper has it."""
    for words, paper, where, ours in table.rows:
        assert words.text
        assert paper.text
        assert ours.text
        assert where.text == "-" or any(mark in where.text for mark in ("figure", "table", "§"))


# Proximity


def proximity_run(name: str, settings: EvalSettings) -> EvalRun:
    """The larger the tolerance, the more hits; the largest answers wrongly."""
    tolerance = settings.cache.get("tolerance", 0.0)
    hits = round(COUNT * tolerance)
    cached = "no cache" not in name
    return made_run(
        [0.2 if tolerance == 0.5 else 0.8] * COUNT,
        digest=settings.workload,
        settings=settings,
        hit=[number < hits for number in range(COUNT)] if cached else [None] * COUNT,
        retrieval_seconds=[0.001 if number < hits else 0.004 for number in range(COUNT)],
        recall=[1.0] * COUNT,
    )


def test_proximity_takes_the_most_hits_at_equal_quality() -> None:
    made = tables_of("proximity", proximity_run)
    uniform, zipf, claims = made.tables
    assert made.headline["quality"] == "f1"
    best = made.headline["uniform"]
    assert best["setting"].startswith("uniform, FLAT, tolerance 0.3")
    assert best["equal_quality"] is True
    assert best["searches_saved"][0] == pytest.approx(2 / 6)
    # Two of six take a quarter of the time: 24 ms before, 18 ms after.
    assert best["retrieval_time_saved"][0] == pytest.approx(6 / 24)
    assert made.headline["zipf_lsh"]["setting"] == "zipf, LSH, tolerance 0.3"
    wrong = row_of(uniform, "FLAT, tolerance 0.5, capacity 100")
    assert wrong["F1"].startswith("0.200")
    assert wrong["difference"].startswith("-0.600")
    assert row_of(uniform, "no cache")["hit rate"] == "-"
    assert row_of(zipf, "LSH, tolerance 0.3")["hit rate"].startswith("33.3 %")
    ours = {row[0].text: row[3].text for row in claims.rows}
    key = "uniform, FLAT: quality, from the lowest to the highest setting"
    assert ours[key] == "0.200 to 0.800"
    check_papers(claims)


def test_proximity_shows_the_paper_s_figure_on_the_same_data() -> None:
    papers = {}
    for dataset in ("mmlu", "pubmedqa", "nq"):
        claims = tables_of("proximity", proximity_run, dataset).tables[-1]
        papers[dataset] = claims.rows[1][1].text
    assert papers == {
        "mmlu": "up to 59 %",
        "pubmedqa": "up to 75 %",
        "nq": "up to 59 % (MMLU); up to 75 % (PubMedQA)",
    }


@pytest.mark.parametrize(
    ("questions", "title", "stream"),
    [
        (["a", "b", "a", "b", "b", "a"], "each question three times", "6 questions, 2 of"),
        (["a", "b", "c", "d", "e", "f"], "each question once", "6 questions, 6 of"),
        (["a", "a", "a", "a", "a", "b"], "each question 1 to 5 times", "6 questions, 2 of"),
    ],
)
def test_proximity_says_how_often_questions_came(
    questions: list[str], title: str, stream: str
) -> None:
    def make(name: str, settings: EvalSettings) -> EvalRun:
        return made_run([0.5] * COUNT, questions=questions, settings=settings)

    uniform, zipf, _ = tables_of("proximity", make).tables
    assert uniform.title == f"Workload uniform: {title}"
    assert f"The stream has {stream} them different" in zipf.notes[-1]


def test_proximity_without_equal_quality_says_so() -> None:
    def worse(name: str, settings: EvalSettings) -> EvalRun:
        return made_run(
            [0.8 if "no cache" in name else 0.1] * COUNT, digest=settings.workload, hit=True
        )

    made = tables_of("proximity", worse)
    assert made.headline["uniform"] == {"setting": None, "searches_saved": None}
    assert made.tables[-1].rows[0][3].text == "none at equal quality"


# RAGServe

DELAYS = {
    "stuff 1": 1.0,
    "stuff 2": 2.0,
    "stuff 4": 3.0,
    "stuff 8": 4.0,
    "map_rerank 4": 5.0,
    "map_reduce 4": 6.0,
    "adaptive, profiler: the model": 1.0,
    "adaptive, profiler: heuristic": 4.0,
    "adaptive, golden feedback": 1.2,
    "adaptive, gradual": 0.8,
    "adaptive, gradual, stuff alone": 0.5,
    "adaptive, number of chunks alone": 2.5,
    "adaptive, and the method": 5.0,
    "adaptive, and the length of summaries": 4.0,
}
QUALITIES = {
    "stuff 1": 0.1,
    "adaptive, golden feedback": 0.55,
    "adaptive, gradual, stuff alone": 0.4,
    "adaptive, number of chunks alone": 0.45,
    "adaptive, and the method": 0.6,
    "adaptive, and the length of summaries": 0.7,
}

LONGER = [*["stuff 8"] * 3, "map_reduce 6 200", *["map_reduce 6 100"] * 2]
CHOICES = {
    "adaptive, number of chunks alone": ["stuff 8"] * COUNT,
    "adaptive, and the method": [*["stuff 8"] * 3, *["map_reduce 6 100"] * 3],
    "adaptive, and the length of summaries": LONGER,
    "adaptive, profiler: the model": LONGER,
}


def metis_run(name: str, settings: EvalSettings) -> EvalRun:
    quality = [QUALITIES.get(name, 0.5)] * COUNT
    if name == "map_reduce 4":
        quality[0] = 0.55
    return made_run(
        quality,
        settings=settings,
        figures={"cost": 2.0 if name.startswith("stuff") else 1.0},
        end_to_end_seconds=DELAYS[name],
        configuration=CHOICES.get(name, [""] * COUNT),
        ttft_seconds=0.6,
        model_ttft_seconds=0.2,
        retrieval_seconds=0.1,
    )


def test_the_best_fixed_configuration_is_the_fastest_that_answers_as_well() -> None:
    # map_reduce 4 has the highest quality by a sixth of 0.05, and takes three times as long.
    assert best_fixed(results_of("metis", metis_run)) == "stuff 2"


def test_metis_compares_with_it() -> None:
    made = tables_of("metis", metis_run)
    delays, _, profilers, claims = made.tables
    assert made.headline["best_fixed"] == "stuff 2"
    adaptive = made.headline["adaptive"]
    assert adaptive["adaptive, profiler: the model"]["equal_quality"] is True
    assert adaptive["adaptive, profiler: the model"]["times_as_fast"] == pytest.approx([2.0] * 3)
    assert adaptive["adaptive, profiler: heuristic"]["times_as_fast"] == pytest.approx([0.5] * 3)
    # The other gradual setting is faster, and answers worse.
    assert made.headline["best_adaptive"] == "adaptive, gradual"
    assert adaptive["adaptive, gradual"]["times_as_fast"] == pytest.approx([2.5] * 3)
    assert adaptive["adaptive, gradual, stuff alone"]["equal_quality"] is False
    learning = adaptive["adaptive, golden feedback"]
    assert learning["quality_difference"] == pytest.approx([0.05] * 3)
    assert row_of(delays, "stuff 2")["times as fast"] == "-"
    assert row_of(delays, "stuff 2")["cost"] == "2.00"
    model = row_of(profilers, "adaptive, profiler: the model")
    assert model["right"].startswith("83.3 %")
    assert model["lost where wrong"].startswith("0.050")
    assert model["share of the delay"].startswith("30.0 %")
    ours = [row[3].text for row in claims.rows]
    assert ours[0] == "2.50 [2.50, 2.50] than stuff 2 (adaptive, gradual)"
    # stuff 1 takes as long.
    assert ours[1] == "400.0 % [400.0, 400.0] than stuff 1 (adaptive, gradual)"
    assert ours[2] == "30.0 % [30.0, 30.0], at most 30.0 %"
    assert ours[3] == "2.00 (stuff 2 over adaptive, gradual, of the same model)"
    assert ours[4] == "10.0 % [10.0, 10.0]"
    check_papers(claims)


def test_metis_knob_by_knob() -> None:
    made = tables_of("metis", metis_run)
    _, steps, _, claims = made.tables
    assert [row[0].text for row in steps.rows] == [
        "stuff 2",
        "adaptive, number of chunks alone",
        "adaptive, and the method",
        "adaptive, and the length of summaries",
        "adaptive, profiler: the model",
    ]
    figures = {
        row[0].text: [cell.plain[0] if isinstance(cell.plain, list) else None for cell in row[1:]]
        for row in steps.rows
    }
    # stuff 2 has an F1 of 0.5 within 2 s: quality, difference, ms, times; and of the step. The
    # method changes the configuration of three of six questions, the length of one of these.
    assert figures["stuff 2"] == [0.5, None, 2000, None, None, None, None]
    chunks = figures["adaptive, number of chunks alone"]
    assert chunks.pop() is None
    assert chunks == pytest.approx([0.45, -0.05, 2500, 0.8, -0.05, 0.8])
    assert figures["adaptive, and the method"] == pytest.approx(
        [0.6, 0.1, 5000, 0.4, 0.15, 0.5, 3 / 6]
    )
    assert figures["adaptive, and the length of summaries"] == pytest.approx(
        [0.7, 0.2, 4000, 0.5, 0.1, 1.25, 1 / 6], abs=1e-6
    )
    assert figures["adaptive, profiler: the model"] == pytest.approx([0.5, 0, 1000, 2, -0.2, 4, 0])
    last = made.headline["knob_by_knob"]["adaptive, profiler: the model"]
    assert last["times_as_fast"] == pytest.approx([2.0] * 3)
    assert last["over_the_step_before"]["times_as_fast"] == pytest.approx([4.0] * 3)
    assert last["over_the_step_before"]["quality_difference"] == pytest.approx([-0.2] * 3)
    better, faster = claims.rows[-2:]
    assert [cell.text for cell in better[1:3]] == ["5, 4, 3 % (QMSum)", "figure 16, §7.4"]
    assert better[3].text == "-10.0 % [-10.0, -10.0]; 20.0 % [20.0, 20.0]; 40.0 % [40.0, 40.0]"
    assert [cell.text for cell in faster[1:]] == [
        "2.8 (QMSum)",
        "figure 16, §7.4",
        "4.00 [4.00, 4.00]",
    ]


def test_metis_holds_the_knobs_that_a_step_does_not_choose() -> None:
    plan = plan_preset("nq", "metis")
    chosen = {
        variant.name: settings.adaptive_settings()
        for variant, settings in zip(plan.variants, plan.configurations, strict=True)
        if settings.synthesis == "adaptive"
    }
    steps = [
        chosen["adaptive, number of chunks alone"],
        chosen["adaptive, and the method"],
        chosen["adaptive, and the length of summaries"],
        chosen["adaptive, profiler: the model"],
    ]
    assert [(one.mode, one.method, one.intermediate_length) for one in steps] == [
        ("largest", "stuff", None),
        ("largest", None, 100),
        ("largest", None, None),
        ("adaptive", None, None),
    ]
    assert {one.max_chunks for one in steps} == {8}
    with pytest.raises(ConfigurationError, match="decides intermediate_length, method itself"):
        plan_preset("nq", "metis", intermediate_length=50, method="stuff")


def test_the_profiler_of_metis_is_the_users_choice() -> None:
    plan = plan_preset("nq", "metis", profiler="heuristic")
    profilers = {
        variant.name: settings.profiler
        for variant, settings in zip(plan.variants, plan.configurations, strict=True)
        if settings.synthesis == "adaptive"
    }
    by_model = {name for name, profiler in profilers.items() if profiler == "llm"}
    assert by_model == {"adaptive, profiler: the model", "adaptive, golden feedback"}
    assert plan.changed == {"profiler": "heuristic"}
    pairs = zip(plan.variants, plan.configurations, strict=True)
    runs = {variant.name: (metis_run(variant.name, settings),) for variant, settings in pairs}
    steps = PRESETS["metis"].tables(Results("nq", runs)).tables[1]
    assert [row[0].text for row in steps.rows][-1] == "adaptive, profiler: heuristic"


def test_metis_without_prices_has_no_cost() -> None:
    def unpriced(name: str, settings: EvalSettings) -> EvalRun:
        return made_run([0.5] * COUNT, settings=settings, end_to_end_seconds=DELAYS[name])

    delays, *_, claims = tables_of("metis", unpriced).tables
    assert "cost" not in delays.columns
    assert claims.rows[3][3].text == "unknown: it needs prices of tokens"


def test_metis_says_what_costs_leave_out() -> None:
    notes = tables_of("metis", metis_run).tables[0].notes
    assert "without what golden feedback costs" in notes[-1]


def test_a_question_that_failed_has_no_other_choice() -> None:
    def make(name: str, settings: EvalSettings) -> EvalRun:
        if name != "adaptive, and the length of summaries":
            return metis_run(name, settings)
        return made_run(
            [0.5] * COUNT,
            settings=settings,
            configuration=["", *LONGER[1:]],
            error=["PromptTooLongError: 9", *[""] * (COUNT - 1)],
            end_to_end_seconds=1.0,
        )

    table = tables_of("metis", make).tables[1]
    row = row_of(table, "adaptive, and the length of summaries")
    assert row["other choice"].startswith("20.0 %")  # one of the five that were answered
    last = row_of(table, "adaptive, profiler: the model")
    assert last["other choice"] == "0.0 % [0.0, 0.0]"


def test_metis_of_worse_answers_is_no_gain() -> None:
    def worse(name: str, settings: EvalSettings) -> EvalRun:
        quality = 0.3 if name.startswith("adaptive") else 0.5
        return made_run([quality] * COUNT, settings=settings, end_to_end_seconds=DELAYS[name])

    made = tables_of("metis", worse)
    assert made.headline["best_fixed"] == "stuff 1"
    by_model = made.headline["adaptive"]["adaptive, profiler: the model"]
    assert by_model["equal_quality"] is False
    assert "but not at equal quality (-0.200" in made.tables[-1].rows[0][3].text


def test_a_disturbed_question_has_no_share() -> None:
    run = made_run(
        [0.0, 0.0, 0.0],
        ttft_seconds=[0.6, 0.6, None],
        model_ttft_seconds=0.2,
        retrieval_seconds=[0.1, 0.1, 0.1],
        end_to_end_seconds=1.0,
        disturbed=[False, True, False],
    )
    ((question, share),) = profiler_shares((run,))
    assert question == "q0"
    assert share == pytest.approx(0.3)


# RAGCache


def ragcache_run(name: str, settings: EvalSettings) -> EvalRun:
    seconds = 0.6 if name.startswith("stock") else 0.2
    if "order of arrival" in name:
        seconds = 0.3
    policy = settings.engine.get("policy", "none")
    hit_rate = {"lrfu": 0.6, "pgdsf": 0.5, "gdsf": 0.4, "lru": 0.25, "lfu": 0.2}.get(policy)
    figures = {"ttft_ms_mean": 1000 * seconds * (8 if settings.rate == 4 else 1)}
    if hit_rate is not None:
        figures |= {"gpu_hit_rate": hit_rate - 0.1, "host_hit_rate": 0.1}
    return made_run([0.5] * COUNT, settings=settings, figures=figures, ttft_seconds=seconds)


def test_ratios_of_growing_queues_are_marked_and_left_out_of_ranges() -> None:
    growing = [0.6, 0.6, 1.0, 1.0, 1.3, 1.3]
    loaded = [0.6, 0.6, 2.0, 2.0, 1.1, 1.1]

    def make(name: str, settings: EvalSettings) -> EvalRun:
        run = ragcache_run(name, settings)
        delays = {
            "stock vLLM, top-2, the whole rate": growing,
            "knowledge tree, top-5, a quarter of the rate": growing,
            "stock vLLM, top-2, half the rate": loaded,
        }
        if name not in delays:
            return run
        return made_run(
            [0.5] * COUNT, settings=settings, figures=run.figures, ttft_seconds=delays[name]
        )

    made = tables_of("ragcache", make)
    table, claims = made.tables
    assert row_of(table, "stock vLLM, top-2, the whole rate")["queue"] == "grew"
    assert row_of(table, "stock vLLM, top-2, half the rate")["queue"] == "-"
    assert made.headline["queue_grew"] == [
        "stock vLLM, top-2, the whole rate",
        "knowledge tree, top-5, a quarter of the rate",
    ]
    ours = {row[0].text: row[3].text for row in claims.rows}
    rates = ours["TTFT, times lower than stock vLLM, over the rates that both bear"]
    assert rates.startswith("3.00 [3.00, 3.00] to 6.17 [")
    top_k = ours["TTFT, times lower than stock vLLM, over top-k where both bear the rate"]
    assert top_k == "3.00 [3.00, 3.00] to 3.00 [3.00, 3.00]"  # of one and three documents


def test_the_range_of_policies_leaves_growing_queues_out_too() -> None:
    def make(name: str, settings: EvalSettings) -> EvalRun:
        run = ragcache_run(name, settings)
        if "gdsf, top" not in name or "pgdsf" in name:
            return run
        delays = [0.6, 0.6, 1.0, 1.0, 1.3, 1.3]
        return made_run([0.5] * COUNT, settings=settings, figures=run.figures, ttft_seconds=delays)

    table, claims = tables_of("ragcache", make).tables
    assert row_of(table, "knowledge tree, gdsf, top-2, half the rate")["queue"] == "grew"
    ours = {row[0].text: row[3].text for row in claims.rows}
    policies = ours["TTFT, times lower by PGDSF than by GDSF, LRU and LFU"]
    assert policies == "1.00 [1.00, 1.00] to 1.00 [1.00, 1.00]"  # of LRU and LFU


@pytest.mark.parametrize(
    ("stream", "words"),
    [({}, "by rules."), ({"refused": {"too long": 2}}, "by the model; 2 of 6 refused (")],
)
def test_ragcache_says_what_rephrased(stream: dict[str, object], words: str) -> None:
    def make(name: str, settings: EvalSettings) -> EvalRun:
        run = ragcache_run(name, settings)
        run.config["workload"] |= stream
        return run

    (*_, note) = tables_of("ragcache", make).tables[0].notes
    assert note.startswith(f"Questions are rephrased {words}")
    assert "by rules" not in PRESETS["ragcache"].differs


def test_one_ratio_is_no_range() -> None:
    made = tables_of(
        "ragcache",
        lambda name, settings: (
            ragcache_run(name, settings)
            if settings.k != 2 or settings.rate == 2
            else made_run(
                [0.5] * COUNT,
                settings=settings,
                figures={"ttft_ms_mean": 1.0, "gpu_hit_rate": 0.1},
                ttft_seconds=[0.1, 0.1, 1.0, 1.0, 1.0, 1.0],
            )
        ),
    )
    ours = {row[0].text: row[3].text for row in made.tables[-1].rows}
    rates = ours["TTFT, times lower than stock vLLM, over the rates that both bear"]
    assert rates == "3.00 [3.00, 3.00]"


def test_ragcache_compares_with_stock_at_every_rate() -> None:
    made = tables_of("ragcache", ragcache_run)
    table, claims = made.tables
    rates = made.headline["times_as_fast_as_stock"]
    assert len(rates) == 3
    for ratio in rates.values():
        assert ratio == pytest.approx([3.0, 3.0, 3.0])
    # At 2 requests/s the TTFT is that of the lowest rate, at 4 eight times that.
    assert made.headline["throughput"]["stock vLLM"] == pytest.approx(2 + 2 * 4 / 7)
    claimed = [row[0].text for row in made.tables[-1].rows]
    assert any("each system's own TTFT at the lowest rate" in words for words in claimed)
    assert made.headline["policies"]["lrfu"] == pytest.approx(0.6)
    row = row_of(table, "knowledge tree, top-5, a quarter of the rate")
    assert row["times as fast as stock"].startswith("3.00")
    assert row["requests/s"] == "1"
    stock = row_of(table, "stock vLLM, top-5, a quarter of the rate")
    assert stock["times as fast as stock"] == "-"
    ours = {row[0].text: row[3].text for row in claims.rows}
    assert ours["hit rate of PGDSF over LRU; of our LRFU"] == "2.00; 2.40"
    assert ours["TTFT, times lower by reordering at a high rate"].startswith("1.50")
    assert "benchmarks/speculation.py" in ours["TTFT, times lower by speculation"]
    check_papers(claims)


# Prompt Cache


def prompt_cache_run(name: str, settings: EvalSettings) -> EvalRun:
    """The fewer link tokens the faster, and the worse."""
    tokens = settings.engine.get("link_tokens")
    exact = settings.engine.get("exact_documents")
    if tokens is None:
        return made_run([0.5] * COUNT, settings=settings, ttft_seconds=1.0)
    return made_run(
        [0.5 if tokens >= 16 else 0.2] * COUNT,
        settings=settings,
        ttft_seconds=0.4 if exact else 0.2 + tokens / 100,
        cached_tokens=500 - tokens,
    )


def test_prompt_cache_takes_the_fastest_reuse_at_equal_quality() -> None:
    made = tables_of("prompt-cache", prompt_cache_run, "qmsum")
    table, claims = made.tables
    assert made.headline["setting"] == "reuse anywhere, 16 link tokens"
    assert made.headline["times_as_fast"][0] == pytest.approx(1 / 0.36, abs=1e-5)
    assert row_of(table, "reuse anywhere, 0 link tokens")["times as fast"].startswith("5.00")
    exact = row_of(table, "reuse anywhere, 16 link tokens, first document exact")
    assert exact["times as fast"].startswith("2.50")
    assert row_of(table, "reuse anywhere, 32 link tokens")["tokens reused"].startswith("468")
    assert claims.rows[0][1].text.startswith("ROUGE-L 19.24 to 19.46 (Llama2 7B)")
    assert claims.rows[0][3].text.startswith("F1 0.500 to 0.200 (-0.300")
    check_papers(claims)


def test_prompt_cache_says_how_often_questions_came() -> None:
    def make(name: str, settings: EvalSettings) -> EvalRun:
        return made_run([0.5] * COUNT, questions=["a", "b", "c"] * 2, settings=settings)

    (note,) = tables_of("prompt-cache", make).tables[0].notes
    assert "Each question comes twice." in note


def test_prompt_cache_where_no_reuse_answers_as_well() -> None:
    def worse(name: str, settings: EvalSettings) -> EvalRun:
        quality = 0.1 if "anywhere" in name else 0.5
        return made_run([quality] * COUNT, settings=settings, ttft_seconds=1.0)

    made = tables_of("prompt-cache", worse)
    assert made.headline == {"quality": "f1", "setting": None}
    assert made.tables[-1].rows[2][3].text == "none at equal quality"


@pytest.mark.parametrize("preset", list(PRESETS))
def test_random_weights_show_the_mechanics_alone(preset: str) -> None:
    def noise(name: str, settings: EvalSettings) -> EvalRun:
        del name
        return made_run(
            [0.0] * COUNT,
            noise=True,
            digest=settings.workload,
            settings=settings,
            hit=False,
            ttft_seconds=0.1,
            model_ttft_seconds=0.05,
            end_to_end_seconds=0.2,
            retrieval_seconds=0.01,
        )

    made = tables_of(preset, noise)
    assert any(
        "mechanics only" in cell.text for table in made.tables for row in table.rows for cell in row
    )
