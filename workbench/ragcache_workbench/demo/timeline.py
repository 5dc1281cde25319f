"""The timeline of one query, before and after, as a picture."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.speculation import SpeculationReport
from ragcache_workbench.reports import LIGHT, Picture, strip_axes

from .speculative import Pair, Traced

__all__ = ["Span", "draw_timeline", "spans"]

INK, SOFT, BEFORE, AFTER = (LIGHT[name] for name in ("ink", "soft", "other", "c0"))
SEARCH, PREFILL, DECODE = (LIGHT[name] for name in ("search", "prefill", "decode"))
WRONG = LIGHT["overhead"]
MS = 1000.0
HEIGHT = 0.62
LABEL_FLIPS = 0.8
"""Share of the width beyond which a label is to the left of what it names."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a query's time, in seconds since it began.

    Attributes:
        kind: ``stage`` of the search, ``wrong`` guess, ``prefill`` or ``decode`` of the answer.
        number: Number of the stage or the guess.
        begin, end: Seconds since the query began.
    """

    kind: str
    number: int
    begin: float
    end: float


def spans(trace: Traced) -> tuple[Span, ...]:
    """What happened when, from the report's events."""
    report = trace.report
    stretches: list[Span] = []
    begin = 0.0
    for event in report.events:
        if event.what in {"stage", "final stage"}:
            stretches.append(Span("stage", event.number, begin, event.seconds))
            begin = event.seconds
    submitted = _times(report, "submitted")
    ended = _times(report, "terminated")
    first_tokens = _times(report, "first token")
    for number, begin in submitted.items():
        if number in ended:
            stretches.append(Span("wrong", number, begin, ended[number]))
            continue
        first = first_tokens.get(number, trace.seconds)
        stretches.append(Span("prefill", number, begin, first))
        stretches.append(Span("decode", number, first, max(first, trace.seconds)))
    return tuple(stretches)


def _times(report: SpeculationReport, what: str) -> dict[int, float]:
    return {event.number: event.seconds for event in report.events if event.what == what}


def draw_timeline(pair: Pair, path: Path) -> None:
    """Draw a query's two courses, one above the other, on one scale.

    Args:
        pair: A query with its sequential and its speculative course.
        path: PNG file to write.
    """
    question = textwrap.shorten(pair.question, 90, placeholder=" …")
    picture = Picture(10.0, 4.8, f"“{question}”")
    panels = picture.figure.subplots(2, 1, sharex=True)
    end = 1.02 * MS * max(pair.sequential.seconds, pair.speculative.seconds)
    sides = (
        ("Sequential: search, then generate", BEFORE, pair.sequential),
        ("Speculative: generate while the search runs", AFTER, pair.speculative),
    )
    for panel, (title, colour, trace) in zip(panels, sides, strict=True):
        panel.set_xlim(0, end)
        _draw(panel, title, colour, trace)
    panels[-1].set_xlabel("ms since the question", color=SOFT, fontsize=9)
    picture.add_legend(_legend(), 5, 9)
    path.write_bytes(picture.png())


def _draw(panel: Any, title: str, colour: str, trace: Traced) -> None:
    colours = {"stage": SEARCH, "wrong": WRONG, "prefill": PREFILL, "decode": DECODE}
    rows = {"stage": 1, "wrong": 0, "prefill": 0, "decode": 0}
    for span in spans(trace):
        panel.barh(
            rows[span.kind],
            MS * (span.end - span.begin),
            HEIGHT,
            MS * span.begin,
            color=colours[span.kind],
            hatch="////" if span.kind == "wrong" else None,
            edgecolor="white",
            linewidth=1.0,
        )
        middle = MS * (span.begin + span.end) / 2
        if span.kind == "wrong":
            panel.annotate(
                f"guess {span.number}, terminated",
                (middle, -HEIGHT / 2),
                (0, -3),
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=8,
                color=SOFT,
            )
    seen = MS * trace.ttft
    late = seen > LABEL_FLIPS * panel.get_xlim()[1]
    panel.axvline(seen, color=colour, linewidth=1.6, linestyle=(0, (4, 2)))
    panel.annotate(
        f"first token: {seen:.0f} ms",
        (seen, 1.45),
        (-5 if late else 5, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="center",
        fontsize=9,
        weight="bold",
        color=colour,
    )
    strip_axes(panel, title, grid="x")
    panel.set_yticks([0, 1], ["engine", "search"], fontsize=9, color=INK)
    panel.set_ylim(-0.75, 1.75)


def _legend() -> list[Any]:
    from matplotlib.patches import Patch  # noqa: PLC0415 - an extra

    return [
        Patch(color=SEARCH, label="stages of the search"),
        Patch(facecolor=WRONG, edgecolor="white", hatch="////", label="wrong guess"),
        Patch(color=PREFILL, label="prefill of the answer"),
        Patch(color=DECODE, label="its decoding"),
    ]
