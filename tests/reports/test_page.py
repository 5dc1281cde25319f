from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest
from PIL import ImageColor

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.reports import (
    PALETTE,
    PALETTE_SIZE,
    Axis,
    Cell,
    Chart,
    Label,
    Series,
    Table,
    Tile,
    dot_series,
    render_page,
    write_page,
)
from ragcache_workbench.reports import page as page_module
from ragcache_workbench.reports.colours import DARK, LIGHT
from tests.support.html_page import HtmlPage

MARKUP = '<script>alert("&")</script>'
X, Y = Axis(0, 10, label=MARKUP), Axis(0.1, 1000, log=True, label=MARKUP)
POINTS = [(1.0, 0.5), (5.0, 20.0), (9.0, 999.0)]
CHART = Chart(
    MARKUP,
    X,
    Y,
    (Series(MARKUP, "c0", POINTS), dot_series("dots", "other", POINTS)),
    MARKUP,
    (Label(MARKUP, 10, 10),),
    MARKUP,
)
TABLE = Table(
    ("name", MARKUP),
    (
        (Cell(MARKUP, link="below"), Cell("1 %", 1.0, "good")),
        (Cell("other"), Cell(MARKUP, style="words")),
    ),
)
TEMPLATE = """\
{% extends "reports/base.html.j2" %}
{% from "reports/macros.html.j2" import chart_card, table, tiles %}
{% block title %}{{ text }}{% endblock %}
{% block content %}
{{ tiles(figures) }}{{ chart_card(chart) }}{{ table(rows, text, sortable=true, sticky=true) }}
{% endblock %}
"""


@pytest.fixture
def html(monkeypatch: pytest.MonkeyPatch) -> str:
    """All that a page may be made of, with markup in every text."""
    source = page_module._source
    page_module._environment.cache_clear()
    monkeypatch.setattr(
        page_module, "_source", lambda name: TEMPLATE if name == "test.html.j2" else source(name)
    )
    figures = [Tile(MARKUP, MARKUP, MARKUP, MARKUP), Tile("plain", "1")]
    rendered = render_page("test.html.j2", text=MARKUP, figures=figures, chart=CHART, rows=TABLE)
    page_module._environment.cache_clear()
    return rendered


def test_no_text_is_markup(html: str) -> None:
    page = HtmlPage(html)
    assert "script" not in page.tags
    # The title, four texts of a tile, title, note, scales, legend and label of a chart, and a head
    # and two cells of a table.
    assert page.text.count(MARKUP) == 1 + 4 + 6 + 3
    assert html.count("aria-label") == 2


def test_it_loads_nothing(html: str) -> None:
    assert HtmlPage(html).links == ["#below"]
    assert not re.search(r"https?:|//|@import|url\(", html)


def test_light_and_dark_have_the_same_colours(html: str) -> None:
    assert LIGHT.keys() == DARK.keys()
    assert len(set(PALETTE)) == PALETTE_SIZE
    for name in LIGHT:
        assert f"--{name}: {LIGHT[name]};" in html
        assert f"--{name}: {DARK[name]};" in html


def luminance(colour: str) -> float:
    channels = [value / 255 for value in ImageColor.getrgb(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_ground(colours: dict[str, str]) -> None:
    curves = ("other", *(f"c{number}" for number in range(PALETTE_SIZE)))
    for ground, names, least in (  # as WCAG 2 asks of text, and of what is drawn
        ("page", ("ink", "soft", "good", "bad"), 4.5),
        ("card", ("ink", "soft", "good", "bad"), 4.5),
        ("card", curves, 3.0),
    ):
        for name in names:
            darker, lighter = sorted(map(luminance, (colours[name], colours[ground])))
            assert (lighter + 0.05) / (darker + 0.05) >= least, (name, ground)


def test_cells_have_their_keys_and_styles(html: str) -> None:
    assert '<td data-key="1.0" class="good">1\N{NO-BREAK SPACE}%</td>' in html
    assert '<th scope="row"><a href="#below">' in html


def test_half_a_character_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_module, "_source", lambda _: "{{ text }}")
    page_module._environment.cache_clear()
    write_page(render_page("any.j2", text="a\ud800 \ud83d\ude00"), tmp_path / "page.html")
    page_module._environment.cache_clear()
    assert (tmp_path / "page.html").read_text() == "a\ufffd 😀"


def test_a_variable_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="report"):
        render_page("reports/findings.html.j2")


def test_many_dots_are_smaller() -> None:
    few, many = ([(place / 100, 1.0) for place in range(count)] for count in (50, 51))
    assert dot_series("", "c0", few).style == "c0 dots"
    assert dot_series("", "c0", many).style == "c0 dots many"


def test_an_axis_is_labelled_at_its_marks() -> None:
    assert [(tick.label, tick.at) for tick in Axis(0, 8, marks=(2, 5)).ticks()] == [
        ("2", 25),
        ("5", 62.5),
    ]
    assert [tick.at for tick in Axis(0, 8, marks=(2, 5)).ticks(downwards=True)] == [75, 37.5]


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page("ä", page)
    write_page("ö", page)
    assert page.read_text(encoding="utf-8") == "ö"
    for path in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(ConfigurationError, match="cannot write the report"):
            write_page("ü", path)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
