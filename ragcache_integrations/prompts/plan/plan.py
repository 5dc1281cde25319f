"""In which order a flow of several steps should write its prompts, by what each order computes.

A flow answers one request in several steps, each with instructions of its own over the same
documents. Instructions in front are found again by the next request; documents in front by the next
step; both at once is impossible, except for instructions that all steps share ("KV cache centric
LLM application design", section 2.1). Which one pays depends on lengths, traffic and how long a KV
cache survives: :class:`PrefixPlan` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from ragcache_integrations.prompts.plan.reuse import Use, misses

__all__ = ["LAYOUTS", "FlowPart", "FlowStep", "LayoutCost", "PrefixPlan", "Traffic"]

LAYOUTS = ("system_first", "documents_first", "shared_system")
CHANGES = ("never", "request", "step")

PrefillSeconds = Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class FlowPart:
    """A part of prompts.

    Attributes:
        name: Identifies it: steps that name the same part hold the same text.
        tokens: Its length.
        changes: ``never``: the same text in every request, such as instructions. ``request``: new
            with each request and the same in all of its steps, such as documents. ``step``: new
            every time, such as a sub-question; it stands last in every layout.
    """

    name: str
    tokens: int
    changes: Literal["never", "request", "step"]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            msg = f"a part's name must be a non-empty string, got {self.name!r}"
            raise ConfigurationError(msg)
        if not is_whole(self.tokens) or self.tokens < 0:
            msg = (
                f"part {self.name!r}: tokens must be a whole number of at least 0, "
                f"got {self.tokens!r}"
            )
            raise ConfigurationError(msg)
        if self.changes not in CHANGES:
            msg = (
                f"part {self.name!r}: changes must be one of {', '.join(CHANGES)}, "
                f"got {self.changes!r}"
            )
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A call of the model.

    Attributes:
        name: Identifies the step.
        parts: What its prompt holds, in any order.
        seconds: From its first token to when the next step asks: decoding, tools, the user.
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
        if not is_number(self.seconds) or self.seconds < 0:
            msg = f"step {self.name!r}: seconds must be a number of at least 0, got {self.seconds}"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What comes in, and on what it runs.

    Attributes:
        requests_per_second: Mean rate of the flow's requests.
        concurrency: How many of them come at once, as a burst; 1 where each comes by itself.
        kv_lifetime: Seconds that a KV cache survives when nobody uses it; ``math.inf`` where it
            is never evicted. What the engine evicts tells: it is the size of the cache over the
            rate at which tokens are computed.
        shared_server: Whether others compute on the server as well: their requests evict, and the
            flow's own are random to them (a Poisson process). On a server of its own a flow evicts
            nothing but by its own requests, which are taken to come at even intervals.
    """

    requests_per_second: float
    concurrency: int = 1
    kv_lifetime: float = 300.0
    shared_server: bool = False

    def __post_init__(self) -> None:
        rate, lifetime = self.requests_per_second, self.kv_lifetime
        if not is_number(rate) or rate <= 0:
            msg = f"requests_per_second must be a number above 0, got {rate!r}"
            raise ConfigurationError(msg)
        if not is_whole(self.concurrency) or self.concurrency < 1:
            msg = f"concurrency must be a whole number of at least 1, got {self.concurrency!r}"
            raise ConfigurationError(msg)
        if lifetime != math.inf and (not is_number(lifetime) or lifetime < 0):
            msg = f"kv_lifetime must be a number of seconds of at least 0, got {lifetime!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.shared_server, bool):
            msg = f"shared_server must be True or False, got {self.shared_server!r}"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class LayoutCost:
    """What a layout costs a request.

    Attributes:
        layout: One of :data:`LAYOUTS`.
        order: The parts of each step's prompt in their order.
        computed_tokens: Expected prompt tokens that are computed, over all steps of a request.
        prompt_tokens: All prompt tokens of a request.
        ttft: Expected seconds that the user waits for prefills, until the first token of the last
            step: those of all steps, queueing behind the others of a burst included.
    """

    layout: str
    order: Mapping[str, tuple[str, ...]]
    computed_tokens: float
    prompt_tokens: int
    ttft: float


class PrefixPlan:
    """Which layout a flow should take.

    Of the layouts that keep the latency goal the one that computes the fewest tokens; where none
    keeps it, the fastest. Ties go to the first of :data:`LAYOUTS`.

    - ``system_first``: each step's instructions, then what is the request's.
    - ``documents_first``: what is the request's, then the instructions.
    - ``shared_system``: instructions that all steps share, what is the request's, then each
      step's own instructions.

    What changes with each step comes last in all of them.

    Args:
        steps: The flow, in the order in which its steps run.
        traffic: What comes in.
        ttft_goal: Seconds that a request's prefills may take; ``None`` for no goal.
        prefill: T(cached, new) in seconds, such as a measured
            :class:`~ragcache_integrations.knowledge_tree.PrefillCostModel` (``ragcache profile``);
            by default that of a 7B model on a small GPU, whose seconds are not your machine's.

    Attributes:
        costs: The cost of each layout, by its name.
        choice: Name of the layout to take.
        reasons: Why, in words.

    Raises:
        ConfigurationError: An argument is out of its range, or two parts of the same name differ.
    """

    def __init__(
        self,
        steps: Sequence[FlowStep],
        traffic: Traffic,
        *,
        ttft_goal: float | None = None,
        prefill: PrefillSeconds | None = None,
    ) -> None:
        self._steps = tuple(steps)
        self._traffic = traffic
        self._goal = ttft_goal
        self._prefill = prefill or PrefillCostModel.default()
        self._check()
        self.costs = {layout: self._cost(layout) for layout in LAYOUTS}
        self.choice = self._choose()
        self.reasons = self._explain()

    def _check(self) -> None:
        if not self._steps or not all(isinstance(step, FlowStep) for step in self._steps):
            msg = "steps must hold at least one FlowStep, and nothing else"
            raise ConfigurationError(msg)
        names = [step.name for step in self._steps]
        if len(set(names)) < len(names):
            msg = f"every step needs a name of its own, got {', '.join(names)}"
            raise ConfigurationError(msg)
        known: dict[str, FlowPart] = {}
        for part in (part for step in self._steps for part in step.parts):
            if known.setdefault(part.name, part) != part:
                msg = (
                    f"part {part.name!r} is given twice with differences: {known[part.name]} "
                    f"and {part}"
                )
                raise ConfigurationError(msg)
        if not isinstance(self._traffic, Traffic):
            msg = f"traffic must be a Traffic, got {type(self._traffic).__name__}"
            raise ConfigurationError(msg)
        if self._goal is not None and not (is_number(self._goal) and self._goal > 0):
            msg = f"ttft_goal must be a number of seconds above 0, or None, got {self._goal!r}"
            raise ConfigurationError(msg)

    def _order(self, layout: str, step: FlowStep) -> tuple[FlowPart, ...]:
        """A step's parts, laid out; instructions that more steps share come first among theirs."""
        sharing = {
            part.name: sum(part in other.parts for other in self._steps) for part in step.parts
        }
        fixed = [part for part in step.parts if part.changes == "never"]
        fixed.sort(key=lambda part: -sharing[part.name])
        request = [part for part in step.parts if part.changes == "request"]
        request.sort(key=lambda part: -sharing[part.name])
        last = [part for part in step.parts if part.changes == "step"]
        if layout == "system_first":
            return (*fixed, *request, *last)
        everywhere = [
            part
            for part in fixed
            if layout == "shared_system" and sharing[part.name] == len(self._steps)
        ]
        return (*everywhere, *request, *(p for p in fixed if p not in everywhere), *last)

    def _cost(self, layout: str) -> LayoutCost:
        orders = {step.name: self._order(layout, step) for step in self._steps}
        uses = list(self._uses(orders))
        alone, behind = misses(
            uses,
            rate=self._traffic.requests_per_second / self._traffic.concurrency,
            lifetime=self._traffic.kv_lifetime,
            even=not self._traffic.shared_server,
        )
        # The first of a burst may find nothing of what others left; those behind it find that.
        burst = self._traffic.concurrency
        computed = ttft = 0.0
        for step in self._steps:
            numbers = [i for i, use in enumerate(uses) if use.step == step.name]
            first = sum(uses[i].tokens * alone[i] for i in numbers)
            later = sum(uses[i].tokens * behind[i] for i in numbers)
            whole = sum(uses[i].tokens for i in numbers)
            computed += (first + (burst - 1) * later) / burst
            ttft += self._seconds(whole, first)
            # The one in place p waits for the first and for p - 1 like itself.
            ttft += self._seconds(whole, later) * (burst - 1) / 2 if burst > 1 else 0.0
        names = {name: tuple(part.name for part in parts) for name, parts in orders.items()}
        whole = sum(use.tokens for use in uses)
        return LayoutCost(layout, names, computed, whole, ttft)

    def _uses(self, orders: Mapping[str, tuple[FlowPart, ...]]) -> list[Use]:
        uses, time = [], 0.0
        for step in self._steps:
            path: tuple[str, ...] = ()
            lasting = "never"
            for part in orders[step.name]:
                path = (*path, part.name)
                lasting = max(lasting, part.changes, key=CHANGES.index)
                uses.append(Use(step.name, path, part.tokens, time, lasting))
            time += step.seconds
        return uses

    def _seconds(self, prompt: int, computed: float) -> float:
        new = max(1, round(computed))
        return self._prefill(max(0, prompt - new), new)

    def _choose(self) -> str:
        costs = self.costs.values()
        kept = [cost for cost in costs if self._goal is None or cost.ttft <= self._goal]
        if kept:
            return min(kept, key=lambda cost: (cost.computed_tokens, cost.ttft)).layout
        return min(costs, key=lambda cost: cost.ttft).layout

    def _explain(self) -> str:
        traffic, chosen = self._traffic, self.costs[self.choice]
        parts = {part for step in self._steps for part in step.parts}
        fixed = sum(part.tokens for part in parts if part.changes == "never")
        common = sum(
            part.tokens
            for part in parts
            if part.changes == "never" and all(part in step.parts for step in self._steps)
        )
        request = sum(part.tokens for part in parts if part.changes == "request")
        apart = traffic.concurrency / traffic.requests_per_second
        place = "shared with others" if traffic.shared_server else "of its own"
        lines = [
            f"Take {self.choice}.",
            (
                f"The flow's {len(self._steps)} steps have {fixed} tokens of instructions, "
                f"{common} of them in all steps, and {request} that are the request's."
            ),
            (
                f"Requests come {traffic.concurrency} at a time, every {apart:.3g} s, and a KV "
                f"cache survives {traffic.kv_lifetime:.3g} s on a server {place}."
            ),
        ]
        for cost in self.costs.values():
            share = cost.computed_tokens / max(1, cost.prompt_tokens)
            lines.append(
                f"{cost.layout}: computes {cost.computed_tokens:.0f} of {cost.prompt_tokens} prompt"
                f" tokens a request ({share:.0%}), TTFT {cost.ttft:.3g} s."
            )
        if self._goal is None:
            lines.append(f"{self.choice} computes the fewest tokens.")
        elif chosen.ttft > self._goal:
            lines.append(f"None keeps the goal of {self._goal:.3g} s; {self.choice} comes closest.")
        else:
            lines.append(
                f"{self.choice} computes the fewest tokens of those that keep the goal of "
                f"{self._goal:.3g} s."
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.reasons
