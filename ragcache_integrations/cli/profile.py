"""``ragcache profile``: what prefills cost on this machine, and whether caching pays."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.threads import usable_cores
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.arguments import (
    EngineKnobs,
    check_installed,
    engine_settings,
    with_bundled_model,
)
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.engine.measurements import measure_prefill, prefill_duration
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, profile_path

from .options import add_fields, add_json, add_model, at_least, check_file, check_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["add_profile"]

REPEATS = 3
BUSY_CORES = 0.5
"""This many cores in use by others disturb the measurement."""
LOOK_SECONDS = 0.5
SECONDS_AS_SUCH = 100
"""Longer durations are shown in minutes."""
TABLE_ROWS, TABLE_COLUMNS = 8, 6  # what fits a terminal of 80 columns


def add_profile(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "profile",
        help="measure how long prompts take, or estimate what caching would save",
        description=(
            "Measure the time to the first token for different numbers of cached and new tokens. "
            "The engine reads the result: its knowledge tree keeps the documents that would take "
            "longest to compute again. Run it once per model and device, on an otherwise idle "
            "machine. With --workload, no model runs: the command reads a log of your own traffic "
            "and reports what caches of different sizes would save."
        ),
    )
    parser.set_defaults(command=_profile)
    add_model(parser)
    parser.add_argument(
        "--max-tokens",
        type=at_least(2),
        metavar="N",
        help="length of the longest request, prompt and answer (default: the context window)",
    )
    parser.add_argument(
        "--repeats",
        type=at_least(1),
        metavar="R",
        help=f"measurements of each length; the median counts (default: {REPEATS})",
    )
    add_fields(parser, EngineKnobs, "kv_cache_gib")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file to write instead of the one that the engine reads",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing profile")
    add_json(parser)


def _profile(options: argparse.Namespace) -> None:
    require("rich", feature="ragcache profile", package="rich")
    from rich.console import Console  # noqa: PLC0415 - an extra

    check_installed("ragcache profile")
    console = Console()
    model = _model_name(options)
    device = device_name()
    path = _target(options, model, device)
    busy = _busy_cores()
    _print(console, {"Model": model, "Device": device, "Profile": f"will be written to {path}"})
    if busy >= BUSY_CORES:
        console.print(
            f"Other programs keep {busy:.1f} of {usable_cores()} cores busy: the times will be too "
            "long. Ctrl-C ends this.",
            style="bold",
            highlight=False,
        )
    console.print("Starting the engine ...", highlight=False)
    with _start(options) as engine:
        measured = {"max_tokens": options.max_tokens, "repeats": options.repeats or REPEATS}
        seconds = prefill_duration(engine, **measured)
        console.print(f"Measuring takes about {_duration(seconds)}.", highlight=False)
        costs = measure_prefill(engine, show_progress=True, **measured)
        window = engine.max_model_len
    costs.save(path)
    console.print(_table(costs, window))
    _print(console, {"Profile": path})
    if options.json:
        content = {"model": model, "device": device, "path": str(path)}
        sys.stdout.write(json.dumps(content | {"profile": costs.as_dict()}) + "\n")


def _model_name(options: argparse.Namespace) -> str:
    """The model's name as the engine will have it, under which profiles are kept."""
    settings = engine_settings(options.model, kv_cache_gib=options.kv_cache_gib)
    return with_bundled_model(settings).model


def _target(options: argparse.Namespace, model: str, device: str) -> Path:
    """The file to write, checked before anything is measured."""
    if options.output is not None:
        path = check_file("--output", options.output)
    else:
        path = profile_path(model, device)
        check_folder(path.parent, "set RAGCACHE_HOME to a folder, or name an --output")
    if path.exists() and not options.overwrite:
        when = time.strftime("%d %B %Y", time.localtime(path.stat().st_mtime))
        msg = f"there is a profile of {when} in {path}: measure again with --overwrite"
        raise ConfigurationError(msg)
    return path


def _busy_cores() -> float:
    """How many cores the machine's programs keep busy now; 0 where that is unknown."""
    samples = []
    for pause in (0.0, LOOK_SECONDS):
        time.sleep(pause)
        try:
            line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
        except OSError:
            return 0.0
        times = [int(ticks) for ticks in line.split()[1:9]]
        samples.append((sum(times), times[3] + times[4]))  # of these idle, or waiting for a disk
    (total, idle), (later, idle_later) = samples
    busy = 1 - (idle_later - idle) / max(1, later - total)
    return busy * (os.cpu_count() or 1)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < SECONDS_AS_SUCH else f"{seconds / 60:.0f} minutes"


def _print(console: Console, lines: Mapping[str, object]) -> None:
    for name, value in lines.items():
        console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)


def _start(options: argparse.Namespace) -> RAGCacheEngine:
    """Start the engine with no longer a window than asked for: its KV cache must hold it."""
    try:
        return RAGCacheEngine(
            options.model, kv_cache_gib=options.kv_cache_gib, max_model_len=options.max_tokens
        )
    except ConfigurationError as error:
        if options.max_tokens is None or "max_model_len" not in str(error):
            raise
        # vLLM alone knows the model's window, and says so among much else.
        reason = " ".join(str(error).rpartition("Value error, ")[2].split()).partition(". ")[0]
        msg = f"--max-tokens {options.max_tokens} is no context window of this model: {reason}"
        raise ConfigurationError(msg) from error


def _table(model: PrefillCostModel, window: int) -> Table:
    from rich.table import Table  # noqa: PLC0415 - an extra

    table = Table(
        title="Time to the first token in ms",
        title_justify="left",
        title_style="bold",
        caption="by cached tokens (down) and new tokens (across)",
        caption_justify="left",
    )
    columns = _thinned(model.new_tokens, TABLE_COLUMNS)
    table.add_column("", justify="right", style="bold")
    for new in columns:
        table.add_column(f"{new:,}", justify="right")
    for cached in _thinned(model.cached_tokens, TABLE_ROWS):
        # The grid goes on beyond the context window; what is there was not measured.
        cells = [
            f"{1000 * model(cached, new):,.1f}" if cached + new < window else "-" for new in columns
        ]
        table.add_row(f"{cached:,}", *cells)
    return table


def _thinned(axis: Sequence[int], most: int) -> Sequence[int]:
    """At most ``most`` of the numbers, evenly apart, the last among them."""
    step = -(-len(axis) // most)
    return axis[::-1][::step][::-1]
