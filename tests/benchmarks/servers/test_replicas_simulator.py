"""What the simulated replicas of a benchmark are compared by."""

from __future__ import annotations

from servers import replicas_simulator as script

from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_workbench.simulation import Trace, TraceRequest, simulate_replicas

COSTS = PrefillCostModel((0, 10_000), (1, 10_000), ((0.001, 10.0), (0.001, 10.0)))


def test_requests_that_warm_up_are_not_counted() -> None:
    requests = tuple(TraceRequest(((name, 32),), 16) for name in "abab")
    result = simulate_replicas(
        Trace(requests), replicas=2, gpu_blocks=20, routing="round_robin", rate=0.001
    )
    counted = script.Run.of(result, 2)

    assert counted.hit_rate == 2 * 32 / (2 * 48)
    assert counted.ttft == result.ttft[2:]
    assert counted.busiest_share == 0.5


def test_each_way_gets_the_same_load_and_only_one_of_them_is_even() -> None:
    runs = script.Bench(COSTS, 0.8).run(2, 40, 20, seed=0)
    assert list(runs) == list(script.WAYS)
    assert {len(run.ttft) for run in runs.values()} == {40}
    assert runs[script.IN_TURNS].busiest_share == 0.5
    assert runs[script.NO_BOUND].busiest_share >= 0.5


def test_users_are_as_many_as_asked_for() -> None:
    trace = Trace(tuple(TraceRequest((("a", 32),)) for _ in range(500)))
    users = {request.session for request in script.with_users(trace, 8, seed=0).requests}
    assert len(users) == 8
    assert script.with_users(trace, 8, seed=0) == script.with_users(trace, 8, seed=0)
