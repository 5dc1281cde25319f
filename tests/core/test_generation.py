"""The words of every engine's answers."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest

import ragcache_modular as modular
from ragcache_integrations import engine
from ragcache_integrations.core import generation
from ragcache_integrations.core.generation import (
    Generation,
    GenerationChunk,
    Sampling,
    SamplingOptions,
    Usage,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_modular.generation import (
    SamplingKnobs,
    check_sampling,
)

USAGE = Usage(10, 2, 8)


@pytest.mark.parametrize("name", ["Generation", "GenerationChunk", "TokenLogprob", "Usage"])
def test_all_engines_use_the_same_classes(name: str) -> None:
    assert getattr(engine, name) is getattr(modular, name) is getattr(generation, name)


def test_a_sum_of_usages_is_as_uncertain_as_its_parts() -> None:
    counted = Usage(1, 2, 0, estimated=True, cached_known=False)
    assert Usage(20, 4, 16) == USAGE + USAGE
    assert USAGE + counted == counted + USAGE == Usage(11, 4, 8, estimated=True, cached_known=False)
    assert (USAGE + counted).total_tokens == 15


def test_answers_from_modules_report_what_was_computed_again() -> None:
    fields: dict[str, Any] = {"strategy": "epic", "recomputed_share": 0.25}
    answer = modular.ModularGeneration("Yes.", (1,), "stop", USAGE, **fields)
    chunk = modular.ModularChunk("Yes.", strategy="epic", recomputed_share=0.25)
    assert answer.reuse == chunk.reuse == fields
    assert isinstance(answer, Generation)
    assert isinstance(chunk, GenerationChunk)
    assert math.isnan(answer.ttft)
    assert pickle.loads(pickle.dumps(chunk)) == chunk


def test_exact_answers_report_no_reuse() -> None:
    assert Generation("Yes.", (1,), "stop", USAGE).reuse == {}
    assert GenerationChunk("Yes.").reuse == {}


def test_the_arguments_of_the_modular_model_are_the_fields_of_the_sampling() -> None:
    names = [field.name for field in dataclasses.fields(Sampling)]
    assert [*SamplingKnobs.__annotations__] == names
    assert check_sampling({"stop": "x", "seed": 3}) == Sampling(stop=("x",), seed=3)
    with pytest.raises(ConfigurationError, match="unknown argument 'choice': allowed are freq"):
        check_sampling({"choice": ("a", "b")})


@pytest.mark.parametrize(
    ("knobs", "needs"), [({}, False), ({"choice": "a"}, True), ({"json_schema": {}}, True)]
)
def test_what_needs_a_grammar(knobs: dict[str, Any], needs: bool) -> None:
    options = SamplingOptions(**knobs)
    assert options.needs_grammar is needs
    assert pickle.loads(pickle.dumps(options)) == options
