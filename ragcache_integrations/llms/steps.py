"""Steps of workflows through the LLM classes of both frameworks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ragcache_integrations.core.prompt import MOST_NEXT_STEPS, check_steps

__all__ = ["NEXT_STEPS", "NO_STEP", "STEP", "StepHint", "step_hints"]

STEP, NEXT_STEPS = "step", "next_steps"


@dataclass(frozen=True, slots=True)
class StepHint:
    """What a workflow says of a call in it.

    Attributes:
        step: Name of the step; empty outside of workflows.
        next_steps: Steps that come next, and how many steps are before each.
    """

    step: str = ""
    next_steps: Mapping[str, int] = field(default_factory=dict)


NO_STEP = StepHint()


def step_hints(names: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, StepHint]:
    """Say of each step of a workflow which ones may come next, and how soon at the earliest.

    Args:
        names: The steps.
        edges: Pairs of steps that may follow each other; of a condition, all that it may choose.
            Those from and to anything else are ignored.

    Returns:
        For each step the nearest ones, itself among them where it comes again.

    Raises:
        ConfigurationError: The name of a step is empty, or too long.
    """
    after: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        if source in after and target in after:
            after[source].append(target)
    hints = {name: StepHint(name, _steps_to_execution(name, after)) for name in after}
    for hint in hints.values():
        check_steps(hint.step, hint.next_steps)
    return hints


def _steps_to_execution(start: str, after: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """The steps that can be reached, with the length of the shortest way; the nearest first."""
    steps: dict[str, int] = {}
    ways = deque((name, 1) for name in after[start])
    while ways and len(steps) < MOST_NEXT_STEPS:
        name, length = ways.popleft()
        if name not in steps:
            steps[name] = length
            ways.extend((target, length + 1) for target in after[name])
    return steps
