"""Reports of runs: an HTML page that needs only a browser, PNG files, and the terminal.

They begin with a verdict: what to do, in a sentence for each group of runs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as TerminalTable

from ragcache_integrations.core.files import replacing
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.runs import (
    Comparison,
    EvalRun,
    answer_scores,
    compare,
    throughputs,
)
from ragcache_workbench.evaluation.scores import FEWEST, MECHANICS_ONLY, Interval
from ragcache_workbench.reports import Cell, Table, Tile, png, render_page, svg, terminal_table

from .figures import TIMES, Section, comparisons, sections
from .labels import (
    FOLLOWED,
    call_of,
    changed_knobs,
    chosen_by,
    differing_knobs,
    facts_of,
    format_figure,
    format_knob,
    in_order,
    labels_of,
    main_quality,
    measure,
    rephrased_by,
    value_of,
)
from .tables import (
    commands_of,
    comparison_table,
    environments,
    groups_table,
    numbers_in_words,
    of_all,
    ran_on,
    remarks,
    runs_table,
    shown_figures,
)

__all__ = [
    "PAGE",
    "Gathered",
    "Verdict",
    "awrite_report",
    "gather",
    "render",
    "show",
    "verdicts",
    "write_report",
]

TOLERATED = 0.02
"""So much lower a quality still counts as the same, if the whole interval is above it."""

WORTHWHILE = 0.05
"""The least share of searches, or of prompt tokens, that is worth a component."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do.

    Attributes:
        text: The sentence.
        pays: Whether something is to be kept; ``None`` where that is open.
    """

    text: str
    pays: bool | None


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A run compared with the first.

    Attributes:
        label: Its knobs.
        searches: The share of the first run's searches that it saves.
        tokens: The share of the first run's computed prompt tokens that it saves; 0 if what was
            cached before the runs may explain it.
        quality: How much its quality differs; ``None`` if that is unknown.
        questions: Number of different questions that were asked.
    """

    label: str
    searches: float
    tokens: float
    quality: Interval | None
    questions: int

    @property
    def gain(self) -> str:
        saved = (self.searches, "searches"), (self.tokens, "prompt tokens to compute")
        return next((f"{share:.0%} fewer {of}" for share, of in saved if share >= WORTHWHILE), "")

    @property
    def pays(self) -> bool | None:
        if not self.gain or (self.quality is not None and self.quality.high < 0):
            return False
        if self.quality is None or self.quality.low < -TOLERATED:
            return None
        return True if self.questions >= FEWEST else None

    @property
    def rank(self) -> tuple[int, float, float]:
        return [False, None, True].index(self.pays), self.searches, self.tokens


def verdicts(runs: Sequence[EvalRun]) -> list[Verdict]:
    """Say what to do, for each group of runs of the same questions, or for a single run.

    Nothing that the order of the runs may explain has a part in it: neither times, since what else
    the machine does changes, nor tokens of a cache that a run found as another run left it.
    """
    if len(runs) == 1:
        return [_alone(runs[0])]
    groups: dict[str, list[EvalRun]] = defaultdict(list)
    for run in runs:
        groups[run.config["workload"]["digest"]].append(run)
    return [_compared(members) for members in groups.values() if len(members) > 1]


def _alone(run: EvalRun) -> Verdict:
    title, rate = run.config["dataset"]["title"], run.figures.get("cache_hit_rate")
    if rate is None:
        return Verdict(
            f"{title} without a query cache: repeat it with one to see what it saves.", None
        )
    recall = run.figures.get("k_recall")
    found = "" if recall is None else f", and {recall:.1%} of the store's documents were found"
    if rate < WORTHWHILE:
        text = (
            f"The query cache does not pay off here: {rate:.0%} fewer searches. Try a higher "
            "tolerance, or leave it out."
        )
        return Verdict(text, pays=False)
    text = (
        f"The query cache saves {rate:.0%} of the searches{found}. A run with --retriever plain "
        "shows whether the answers are as good."
    )
    return Verdict(text, pays=None)


def _compared(runs: Sequence[EvalRun]) -> Verdict:
    base, *others = runs
    base_label, *labels = (label or "the same settings" for label in labels_of(runs))
    name = main_quality(runs)
    quality = _quality_differences(runs, name)
    questions = len({record.question for record in base.records})
    candidates = [
        _Candidate(
            label,
            _fewer(_searches(base), _searches(run)),
            _fewer(_computed_tokens(base), _computed_tokens(run))
            if all(each.began_empty and "prompt_tokens" in each.figures for each in (base, run))
            else 0.0,
            quality.get(run.name),
            questions,
        )
        for run, label in zip(others, labels, strict=True)
    ]
    best = max(candidates, key=lambda candidate: candidate.rank)
    words = "quality" if name is None else measure(name).words
    return _sentence(best, base_label, words)


def _quality_differences(runs: Sequence[EvalRun], name: str | None) -> dict[str, Interval]:
    """How quality differs from the first run's, by the names of the others.

    It is left out where it is unknown, or nothing was right in either run.
    """
    if name not in answer_scores(runs) or any(run.quality is None for run in runs):
        return {}
    return {
        comparison.other.name: comparison.difference
        for comparison in compare(runs, metrics=[str(name)])
        if comparison.baseline_mean or comparison.other_mean
    }


def _sentence(best: _Candidate, base: str, quality: str) -> Verdict:
    if not best.gain:
        text = f"Keep {base}: no other run saves searches or prompt tokens."
        return Verdict(text, pays=False)
    gain = f"{best.label}: {best.gain} than {base}"
    if best.quality is None:
        text = f"{gain}. These runs do not show what it does to the answers: ask your own model."
        return Verdict(text, None)
    points, low, high = (100 * end for end in best.quality.as_list())
    interval = f"{points:+.1f} points, between {low:+.1f} and {high:+.1f}"
    if best.pays is False:
        text = f"{gain}, but worse answers ({quality} {interval}): keep {base}."
        return Verdict(text, pays=False)
    few = f"but {best.questions:,} different questions are too few to show"
    if best.quality.low < -TOLERATED:
        text = (
            f"{gain}, {few} whether the answers suffer ({quality} {interval}): ask more before "
            "you keep it."
        )
        return Verdict(text, None)
    same = f"the same {quality} within ±{max(abs(low), abs(high)):.1f} points"
    better = f"{quality} {points:.1f} points higher" if low > 0 else same
    if best.pays is None:
        text = f"{gain}, {better}, {few} it: ask at least {FEWEST} before you keep it."
        return Verdict(text, None)
    return Verdict(f"{gain}, {better}: keep it.", pays=True)


def _searches(run: EvalRun) -> float:
    return 1 - (run.figures.get("cache_hit_rate") or 0.0)


def _computed_tokens(run: EvalRun) -> float:
    return (run.figures.get("prompt_tokens") or 0) - (run.figures.get("tokens_saved") or 0)


def _fewer(before: float, after: float) -> float:
    return 1 - after / before if before else 0.0


PAGE = "report.html"

Source = EvalRun | str | Path
"""A run, the folder of a run, or a folder with several of these."""

_TILES = (
    "cache_hit_rate",
    "k_recall",
    "retrieval_ms_median",
    "ttft_ms_mean",
    "end_to_end_ms_mean",
    "tokens_saved",
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The runs of a report.

    Attributes:
        runs: Complete runs, each once.
        left_out: Names of those that are not complete.
    """

    runs: tuple[EvalRun, ...]
    left_out: tuple[str, ...] = ()


def write_report(
    runs: Source | Iterable[Source],
    out: str | Path = "ragcache-report",
    *,
    baseline: Source | None = None,
    images: bool = True,
) -> Path:
    """Compare runs in one HTML page that loads nothing, with its figures also as PNG files.

    The figures depend on the runs. If they differ in a knob that is a number, there are the papers'
    figures over it: Proximity's hit rate, recall and latency over tolerance and capacity,
    RAGCache's TTFT over the request rate with the throughput under a TTFT limit, its hit rates over
    the cache's size. If they differ in their configuration, there is RAGServe's delay against
    quality. Runs of the same questions are compared with the first by paired-bootstrap intervals.
    Every run has its latencies, and a single or interrupted run its course.

    Args:
        runs: Runs, folders of runs, or folders with several of these, whose complete runs are taken
            in the order of their knobs.
        out: Folder for the page, ``report.html``, and the pictures; created if it does not exist.
        baseline: The run to compare the others with; ``None`` for the first.
        images: Whether to write every figure as a PNG file, too.

    Returns:
        The path of the page.

    Raises:
        ConfigurationError: A folder holds no run, or one that is not complete; the baseline is
            none of them; or ``out`` cannot be written to.
    """
    gathered = gather(runs, baseline)
    numbers = _numbers(gathered.runs)
    by_dataset = sections(gathered.runs, numbers)
    page = _page(gathered, numbers, by_dataset)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if images:
            for figure in (figure for section in by_dataset for figure in section.all_figures()):
                drawn = png(figure.title, figure.plots, figure.legend())
                (folder / f"{figure.name}.png").write_bytes(drawn)
        with replacing(folder / PAGE) as file:
            file.write(page.encode())
    except OSError as error:
        msg = f"cannot write the report to {folder} ({error.strerror or error}): name another --out"
        raise ConfigurationError(msg) from error
    return folder / PAGE


async def awrite_report(
    runs: Source | Iterable[Source],
    out: str | Path = "ragcache-report",
    *,
    baseline: Source | None = None,
    images: bool = True,
) -> Path:
    """Async version of :func:`write_report`; arguments and errors as there."""
    return await asyncio.to_thread(write_report, runs, out, baseline=baseline, images=images)


def gather(runs: Source | Iterable[Source], baseline: Source | None = None) -> Gathered:
    """Read runs.

    Args:
        runs: As for :func:`write_report`.
        baseline: The run to put first; ``None`` to keep the order.

    Raises:
        ConfigurationError: As for :func:`write_report`.
    """
    sources = [runs] if isinstance(runs, EvalRun | str | Path) else list(runs)
    by_path: dict[Path, EvalRun] = {}
    left_out: list[str] = []
    for source in sources:
        for run in [source] if isinstance(source, EvalRun) else _in_folder(Path(source), left_out):
            by_path.setdefault(run.path.resolve(), run)
    if not by_path:
        raise ConfigurationError("a report needs at least one complete run, got none")
    if baseline is not None:
        first = (baseline.path if isinstance(baseline, EvalRun) else Path(baseline)).resolve()
        if first not in by_path:
            known = ", ".join(str(run.path) for run in by_path.values())
            raise ConfigurationError(f"baseline must be one of the runs, {known}, got {baseline}")
        by_path = {first: by_path[first], **by_path}
    return Gathered(tuple(by_path.values()), tuple(left_out))


def _in_folder(path: Path, left_out: list[str]) -> list[EvalRun]:
    if (path / "config.json").is_file() or not path.is_dir():
        return [EvalRun.load(path)]
    inside = sorted(folder for folder in path.iterdir() if (folder / "config.json").is_file())
    complete = [folder for folder in inside if (folder / "summary.json").is_file()]
    left_out += [folder.name for folder in inside if folder not in complete]
    if not complete:
        why = f"only runs that are not complete: {', '.join(left_out)}" if inside else "no run"
        raise ConfigurationError(f"{path} must hold complete runs, but has {why}")
    return in_order([EvalRun.load(folder) for folder in complete])


def render(gathered: Gathered) -> str:
    """Return the page as HTML; it loads nothing, and its only script sorts tables."""
    numbers = _numbers(gathered.runs)
    return _page(gathered, numbers, sections(gathered.runs, numbers))


def _numbers(runs: Sequence[EvalRun]) -> dict[str, int]:
    return {str(run.path): number for number, run in enumerate(runs, start=1)}


def _page(gathered: Gathered, numbers: dict[str, int], by_dataset: Sequence[Section]) -> str:
    runs = gathered.runs
    return render_page(
        "evaluation/report/report.html.j2",
        commands=lambda members: commands_of(members, numbers),
        comparisons=comparison_table,
        svg=svg,
        in_words=lambda members: numbers_in_words(members, len(runs)),
        runs=runs,
        title=" and ".join(dict.fromkeys(section.title for section in by_dataset)),
        differing=[name for name in differing_knobs(facts_of(runs)) if name != "label"],
        remarks=remarks(runs, numbers, gathered.left_out),
        verdicts=verdicts(runs),
        figures=_tiles(runs[0]) if len(runs) == 1 else [],
        sections=by_dataset,
        runs_table=runs_table(runs, numbers),
        labels=labels_of(runs),
        call_of=call_of,
        changed_knobs=changed_knobs,
        chosen_by=chosen_by,
        format_knob=format_knob,
        groups_table=groups_table,
        of_all=of_all,
        ran_on=ran_on,
        rephrased_by=rephrased_by,
        environments=environments(runs, numbers),
    )


def _tiles(run: EvalRun) -> list[Tile]:
    quality = main_quality([run])
    tiles = [Tile("questions", format_figure(len(run.records), "count"))]
    if quality is not None:
        score = format_figure(value_of(run, quality), "score")
        tiles.append(Tile(measure(quality).words, MECHANICS_ONLY if run.quality is None else score))
    for name in _TILES:
        shown, value = measure(name), value_of(run, name)
        if value is not None:
            text = format_figure(value, shown.unit) + " ms" * (shown.unit == "ms")
            tiles.append(Tile(shown.words.replace(", ms", ""), text))
    return tiles


MAX_COLUMNS = 3
STYLES = {True: "bold green", False: "bold red", None: "bold"}
_OVERVIEW = (
    *("cache_hit_rate", "k_recall", "retrieval_ms_mean", "ttft_ms_mean", "end_to_end_ms_mean"),
    *("gpu_hit_rate", "money_saved"),
)
"""The figures that the terminal shows of many runs, besides their main quality."""


def show(runs: Sequence[EvalRun], console: Console) -> None:
    """Write what to do, the figures of runs, and their comparisons with the first.

    All figures of a few runs, the most important ones of many.
    """
    for verdict in verdicts(runs):
        console.print(escape(verdict.text), style=STYLES[verdict.pays], highlight=False)
    console.print(_figures(runs))
    for run in runs:
        for number in run.summary["breaks"]:
            console.print(
                f"{run.name}: interrupted after {number} answer{'' if number == 1 else 's'} and "
                "resumed; KV caches were empty then",
                highlight=False,
                soft_wrap=True,
            )
        if chosen := chosen_by(run):
            console.print(f"{run.name} chose {chosen}", highlight=False, soft_wrap=True)
    comparable = [run for run in runs if run.config["workload"] == runs[0].config["workload"]]
    for compared in comparisons(comparable, _numbers(runs)):
        title = "Compared with the first, 95 % intervals"
        table = _differences(compared.rows)
        table = _upright(table) if len(runs) <= MAX_COLUMNS else table
        console.print(terminal_table(table, title))
        console.print(FOLLOWED, style="italic", highlight=False)
    for measured in throughputs(runs):
        knobs = ", ".join(f"{name}={value}" for name, value in measured.knobs.items())
        console.print(
            f"Throughput of {knobs or 'these settings'}: {measured.throughput:.3g} requests/s with "
            f"a mean TTFT of at most {measured.limit_ms:,.0f} ms",
            highlight=False,
        )


def _figures(runs: Sequence[EvalRun]) -> TerminalTable:
    """A table with a column for each of a few runs, or with a row for each of many."""
    title = runs[0].config["dataset"]["title"]
    if len(runs) > MAX_COLUMNS:
        names = [str(main_quality(runs)), *_OVERVIEW]
        table = runs_table(runs, _numbers(runs), names)
        return terminal_table(table, f"{title}, {len(runs)} runs; times in ms")
    table = runs_table(runs, _numbers(runs), shown_figures(runs))
    return terminal_table(_upright(table), title)


def _upright(table: Table) -> Table:
    """A table whose rows are columns."""
    heads, *rows = zip(map(Cell, table.heads), *table.rows, strict=True)
    return Table(tuple(cell.text for cell in heads), tuple(rows))


def _differences(rows: Sequence[tuple[str, Comparison]]) -> Table:
    """A table with a row for each run, and a column for each metric, narrow as terminals are."""
    by_run: dict[str, dict[str, str]] = defaultdict(dict)
    for name, comparison in rows:
        words = TIMES.get(comparison.metric) or f"{measure(comparison.metric).words}, difference"
        digits = 3 if comparison.ratio is None else 2
        ends = (comparison.ratio or comparison.difference).as_list()
        value, low, high = (f"{end:.{digits}f}" for end in ends)
        by_run[name.replace(", ", "\n")][words] = f"{value} [{low}, {high}]"
    heads = list(dict.fromkeys(words for shown in by_run.values() for words in shown))
    return Table(
        ("", *heads),
        tuple(
            (Cell(name), *(Cell(shown.get(words, "")) for words in heads))
            for name, shown in by_run.items()
        ),
    )
