"""Draws what the parts gain, before and after, and the badges: SVG for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ragcache_workbench.reports import DARK, LIGHT

__all__ = ["Badge", "Pair", "draw_badges", "draw_pairs"]

WIDTH = 560  # pixels, as everything below; letters stay legible on a page of 400
LONGEST = 420
"""Length of the longer bar of a pair."""
BAR, ROW, GROUP = 15, 19, 69
LETTER = 7.3
"""Width of a letter of a badge, on average."""

GREY, TEAL = "#55606f", LIGHT["c0"]
"""Of badges, whose letters are white on any page."""
INKS = ("ink", "soft", "other", "c0", "bad")


@dataclass(frozen=True)
class Pair:
    """A measure before and after; less is better.

    Attributes:
        title: What is measured.
        before, after: Its values.
        unit: Their unit, if they have one.
    """

    title: str
    before: float
    after: float
    unit: str


@dataclass(frozen=True)
class Badge:
    """A name and what is true of it."""

    name: str
    value: str


def _style() -> str:
    font = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
    lines = [f"text {{ font: 15px {font}; fill: {LIGHT['ink']}; }}", ".title { font-weight: 600; }"]
    lines += [f".{name} {{ fill: {LIGHT[name]}; }}" for name in INKS]
    lines.append("@media (prefers-color-scheme: dark) {")
    lines.append(f"  text {{ fill: {DARK['ink']}; }}")
    lines += [f"  .{name} {{ fill: {DARK[name]}; }}" for name in INKS]
    return "\n".join([*lines, "}"])


def _svg(width: float, height: float, title: str, shapes: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img">'
    )
    lines = [head, f"<title>{escape(title)}</title>", f"<style>\n{_style()}\n</style>"]
    return "\n".join([*lines, *shapes, "</svg>\n"])


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit, in three digits at most."""
    if unit == "ms" and value >= 1000:  # noqa: PLR2004 - a second
        return f"{value / 1000:.1f} s"
    return f"{value:.{0 if value >= 10 else 1}f} {unit}".strip()  # noqa: PLR2004 - two digits


def draw_pairs(pairs: Sequence[Pair]) -> str:
    """Return a drawing of two bars for each pair, the longer of them of full length."""
    shapes = [shape for number, pair in enumerate(pairs) for shape in _bars(pair, GROUP * number)]
    summary = "; ".join(
        f"{pair.title}: {quantity(pair.before, pair.unit)} before, "
        f"{quantity(pair.after, pair.unit)} after"
        for pair in pairs
    )
    return _svg(WIDTH, GROUP * len(pairs), summary, shapes)


def _bars(pair: Pair, top: float) -> Iterator[str]:
    yield f'<text class="title" x="0" y="{top + 17:g}">{escape(pair.title)}</text>'
    longest = max(pair.before, pair.after)
    after = "c0" if pair.after < pair.before else "bad"
    bars = (("before", pair.before, "other"), ("after", pair.after, after))
    for row, (when, value, colour) in enumerate(bars):
        y = top + 26 + row * ROW
        length = LONGEST * value / longest
        yield (
            f'<rect class="{colour}" x="0" y="{y:g}" width="{length:.1f}" height="{BAR}" rx="2"/>'
        )
        label = f"{when} {quantity(value, pair.unit)}"
        yield f'<text class="soft" x="{length + 8:.1f}" y="{y + 13:g}">{escape(label)}</text>'


def draw_badges(badges: Sequence[Badge]) -> str:
    """Return the badges in a row."""
    shapes: list[str] = []
    x = 0.0
    for badge in badges:
        name, value = (LETTER * len(text) + 18 for text in (badge.name, badge.value))
        shapes += [*_plate(x, name, badge.name, GREY), *_plate(x + name, value, badge.value, TEAL)]
        x += name + value + 8
    title = ", ".join(f"{badge.name} {badge.value}" for badge in badges)
    return _svg(x - 8, 22, title, shapes)


def _plate(x: float, width: float, text: str, colour: str) -> Iterator[str]:
    yield f'<rect x="{x:g}" y="0" width="{width:g}" height="22" fill="{colour}"/>'
    style = "fill: #fff; font-size: 13px; text-anchor: middle"
    yield f'<text x="{x + width / 2:g}" y="16" style="{style}">{escape(text)}</text>'
