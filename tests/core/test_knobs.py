"""A knob is declared once: its check, signature, option and row in the documentation follow."""

from __future__ import annotations

import argparse
import inspect
from typing import Annotated

import pytest

from ragcache_integrations.cli.options import add_fields
from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.core.knobs import (
    CheckedSettings,
    Count,
    Flag,
    PositiveOrNone,
    checked,
    meanings,
    takes_fields_of,
)
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.arguments import EngineKnobs
from ragcache_integrations.errors import ConfigurationError


class TreeKnobs(CheckedSettings):
    """Knobs of a tree.

    Attributes:
        policy: What is evicted first: ``lru`` or ``fifo``,
            see :func:`~ragcache_integrations.core.checks.check_choice`.
        depth: How many documents of a path are kept; ``None`` for all.
    """

    policy: Annotated[str, checked(check_choice, ("lru", "fifo"))] = "lru"
    depth: PositiveOrNone = None


class TrialKnobs(TreeKnobs):
    """Knobs of a larger tree.

    Attributes:
        links: Tokens that are computed with ``policy="fifo"``: 100 % of the first ones.
        quiet: Whether it logs nothing.
    """

    links: Count = 16
    quiet: Flag = False


class Trial:
    """A class with these knobs."""

    @takes_fields_of(TrialKnobs, "policy")
    def __init__(self, knobs: TrialKnobs) -> None:
        self.knobs = knobs


def test_the_sentences_are_those_of_all_bases() -> None:
    said = meanings(TrialKnobs)
    assert said.keys() == TrialKnobs.model_fields.keys()
    assert said["depth"] == "How many documents of a path are kept; ``None`` for all."


def test_a_constructor_has_the_fields_as_arguments() -> None:
    shown = (
        "(policy: str = 'lru', *, depth: int | None = None, links: int = 16, quiet: bool = False)"
    )
    assert str(inspect.signature(Trial)) == f"{shown} -> None"
    assert Trial("fifo", links=3).knobs == TrialKnobs(policy="fifo", links=3)  # type: ignore[call-arg] # types are by name
    assert Trial(depth=2).knobs.depth == 2


def test_the_errors_are_about_the_class() -> None:
    with pytest.raises(TypeError, match=r"Trial\(\) too many positional arguments"):
        Trial("fifo", 3)  # type: ignore[call-arg] # the point
    with pytest.raises(ConfigurationError, match=r"unknown argument 'link'.*did you mean 'links'"):
        Trial(link=3)  # type: ignore[call-arg] # the point
    with pytest.raises(ConfigurationError, match=r"links must be .*got -1; .*policy|policy must"):
        Trial(links=-1, policy="lifo")


def test_the_engine_has_its_knobs_as_arguments() -> None:
    arguments = inspect.signature(RAGCacheEngine).parameters
    assert next(iter(arguments)) == "model"
    assert {name: each.default for name, each in arguments.items()} == {
        name: field.default for name, field in EngineKnobs.model_fields.items()
    }


def test_options_of_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="trial")
    add_fields(parser, TrialKnobs, links=5)
    assert vars(parser.parse_args([])) == {
        "policy": "lru",
        "depth": None,
        "links": 5,
        "quiet": False,
    }
    chosen = vars(parser.parse_args(["--depth", "None", "--links", "7", "--quiet"]))
    assert TrialKnobs(**chosen) == TrialKnobs(links=7, quiet=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--links", "few"])
    assert "argument --links: invalid whole number value: 'few'" in capsys.readouterr().err
    said = " ".join(parser.format_help().split())
    assert "what is evicted first: lru or fifo, see check_choice (default: lru)" in said
    assert "how many documents of a path are kept; none for all (default: none)" in said
    assert "computed with --policy fifo: 100 % of the first ones (default: 5)" in said
    assert "--quiet, --no-quiet" in said
