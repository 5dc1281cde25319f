"""The findings as one HTML file that needs nothing but a browser."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import jinja2

from ragcache_integrations import __version__
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.workload_report import charts
from ragcache_integrations.workload_report.summary import (
    TOP_PARTS,
    Findings,
    percent,
    short_number,
)

__all__ = ["render", "write_report"]


def render(findings: Findings) -> str:
    """The report as HTML: no script, nothing loaded from anywhere."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = percent
    source = files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8")
    result = findings.result
    return environment.from_string(source).render(
        version=__version__,
        findings=findings,
        result=result,
        tiles=_tiles(findings),
        charts=[charts.access(findings), charts.prefill(findings), *charts.sizes(findings)],
        top=[(part, result.skew.share_of_top(part)) for part in TOP_PARTS],
    )


def write_report(findings: Findings, path: Path) -> None:
    """Write the report to a file.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    try:
        path.write_text(render(findings), encoding="utf-8")
    except OSError as error:
        msg = f"cannot write the report {path} ({error.strerror})"
        raise ConfigurationError(msg) from error


def _tiles(findings: Findings) -> list[tuple[str, str, str]]:
    """Label, figure and explanation of what stands in large type."""
    result, size = findings.result, findings.result.recommended
    tiles = [
        (
            "Requests",
            f"{result.requests:,}",
            f"{result.skew.documents:,} different documents in {result.skew.accesses:,} accesses",
        ),
        (
            "Mean prompt",
            f"{result.mean_prompt_tokens:,.0f} tokens",
            f"all documents together {result.document_tokens:,}",
        ),
        (
            "Found by a cache of any size",
            percent(result.unlimited.token_hit_rate),
            "at most, of the documents' tokens",
        ),
    ]
    if size is None:
        return [*tiles, ("Recommended size", "none", "caching will not pay here")]
    gib = findings.gib(size.tokens)
    figure = f"{short_number(float(f'{size.tokens:.3g}'))} tokens" if gib is None else f"{gib} GiB"
    return [
        *tiles,
        (
            "Recommended size",
            figure,
            f"{size.tokens:,} tokens, saves {percent(size.saved_share)} of the prefill time",
        ),
    ]
