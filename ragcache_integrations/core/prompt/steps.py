"""Steps of a workflow: the one that a request is, and those that come next (KVFlow)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragcache_integrations.core.checks import check_int, check_text, check_type
from ragcache_integrations.errors import ConfigurationError

from .spans import NEXT_STEPS, STEP, STEPS_BEFORE

__all__ = [
    "MOST_NEXT_STEPS",
    "MOST_STEPS_BEFORE",
    "STEP_CHARACTERS",
    "NextSteps",
    "check_steps",
    "extra_args_from_steps",
]

STEP_CHARACTERS = 256
"""Characters of the longest name of a step."""
MOST_NEXT_STEPS = 64
"""The most steps that one request may say come next."""
MOST_STEPS_BEFORE = 1_000_000
"""The most steps that may be before one that comes next."""

NextSteps = tuple[tuple[str, int], ...]
"""Names of steps, and how many steps are before each, which is 1 for the next one."""


def check_steps(step: object, next_steps: object) -> tuple[str, NextSteps]:
    """Check the step that a request is, and those that come next.

    Args:
        step: Name of the request's own step; empty for none.
        next_steps: A mapping from names of steps to how many steps are before each.

    Returns:
        The name, and the steps in the order of the mapping.

    Raises:
        ConfigurationError: A name is empty, too long or no valid Unicode, a number is out of range,
            there are too many, or steps come next and the request is none.
    """
    name = _check_name("step", step) if step != "" else ""
    check_type("next_steps", next_steps, Mapping, "names and numbers of steps")
    steps: Mapping[Any, Any] = next_steps  # type: ignore[assignment]  # checked
    if len(steps) > MOST_NEXT_STEPS:
        msg = f"next_steps must name at most {MOST_NEXT_STEPS} steps, got {len(steps)}"
        raise ConfigurationError(msg)
    checked = tuple(
        (
            _check_name("a name in next_steps", key),
            check_int(f"next_steps[{key!r:.60}]", number, 1, MOST_STEPS_BEFORE),
        )
        for key, number in steps.items()
    )
    if checked and not name:
        msg = "next_steps needs step, the name of the request's own step"
        raise ConfigurationError(msg)
    return name, checked


def extra_args_from_steps(step: str, next_steps: NextSteps) -> dict[str, Any]:
    """Pack checked steps for the scheduler; the result is empty if the request is none."""
    if not step:
        return {}
    if not next_steps:
        return {STEP: step}
    names, before = zip(*next_steps, strict=True)
    return {STEP: step, NEXT_STEPS: list(names), STEPS_BEFORE: list(before)}


def _check_name(what: str, name: object) -> str:
    text = check_text(what, name, "a name")
    try:
        text.encode()
    except UnicodeEncodeError:
        msg = f"{what} must be valid Unicode, got {text!r:.100}"
        raise ConfigurationError(msg) from None
    if not text or len(text) > STEP_CHARACTERS:
        msg = f"{what} must have 1 to {STEP_CHARACTERS} characters, got {len(text)}"
        raise ConfigurationError(msg)
    return text
