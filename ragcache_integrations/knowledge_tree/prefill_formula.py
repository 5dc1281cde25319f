"""Prefill time as a formula of three terms, for before it was profiled and for few measurements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError

__all__ = ["DEFAULT_FORMULA", "PrefillFormula"]


@dataclass(frozen=True, slots=True)
class PrefillFormula:
    """Prefill time: ``overhead + per_token * new + per_pair * (2 * cached + new) * new``.

    A step has a fixed cost; every new token passes through all weights; and the new tokens attend
    to all cached ones and, causally, to one another: (2 * cached + new) * new / 2 pairs of tokens.

    Attributes:
        overhead: Seconds per prefill.
        per_token: Seconds per new token.
        per_pair: Seconds per two pairs of tokens that attend to one another.
    """

    overhead: float
    per_token: float
    per_pair: float

    def __call__(self, cached: float, new: float) -> float:
        """T(alpha, beta) in seconds."""
        return self.overhead + self.per_token * new + self.per_pair * (2 * cached + new) * new

    @classmethod
    def roofline(
        cls,
        *,
        parameters: float,
        layers: int,
        hidden_size: int,
        flop_per_second: float,
        bytes_per_second: float,
        bytes_per_parameter: float = 2.0,
    ) -> Self:
        """The formula of a transformer on a device that reaches its data sheet's peaks.

        The weights are read once; each is multiplied and added once per new token; each pair of
        tokens costs a multiplication and an addition per layer and hidden dimension for the
        attention score, and again for the value.
        """
        return cls(
            overhead=bytes_per_parameter * parameters / bytes_per_second,
            per_token=2 * parameters / flop_per_second,
            per_pair=2 * layers * hidden_size / flop_per_second,
        )

    @classmethod
    def fit(cls, samples: Iterable[tuple[int, int, float]]) -> Self:
        """The three coefficients, none negative, that come closest to measured times.

        Closest in the sum of squared relative errors, since the noise of a measured time grows
        with the time.

        Args:
            samples: ``(cached tokens, new tokens, seconds)``: at least three different points, at
                least two different numbers of new tokens among them.

        Raises:
            ConfigurationError: Too few samples, or numbers out of range.
        """
        rows = list(samples)
        if not all(map(_is_sample, rows)):
            msg = "a sample must be (cached tokens >= 0, new tokens >= 1, seconds > 0), all finite"
            raise ConfigurationError(msg)
        different = {(cached, new) for cached, new, _ in rows}
        if len(different) < 3 or len({new for _, new in different}) < 2:  # noqa: PLR2004 - 3 unknowns
            msg = (
                "samples must have at least 3 different points with at least 2 different numbers "
                f"of new tokens, got {len(different)}: three coefficients are to be found"
            )
            raise ConfigurationError(msg)
        return cls(*_nonnegative_fit(np.array(rows, dtype=np.float64)))


def _is_sample(sample: object) -> bool:
    try:
        cached, new, seconds = map(float, sample)  # type: ignore[call-overload] # users pass anything
    except (TypeError, ValueError):
        return False
    return bool(cached >= 0 and new >= 1 and seconds > 0 and math.isfinite(cached + new + seconds))


def _nonnegative_fit(samples: NDArray[np.float64]) -> list[float]:
    """Non-negative least squares over three columns, by trying each set of columns that may stay.

    The bounded solution holds some columns at zero and is the unbounded solution on the others, so
    it is the best one without a negative among the seven sets of columns.
    """
    cached, new, seconds = samples.T
    columns = np.stack([np.ones_like(new), new, (2 * cached + new) * new]) / seconds
    scales = np.linalg.norm(columns, axis=1)  # they are orders of magnitude apart
    design = (columns / scales[:, None]).T
    best, smallest = [0.0, 0.0, 0.0], math.inf
    for size in (1, 2, 3):
        for kept in map(list, itertools.combinations(range(3), size)):
            solution = np.linalg.lstsq(design[:, kept], np.ones(len(new)), rcond=None)[0]
            error = float(np.sum((design[:, kept] @ solution - 1) ** 2))
            if solution.min() >= 0 and error < smallest:
                smallest = error
                best = [0.0, 0.0, 0.0]
                for column, value in zip(kept, solution / scales[kept], strict=True):
                    best[column] = float(value)
    return best


# Mistral-7B on an NVIDIA A10G, a pair that RAGCache §7 measures. What PGDSF makes of T depends on
# the ratios of the three terms only. Model: https://huggingface.co/mistralai/Mistral-7B-v0.1;
# device: NVIDIA's data sheet of the A10G (bfloat16 tensor cores without sparsity, GDDR6). A test
# holds the result to the second that RAGCache §3 (figure 2) reports for 4,000 tokens of a 7B model.
DEFAULT_FORMULA = PrefillFormula.roofline(
    parameters=7.24e9,
    layers=32,
    hidden_size=4096,
    flop_per_second=70e12,
    bytes_per_second=600e9,
)
