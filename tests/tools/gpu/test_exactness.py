from __future__ import annotations

from dataclasses import replace
from typing import Any

from ragcache_integrations.core.generation import TokenLogprob, Usage
from ragcache_integrations.engine import EngineStats, Generation
from ragcache_integrations.knowledge_tree import TreeStats
from tools.gpu.contestants import SMALL, UNCACHED, Group, Outcome
from tools.gpu.exactness import check, compare, not_worse_than_stock

GROUP = Group("random", "float32", {"uncached": UNCACHED, "small": SMALL})
HARD = TreeStats(gpu_evicted_blocks=100, swap_outs=100, swap_ins=100, preemptions=5, reorderings=5)
STATS = EngineStats(requests=20, aborted_requests=5, tree=HARD)


def generation(number: int, *, logprob: float = -1.0, cached: int = 16) -> Generation:
    tokens = (number, number + 1)
    logprobs = tuple(TokenLogprob("", token, logprob) for token in tokens)
    return Generation("", tokens, "length", Usage(40, 2, cached), logprobs=logprobs)


def checked(answers: list[Generation], stats: EngineStats = STATS) -> dict[str, Any]:
    baseline = [generation(number, cached=0) for number in range(10)]
    return check(GROUP, "small", "burst", Outcome({"burst": answers}, stats, {}, 1.0), baseline)


def test_the_same_answers_pass() -> None:
    result = checked([generation(number) for number in range(10)])
    assert result["failed"] == []
    assert (result["answers"], result["different"], result["swap_ins"]) == (10, 0, 100)


def test_another_token_is_counted_and_fails() -> None:
    result = checked([generation(max(number, 1)) for number in range(10)])
    assert (result["different"], result["different_first_token"]) == (1, 1)
    assert result["failed"] == ["tokens are equal"]


def test_another_probability_is_counted() -> None:
    result = checked([generation(number, logprob=-1.0 - 1e-6) for number in range(10)])
    assert (result["different"], result["different_logprobs"]) == (0, 10)
    assert 0 < result["greatest_first_logprob_difference"] < 2e-6
    assert result["failed"] == []


def test_equality_without_the_case_fails() -> None:
    easy = replace(STATS, aborted_requests=0, tree=replace(HARD, swap_ins=0, preemptions=0))
    result = checked([generation(number, cached=0) for number in range(10)], easy)
    assert result["failed"] == [
        "some are cached",
        "requests were aborted",
        "blocks were read back",
        "requests were preempted",
    ]


def test_ours_may_differ_no_more_than_stock() -> None:
    def failed(ours: int, stock: int) -> list[str]:
        counts = {"tree, small, host tier, aborts": ours, "stock, small": stock}
        checks = [
            {"check": f"{GROUP.name}: {name}, burst", "different": count}
            for name, count in counts.items()
        ]
        result: list[str] = not_worse_than_stock(checks, GROUP)["failed"]
        return result

    assert failed(0, 0) == failed(30, 25) == failed(3, 20) == []
    assert failed(1, 0) == []
    assert failed(60, 20) == failed(10, 0) != []


def test_all_answers_are_compared() -> None:
    answers = [generation(number) for number in range(10)]
    assert compare(answers[:4], answers)["answers"] == 4
