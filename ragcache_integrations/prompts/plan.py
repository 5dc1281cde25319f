"""Chooses the prompt layout for a flow of several steps by what each layout computes.

A flow answers one request in several steps, each with its own instructions and the same documents.
If the instructions come first, the next request can reuse them; if the documents come first, the
next step can. Both together are only possible for instructions that all steps share ("KV cache
centric LLM application design", section 2.1). Which layout pays off depends on lengths, traffic and
the lifetime of a KV cache, that is, on how likely a prefix is to be evicted before it is used
again: :class:`PrefixPlan` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ragcache_integrations.core.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_seconds,
    check_type,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.prompts.provider_caches import DAY, ProviderCache

__all__ = [
    "LAYOUTS",
    "FlowPart",
    "FlowStep",
    "LayoutCost",
    "PrefixPlan",
    "Traffic",
    "Use",
    "misses",
]


@dataclass(frozen=True, slots=True)
class Use:
    """One part of one step's prompt.

    Attributes:
        step: Name of the step.
        path: Names of the parts from the beginning of the prompt to this one, which identify its
            KV cache.
        tokens: Length of the part.
        time: Seconds after the request's first step.
        changes: How the part of the path changes that changes most: ``never``, ``request`` or
            ``step``.
    """

    step: str
    path: tuple[str, ...]
    tokens: int
    time: float
    changes: str


def misses(
    uses: Sequence[Use], *, rate: float, lifetime: float, even: bool
) -> tuple[list[float], list[float]]:
    """Probability that each part has to be computed.

    A path survives for ``lifetime`` after its last use. Bursts of requests arrive at ``rate``; all
    requests of a burst run the steps at the same times.

    - If an earlier step of the same request used the path at most ``lifetime`` ago, it is cached.
    - Otherwise parts that change in each request are computed.
    - Parts that never change are cached if any other burst used them within the last ``lifetime``
      seconds. A burst did so if it arrived within a set of times: the union, over its uses of the
      path, of intervals of length ``lifetime``. If U is the measure of that set, a Poisson process
      leaves it empty with probability ``exp(-rate * U)``; for bursts at even intervals it is
      certain whether the set is empty.

    Args:
        uses: All parts of all steps.
        rate: Bursts per second.
        lifetime: Seconds that a KV cache survives after its last use.
        even: Whether bursts arrive at even intervals; otherwise as a Poisson process.

    Returns:
        Two lists with a probability for each use: for the first request of a burst, and for the
        others, for which the first one has just computed the parts that never change.
    """
    chances = []
    for number, use in enumerate(uses):
        earlier = any(
            other.path == use.path and use.time - other.time <= lifetime for other in uses[:number]
        )
        if use.changes == "step" or (use.changes == "request" and not earlier):
            chances.append((1.0, 1.0))
        elif earlier:
            chances.append((0.0, 0.0))
        else:
            times = [other.time for other in uses if other.path == use.path]
            poisson = math.exp(-rate * _covered(times, lifetime))
            chances.append((_even(times, use.time, 1 / rate, lifetime) if even else poisson, 0.0))
    return [first for first, _ in chances], [later for _, later in chances]


def _covered(times: Sequence[float], length: float) -> float:
    """Measure of the union of the intervals ``[time, time + length]``."""
    if math.isinf(length):
        return length
    total, end = 0.0, -math.inf
    for time in sorted(times):
        total += max(0.0, time + length - max(end, time))
        end = max(end, time + length)
    return total


def _even(times: Sequence[float], now: float, gap: float, lifetime: float) -> float:
    """1 if no burst used the path within the lifetime, with one burst every ``gap`` seconds."""
    # The n-th burst before this one used it at time - n * gap; ago is the time since the last use.
    ago = min((now - time) % gap or gap for time in times)
    return float(ago > lifetime)


LAYOUTS = ("system_first", "documents_first", "shared_system")
CHANGES = ("never", "request", "step")

PrefillSeconds = Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class FlowPart:
    """A part of prompts.

    Attributes:
        name: Identifies the part: it has the same text in all steps.
        tokens: Its length.
        changes: ``never``: the same text in every request, such as instructions. ``request``: new
            in each request and the same in all of its steps, such as documents. ``step``: new
            every time, such as a sub-question; it comes last in every layout.
    """

    name: str
    tokens: int
    changes: Literal["never", "request", "step"]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError(f"a part's name must be a non-empty string, got {self.name!r}")
        check_int(f"part {self.name!r}: tokens", self.tokens, 0)
        check_choice(f"part {self.name!r}: changes", self.changes, CHANGES)


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A call of the model.

    Attributes:
        name: Identifies the step.
        parts: The parts of its prompt, in any order.
        seconds: Time from its first token to the next step's request: decoding, tools, the user.
    """

    name: str
    parts: tuple[FlowPart, ...]
    seconds: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            msg = f"step {self.name!r} needs parts, each of them once, got {', '.join(names)}"
            raise ConfigurationError(msg)
        check_number(f"step {self.name!r}: seconds", self.seconds, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests of a flow, and the server that they run on.

    Attributes:
        requests_per_second: Mean rate of the flow's requests.
        concurrency: Number of requests that arrive together, as a burst.
        kv_lifetime: Seconds that an unused KV cache survives; ``math.inf`` if it is never evicted.
            It is the size of the cache divided by the rate at which tokens are computed.
        shared_server: Whether the server has other traffic, too. Then the other requests evict, and
            the flow's requests arrive at random times (a Poisson process). On a server that serves
            only this flow, its own requests evict, and they are assumed to arrive at even
            intervals.
    """

    requests_per_second: float
    concurrency: int = 1
    kv_lifetime: float = 300.0
    shared_server: bool = False

    def __post_init__(self) -> None:
        check_number("requests_per_second", self.requests_per_second, 0, above=True)
        check_int("concurrency", self.concurrency, 1)
        if self.kv_lifetime != math.inf:
            check_number("kv_lifetime", self.kv_lifetime, 0, unit="seconds", also="math.inf")
        check_flag("shared_server", self.shared_server)


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """The cost of a request in one layout.

    Attributes:
        layout: One of :data:`LAYOUTS`.
        order: Names of the parts of each step's prompt, in order.
        computed_tokens: Expected number of prompt tokens that a request computes in all steps; with
            a provider, that it does not read from the cache.
        prompt_tokens: Number of prompt tokens of a request.
        ttft: Expected seconds that the user waits for the prefills of all steps, including the time
            in the queue after the other requests of a burst; NaN with a provider, whose times are
            not known.
        cost_per_day: With a provider: the price of all prompts of a day; ``None`` without.
    """

    layout: str
    order: Mapping[str, tuple[str, ...]]
    computed_tokens: float
    prompt_tokens: int
    ttft: float
    cost_per_day: float | None = None


class PrefixPlan:
    """Chooses the layout of a flow's prompts.

    Of the layouts that meet the latency goal, it chooses the one that computes the fewest tokens;
    if none meets it, the fastest. With a provider of a hosted model, it chooses the cheapest. Ties
    go to the first of :data:`LAYOUTS`.

    - ``system_first``: each step's instructions, then the parts of the request.
    - ``documents_first``: the parts of the request, then the instructions.
    - ``shared_system``: instructions that all steps share, the parts of the request, then each
      step's own instructions.

    Parts that change in each step come last in all of them::

        plan = PrefixPlan(steps, Traffic(requests_per_second=0.2), ttft_goal=1.0)
        print(plan.choice, plan.reasons)
        hosted = PrefixPlan(steps, traffic, provider=PROVIDERS["openai"], price=2.5)
        print(hosted.costs[hosted.choice].cost_per_day)

    Args:
        steps: The steps of the flow, in order.
        traffic: The requests.
        ttft_goal: Seconds that a request's prefills may take; ``None`` for no goal.
        prefill: T(cached, new), the seconds of a prefill with some cached and some new tokens, such
            as a measured :class:`~ragcache_integrations.knowledge_tree.PrefillCostModel`
            (``ragcache profile``). The default is that of a 7B model on a small GPU, whose seconds
            are not your machine's.
        provider: The prompt cache of the provider that answers, such as ``PROVIDERS["openai"]``.
            A prefix is kept for as long as it says, instead of the traffic's ``kv_lifetime``.
        price: With a provider: of a million tokens of input.

    Attributes:
        costs: The cost of each layout, by its name.
        choice: Name of the best layout.
        reasons: The reasons for it, as text.

    Raises:
        ConfigurationError: An argument is out of range, or two parts of the same name differ.
    """

    def __init__(
        self,
        steps: Sequence[FlowStep],
        traffic: Traffic,
        *,
        ttft_goal: float | None = None,
        prefill: PrefillSeconds | None = None,
        provider: ProviderCache | None = None,
        price: float | None = None,
    ) -> None:
        self._steps = tuple(steps)
        self._traffic = traffic
        self._goal = ttft_goal
        self._prefill = prefill or PrefillCostModel.default()
        self._provider, self._price = provider, price
        self._check()
        self._check_provider(timed=prefill is not None)
        self.costs = {layout: self._cost(layout) for layout in LAYOUTS}
        self.choice = self._choose()
        self.reasons = self._explain()

    def _check(self) -> None:
        if not self._steps or not all(isinstance(step, FlowStep) for step in self._steps):
            raise ConfigurationError("steps must hold at least one FlowStep, and nothing else")
        names = [step.name for step in self._steps]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"the steps' names must be distinct, got {', '.join(names)}")
        known: dict[str, FlowPart] = {}
        for part in (part for step in self._steps for part in step.parts):
            if known.setdefault(part.name, part) != part:
                raise ConfigurationError(
                    f"two parts have the name {part.name!r}, but differ: {known[part.name]} "
                    f"and {part}"
                )
        check_type("traffic", self._traffic, Traffic, "a Traffic")
        check_seconds("ttft_goal", self._goal)

    def _check_provider(self, *, timed: bool) -> None:
        check_type("provider", self._provider, ProviderCache | None, "a ProviderCache")
        if (self._provider is None) != (self._price is None):
            msg = "provider and price go together: what its prompts cost depends on both"
            raise ConfigurationError(msg)
        if self._provider is None:
            return
        check_number("price", self._price, 0)
        if timed or self._goal is not None:
            msg = "ttft_goal and prefill are for your own servers: no provider publishes its times"
            raise ConfigurationError(msg)

    def _order(self, layout: str, step: FlowStep) -> tuple[FlowPart, ...]:
        """The parts of a step's prompt in order; those that more steps share come first."""
        sharing = {
            part.name: sum(part in other.parts for other in self._steps) for part in step.parts
        }
        parts = sorted(step.parts, key=lambda part: -sharing[part.name])
        fixed, request = (
            [part for part in parts if part.changes == changes] for changes in ("never", "request")
        )
        last = [part for part in step.parts if part.changes == "step"]
        if layout == "system_first":
            return (*fixed, *request, *last)
        everywhere = len(self._steps) if layout == "shared_system" else math.inf
        first = [part for part in fixed if sharing[part.name] >= everywhere]
        return (*first, *request, *fixed[len(first) :], *last)

    def _cost(self, layout: str) -> LayoutCost:
        orders = {step.name: self._order(layout, step) for step in self._steps}
        uses = list(self._uses(orders))
        lifetime = self._traffic.kv_lifetime
        first_misses, later_misses = misses(
            uses,
            rate=self._traffic.requests_per_second / self._traffic.concurrency,
            lifetime=lifetime if self._provider is None else self._provider.lifetime,
            even=not self._traffic.shared_server,
        )
        names = {name: tuple(part.name for part in parts) for name, parts in orders.items()}
        whole = sum(use.tokens for use in uses)
        # The first request of a burst may find nothing cached; the others find what it computed.
        burst = self._traffic.concurrency
        computed = ttft = billed = 0.0
        for step in self._steps:
            numbers = [i for i, use in enumerate(uses) if use.step == step.name]
            prompt = sum(uses[i].tokens for i in numbers)
            # Request p of a burst waits for the first one and p - 1 others like itself: the mean
            # over p = 0 .. burst - 1 is (burst - 1) / 2.
            for chances, requests, waits in (
                (first_misses, 1, 1.0),
                (later_misses, burst - 1, (burst - 1) / 2),
            ):
                parts = [(uses[i].tokens, chances[i]) for i in numbers]
                new = sum(tokens * chance for tokens, chance in parts)
                if self._provider is not None:
                    read = _expected_read(parts, self._provider)
                    billed += self._provider.billed(prompt, read) * requests / burst
                    new = prompt - read
                elif requests:
                    ttft += self._seconds(prompt, new) * waits
                computed += new * requests / burst
        if self._provider is None:
            return LayoutCost(layout, names, computed, whole, ttft)
        per_day = billed * (self._price or 0.0) / 1e6 * self._traffic.requests_per_second * DAY
        return LayoutCost(layout, names, computed, whole, math.nan, per_day)

    def _uses(self, orders: Mapping[str, tuple[FlowPart, ...]]) -> list[Use]:
        uses, time = [], 0.0
        for step in self._steps:
            path: tuple[str, ...] = ()
            changes = "never"
            for part in orders[step.name]:
                path = (*path, part.name)
                changes = max(changes, part.changes, key=CHANGES.index)
                uses.append(Use(step.name, path, part.tokens, time, changes))
            time += step.seconds
        return uses

    def _seconds(self, prompt: int, computed: float) -> float:
        new = max(1, round(computed))
        return self._prefill(max(0, prompt - new), new)

    def _choose(self) -> str:
        costs = self.costs.values()
        if self._provider is not None:
            return min(costs, key=lambda cost: cost.cost_per_day or 0.0).layout
        fast = [cost for cost in costs if self._goal is None or cost.ttft <= self._goal]
        if fast:
            return min(fast, key=lambda cost: (cost.computed_tokens, cost.ttft)).layout
        return min(costs, key=lambda cost: cost.ttft).layout

    def _explain(self) -> str:
        traffic, chosen = self._traffic, self.costs[self.choice]
        parts = {part for step in self._steps for part in step.parts}
        fixed = [part for part in parts if part.changes == "never"]
        common = [part for part in fixed if all(part in step.parts for step in self._steps)]
        request = [part for part in parts if part.changes == "request"]
        apart = traffic.concurrency / traffic.requests_per_second
        lines = [
            f"Take {self.choice}.",
            (
                f"The flow's {len(self._steps)} steps have {_tokens(fixed)} tokens of "
                f"instructions, {_tokens(common)} of them in all steps, and {_tokens(request)} "
                "tokens of the request."
            ),
            f"Requests come {traffic.concurrency} at a time, every {apart:.3g} s, {self._place()}.",
        ]
        for cost in self.costs.values():
            share = cost.computed_tokens / max(1, cost.prompt_tokens)
            price = (
                f"TTFT {cost.ttft:.3g} s"
                if cost.cost_per_day is None
                else f"{cost.cost_per_day:.2f} a day"
            )
            lines.append(
                f"{cost.layout}: computes {cost.computed_tokens:.0f} of {cost.prompt_tokens} prompt"
                f" tokens a request ({share:.0%}), {price}."
            )
        if self._provider is not None:
            lines.append(f"{self.choice} is the cheapest.")
        elif self._goal is None:
            lines.append(f"{self.choice} computes the fewest tokens.")
        elif chosen.ttft > self._goal:
            lines.append(f"None meets the goal of {self._goal:.3g} s; {self.choice} comes closest.")
        else:
            lines.append(
                f"{self.choice} computes the fewest tokens of those that meet the goal of "
                f"{self._goal:.3g} s."
            )
        return "\n".join(lines)

    def _place(self) -> str:
        if self._provider is not None:
            cache = self._provider
            return (
                f"and {cache.name} keeps prefixes of at least {cache.min_tokens} tokens for "
                f"{cache.lifetime:.3g} s"
            )
        place = "shared with others" if self._traffic.shared_server else "for this flow only"
        return f"and a KV cache survives {self._traffic.kv_lifetime:.3g} s on a server {place}"

    def __str__(self) -> str:
        return self.reasons


def _tokens(parts: Iterable[FlowPart]) -> int:
    return sum(part.tokens for part in parts)


def _expected_read(parts: Sequence[tuple[int, float]], provider: ProviderCache) -> float:
    """Expected tokens of a prompt that are read from the cache.

    Args:
        parts: Length of each part of the prompt, and how likely it has to be computed; if one is
            cached, all before it are.
        provider: The cache.
    """
    read, length = 0.0, 0
    for (tokens, miss), (_, next_miss) in pairwise([*parts, (0, 1.0)]):
        length += tokens
        # That the cached prefix ends here, of all places.
        read += max(0.0, next_miss - miss) * provider.cached(length)
    return read
