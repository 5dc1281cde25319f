"""A query's timeline: what it is made of, and that it can be drawn."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.speculation import SpeculationEvent, SpeculationReport
from ragcache_workbench.demo import speculative
from ragcache_workbench.demo.speculative import (
    Pair,
    Span,
    SpeculativeSettings,
    Traced,
    draw_timeline,
    median_ttfts,
    most_eventful,
    spans,
)


def traced(ttft: float, *events: tuple[float, str, int], confirmed: bool = False) -> Traced:
    report = SpeculationReport(
        stages=2,
        guesses=sum(what == "submitted" for _, what, _ in events),
        aborted=sum(what == "terminated" for _, what, _ in events),
        held_back=0,
        confirmed=confirmed,
        search_seconds=0.3,
        overlapped_seconds=0.1,
        wasted_prefill_tokens=0,
        events=tuple(SpeculationEvent(*event) for event in events),  # type: ignore[arg-type]
    )
    return Traced(report, ttft, ttft + 0.05, (1, 2))


SEQUENTIAL = traced(
    0.42,
    (0.1, "stage", 1),
    (0.3, "final stage", 2),
    (0.301, "submitted", 1),
    (0.42, "first token", 1),
)
SPECULATIVE = traced(
    0.3,
    (0.1, "stage", 1),
    (0.101, "submitted", 1),
    (0.2, "stage", 2),
    (0.2, "terminated", 1),
    (0.201, "submitted", 2),
    (0.29, "first token", 2),
    (0.3, "final stage", 3),
    (0.3, "confirmed", 2),
    confirmed=True,
)
PAIR = Pair("who first walked on the moon", SEQUENTIAL, SPECULATIVE)


def test_what_a_timeline_is_made_of() -> None:
    assert spans(SEQUENTIAL) == (
        Span("stage", 1, 0.0, 0.1),
        Span("stage", 2, 0.1, 0.3),
        Span("prefill", 1, 0.301, 0.42),
        Span("decode", 1, 0.42, SEQUENTIAL.seconds),
    )
    assert spans(SPECULATIVE) == (
        Span("stage", 1, 0.0, 0.1),
        Span("stage", 2, 0.1, 0.2),
        Span("stage", 3, 0.2, 0.3),
        Span("wrong", 1, 0.101, 0.2),
        Span("prefill", 2, 0.201, 0.29),
        Span("decode", 2, 0.29, SPECULATIVE.seconds),
    )


def test_it_can_be_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "timeline.png"
    draw_timeline(PAIR, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_which_question_is_shown() -> None:
    plain = Pair("plain", SEQUENTIAL, SEQUENTIAL)
    assert most_eventful([plain, PAIR, plain]) is PAIR
    assert median_ttfts([plain, PAIR, plain]) == (0.42, 0.42)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"questions": 0}, "questions must be a whole number of at least 1"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
        ({"search_ms": 0}, "search_ms must be a number of milliseconds above 0"),
        ({"kv_cache_gib": -1}, "kv_cache_gib"),
    ],
)
def test_bad_settings(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        SpeculativeSettings(**change)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--search-ms", "0"], "search_ms must be a number of milliseconds above 0"),
        (["--distractors", "5"], "--distractors has no meaning with --speculative"),
        (["--picture", "/no/such/folder/a.png"], "--picture must name a file"),
    ],
)
def test_wrong_usage_of_the_command(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--speculative", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.engine
def test_the_command(
    engine: RAGCacheEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(speculative, "RAGCacheEngine", lambda *_, **__: nullcontext(engine))
    picture = tmp_path / "timeline.png"
    arguments = ["--questions", "2", "--search-ms", "150", "--picture", str(picture), "--json"]
    assert cli.main(["demo", "--speculative", *arguments]) == 0
    assert picture.exists()
    output = capsys.readouterr().out
    assert str(picture) in output
    result = json.loads(output.splitlines()[-1])
    assert result["questions"] == result["same_answers"] == 2
    assert result["median_ttft_ms"]["speculative"] > 0
    assert result["aborted"] <= result["guesses"]
