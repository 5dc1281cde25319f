"""Steps of workflows: what is accepted, and what the scheduler gets of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragcache_integrations.core.prompt import (
    MOST_NEXT_STEPS,
    MOST_STEPS_BEFORE,
    STEP_CHARACTERS,
    check_steps,
    extra_args_from_steps,
)
from ragcache_integrations.errors import ConfigurationError


@pytest.mark.parametrize(
    ("step", "coming", "words"),
    [
        (3, {}, "step must be a name, got 3"),
        (None, {}, "step must be a name, got None"),
        ("x" * (STEP_CHARACTERS + 1), {}, "step must have 1 to 256 characters, got 257"),
        ("\ud800", {}, "step must be valid Unicode"),
        ("", {"b": 1}, "next_steps needs step"),
        ("a", ["b"], "next_steps must be names and numbers of steps, got list"),
        ("a", {"": 1}, "a name in next_steps must have 1 to 256 characters, got 0"),
        ("a", {4: 1}, "a name in next_steps must be a name, got 4"),
        ("a", {"b": 0}, r"next_steps\['b'\] must be a whole number of at least 1 .* got 0"),
        ("a", {"b": 1.5}, "whole number"),
        ("a", {"b": True}, "whole number"),
        ("a", {"b": MOST_STEPS_BEFORE + 1}, "at most 1000000"),
        ("a", {str(n): 1 for n in range(MOST_NEXT_STEPS + 1)}, "at most 64 steps, got 65"),
    ],
)
def test_what_is_refused(step: object, coming: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_steps(step, coming)


def test_what_the_scheduler_gets() -> None:
    longest: dict[Any, Any] = {"é" * STEP_CHARACTERS: MOST_STEPS_BEFORE, "c": np.int64(2)}
    step, coming = check_steps("a", longest)
    assert [type(number) for _, number in coming] == [int, int], "of NumPy's, too"
    assert extra_args_from_steps(step, coming) == {
        "rag_step": "a",
        "rag_next_steps": ["é" * STEP_CHARACTERS, "c"],
        "rag_steps_before": [MOST_STEPS_BEFORE, 2],
    }
    assert extra_args_from_steps(*check_steps("a", {})) == {"rag_step": "a"}
    assert extra_args_from_steps(*check_steps("", {})) == {}
