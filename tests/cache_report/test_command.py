"""``ragcache cache-report``, from the log to the page."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ragcache_integrations.cli import command as cli
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.cache_report.replay import TOLERANCES
from ragcache_workbench.cache_report.report import Findings, charts, report_of
from ragcache_workbench.cache_report.run import report_on_log
from tests.support.html_page import HtmlPage

SUBJECTS = ("password", "passwords", "delivery", "bill of 2023", "bill of 2024", "router")
FORMS = ("how do I change my {}", "How can I change my {}?", "how do I change the {}")


def written(path: Path, **left_out: bool) -> Path:
    """240 questions, one of which has another answer than the same words had before."""
    rows: list[dict[str, Any]] = []
    for number in range(240):
        subject = SUBJECTS[number % 6]
        row: dict[str, Any] = {
            "question": FORMS[number // 6 % 3].format(subject),
            "answer": f"See <b>{subject}</b>." if number != 100 else "No.",
            "documents": [subject],
            "tenant": ("shop <i>", "bank [b]")[number // 18 % 2],
            "time": f"2026-03-01T{10 + number // 120}:00:00Z",
            "seconds": 2.0,
            "cost": 0.25,
        }
        rows.append({name: value for name, value in row.items() if name not in left_out})
    path.write_text("\n".join([*map(json.dumps, rows), "{"]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("log") / "log <i>.jsonl")


@pytest.fixture(scope="module")
def findings(log: Path) -> Findings:
    return report_on_log(log, 0.03)


def without(findings: Findings, tmp_path: Path, *names: str) -> Findings:
    return report_on_log(
        written(tmp_path / "log.jsonl", **dict.fromkeys(names, True)), findings.error
    )


def printed(findings: Findings) -> str:
    output = io.StringIO()
    report_of(findings).show(Console(width=120, file=output))
    return output.getvalue()


def test_the_command(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    arguments = ["cache-report", str(log), "--report", str(report), "--error", "0.03", "--json"]

    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    data = json.loads(output.splitlines()[-1])
    assert output.startswith(
        f"Tolerance {data['tolerance']:.2f} with the guard and equal documents"
    )
    assert (data["questions"], data["skipped"], data["judged_by"]) == (240, 1, "answers")
    first = data["tolerances"][0]["guarded"]
    # The same words of the same tenant: 3 forms for 6 subjects and 2 tenants are new.
    assert first["saved"]["count"] == 240 - 36
    assert first["wrong"]["count"] == 1
    served = data["at"]["saved"]["count"]
    assert data["at"]["seconds_saved"] == 2.0 * served
    assert data["at"]["dollars_saved"] == 0.25 * served
    assert [group["name"] for group in data["hours"]] == ["10:00", "11:00"]
    assert [group["saved"]["of"] for group in data["hours"]] == [120, 120]
    assert sum(group["saved"]["count"] for group in data["tenants"]) == served
    assert "← recommended" in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["none.jsonl"], "cannot read none.jsonl"),
        (
            ["LOG", "--error", "0"],
            "error must be a number of at least 1e-09 and at most 0.5, got 0",
        ),
        (["LOG", "--report", "/no/such/folder/r.html"], "--report must name a file"),
    ],
)
def test_errors_are_one_line(
    log: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(log) if argument == "LOG" else argument for argument in arguments]

    assert cli.main(["cache-report", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_page_and_terminal_say_the_same_and_no_text_is_markup(findings: Findings) -> None:
    html = report_of(findings).render()
    page, terminal = HtmlPage(html), " ".join(printed(findings).split())

    for sentence in (findings.verdict(), findings.advice(), *findings.notes()):
        assert sentence in " ".join(page.text.split())
        assert sentence in terminal
    for name in ("shop <i>", "bank [b]"):
        assert name in page.text
        assert name in terminal
    assert "log <i>.jsonl" in page.text
    assert not {"i", "b", "script"} & {*page.tags}
    assert page.links == []
    assert "url(" not in html
    assert (page.tags.count("svg"), page.tags.count("table")) == (2, 3)


def test_the_wrong_answer_is_in_its_hour_and_its_tenant(findings: Findings) -> None:
    assert [group.wrong.count for group in findings.hours()] == [1, 0]
    assert sorted(group.wrong.count for group in findings.tenants()) == [0, 1]


def test_without_enough_hits_nothing_is_recommended(findings: Findings, log: Path) -> None:
    strict = report_on_log(log, 0.001)

    assert not strict.pays
    assert strict.verdict() == "No tolerance is proven to stay below 0.1% wrong answers."
    assert "More hits will hardly prove a larger one: " in strict.advice()
    assert "The same words alone save 85% of the calls" in strict.advice()
    assert "← recommended" not in report_of(strict).render()
    assert strict.as_dict()["tolerance"] is None


def test_the_same_words_are_not_praised_where_their_answers_differ(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = [{"question": "who wrote it", "answer": str(number)} for number in range(40)]
    log.write_text("\n".join(map(json.dumps, lines)))
    advice = report_on_log(log, 0.01).advice()
    assert "which tolerance=0 serves, but 39 of 39 judged hits would be wrong" in advice


def test_how_many_more_hits_it_takes(findings: Findings, log: Path) -> None:
    advice = report_on_log(log, 0.01).advice()
    assert "There are too few hits: at " in advice
    assert "at least 299 without a wrong one are needed. About " in advice


def test_without_answers_documents_show_what_is_wrong(findings: Findings, tmp_path: Path) -> None:
    found = without(findings, tmp_path, "answer")

    assert found.judge == "documents"
    assert found.guards == "the guard"
    assert found.guarded.wrong(0).count == 0
    # The guard keeps the years apart; only the documents show that passwords are no password.
    assert 0 < found.guarded.wrong(35).count < found.plain.wrong(35).count
    # Not that all others are right.
    assert found.verdict().startswith("No tolerance can be recommended: no answers are recorded")
    assert not found.pays
    assert (found.as_dict()["tolerance"], found.as_dict()["plain_tolerance"]) == (None, None)
    assert "is the largest that is tried" not in found.advice()
    assert "← recommended" not in report_of(found).render()


@pytest.mark.parametrize("what", ["answer", "documents"])
def test_where_one_answer_or_one_page_is_all_there_is_nothing_is_recommended(
    what: str, tmp_path: Path
) -> None:
    plans = ("basic", "plus", "premium", "family", "student", "team")
    asked = (f"what does the {plan} plan cost" for plan in plans * 100)
    value = {"answer": "See the page."} if what == "answer" else {"documents": ["faq"]}
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps({"question": text, **value}) for text in asked))
    found = report_on_log(log, 0.01)

    assert found.guarded.wrong(35).total > 500
    assert found.verdict().startswith("No tolerance can be recommended")
    assert "which tolerance=0 serves. Record the answers" in found.advice()
    assert not found.pays


def test_questions_that_the_model_cannot_read_share_no_answer(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"question": text, "answer": text} for text in ("入门版多少钱", "专业版多少钱") * 20]
    log.write_text("\n".join(map(json.dumps, rows)))
    found = report_on_log(log, 0.01)

    assert found.guarded.saved(35).count == found.plain.saved(35).count == 38
    assert found.plain.wrong(35).count == 0


def test_without_both_only_hits_are_reported(findings: Findings, tmp_path: Path) -> None:
    found = without(findings, tmp_path, "answer", "documents", "seconds", "cost", "time", "tenant")

    assert found.verdict().startswith("Only hits can be reported: neither answers nor documents")
    assert found.guarded.saved(0).count == 240 - 18
    page = HtmlPage(report_of(found).render())
    assert page.tags.count("table") == 1
    assert "not recorded" in page.text
    assert "not recorded" not in HtmlPage(report_of(findings).render()).text


def test_questions_of_other_documents_do_not_share_answers(findings: Findings) -> None:
    assert findings.guarded.wrong(35).count == 1
    assert findings.plain.wrong(35).count > 1


def test_what_is_missing_is_noted(findings: Findings) -> None:
    first = replace(findings.questions[0], time=None, seconds=None)
    notes = " ".join(replace(findings, questions=[first, *findings.questions[1:]]).notes())

    assert "Not all questions have a time" in notes
    assert "1 questions have no time" in notes
    assert "1 lines or entries were skipped. line 241 is no JSON" in notes


def test_plots_show_the_shares_of_each_tolerance(findings: Findings) -> None:
    saved, wrong = charts(findings)
    for chart in (saved, wrong):
        assert len(chart.curves) == 3
        assert [point.x for point in chart.curves[0].points] == list(TOLERANCES)
        assert all(0 <= point.y <= 1 for curve in chart.curves for point in curve.points)
    assert saved.curves[0].points[-1].y == findings.guarded.saved(35).share
    assert wrong.curves[1].points[-1].y == findings.plain.wrong(35).share


def test_an_error_out_of_range_is_refused(log: Path) -> None:
    with pytest.raises(ConfigurationError, match="error must be a number of at least 1e-09"):
        report_on_log(log, 0.6)
