from __future__ import annotations

import io
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_integrations.resources import load_questions
from ragcache_workbench.demo import report as charts
from ragcache_workbench.demo.report import (
    examples,
    figures_table,
    milliseconds,
    render,
    show,
    show_conditions,
    verdict,
    write_report,
)
from ragcache_workbench.demo.run import DemoResult, FrameworkResult
from ragcache_workbench.demo.settings import FRAMEWORKS, DemoSettings
from tests.support.html_page import HtmlPage


@pytest.fixture(scope="module")
def html(result: DemoResult) -> str:
    return render(result)


@pytest.fixture(scope="module")
def page(html: str) -> HtmlPage:
    return HtmlPage(html)


def test_the_report_is_well_formed(page: HtmlPage) -> None:
    assert {"h1", "table", "svg", "details"} <= set(page.tags)


def test_the_report_loads_nothing(html: str, page: HtmlPage) -> None:
    assert page.links == []
    assert not set(page.tags) & {"script", "link", "iframe", "img", "object"}
    assert not re.search(r"https?:|//|@import|url\(", html)


def test_answers_are_shown_as_text(page: HtmlPage) -> None:
    assert '<script>alert("noise")</script> & [bold]more[/bold]' in page.text


def test_the_report_says_what_was_run_and_how_to_run_it_again(page: HtmlPage) -> None:
    for words in (
        "60 questions",
        "300,000 generated vectors",
        "LangChain",
        "LlamaIndex",
        "recall 0.987",
        "ragcache demo --questions 60 --top-k 3",
        "The answers are noise",
    ):
        assert words in page.text


def test_page_and_terminal_begin_with_what_to_do(result: DemoResult, page: HtmlPage) -> None:
    console = Console(record=True, width=300, file=io.StringIO())
    show(result, console)
    for name, framework in result.frameworks.items():
        sentence, _ = verdict(FRAMEWORKS[name], framework)
        assert sentence in page.text
        assert sentence in console.export_text(clear=False)


@pytest.mark.parametrize(
    ("times", "searches", "words"),
    [
        ([8.0], 20, "swap pays off for these questions: the first token came 20% sooner (95 %"),
        ([13.0], 20, "only the retriever pays off for these questions: the first token came 30% l"),
        ([10.0], 60, "the swap does not pay off"),
        # A neighbour on the machine slowed down a few answers: the mean alone says nothing.
        ([5.0, 1.0, 19.0], 20, "only the retriever pays off"),
    ],
)
def test_what_to_do_follows_from_the_figures(
    result: DemoResult, times: list[float], searches: int, words: str
) -> None:
    before = tuple(
        replace(seen, store_calls=1, first_token_ms=10.0)
        for seen in result.frameworks["langchain"].before
    )
    after = tuple(
        replace(seen, store_calls=int(number < searches), first_token_ms=times[number % len(times)])
        for number, seen in enumerate(before)
    )
    assert len(before) == 60
    sentence, pays = verdict("LangChain", FrameworkResult(before, after, after, None))
    assert words in sentence
    assert pays == ("does not" not in words)


def test_the_report_is_written(result: DemoResult, html: str, tmp_path: Path) -> None:
    write_report(result, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html


def test_plots_show_what_was_measured(result: DemoResult) -> None:
    for framework in result.frameworks.values():
        before, after = charts.cumulative(framework).curves
        spent = sum(seen.embedding_ms + seen.retrieval_ms for seen in framework.before) / 1000
        assert before.points[-1].x == 60
        assert before.points[-1].y == pytest.approx(spent)
        assert after.points[-1].y < before.points[-1].y
        misses, hits = charts.retrievals(framework).curves
        assert len(hits.points) == framework.figures["after"].hits
        assert len(misses.points) == 60 - len(hits.points)
        for curve in charts.ttfts(framework).curves:
            shares = [point.y for point in curve.points]
            assert shares == sorted(shares)
            assert 0.9 < shares[-1] <= 1


def test_the_longest_bar_is_full(result: DemoResult, html: str) -> None:
    for framework in result.frameworks.values():
        parts = charts.parts(framework)
        longest = max(sum(row[at].key or 0 for row in parts.rows) for at in (1, 2, 3))
        slowest = max(
            statistics.fmean(seen.end_to_end_ms for seen in side)
            for side in framework.sides.values()
        )
        assert longest == pytest.approx(slowest)
    stretches = re.findall(r'<div class="stretch">(.*?)</div>', html, re.DOTALL)
    widths = [sum(map(float, re.findall(r"width:([\d.]+)%", one))) for one in stretches]
    assert len(widths) == 6
    assert max(widths) == pytest.approx(100, abs=0.1)


def test_plots_of_a_single_question(result: DemoResult) -> None:
    framework = result.frameworks["langchain"]
    sides = {name: getattr(framework, name)[:1] for name in ("before", "after", "anywhere")}
    single = replace(framework, **sides)
    short = replace(result, frameworks={"langchain": single}, requests=result.requests[:1])
    assert HtmlPage(render(short)).tags.count("svg") == 3


def test_examples_are_of_every_kind(result: DemoResult) -> None:
    chosen = examples(result)
    assert [(example.observation.hit, example.request.rephrased) for example in chosen] == [
        *[(False, False)] * 3,
        (True, False),
        (True, True),
        (True, True),
    ]
    assert chosen[4].first_wording
    assert chosen[4].first_wording in chosen[4].story
    assert all(
        example.right == load_questions()[example.request.topic].answers for example in chosen
    )
    assert all(len(example.documents) == 3 for example in chosen)


def test_the_table(result: DemoResult) -> None:
    framework = result.frameworks["langchain"]
    shown = figures_table(framework)
    table = {row[0].text: [cell.text for cell in row[1:]] for row in shown.rows}
    hits = sum(request.repeated for request in result.requests)
    before, after, _, anywhere, anywhere_change = table["Vector-store calls"]
    assert (before, after, anywhere) == ("60", str(60 - hits), str(60 - hits))
    assert table["Query-cache hits"][1] == str(hits)
    assert table["Recall on hits"][1] == "0.987"
    *_, anywhere, anywhere_change = table["Cached prompt tokens"]
    assert anywhere == f"{framework.figures['anywhere'].cached_prompt_tokens:,}"
    assert anywhere_change.endswith(" %")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.004, "0.00"), (0.5, "0.50"), (1.25, "1.2"), (31.4, "31"), (150.2, "150"), (1234, "1,234")],
)
def test_times_have_the_digits_they_deserve(value: float, text: str) -> None:
    assert milliseconds(value) == text


def test_the_terminal(result: DemoResult) -> None:
    console = Console(width=100, record=True, quiet=True)
    console.quiet = False
    with console.capture() as capture:
        show_conditions(result.settings, console)
        show(result, console)
    text = capture.get()
    for words in ("300,000 generated", "LangChain", "LlamaIndex", "TTFT", "[bold]more[/bold]"):
        assert words in text


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (DemoSettings(), "ragcache demo"),
        (DemoSettings().quick(), "ragcache demo --quick"),
        (DemoSettings(seed=3).quick(), "ragcache demo --quick --seed 3"),
        (DemoSettings(model="a b/c"), "ragcache demo --model 'a b/c'"),
    ],
)
def test_the_command_that_runs_it_again(settings: DemoSettings, command: str) -> None:
    assert settings.command() == command
