"""Reads complete runs from their folders, and compares them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, Self

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ragcache_integrations.core.files import open_regular
from ragcache_integrations.errors import ConfigurationError

from .records import Number, Record, Whole, read_checkpoint, read_json_file, reason
from .scores import (
    LATENCIES,
    MECHANICS_ONLY,
    Interval,
    Score,
    all_asked,
    paired_intervals,
    throughput_under_limit,
)
from .settings import EvalSettings

__all__ = [
    "Comparison",
    "EvalRun",
    "Throughput",
    "answer_scores",
    "compare",
    "series",
    "throughputs",
]

_SCORES = TypeAdapter(Score)
_OF_ALL = ("cache_hit_rate", "k_recall", "gold_recall", "cached_tokens", *LATENCIES)
"""Metrics of runs of every data set."""
_OF_ANSWERS = {"cached_tokens", *LATENCIES} - {"retrieval"}
"""Those of them that count only if the model was asked every question."""


@dataclass(frozen=True)
class EvalRun:
    """A complete run.

    ::

        run = EvalRun.load("ragcache-eval/nq-1a2b3c4d")
        print(run.quality, run.figures["ttft_ms_mean"])

    Attributes:
        path: The run's folder.
        config: The content of ``config.json``.
        settings: The configuration.
        summary: The figures, as in ``summary.json``.
        records: The records of all questions, in the order of the stream.
        scores: The scores of the answers, in the same order.
        environment: The machine, and the command line.
    """

    path: Path
    config: dict[str, Any]
    settings: EvalSettings
    summary: dict[str, Any]
    records: tuple[Record, ...]
    scores: tuple[Score, ...]
    environment: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a run.

        Raises:
            ConfigurationError: The folder holds no run, or one that is not complete.
        """
        path = Path(path)
        if not (path / "config.json").is_file():
            lacking = "there is none" if path.is_dir() else "there is no such folder"
            msg = f"{path} must be the folder of a run, with a config.json, but {lacking}"
            raise ConfigurationError(msg)
        if not (path / "summary.json").is_file():
            msg = f"the run in {path} is not complete: the command that started it resumes it"
            raise ConfigurationError(msg)
        config, summary, environment = (
            read_json_file(path / f"{name}.json") for name in ("config", "summary", "environment")
        )
        try:
            _check_contents(config, summary, environment)
            with open_regular(path / "scores.jsonl", links=False) as file:
                lines = file.read().split(b"\n")
            scores = [_SCORES.validate_json(line, strict=True) for line in lines if line]
            settings = EvalSettings.from_dict(config["settings"])
        except (OSError, ValueError) as error:
            msg = f"{path} holds no run that can be read: {reason(error)}"
            raise ConfigurationError(msg) from error
        checkpoint, records = read_checkpoint(path, config["workload"]["questions"])
        records.sort(key=lambda record: record.number)
        scored = [score.number for score in scores] == [record.number for record in records]
        if not checkpoint.complete or not scored:
            msg = f"the run in {path} is damaged: its records and scores do not fit"
            raise ConfigurationError(msg)
        return cls(
            path=path,
            config=config,
            settings=settings,
            summary=summary,
            records=tuple(records),
            scores=tuple(scores),
            environment=environment,
        )

    @property
    def figures(self) -> dict[str, float]:
        """All figures except the quality, by name; times in milliseconds."""
        figures: dict[str, float] = self.summary["figures"]
        return figures

    @property
    def quality(self) -> dict[str, Any] | None:
        """Metrics of the answers; ``None`` for a model with random weights."""
        quality = self.summary["quality"]
        return None if quality == MECHANICS_ONLY else quality

    @property
    def began_empty(self) -> bool:
        """Whether its KV cache is known to have been empty at the start, and was not lost since.

        Only the bundled engine's can be emptied. What a server or another model had cached may
        come from the run before.
        """
        first, *others = self.summary["sessions"]
        return bool(first.get("engine")) and not others

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs in one metric, question by question.

    Attributes:
        metric: The metric's name; times are in milliseconds.
        baseline: The run to compare with.
        other: The run that is compared with it.
        pairs: Number of questions that have the metric in both runs.
        baseline_mean: Mean of the baseline.
        other_mean: Mean of the other run.
        difference: The other's mean minus the baseline's.
        ratio: For times, the baseline's mean over the other's: 2 if the other takes half the time;
            ``None`` for other metrics.
    """

    metric: str
    baseline: EvalRun
    other: EvalRun
    pairs: int
    baseline_mean: float
    other_mean: float
    difference: Interval
    ratio: Interval | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "metric": self.metric,
            "baseline": self.baseline.name,
            "other": self.other.name,
            "pairs": self.pairs,
            "baseline_mean": self.baseline_mean,
            "other_mean": self.other_mean,
            "difference": self.difference.as_list(),
            "ratio": None if self.ratio is None else self.ratio.as_list(),
        }


def compare(
    runs: Sequence[EvalRun | str | Path],
    *,
    baseline: int = 0,
    metrics: Sequence[str] | None = None,
    seed: int = 0,
) -> list[Comparison]:
    """Compare runs with one of them, with intervals from a paired bootstrap of whole questions.

    Quality is left out if a model has random weights.

    Args:
        runs: At least two runs of the same questions in the same order, or their folders.
        baseline: Position of the run to compare with.
        metrics: Names of metrics as in :class:`Comparison`; ``None`` for all.
        seed: The same seed gives the same intervals.

    Raises:
        ConfigurationError: There are fewer than two runs, one is not complete, their questions
            differ, or none of them has one of the metrics.
    """
    loaded = [run if isinstance(run, EvalRun) else EvalRun.load(run) for run in runs]
    if len(loaded) < 2:  # noqa: PLR2004 - with one there is nothing to compare
        raise ConfigurationError(f"a comparison needs at least 2 runs, got {len(loaded)}")
    if not 0 <= baseline < len(loaded):
        raise ConfigurationError(f"baseline must be from 0 to {len(loaded) - 1}, got {baseline}")
    base = loaded[baseline]
    for other in loaded:
        if other.config["workload"] != base.config["workload"]:
            raise ConfigurationError(
                f"{other.path} and {base.path} do not have the same questions: pairs need the "
                "same data, sample, workload and seed"
            )
    others = [other for place, other in enumerate(loaded) if place != baseline]
    known = sorted({*answer_scores(loaded), *map(_full_name, _OF_ALL)})
    unknown = sorted(set(metrics or ()) - set(known))
    if unknown:
        raise ConfigurationError(f"metrics must be among {', '.join(known)}, got {unknown[0]!r}")
    comparisons = (
        _compare(base, other, metric, seed)
        for other in others
        for metric in _metrics(base, other)
        if metrics is None or _full_name(metric) in metrics
    )
    return [comparison for comparison in comparisons if comparison is not None]


def _metrics(base: EvalRun, other: EvalRun) -> list[str]:
    noise = base.quality is None or other.quality is None
    return [*([] if noise else answer_scores([base])), *_OF_ALL]


def answer_scores(runs: Sequence[EvalRun]) -> list[str]:
    """Names of the scores of single answers, also for models with random weights.

    A score of all answers together, such as macro-F1, cannot be compared question by question.
    """
    scored = (run.scores[0].scores for run in runs if run.scores)
    return list(dict.fromkeys(itertools.chain.from_iterable(scored)))


def _compare(base: EvalRun, other: EvalRun, metric: str, seed: int) -> Comparison | None:
    both = zip(base.records, series(base, metric), series(other, metric), strict=True)
    values = [
        (record.question, first, second)
        for record, first, second in both
        if first is not None and second is not None
    ]
    if not values:
        return None
    questions, first, second = map(list, zip(*values, strict=True))
    difference, ratio = paired_intervals(first, second, questions=questions, seed=seed)
    return Comparison(
        metric=_full_name(metric),
        baseline=base,
        other=other,
        pairs=len(values),
        baseline_mean=sum(first) / len(first),
        other_mean=sum(second) / len(second),
        difference=difference,
        ratio=ratio if metric in LATENCIES else None,
    )


def _full_name(metric: str) -> str:
    return f"{metric}_ms" if metric in LATENCIES else metric


def series(run: EvalRun, metric: str) -> list[float | None]:
    """Return a number for each question, in the order of the stream; ``None`` if it has none.

    Args:
        run: The run.
        metric: A score of its answers, ``cache_hit_rate``, ``cached_tokens``, ``k_recall``,
            ``gold_recall``, or a time: ``retrieval``, ``ttft``, ``model_ttft``, ``tpot`` or
            ``end_to_end``, in milliseconds and ``None`` where it was disturbed. If the model was
            not asked every question, tokens and times of answers are ``None``.
    """
    if metric in _OF_ANSWERS and not all_asked(run.records):
        return [None] * len(run.records)
    if metric in LATENCIES:
        latency = LATENCIES[metric]
        times = [None if record.disturbed else latency(record) for record in run.records]
        return [None if seconds is None else 1000 * seconds for seconds in times]
    if metric not in _SERIES:
        return [score.scores.get(metric) for score in run.scores]
    value = _SERIES[metric]
    return [value(*each) for each in zip(run.records, run.scores, strict=True)]


_SERIES: dict[str, Callable[[Record, Score], float | None]] = {
    "cache_hit_rate": lambda record, _: None if record.hit is None else float(record.hit),
    "cached_tokens": lambda record, _: record.cached_tokens,
    "k_recall": lambda _, score: score.recall,
    "gold_recall": lambda _, score: score.gold_recall,
}


@dataclass(frozen=True, slots=True)
class Throughput:
    """The request rate that a configuration keeps up with.

    Attributes:
        knobs: The settings that differ between the runs, except the rate.
        points: Rates with their mean TTFTs, in requests per second and milliseconds.
        limit_ms: The TTFT that counts as keeping up, in milliseconds.
        throughput: Requests per second within the limit.
    """

    knobs: dict[str, Any]
    points: tuple[tuple[float, float], ...]
    limit_ms: float
    throughput: float


def throughputs(runs: Sequence[EvalRun], *, factor: float = 5.0) -> list[Throughput]:
    """Throughput under a TTFT limit of every configuration that ran at several rates.

    Args:
        runs: The runs; those of a closed loop are left out.
        factor: The limit, as a multiple of the configuration's own TTFT at its lowest rate.
    """
    rated = [run for run in runs if run.settings.rate is not None and "ttft_ms_mean" in run.figures]
    flat = [
        {**run.settings.flat(), "rate": None, "label": run.config.get("label") or ""}
        for run in rated
    ]
    names = sorted({*itertools.chain.from_iterable(flat)})
    differing = [
        name for name in names if len({json.dumps(settings.get(name)) for settings in flat}) > 1
    ]
    groups: dict[str, list[EvalRun]] = {}
    for run, settings in zip(rated, flat, strict=True):
        knobs = {name: settings.get(name) for name in differing}
        groups.setdefault(json.dumps(knobs), []).append(run)
    measured = []
    for key, members in groups.items():
        points = sorted((run.settings.rate or 0.0, run.figures["ttft_ms_mean"]) for run in members)
        if len({rate for rate, _ in points}) < max(2, len(points)):
            continue
        rate = throughput_under_limit(points, factor=factor)
        measured.append(Throughput(json.loads(key), tuple(points), factor * points[0][1], rate))
    return measured


# What the JSON files of a run's folder hold, as far as a report reads them.

Figures = dict[str, Number]


class _Dataset(TypedDict):
    name: str
    title: str
    source: str
    questions: Whole
    documents: Whole
    of_documents: NotRequired[Whole]


class _Workload(TypedDict):
    questions: Whole
    digest: str
    refused: NotRequired[dict[str, Whole]]


class _Config(TypedDict):
    format: Literal[1]
    label: NotRequired[str]
    settings: dict[str, Any]
    dataset: _Dataset
    workload: _Workload
    given: NotRequired[list[str]]
    retriever: str
    model: str
    random_weights: bool


class _Environment(TypedDict):
    time: NotRequired[str]
    command: NotRequired[str]
    packages: NotRequired[dict[str, str]]


class _Session(TypedDict):
    started: str
    before: Whole
    environment: NotRequired[_Environment]


class _Summary(TypedDict):
    figures: Figures
    quality: str | dict[str, Number | dict[str, Figures]]
    configurations: NotRequired[dict[str, Whole]]
    sessions: list[_Session]
    breaks: list[Whole]


class _Contents(TypedDict):
    config: _Config
    summary: _Summary
    environment: _Environment


_CONTENTS = TypeAdapter(_Contents)


def _check_contents(config: Any, summary: Any, environment: Any) -> None:
    """Check the content of ``config.json``, ``summary.json`` and ``environment.json``.

    The folder may be damaged or somebody else's, so a run is read only if all is there that a
    report reads.

    Raises:
        ValueError: Something that a report reads is missing, of another type or out of its range.
    """
    contents = {"config": config, "summary": summary, "environment": environment}
    quality = _CONTENTS.validate_python(contents, strict=True)["summary"]["quality"]
    wrong = quality != MECHANICS_ONLY
    if isinstance(quality, dict):
        means = {name: value for name, value in quality.items() if name != "by_group"}
        groups = quality.get("by_group", {})
        metrics = [set(group) for group in groups.values()] if isinstance(groups, dict) else [set()]
        wrong = any(isinstance(value, dict) for value in means.values()) or any(
            names != metrics[0] or not names for names in metrics
        )
    if wrong:
        msg = "summary.quality: it must have metrics, and the same ones for each part of the data"
        raise ValueError(msg)
