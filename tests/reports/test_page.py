from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
from PIL import ImageColor

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.reports import (
    DARK,
    LIGHT,
    PALETTE_SIZE,
    Bar,
    Bars,
    Cell,
    Curve,
    Panel,
    Point,
    Table,
    Tile,
    curve_of,
    render_page,
    svg,
    write_page,
)
from ragcache_workbench.reports import page as page_module
from tests.support.html_page import HtmlPage

MARKUP = '<script>alert("&")</script>'
POINTS = (Point(1.0, 0.5, label=MARKUP), Point(5.0, 20.0, 19.0, 22.0), Point(9.0, 999.0))
CHART = Panel(
    MARKUP,
    MARKUP,
    "ms",
    (Curve(MARKUP, "c0", POINTS), Curve("dots", "other", POINTS, "dots")),
    y_label=MARKUP,
    note=MARKUP,
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
    # The title, four texts of a tile, title, note, scales, legend and labels of a chart, and a head
    # and two cells of a table.
    assert page.text.count(MARKUP) == 1 + 4 + 7 + 3
    assert html.count("aria-label") == 2


def test_it_loads_nothing(html: str) -> None:
    assert HtmlPage(html).links == ["#below"]
    assert not re.search(r"https?:|//|@import|url\(", html)


def test_light_and_dark_have_the_same_colours(html: str) -> None:
    assert LIGHT.keys() == DARK.keys()
    assert len({LIGHT[f"c{number}"] for number in range(PALETTE_SIZE)}) == PALETTE_SIZE
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


def test_plots_have_the_colours_of_their_page() -> None:
    drawn = svg(CHART)
    assert "#" not in re.sub(r"#m[0-9a-f]{10}", "", drawn)
    for name in ("good", "other", "soft", "line", "ink"):  # c0 is as good
        assert f"var(--{name})" in drawn


def test_plots_are_the_same_each_time_with_ids_of_their_own() -> None:
    other = replace(CHART, title="other")
    assert svg(CHART) == svg(CHART)
    ids = [set(re.findall(r' id="([^"]*)"', svg(plot))) for plot in (CHART, other)]
    assert ids[0]
    assert ids[0].isdisjoint(ids[1])


def test_many_dots_are_smaller() -> None:
    few, many = (
        svg(Panel("", "", "ms", (curve_of("", "c0", [(n, n) for n in range(count)], "dots"),)))
        for count in (50, 51)
    )
    assert "M 0 2.5" in few
    assert "M 0 1.25" in many


def test_long_paths_are_thinned() -> None:
    points = [(n / 10_000, n / 10_000) for n in range(10_001)]
    drawn = svg(Panel("", "", "share", (curve_of("", "c0", points),), "share"))
    assert drawn.count("L ") < 500
    dots = svg(Panel("", "", "share", (curve_of("", "c0", points[::10], "dots"),)))
    assert dots.count("<use") == 1001


AWKWARD = [
    [(0.0, 0.0)],
    [(5.0, 1e6)],
    [(0.0, 0.0), (1.0, 0.0)],
    [(1e-9, 1e-9), (1.0, 5.0), (1e6, 1e6)],
    [(2.0, 0.1), (2.0, 900.0), (3.0, 1e5)],
    [(1.0, 10.0), (40.0, 400.0)],
    [(float(n), 10.0**n) for n in range(1, 6)],
]


@pytest.mark.parametrize("points", AWKWARD, ids=range(len(AWKWARD)))
@pytest.mark.parametrize(
    ("unit", "x_unit", "kind"),
    [
        ("share", "number", "line"),
        ("ms", "ms", "path"),
        ("count", "count", "dots"),
        ("score", "share", "line"),
    ],
)
def test_whatever_is_measured_is_drawn_within_the_plot(
    points: list[tuple[float, float]], unit: Any, x_unit: Any, kind: Any
) -> None:
    scale = 1e-6 if unit == "share" else 1.0
    curve = curve_of("", "c1", [(x, scale * y) for x, y in points], kind)
    within(svg(Panel("", "", unit, (curve,), x_unit)), "c1", kind)


@pytest.mark.parametrize("points", AWKWARD, ids=range(len(AWKWARD)))
@pytest.mark.parametrize("log", [True, False])
def test_whatever_is_compared_is_drawn_within_the_plot(
    points: list[tuple[float, float]], log: bool
) -> None:
    bars = tuple(Bar("a", (x + y) / 2, min(x, y), max(x, y), "", better=False) for x, y in points)
    within(svg(Bars("", "", bars, 1.0, log=log)), "bad", "line")


def within(drawn: str, colour: str, kind: str) -> None:
    """Check that what has a colour is within the plot; nothing else would clip it."""
    left, top, width, height = map(float, re.findall(r'viewBox="([^"]*)"', drawn)[0].split())
    used = rf'<use [^>]*x="([^"]*)" y="([^"]*)"[^>]*var\(--{colour}\)'
    places = re.findall(used, drawn)
    for path in re.findall(rf'<path d="([^"]*)"[^>]*var\(--{colour}\)', drawn):
        places += re.findall(r"([\d.e+-]+) ([\d.e+-]+)", path)
    assert places or kind == "path"  # a path of a single point has no length
    for x, y in places:
        assert left - 1 <= float(x) <= left + width + 1
        assert top - 1 <= float(y) <= top + height + 1


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page("ä", page)
    write_page("ö", page)
    assert page.read_text(encoding="utf-8") == "ö"
    for path in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(ConfigurationError, match="cannot write the report"):
            write_page("ü", path)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
