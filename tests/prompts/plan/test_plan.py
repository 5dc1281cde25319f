"""The plan's formula, beside a simulation of caches that forget."""

from __future__ import annotations

import heapq
import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.plan import LAYOUTS, FlowPart, FlowStep, PrefixPlan, Traffic
from ragcache_integrations.prompts.provider_caches import (
    DAY,
    PROVIDERS,
    ProviderCache,
    provider_cost,
)
from ragcache_workbench.logs import recorded_requests
from tests.support.sizes import examples

CHECK, ANSWER = FlowPart("check", 700, "never"), FlowPart("answer", 300, "never")
HOUSE = FlowPart("house", 400, "never")
DOCUMENTS, QUERY = FlowPart("documents", 2000, "request"), FlowPart("query", 30, "request")
NOTES = FlowPart("notes", 50, "step")


def flow(*extra: FlowPart, seconds: float = 2.0) -> list[FlowStep]:
    return [
        FlowStep("check", (*extra, CHECK, DOCUMENTS, QUERY), seconds),
        FlowStep("answer", (*extra, ANSWER, DOCUMENTS, QUERY, NOTES), seconds),
    ]


def simulated(plan: PrefixPlan, layout: str, bursts: int, seed: int = 0) -> float:
    """Computed tokens per request, by going through the bursts one after another.

    Of each path of parts it remembers when it was last used, and nothing else.
    """
    rng = random.Random(seed)
    traffic, steps = plan._traffic, plan._steps
    order = plan.costs[layout].order
    parts = {part.name: part for step in steps for part in step.parts}
    gap = traffic.concurrency / traffic.requests_per_second
    arrival = 0.0
    events: list[tuple[float, int, int]] = []
    for burst in range(bursts):
        arrival += rng.expovariate(1 / gap) if traffic.shared_server else gap
        time = arrival
        for number, step in enumerate(steps):
            heapq.heappush(events, (time, burst, number))
            time += step.seconds
    used: dict[tuple[object, ...], float] = {}
    computed = 0
    warm = bursts // 10  # whatever comes first finds nothing
    while events:
        time, burst, number = heapq.heappop(events)
        for member in range(traffic.concurrency):
            path: tuple[object, ...] = ()
            found = True
            for name in order[steps[number].name]:
                part = parts[name]
                owner: object = {
                    "never": None,
                    "request": (burst, member),
                    "step": (burst, member, number),
                }[part.changes]
                path = (*path, name, owner)
                found = found and time - used.get(path, -math.inf) <= traffic.kv_lifetime
                computed += 0 if found or burst < warm else part.tokens
                used[path] = time
    return computed / ((bursts - warm) * traffic.concurrency)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared_server", [True, False])
@pytest.mark.parametrize(
    ("rate", "concurrency", "lifetime", "seconds"),
    [
        (0.2, 1, 3.0, 2.0),
        (0.2, 1, 1.0, 2.0),
        (1.0, 4, 5.0, 0.5),
        (0.05, 1, 30.0, 10.0),
        (2.0, 1, 3.1, 2.0),
        (0.3, 2, 7.0, 9.0),
    ],
)
def test_the_formula_gives_what_a_simulation_gives(
    layout: str,
    shared_server: bool,
    rate: float,
    concurrency: int,
    lifetime: float,
    seconds: float,
) -> None:
    traffic = Traffic(
        requests_per_second=rate,
        concurrency=concurrency,
        kv_lifetime=lifetime,
        shared_server=shared_server,
    )
    plan = PrefixPlan(flow(HOUSE, seconds=seconds), traffic)
    told = plan.costs[layout].computed_tokens
    # 4,000 bursts; what a burst can save is at most 1,400 tokens a request, so 5 errors are 60.
    assert simulated(plan, layout, 4000) == pytest.approx(told, abs=60 if shared_server else 1e-6)


traffics = st.builds(
    Traffic,
    requests_per_second=st.floats(0.01, 10),
    concurrency=st.integers(1, 8),
    kv_lifetime=st.one_of(st.floats(0, 1000), st.just(math.inf)),
    shared_server=st.booleans(),
)


@given(traffics, st.floats(0.01, 100))
def test_costs_lie_between_what_is_new_and_everything(traffic: Traffic, seconds: float) -> None:
    plan = PrefixPlan(flow(HOUSE, seconds=seconds), traffic)
    for cost in plan.costs.values():
        assert cost.prompt_tokens == 400 * 2 + 700 + 300 + 2030 * 2 + 50
        assert 2030 + 50 - 1e-6 <= cost.computed_tokens <= cost.prompt_tokens + 1e-6
        assert cost.ttft > 0


@given(traffics)
@examples(50)
def test_a_cache_that_lasts_longer_never_computes_more(traffic: Traffic) -> None:
    computed: list[list[float]] = [[], [], []]
    for lifetime in (0.5, 2.0, 10.0, 100.0, math.inf):
        longer = Traffic(
            requests_per_second=traffic.requests_per_second,
            concurrency=traffic.concurrency,
            kv_lifetime=lifetime,
            shared_server=traffic.shared_server,
        )
        plan = PrefixPlan(flow(HOUSE), longer)
        for found, layout in zip(computed, LAYOUTS, strict=True):
            found.append(plan.costs[layout].computed_tokens)
    for found in computed:
        assert all(a >= b - 1e-6 for a, b in pairwise(found))


def test_orders_are_what_their_names_say() -> None:
    plan = PrefixPlan(flow(HOUSE), Traffic(requests_per_second=1))
    orders = {layout: plan.costs[layout].order["answer"] for layout in LAYOUTS}
    assert orders == {
        "system_first": ("house", "answer", "documents", "query", "notes"),
        "documents_first": ("documents", "query", "house", "answer", "notes"),
        "shared_system": ("house", "documents", "query", "answer", "notes"),
    }


def test_long_instructions_and_busy_traffic_want_the_system_first() -> None:
    steps = [
        FlowStep("check", (FlowPart("check", 4000, "never"), FlowPart("docs", 300, "request"))),
        FlowStep("answer", (FlowPart("answer", 4000, "never"), FlowPart("docs", 300, "request"))),
    ]
    plan = PrefixPlan(steps, Traffic(requests_per_second=5, kv_lifetime=60))
    assert plan.choice == "system_first"


def test_long_documents_want_to_be_first() -> None:
    plan = PrefixPlan(flow(), Traffic(requests_per_second=0.01, kv_lifetime=30))
    assert plan.choice == "documents_first"


def test_common_instructions_are_split_off() -> None:
    plan = PrefixPlan(flow(HOUSE), Traffic(requests_per_second=5, kv_lifetime=60))
    assert plan.choice == "shared_system"
    assert "Take shared_system." in str(plan)
    assert "400 of them in all steps" in plan.reasons


def test_a_goal_overrules_the_number_of_tokens() -> None:
    traffic = Traffic(requests_per_second=5, kv_lifetime=60)

    def slow_behind_much(cached: int, new: int) -> float:
        return 1e-4 * new + 1.0 * (cached > 2000)

    free = PrefixPlan(flow(HOUSE), traffic, prefill=slow_behind_much)
    best = min(free.costs.values(), key=lambda cost: cost.ttft)
    assert free.choice != best.layout
    tight = PrefixPlan(flow(HOUSE), traffic, prefill=slow_behind_much, ttft_goal=best.ttft)
    assert tight.choice == best.layout
    impossible = PrefixPlan(flow(HOUSE), traffic, prefill=slow_behind_much, ttft_goal=1e-9)
    assert impossible.choice == best.layout
    assert "None meets the goal" in impossible.reasons


def test_who_comes_in_a_burst_waits_for_the_others() -> None:
    def linear(cached: int, new: int) -> float:
        return new / 1000

    steps = [FlowStep("answer", (DOCUMENTS,))]
    for burst in (1, 3):
        traffic = Traffic(requests_per_second=1, concurrency=burst)
        cost = PrefixPlan(steps, traffic, prefill=linear).costs["system_first"]
        assert cost.ttft == pytest.approx(2.0 * (burst + 1) / 2)


PROVIDER = ProviderCache(
    name="a provider", min_tokens=1024, step=128, lifetime=300, read_price=0.1, write_price=1.25
)


def test_a_provider_is_paid_for_what_its_cache_does_not_hold() -> None:
    system = FlowPart("system", 1500, "never")
    steps = [FlowStep("answer", (system, DOCUMENTS))]
    plan = PrefixPlan(steps, Traffic(requests_per_second=0.1), provider=PROVIDER, price=2.0)
    cost = plan.costs["system_first"]
    read = 1024 + 3 * 128  # of 1,500 tokens, in whole steps
    assert cost.computed_tokens == pytest.approx(3500 - read)
    assert cost.cost_per_day == pytest.approx(
        (0.1 * read + 1.25 * (3500 - read)) * 2.0 / 1e6 * 8640
    )
    assert math.isnan(cost.ttft)
    assert plan.choice == "system_first"
    assert "a provider keeps prefixes of at least 1024 tokens for 300 s" in plan.reasons
    assert "is the cheapest" in plan.reasons


def test_a_provider_says_how_long_a_prefix_is_kept() -> None:
    steps = [FlowStep("answer", (FlowPart("system", 1500, "never"), DOCUMENTS))]
    traffic = Traffic(requests_per_second=1 / 400, kv_lifetime=math.inf)
    plan = PrefixPlan(steps, traffic, provider=PROVIDER, price=2.0)
    assert plan.costs["system_first"].computed_tokens == 3500


def test_what_is_below_the_least_length_is_neither_cached_nor_written() -> None:
    steps = [FlowStep("answer", (FlowPart("system", 900, "never"), QUERY))]
    plan = PrefixPlan(steps, Traffic(requests_per_second=1), provider=PROVIDER, price=1e6)
    assert plan.costs["system_first"].cost_per_day == pytest.approx(930 * DAY)


@examples(60)
@given(
    st.integers(0, 2500), st.integers(0, 3000), st.sampled_from(["openai", "anthropic"]), st.data()
)
def test_a_plan_costs_what_recorded_requests_of_it_cost(
    fixed: int, changing: int, name: str, data: st.DataObject
) -> None:
    provider, gap = PROVIDERS[name], data.draw(st.sampled_from([100, 299, 301]))
    parts = (FlowPart("system", fixed, "never"), FlowPart("rest", changing + 1, "request"))
    traffic = Traffic(requests_per_second=1 / gap)
    plan = PrefixPlan([FlowStep("answer", parts)], traffic, provider=provider, price=3.0)
    system = "s " * fixed
    requests = [
        request
        for number in range(2000 // gap)
        for request in recorded_requests(system + f"{chr(65 + number)} " * (changing + 1))
    ]

    def counted(requests: list[Any]) -> float:
        found = provider_cost(
            requests,
            provider,
            requests_per_day=DAY / gap,
            price=3.0,
            count_tokens=lambda text: len(text.split()),
        )
        return found.cost_per_day * len(requests)

    # The first request finds nothing.
    recorded = (counted(requests) - counted(requests[:1])) / (len(requests) - 1)
    cost = plan.costs["system_first"].cost_per_day
    assert cost == pytest.approx(recorded)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: PrefixPlan(flow(), Traffic(requests_per_second=1), provider=PROVIDER),
            "provider and price go together",
        ),
        (
            lambda: PrefixPlan(flow(), Traffic(requests_per_second=1), price=1.0),
            "provider and price go together",
        ),
        (
            lambda: PrefixPlan(
                flow(),
                Traffic(requests_per_second=1),
                provider=PROVIDER,
                price=1.0,
                ttft_goal=1.0,
            ),
            "no provider publishes its times",
        ),
        (lambda: FlowPart("", 1, "never"), "name must be a non-empty string"),
        (lambda: FlowPart("a", -1, "never"), "tokens must be a whole number"),
        (lambda: FlowPart("a", 1, "often"), "changes must be one of never, request, step"),  # type: ignore[arg-type] # on purpose
        (lambda: FlowStep("s", ()), "needs parts"),
        (lambda: FlowStep("s", (QUERY, QUERY)), "each of them once"),
        (lambda: FlowStep("s", (QUERY,), -1.0), "seconds must be a number"),
        (lambda: Traffic(requests_per_second=0), "requests_per_second must be a number above 0"),
        (lambda: Traffic(requests_per_second=1, concurrency=0), "concurrency must be"),
        (lambda: Traffic(requests_per_second=1, kv_lifetime=-1), "kv_lifetime must be"),
        (lambda: Traffic(requests_per_second=1, kv_lifetime=math.nan), "kv_lifetime must be"),
        (lambda: Traffic(requests_per_second=1, shared_server=2), "shared_server must be"),  # type: ignore[arg-type] # on purpose
        (lambda: PrefixPlan([], Traffic(requests_per_second=1)), "at least one FlowStep"),
        (
            lambda: PrefixPlan([*flow(), *flow()], Traffic(requests_per_second=1)),
            "names must be distinct",
        ),
        (
            lambda: PrefixPlan(
                [*flow(), FlowStep("more", (FlowPart("query", 31, "request"),))],
                Traffic(requests_per_second=1),
            ),
            "two parts have the name .*, but differ",
        ),
        (
            lambda: PrefixPlan(flow(), Traffic(requests_per_second=1), ttft_goal=0),
            "ttft_goal must be a number",
        ),
    ],
)
def test_bad_input_is_refused_in_words(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()
