"""Replicas simulated for a log of traffic."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_integrations.cli import command as cli
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.workload_report.report import Findings, report_of
from ragcache_workbench.workload_report.run import characterise_workload
from tests.support.html_page import HtmlPage


@pytest.fixture(scope="module")
def replicated(log: Path) -> Findings:
    return characterise_workload(log, replicas=3)


def test_they_have_the_recommended_memory_together(replicated: Findings) -> None:
    replicas, result = replicated.replicas, replicated.result
    assert replicas is not None
    assert result.recommended is not None
    assert replicas.tokens >= result.longest_request_tokens
    assert 3 * replicas.tokens >= result.recommended.tokens
    assert 3 * (replicas.tokens - 32) < max(
        result.recommended.tokens, 3 * result.longest_request_tokens
    )


def test_the_note_says_what_memory_they_have(log: Path, unrepeated_log: Path) -> None:
    for path, number, told in (
        (log, 2, "the recommended size, divided among them"),
        (log, 1000, "as much as the longest request needs"),
        (unrepeated_log, 1, "what holds everything, divided among them"),
    ):
        found = characterise_workload(path, replicas=number)
        assert found.replicas is not None
        assert f"tokens of memory each: {told}." in found.replicas.note()
        if number == 1000:
            assert found.replicas.tokens < found.result.longest_request_tokens + 32


def test_without_sessions_they_are_not_routed_by_them(log: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(lines):
        line["session"] = number % 5
    with_sessions = tmp_path / "sessions.jsonl"
    with_sessions.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    for path, routings in (
        (log, ["document", "round_robin", "random"]),
        (with_sessions, ["document", "session", "round_robin", "random"]),
    ):
        found = characterise_workload(path, replicas=2).replicas
        assert found is not None
        assert list(found.results) == routings


def test_more_requests_a_second_wait_longer(log: Path, replicated: Findings) -> None:
    assert replicated.replicas is not None
    usual = replicated.replicas
    faster = characterise_workload(log, replicas=3, rate=3 * usual.rate).replicas
    assert faster is not None
    assert faster.rate == 3 * usual.rate
    for name, result in usual.results.items():
        assert result.mean_ttft < faster.results[name].mean_ttft


def test_terminal_page_and_json_have_them(replicated: Findings) -> None:
    output = io.StringIO()
    report_of(replicated).show(Console(width=120, file=output))
    page = HtmlPage(report_of(replicated).render())
    assert replicated.replicas is not None
    rows = replicated.replicas.rows()

    assert [row[0] for row in rows] == ["document", "round robin", "random"]
    for row in rows:
        for cell in row:
            assert cell in output.getvalue()
            assert cell in page.text
    assert "3 replicas are simulated with" in " ".join(output.getvalue().split())
    routings = replicated.as_dict()["replicas"]["routings"]
    assert routings["round_robin"]["busiest_share"] == pytest.approx(1 / 3, abs=0.01)
    assert json.loads(json.dumps(routings)) == routings


def test_by_default_there_are_none(findings: Findings) -> None:
    assert findings.replicas is None
    assert findings.as_dict()["replicas"] is None


def test_where_caching_does_not_pay_they_are_simulated_all_the_same(unrepeated_log: Path) -> None:
    found = characterise_workload(unrepeated_log, replicas=2)
    assert found.result.recommended is None
    assert found.replicas is not None
    assert {result.token_hit_rate for result in found.replicas.results.values()} == {0}


def test_the_command(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", "--workload", str(log), "--replicas", "2", "--rate", "3", "--json"]
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "2 replicas, by what a router chooses them" in output
    found = json.loads(output.splitlines()[-1])["replicas"]
    assert (found["replicas"], found["rate"]) == (2, 3.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--replicas", "2"], "--replicas shows a workload: name one with --workload"),
        (["--workload", "LOG", "--rate", "2"], "it needs --replicas, got 2"),
        (["--workload", "LOG", "--replicas", "2", "--rate", "0"], "rate must be a number of"),
    ],
)
def test_errors_are_one_line(
    log: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(log) if argument == "LOG" else argument for argument in arguments]
    assert cli.main(["profile", *given]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("replicas", [0, 1.5, "2", 10**9])
def test_a_number_of_replicas_that_makes_no_sense_is_refused(log: Path, replicas: object) -> None:
    with pytest.raises(ConfigurationError, match="replicas must be a whole number"):
        characterise_workload(log, replicas=replicas)  # type: ignore[arg-type]  # wrong on purpose
