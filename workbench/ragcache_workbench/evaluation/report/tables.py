"""The tables and sentences of a report."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ragcache_workbench.evaluation.runs import Comparison, EvalRun
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY, all_asked
from ragcache_workbench.reports import Cell, Table

from .labels import (
    MEASURES,
    call_of,
    differing_knobs,
    facts_of,
    format_figure,
    format_knob,
    measure,
    number_of,
    qualities,
    value_of,
)

__all__ = [
    "commands_of",
    "comparison_table",
    "environments",
    "failures",
    "groups_table",
    "interruptions",
    "numbers_in_words",
    "of_all",
    "ran_on",
    "remarks",
    "runs_table",
    "shown_figures",
]

_LEFT_OUT = {"tier_hit_rate", "retrieval_ms_median", "prompt_tokens"}
"""Measures that the table of runs on the page leaves out."""

_TROUBLES = ("errors", "disturbed")
"""Measures that are shown if they are not 0."""

Which = Callable[[Sequence[EvalRun]], str]
"""Names some runs, such as ``Runs 1, 3 to 5``."""


def shown_figures(runs: Sequence[EvalRun]) -> list[str]:
    """Return the names of the qualities and the figures that runs have."""
    return qualities(runs) + [
        name
        for name in MEASURES
        if any(
            run.figures.get(name) if name in _TROUBLES else value_of(run, name) is not None
            for run in runs
        )
    ]


def runs_table(
    runs: Sequence[EvalRun], numbers: dict[str, int], names: Sequence[str] | None = None
) -> Table:
    """Return a table with a row for each run: the knobs that differ, and its figures.

    Args:
        runs: The runs.
        numbers: Their numbers, by their folders.
        names: The figures, if they have them; ``None`` for those that a page shows.
    """
    facts = facts_of(runs)
    knobs = [name for name in differing_knobs(facts) if name != "dataset"]
    several = len({run.config["dataset"]["name"] for run in runs}) > 1
    shown = [
        name
        for name in shown_figures(runs)
        if (name not in _LEFT_OUT if names is None else name in names)
    ]
    broken = any(run.summary["breaks"] for run in runs)
    heads = ["run", *(["data set"] if several else []), *knobs]
    heads += [measure(name).words for name in shown]
    heads += ["breaks"] if broken else []
    rows = []
    for run, known in zip(runs, facts, strict=True):
        number = numbers[str(run.path)]
        cells = [Cell(str(number), number, link=f"run-{number}")]
        cells += [Cell(run.config["dataset"]["title"])] if several else []
        cells += [
            Cell(format_knob(known[name]), number_of(known[name])) if name in known else Cell("")
            for name in knobs
        ]
        cells += [_figure(run, name) for name in shown]
        cells += [Cell(str(len(run.summary["breaks"])), len(run.summary["breaks"]))] * broken
        rows.append(tuple(cells))
    return Table(tuple(heads), tuple(rows))


def _figure(run: EvalRun, name: str) -> Cell:
    value = value_of(run, name)
    if value is None and run.quality is None and name in qualities([run]):
        return Cell(MECHANICS_ONLY, style="words")
    return Cell(format_figure(value, measure(name).unit), value)


def comparison_table(rows: Sequence[tuple[str, Comparison]]) -> Table:
    """Return a table with a row for each run and metric."""
    heads = (
        *("run", "metric", "pairs", "baseline", "this run", "difference", "95 % interval"),
        *("times as fast", "95 % interval"),
    )
    shown_rows = []
    for name, comparison in rows:
        difference, faster = comparison.difference, comparison.ratio
        is_time = comparison.metric.endswith("_ms")
        shown = measure(f"{comparison.metric}_mean" if is_time else comparison.metric)
        means = (comparison.baseline_mean, comparison.other_mean, difference.value)
        low, high = (format_figure(end, shown.unit) for end in (difference.low, difference.high))
        ratio = (Cell(""), Cell(""))
        if faster is not None:
            ends = f"{faster.low:.2f} to {faster.high:.2f}"
            ratio = (Cell(f"{faster.value:.2f}", faster.value), Cell(ends, faster.low))
        shown_rows.append(
            (
                Cell(name),
                Cell(shown.words),
                Cell(f"{comparison.pairs:,}", comparison.pairs),
                *(Cell(format_figure(mean, shown.unit), mean) for mean in means),
                Cell(f"{low} to {high}", difference.low),
                *ratio,
            )
        )
    return Table(heads, tuple(shown_rows))


def commands_of(runs: Sequence[EvalRun], numbers: dict[str, int]) -> dict[str, list[int]]:
    """Return the command lines that made runs, with the numbers of the runs."""
    return _numbers_by(call_of, runs, numbers)


def environments(
    runs: Sequence[EvalRun], numbers: dict[str, int]
) -> list[tuple[list[tuple[str, str]], list[int]]]:
    """Return the machines of runs, with the numbers of the runs."""
    groups = _numbers_by(lambda run: json.dumps(ran_on(run.environment)), runs, numbers)
    return [(json.loads(content), members) for content, members in groups.items()]


def _numbers_by(
    key: Callable[[EvalRun], str], runs: Sequence[EvalRun], numbers: dict[str, int]
) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(numbers[str(run.path)])
    return groups


def ran_on(environment: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of a machine, each with its name."""
    words = {"ragcache_integrations": "ragcache-integrations", "memory_gib": "memory, GiB"}
    rows = [
        (words.get(name, name), str(value))
        for name, value in environment.items()
        if name not in {"time", "command", "packages"} and value is not None
    ]
    packages = environment.get("packages", {})
    versions = (f"{name} {version}" for name, version in packages.items())
    return [*rows, ("packages", ", ".join(versions))]


def of_all(data: dict[str, Any]) -> str:
    """Words for a part of the data set's documents; empty if the run had all of them."""
    total = data.get("of_documents", data["documents"])
    return f" of {total:,}" if data["documents"] < total else ""


def groups_table(run: EvalRun) -> Table | None:
    """Return the quality by part of the data set; ``None`` if there are not several."""
    groups = (run.quality or {}).get("by_group")
    if not groups:
        return None
    names = list(next(iter(groups.values())))
    counts = Counter(score.group for score in run.scores)
    rows = tuple(
        (
            Cell(group.replace("_", " ")),
            Cell(str(counts[group]), counts[group]),
            *(Cell(format_figure(values[name], "score"), values[name]) for name in names),
        )
        for group, values in groups.items()
    )
    return Table(("part", "questions", *(measure(name).words for name in names)), rows)


def remarks(runs: Sequence[EvalRun], numbers: dict[str, int], left_out: Sequence[str]) -> list[str]:
    """Return what readers have to know before they read the figures."""
    sentences = []

    def which(members: Sequence[EvalRun]) -> str:
        return numbers_in_words([numbers[str(run.path)] for run in members], len(runs))

    noise = [run for run in runs if run.quality is None]
    if noise:
        sentences.append(
            f"{which(noise)}: {MECHANICS_ONLY}. The model has random weights: times, hits and "
            "tokens are real, what it says is noise, and its quality is not shown."
        )
    few = [run for run in runs if of_all(run.config["dataset"])]
    if few:
        sentences.append(
            f"{which(few)}: the questions are a sample, and were asked over a part of the "
            "documents: those that answer them, among others at random. That embeds little, but "
            "makes the search easier: over all documents (--set corpus=all) quality and recall "
            "are lower, and searches take longer."
        )
    sentences += interruptions(runs, which)
    reused = [run for run in runs if not all_asked(run.records)]
    if reused:
        sentences.append(
            f"{which(reused)}: equal prompts were answered once, so that tokens and times of "
            "answers are left out; searches are timed for every question."
        )
    found = [run for run in runs if run.figures.get("tokens_saved") and not run.began_empty]
    if found and len(runs) > 1:
        sentences.append(
            f"{which(found)}: the model may have found prompts of an earlier run in its cache. "
            "Which run saves more tokens may be a matter of their order."
        )
    sentences += failures(runs, which)
    if len(environments(runs, numbers)) > 1:
        sentences.append(
            "The runs did not all run on the same machine: compare their times with care."
        )
    if left_out:
        sentences.append(f"Left out as incomplete: {', '.join(left_out)}.")
    return sentences


def interruptions(runs: Sequence[EvalRun], which: Which) -> list[str]:
    """Say which runs were interrupted, and what that means for their figures."""
    broken = [run for run in runs if run.summary["breaks"]]
    if not broken:
        return []
    sentence = (
        f"{which(broken)}: interrupted and resumed. Answers and hits are those of a run "
        "without a break where one user asks in a closed loop; KV caches were empty after it. "
        "Times of questions that were under way are left out."
    )
    return [sentence]


def failures(runs: Sequence[EvalRun], which: Which) -> list[str]:
    """Say in which runs questions failed, and why."""
    failed = [run for run in runs if run.figures.get("errors")]
    if not failed:
        return []
    kinds = Counter(
        record.error.partition(":")[0] for run in failed for record in run.records if record.error
    )
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    return [
        f"{which(failed)}: questions failed ({listed}). They score 0, and have no times of answers."
    ]


def numbers_in_words(numbers: Sequence[int], total: int) -> str:
    """Return numbers in words, such as ``Runs 1, 3 to 5``."""
    if len(numbers) == total:
        return "All runs" if total > 1 else "This run"
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    words = [f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return f"Run{'s' if len(numbers) > 1 else ''} {', '.join(words)}"
