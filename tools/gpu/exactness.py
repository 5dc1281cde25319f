"""Whatever the engine caches, its answers are those of an engine that caches nothing.

Every engine answers the same prompts in the same bursts. Each check compares the greedy tokens, and
for every fourth prompt the five best log-probabilities of each token, with those of an engine
without any cache, and has conditions that say that the case occurred at all: hits, blocks read
back from the host, preemptions, aborts. Modes of computing:

- ``float32``: without TF32. Tokens are expected to be equal, log-probabilities nearly so.
- ``default``: bfloat16 as vLLM computes it by default. A batch's size, and where a prompt is cut,
  change the last bits, so that some answers differ. How many is counted, next to the same count
  for stock vLLM with prefix caching in the same memory.
- ``invariant``: bfloat16 with vLLM's batch invariance. It does not cover where a hit cuts a prompt:
  as many answers differ as by default, stock vLLM's too, so that they are counted as well.

A planted error, blocks read back from the wrong places, must be noticed. The last line is one JSON
object, and so is a line after each group of engines.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ragcache_integrations.engine import (
    EngineStats,
    Generation,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.resources import load_passages, load_questions
from tests.support.bursts import make_prompts
from tools.gpu.contestants import (
    ALTERNATIVES,
    CPU_GROUPS,
    CUDA_GROUPS,
    LEAST_VARIETY,
    MODES,
    VARIETY,
    Contestant,
    Group,
    Outcome,
    environment,
    model_path,
    run_contestant,
)
from tools.gpu.models import weighted_folder

LONG_PROMPTS = 8
LONG_ANSWER = SamplingOptions(max_tokens=16, ignore_eos=True, logprobs=ALTERNATIVES)
PROMPTS = {(False, False): 300, (False, True): 100, (True, False): 150, (True, True): 60}
"""How many, by ``--cpu`` and ``--quick``."""
ASYNC_SCHEDULER = "KnowledgeTreeAsyncScheduler"
SYNC_SCHEDULER = "KnowledgeTreeScheduler"


def alternatives(generation: Generation) -> list[tuple[float, ...]]:
    """The reported log-probabilities of each token."""
    return [
        (token.logprob, *(other.logprob for other in token.top)) for token in generation.logprobs
    ]


def compare(answers: Sequence[Generation], baseline: Sequence[Generation]) -> dict[str, Any]:
    """Count what differs from the answers to the same prompts without a cache."""
    pairs = list(zip(answers, baseline[: len(answers)], strict=True))
    reported = [
        (alternatives(ours), alternatives(theirs))
        for ours, theirs in pairs
        if ours.logprobs and ours.token_ids == theirs.token_ids
    ]
    firsts = [
        max(abs(mine - other) for mine, other in zip(ours[0], theirs[0], strict=True))
        for ours, theirs in (
            (alternatives(ours), alternatives(theirs)) for ours, theirs in pairs if ours.logprobs
        )
    ]
    return {
        "answers": len(pairs),
        "different": sum(ours.token_ids != theirs.token_ids for ours, theirs in pairs),
        "different_first_token": sum(
            ours.token_ids[:1] != theirs.token_ids[:1] for ours, theirs in pairs
        ),
        "with_logprobs": len(reported),
        "different_logprobs": sum(ours != theirs for ours, theirs in reported),
        "greatest_first_logprob_difference": max(firsts, default=0.0),
        "cached_tokens": sum(ours.usage.cached_tokens for ours, _ in pairs),
        "answers_with_hits": sum(ours.usage.cached_tokens > 0 for ours, _ in pairs),
    }


def missing(
    contestant: Contestant, name: str, outcome: Outcome, counts: Mapping[str, Any]
) -> list[str]:
    """Conditions that do not hold, without which a comparison says nothing."""
    answers, stats, tree = counts["answers"], outcome.stats, outcome.stats.tree
    conditions = {
        "the tree is as it should be": (tree is not None) == contestant.tree,
        "no request failed": stats.failed_requests == 0,
        "nothing is cached": name != "cold" or counts["cached_tokens"] == 0,
        "almost all are cached": name != "cached" or counts["answers_with_hits"] > 0.9 * answers,
        "some are cached": not contestant.caching or name == "cold" or counts["cached_tokens"] > 0,
        "requests were aborted": not contestant.aborts or stats.aborted_requests > answers / 10,
    }
    if tree is not None and contestant.small:
        conditions |= {
            "blocks were evicted": tree.gpu_evicted_blocks > answers,
            "blocks were copied to the host": tree.swap_outs > answers,
            "blocks were read back": tree.swap_ins > answers / 5,
            "requests were preempted": tree.preemptions > answers / 100,
            "requests were reordered": tree.reorderings > 0,
            "no copy failed": stats.host_tier_failures == 0,
        }
    return [condition for condition, holds in conditions.items() if not holds]


def check(
    group: Group, name: str, pass_name: str, outcome: Outcome, baseline: Sequence[Generation]
) -> dict[str, Any]:
    """Compare one pass of an engine with the uncached engine."""
    contestant, mode = group.contestants[name], MODES[group.mode]
    counts = compare(outcome.answers[pass_name], baseline)
    failed = missing(contestant, pass_name, outcome, counts)
    if contestant.wrong_slots:
        expected = "noticed"
        if counts["different"] <= counts["answers"] / 50:
            failed.append("wrong slots are noticed")
    elif mode.equal and contestant.tree:
        expected = "equal"
        if counts["different"]:
            failed.append("tokens are equal")
    else:
        expected = "counted"
    return {
        "check": f"{group.name}: {name}, {pass_name}",
        "expected": expected,
        "failed": failed,
        **counts,
        **tree_counts(outcome.stats),
    }


def tree_counts(stats: EngineStats) -> dict[str, int]:
    """What an engine's tree did; empty without a tree."""
    tree = stats.tree
    if tree is None:
        return {}
    return {
        "swap_outs": tree.swap_outs,
        "swap_ins": tree.swap_ins,
        "preemptions": tree.preemptions,
        "evicted_blocks": tree.gpu_evicted_blocks,
        "reorderings": tree.reorderings,
        "aborted": stats.aborted_requests,
    }


def check_schedulers(group: Group, outcomes: Mapping[str, Outcome], *, cpu: bool) -> dict[str, Any]:
    """Check that steps are planned ahead by default, by the scheduler that has the tree."""
    failed = []
    for name, outcome in outcomes.items():
        contestant, facts = group.contestants[name], outcome.facts
        planned_ahead = not cpu and contestant.asynchronous is not False
        if facts["asynchronous"] != planned_ahead:
            failed.append(f"{name}: asynchronous is {planned_ahead}")
        if planned_ahead and facts["steps_in_flight"] <= 1:
            failed.append(f"{name}: more than one step is in flight")
        wanted = (ASYNC_SCHEDULER if planned_ahead else SYNC_SCHEDULER) if contestant.tree else None
        if facts["scheduler"] != wanted:
            failed.append(f"{name}: the scheduler is {wanted}, not {facts['scheduler']}")
        if facts["batch_invariant"] != (group.mode == "invariant"):
            failed.append(f"{name}: batch invariance is as the mode says")
    return {"check": f"{group.name}: schedulers", "expected": "as configured", "failed": failed}


def check_variety(group: Group, baseline: Sequence[Generation]) -> dict[str, Any]:
    """Check that the model tells the prompts apart; otherwise equality says nothing."""
    variety = len({generation.token_ids for generation in baseline})
    least = VARIETY.get(group.model, LEAST_VARIETY) * len(baseline)
    failed = [] if variety >= least else ["different prompts, different answers"]
    return {
        "check": f"{group.name}: variety",
        "expected": "different answers",
        "failed": failed,
        "answers": len(baseline),
        "distinct": variety,
    }


def run_group(
    group: Group, prompts: Sequence[Prompt], *, cpu: bool, workers: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run all engines of a group.

    Returns:
        The checks, and each engine's facts.
    """
    folder, mode = model_path(group.model), MODES[group.mode]
    outcomes: dict[str, Outcome] = {}
    checks: list[dict[str, Any]] = []
    with environment(mode.environment), ThreadPoolExecutor(workers) as threads:
        futures = {
            name: threads.submit(run_contestant, contestant, folder, mode.dtype, prompts, cpu=cpu)
            for name, contestant in group.contestants.items()
        }
        for name, future in futures.items():
            try:
                outcomes[name] = future.result()
                print(f"{group.name}: {name}: {outcomes[name].seconds:.0f} s", flush=True)
            except Exception as error:  # noqa: BLE001 - the others' results count, too
                failed = [f"{type(error).__name__}: {error}"]
                checks.append(
                    {"check": f"{group.name}: {name}", "expected": "answers", "failed": failed}
                )
    facts = {
        f"{group.name}: {name}": outcome.facts | {"seconds": outcome.seconds}
        for name, outcome in outcomes.items()
    }
    checks.append(check_schedulers(group, outcomes, cpu=cpu))
    if "uncached" in outcomes:
        baseline = outcomes.pop("uncached").answers["burst"]
        checks.append(check_variety(group, baseline))
        checks += [
            check(group, name, pass_name, outcome, baseline)
            for name, outcome in outcomes.items()
            for pass_name in outcome.answers
        ]
    return checks, facts


def not_worse_than_stock(checks: Sequence[Mapping[str, Any]], group: Group) -> dict[str, Any]:
    """Check that the tree changes no more answers than stock vLLM's prefix caching does.

    Both counts are samples of the same kind of chance, so that theirs may be exceeded by two
    standard deviations of the difference of two Poisson counts.
    """
    counts = {
        name: check["different"]
        for check in checks
        for name in ("tree, small, host tier, aborts", "stock, small")
        if check["check"] == f"{group.name}: {name}, burst"
    }
    failed = []
    if len(counts) == len({"ours", "stock"}):
        ours, stock = counts["tree, small, host tier, aborts"], counts["stock, small"]
        if ours > stock + 2 * math.sqrt(ours + stock):
            failed.append("no more answers differ than in stock vLLM")
    else:
        failed.append("both were counted")
    return {
        "check": f"{group.name}: differences of ours and of stock vLLM",
        "expected": "no more",
        "failed": failed,
        **counts,
    }


def long_prompts() -> list[Prompt]:
    """Prompts longer than the sliding windows; neighbours share their first documents."""
    passages, questions = load_passages(), load_questions()
    return [
        Prompt.rag(
            questions[number].text,
            [
                PromptDocument(passage.text, passage.id)
                for passage in (
                    *passages[number // 2 * 4 : number // 2 * 4 + 4],
                    *passages[100 + 4 * number : 104 + 4 * number],
                )
            ],
        )
        for number in range(LONG_PROMPTS)
    ]


def check_hybrid(shape: str, *, cpu: bool) -> dict[str, Any]:
    """A model with sliding windows: there is a tree, and the answers are stock vLLM's.

    Prompts are answered one by one, so that both compute the same batches, and then again.
    """
    folder, prompts = weighted_folder(shape), long_prompts()
    arguments: dict[str, Any] = {"enforce_eager": True}
    if not cpu:
        arguments["gpu_memory_utilization"] = 0.1
    answers: list[list[Generation]] = []
    failed = []
    for tree in (True, False):
        with RAGCacheEngine(
            folder,
            kv_cache_gib=0.5,
            max_model_len=8192,
            dtype="float32" if cpu else "bfloat16",
            knowledge_tree=tree,
            vllm_args=arguments,
        ) as engine:
            answers.append([engine.generate(prompt, LONG_ANSWER) for prompt in 2 * prompts])
            if (engine.stats().tree is not None) != tree:
                failed.append("there is a tree")
    counts = compare(*answers)
    if counts["different"] or counts["different_logprobs"]:
        failed.append("answers are stock vLLM's")
    if len({generation.token_ids for generation in answers[1]}) < 0.9 * len(prompts):
        failed.append("different prompts, different answers")
    return {
        "check": f"{shape}: tree with windows",
        "expected": "identical",
        "failed": failed,
        "prompt_tokens": [answer.usage.prompt_tokens for answer in answers[0][: len(prompts)]],
        **counts,
    }


def check_langchain() -> dict[str, Any]:
    """An answer through LangChain's class, if LangChain is there."""
    name = "LangChain's chat model"
    try:
        from langchain_core.documents import Document  # noqa: PLC0415 - optional

        from ragcache_integrations.langchain import ChatRAGCache  # noqa: PLC0415 - optional
    except ImportError as error:
        return {"check": name, "expected": "skipped", "failed": [], "why": str(error)}
    passage = load_passages()[0]
    document = Document(passage.text, id=passage.id)
    model = ChatRAGCache(kv_cache_gib=0.25, max_tokens=16)
    try:
        message = model.invoke(
            f"What is this about?\n\n{passage.text}", documents=[document], ignore_eos=True
        )
    finally:
        model.close()
    return {
        "check": name,
        "expected": "an answer",
        "failed": [] if message.text else ["there is text"],
        "text": message.text[:200],
        "tokens": dict(message.usage_metadata or {}),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare answers with those without a cache.")
    parser.add_argument("--quick", action="store_true", help="fewer prompts")
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--workers", type=int, help="engines at the same time")
    parser.add_argument("--only", nargs="+", help="names of groups, hybrid, langchain")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; 1 if a check failed."""
    given = parse(arguments)
    prompts = make_prompts(PROMPTS[given.cpu, given.quick])
    workers = given.workers or (1 if given.cpu else 5)
    checks: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}

    def report(found: Sequence[Mapping[str, Any]]) -> None:
        for each in found:
            print(f"{'FAILED' if each['failed'] else 'ok'}: {json.dumps(each)}", flush=True)
        checks.extend(map(dict, found))
        failed = sum(bool(each["failed"]) for each in checks)
        summary = {"failed": failed, "cpu": given.cpu, "prompts": len(prompts)}
        print(json.dumps(summary | {"checks": checks, "engines": facts}), flush=True)

    for group in CPU_GROUPS if given.cpu else CUDA_GROUPS:
        if not given.only or group.name in given.only:
            began = time.monotonic()
            found, known = run_group(group, prompts, cpu=given.cpu, workers=workers)
            facts |= known
            if "stock, small" in group.contestants:
                found.append(not_worse_than_stock(found, group))
            print(f"{group.name}: {time.monotonic() - began:.0f} s", flush=True)
            report(found)
    shape = "gemma3-tiny" if given.cpu else "gemma3"
    extras = {
        "hybrid": lambda: check_hybrid(shape, cpu=given.cpu),
        "langchain": check_langchain,
    }
    for name, run in extras.items():
        if not given.only or name in given.only:
            report([guarded(name, run)])
    return any(each["failed"] for each in checks)


def guarded(name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a check, or the error with which it ended."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - the others' results count, too
        return {"check": name, "expected": "no error", "failed": [f"{error!r}"]}


if __name__ == "__main__":
    sys.exit(main())
