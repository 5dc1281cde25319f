"""What the runs of a preset measured, pooled over seeds, with intervals.

A question may come several times: in a stream, and in the streams of several seeds. So the
bootstrap draws questions, each with all of its answers, and not single answers.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.report import main_quality
from ragcache_workbench.evaluation.runs import EvalRun, answer_scores, series
from ragcache_workbench.evaluation.scores import (
    FEWEST,
    Interval,
    bootstrap_interval,
    paired_intervals,
    sums_of_questions,
)

__all__ = ["EQUAL_QUALITY", "Results", "Runs", "interval_of", "reduction"]

EQUAL_QUALITY = -0.03
"""Quality is equal if the whole interval of the difference is above this."""

Runs = Sequence[EvalRun]
Values = Iterable[tuple[str, float]]
"""Ids of questions, with a number each; a question may come several times."""


def interval_of(values: Values) -> Interval | None:
    """The mean of all numbers with its 95 % interval; ``None`` without any."""
    sums = sums_of_questions((question, (value,)) for question, value in values)
    if not sums.size:
        return None

    def mean(counts: Any, totals: Any, axis: int) -> Any:
        return totals.sum(axis=axis) / counts.sum(axis=axis)

    return bootstrap_interval(mean, list(sums), paired=True)


def reduction(ratio: Interval | None) -> Interval | None:
    """The share by which a time fell, from how many times as fast it became."""
    return None if ratio is None else Interval(*(1 - 1 / end for end in ratio.as_list()))


@dataclass(frozen=True, slots=True)
class Results:
    """The runs of a preset.

    Attributes:
        dataset: Name of the data set.
        runs: A run for each seed, by the name of its setting. Runs of the same seed and workload
            have the same questions in the same order.
    """

    dataset: str
    runs: Mapping[str, tuple[EvalRun, ...]]

    @property
    def first(self) -> EvalRun:
        """Any of the runs, for what all of them have in common."""
        return next(iter(self.runs.values()))[0]

    @property
    def is_noise(self) -> bool:
        """Whether the model has random weights, so that quality has no meaning."""
        return any(run.quality is None for runs in self.runs.values() for run in runs)

    @property
    def quality_name(self) -> str:
        """Name of the score of single answers that tables show."""
        runs = [run for members in self.runs.values() for run in members]
        scores = answer_scores(runs)
        main = main_quality(runs)
        return main if main in scores else scores[0]

    def quality(self, name: str) -> Interval | None:
        """Mean quality of a setting; ``None`` for a model with random weights."""
        return None if self.is_noise else self.mean(name, self.quality_name)

    def mean(self, name: str, metric: str) -> Interval | None:
        """Mean of a metric over all questions of a setting; times are in milliseconds.

        Args:
            name: The setting.
            metric: A metric of :func:`~ragcache_workbench.evaluation.runs.series`.
        """
        return interval_of(
            (record.question, value)
            for run in self.runs[name]
            for record, value in zip(run.records, series(run, metric), strict=True)
            if value is not None
        )

    def figure(self, name: str, figure: str) -> float | None:
        """Mean of a figure of whole runs over the seeds, without an interval."""
        values = [run.figures[figure] for run in self.runs[name] if figure in run.figures]
        return statistics.fmean(values) if values else None

    def quality_difference(self, base: str, name: str) -> Interval | None:
        """Quality of a setting minus that of another; ``None`` for random weights."""
        if self.is_noise:
            return None
        return self._compared(base, name, self.quality_name)[0]

    def times_as_fast(self, base: str, name: str, metric: str) -> Interval | None:
        """A time of one setting over that of another: 2 if the other takes half the time.

        Args:
            base: The setting to compare with.
            name: The setting that is compared with it.
            metric: ``retrieval``, ``ttft`` or ``end_to_end``.
        """
        return self._compared(base, name, metric)[1]

    def is_equal(self, base: str, name: str) -> bool | None:
        """Whether a setting answers as well as another.

        Returns:
            ``None`` for random weights, and where the answers of fewer than :data:`FEWEST`
            different questions are as good.
        """
        if base == name:
            return None if self.is_noise else True
        difference = self.quality_difference(base, name)
        if difference is None:
            return None
        if difference.low <= EQUAL_QUALITY:
            return False
        return True if self.questions(base) >= FEWEST else None

    def questions(self, name: str) -> int:
        """How many different questions a setting answered, over all seeds."""
        return len({record.question for run in self.runs[name] for record in run.records})

    def repeated(self, name: str) -> str:
        """How often each question comes in a seed's stream, in words such as ``four times``."""
        streams = [Counter(record.question for record in run.records) for run in self.runs[name]]
        counts = [count for stream in streams for count in stream.values()]
        fewest, most = min(counts), max(counts)
        if fewest < most:
            return f"{fewest} to {most} times"
        words = {1: "once", 2: "twice", 3: "three times", 4: "four times"}
        return words.get(most, f"{most} times")

    def best(
        self, base: str, names: Iterable[str], gain: Callable[[str], Interval | float | None]
    ) -> str | None:
        """The setting with the largest gain among those that answer as well as ``base``.

        With random weights, the one with the largest gain of all; with few questions, of those
        whose answers are as good as far as they show.

        Args:
            base: The setting whose quality counts.
            names: The settings to choose from.
            gain: What is gained by a setting; ``None`` if that is unknown.

        Returns:
            ``None`` if none of them answers as well.
        """
        gains = {
            name: math.nan if gained is None else _value(gained)
            for name in names
            if self.is_equal(base, name) is not False
            for gained in [gain(name)]
        }
        known = {name: gained for name, gained in gains.items() if not math.isnan(gained)}
        return max(known, key=lambda name: known[name], default=None)

    def _compared(
        self, base: str, name: str, metric: str
    ) -> tuple[Interval | None, Interval | None]:
        """The difference between two settings and their ratio, over the pairs that have both."""
        pairs: list[tuple[str, float, float]] = []
        for first, second in zip(self.runs[base], self.runs[name], strict=True):
            if first.config["workload"] != second.config["workload"]:
                msg = f"{first.path} and {second.path} do not have the same questions"
                raise ConfigurationError(msg)
            both = zip(first.records, series(first, metric), series(second, metric), strict=True)
            pairs += [
                (record.question, before, after)
                for record, before, after in both
                if before is not None and after is not None
            ]
        if not pairs:
            return None, None
        questions, before, after = zip(*pairs, strict=True)
        return paired_intervals(before, after, questions=questions)


def _value(gained: Interval | float) -> float:
    return gained.value if isinstance(gained, Interval) else gained
