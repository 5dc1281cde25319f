"""What a bad argument's message says, word for word: it is for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, field_validator

from ragcache_integrations.core.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_seconds,
    check_share,
    explain_error,
    unknown_name,
)
from ragcache_integrations.errors import ConfigurationError

LONG = "x" * 10_000


def message(check: Callable[..., object], *arguments: object, **options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check(*arguments, **options)
    return str(caught.value)


class TestNumbers:
    @pytest.mark.parametrize("value", [1, 5, np.int64(3)])
    def test_whole_numbers_come_back_as_ints(self, value: object) -> None:
        assert type(check_int("k", value, 1, 5)) is int

    @pytest.mark.parametrize("value", [0, 6, True, 2.0, "2", None, math.nan])
    def test_other_values_are_named_with_what_is_allowed(self, value: object) -> None:
        expected = f"k must be a whole number of at least 1 and at most 5, got {value!r}"
        assert message(check_int, "k", value, 1, 5) == expected

    def test_units_and_alternatives_are_said(self) -> None:
        assert message(check_int, "window", 0, 1, unit="requests", also="None for any order") == (
            "window must be a whole number of requests of at least 1, or None for any order, got 0"
        )

    @pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25)])
    def test_numbers_come_back_as_floats(self, value: object) -> None:
        assert type(check_number("share", value, 0, 1)) is float

    @pytest.mark.parametrize("value", [-0.1, 1.5, math.nan, math.inf, True, "1", 10**400])
    def test_numbers_out_of_range_are_refused(self, value: object) -> None:
        assert message(check_number, "share", value, 0, 1).startswith(
            "share must be a number of at least 0 and at most 1, got "
        )

    def test_the_lower_limit_itself_may_be_excluded(self) -> None:
        assert check_number("rate", 1e-9, 0, above=True) == 1e-9
        assert message(check_number, "rate", 0, 0, above=True) == (
            "rate must be a number above 0, got 0"
        )
        assert message(check_share, "ratio", 0).startswith(
            "ratio must be a number above 0 and at most 1, got "
        )

    def test_a_time_is_above_zero_or_none(self) -> None:
        assert check_seconds("timeout", None) is None
        assert check_seconds("timeout", 2) == 2.0
        assert message(check_seconds, "timeout", 0) == (
            "timeout must be a number of seconds above 0, or None, got 0"
        )


class TestNames:
    def test_a_misspelling_is_told_what_was_meant(self) -> None:
        assert message(check_choice, "policy", "pdgsf", ("lru", "pgdsf")) == (
            "policy must be one of lru, pgdsf, got 'pdgsf'; did you mean 'pgdsf'?"
        )
        with pytest.raises(ConfigurationError, match="one of lru, pgdsf or None, got 7"):
            check_choice("policy", 7, ("lru", "pgdsf"), also="None")

    @pytest.mark.parametrize("value", [None, 7, ["lru"], "qq"])
    def test_nothing_is_guessed_where_nothing_is_close(self, value: object) -> None:
        expected = f"policy must be one of lru, pgdsf, got {value!r}"
        assert message(check_choice, "policy", value, ("lru", "pgdsf")) == expected

    def test_an_unknown_argument(self) -> None:
        assert unknown_name("argument", "tolerence", ["k", "tolerance"]) == (
            "unknown argument 'tolerence': allowed are k, tolerance; did you mean 'tolerance'?"
        )

    def test_flags(self) -> None:
        assert check_flag("annotate", np.True_) is True
        assert message(check_flag, "annotate", 1) == "annotate must be True or False, got 1"

    def test_long_values_are_cut(self) -> None:
        assert len(message(check_choice, "policy", LONG, ("lru",))) < 200
        assert len(message(check_int, "k", LONG, 1)) < 200
        assert len(unknown_name("argument", LONG, ["k"])) < 200


class Knobs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    k: int = 1
    api_key: SecretStr | None = None

    @field_validator("k", mode="before")
    @classmethod
    def _check(cls, value: object) -> object:
        return check_int("k", value, 1) if isinstance(value, int) else value


class TestPydantic:
    def explain(self, **arguments: object) -> str:
        with pytest.raises(ValidationError) as caught:
            Knobs(**arguments)
        return str(explain_error(caught.value, Knobs.model_fields, secrets=frozenset({"api_key"})))

    def test_each_argument_is_explained_once(self) -> None:
        assert self.explain(k=0, kk=3) == (
            "k must be a whole number of at least 1, got 0; "
            "unknown argument 'kk': allowed are api_key, k; did you mean 'k'?"
        )

    def test_a_framework_s_own_name_leads_to_ours(self) -> None:
        assert self.explain(similarity_top_k=3).endswith(
            "allowed are api_key, k; did you mean 'k'?"
        )

    def test_what_pydantic_says_comes_with_the_value(self) -> None:
        assert self.explain(k="many").endswith(", got 'many'")

    def test_secrets_are_not_shown(self) -> None:
        shown = self.explain(api_key=["abracadabra"])
        assert "abracadabra" not in shown
        assert shown.endswith(", got something else")
