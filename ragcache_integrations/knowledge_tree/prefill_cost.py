"""What a prefill costs: T(alpha, beta), for beta new tokens after alpha cached ones.

RAGCache §5.1: the times are profiled on a grid, once per model and device, and interpolated
bilinearly. Before that, or from a few measurements, a formula of three terms fills the grid.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.checks import check_field
from ragcache_integrations.core.files import replacing
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources.cache import cache_home

__all__ = ["DEFAULT_FORMULA", "PrefillCostModel", "PrefillFormula", "load_profile", "profile_path"]

logger = logging.getLogger(__name__)


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
            raise ConfigurationError(
                "samples must have at least 3 different points with at least 2 different numbers "
                f"of new tokens, got {len(different)}: three coefficients are to be found"
            )
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


# Mistral-7B on an NVIDIA A10G, a pair that RAGCache §7 measures, at the peaks of the device's data
# sheet (bfloat16 tensor cores without sparsity, GDDR6). The weights, two bytes each, are read once;
# each is multiplied and added once per new token; each pair of tokens costs a multiplication and an
# addition per layer and hidden dimension for the attention score, and again for the value. What
# PGDSF makes of T depends on the ratios of the three terms only. A test holds the result to the
# second that RAGCache §3 (figure 2) reports for 4,000 tokens of a 7B model.
# Model: https://huggingface.co/mistralai/Mistral-7B-v0.1.
_PARAMETERS, _LAYERS, _HIDDEN_SIZE = 7.24e9, 32, 4096
_FLOP_PER_SECOND, _BYTES_PER_SECOND = 70e12, 600e9
DEFAULT_FORMULA = PrefillFormula(
    overhead=2 * _PARAMETERS / _BYTES_PER_SECOND,
    per_token=2 * _PARAMETERS / _FLOP_PER_SECOND,
    per_pair=2 * _LAYERS * _HIDDEN_SIZE / _FLOP_PER_SECOND,
)


FORMAT = "ragcache-prefill-cost"
FORMAT_VERSION = 1

MAX_READABLE = 60
"""The most characters of a model's or device's name in a file's name."""

# Where a formula becomes a grid. It is linear in the cached tokens, so that two of them suffice;
# in the new ones it is quadratic, and points close together keep the chords close to it.
FORMULA_CACHED = (0, 1 << 17)
FORMULA_NEW = (1, *(step << power for power in range(17) for step in (2, 3)), 1 << 18)


@dataclass(frozen=True, slots=True)
class PrefillCostModel:
    """T(alpha, beta): prefill time by cached and new tokens, interpolated in a grid.

    Algorithm 1, lines 6 to 9, of RAGCache §5.1. Beyond the grid the outermost cell is continued
    linearly, but never to below the smallest positive time in the grid. Immutable.

    Args:
        cached_tokens: alpha of each row; at least two, rising.
        new_tokens: beta of each column; at least two, rising, from 1.
        seconds: ``seconds[row][column]``: prefill times, finite and not negative.

    Raises:
        ConfigurationError: The shapes do not agree, or a value is out of range.
    """

    cached_tokens: Sequence[int]
    new_tokens: Sequence[int]
    seconds: Sequence[Sequence[float]]
    _floor: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_field(self, _axis, "cached_tokens", 0)
        check_field(self, _axis, "new_tokens", 1)
        check_field(self, _times, "seconds", len(self.cached_tokens), len(self.new_tokens))
        positive = [time for row in self.seconds for time in row if time > 0]
        object.__setattr__(self, "_floor", min(positive, default=0.0))

    def __call__(self, cached: int, new: int) -> float:
        """Time to prefill a prompt.

        Args:
            cached: alpha, tokens whose KV cache is reused.
            new: beta, tokens to compute. 0 counts as 1: vLLM computes at least the last token.

        Returns:
            Seconds.

        Raises:
            ConfigurationError: A number is negative.
        """
        if cached < 0 or new < 0:
            msg = f"cached and new tokens must be at least 0, got {cached!r} and {new!r}"
            raise ConfigurationError(msg)
        new = max(new, 1)
        alphas, betas = self.cached_tokens, self.new_tokens
        high = bisect_right(alphas, cached, 1, len(alphas) - 1)
        right = bisect_right(betas, new, 1, len(betas) - 1)
        alpha, beta = alphas[high - 1], betas[right - 1]
        x = (cached - alpha) / (alphas[high] - alpha)
        y = (new - beta) / (betas[right] - beta)
        below, above = self.seconds[high - 1], self.seconds[high]
        low_time = below[right - 1] + x * (above[right - 1] - below[right - 1])
        high_time = below[right] + x * (above[right] - below[right])
        time = low_time + y * (high_time - low_time)
        if 0 <= x <= 1 and 0 <= y <= 1:
            return time
        return max(time, self._floor)

    def per_token(self, cached: int, new: int) -> float:
        """T(alpha, beta) / beta in seconds: what a miss costs a node (algorithm 1, line 10)."""
        return self(cached, new) / max(new, 1)

    @classmethod
    def from_formula(cls, formula: PrefillFormula) -> Self:
        """The grid of a formula."""
        times = [[formula(cached, new) for new in FORMULA_NEW] for cached in FORMULA_CACHED]
        return cls(FORMULA_CACHED, FORMULA_NEW, times)

    @classmethod
    def default(cls) -> Self:
        """What serves before anything was profiled.

        The formula of Mistral-7B on an NVIDIA A10G. Its seconds are not this machine's; replacement
        only needs the ratios.
        """
        return cls.from_formula(DEFAULT_FORMULA)

    @classmethod
    def fit(cls, samples: Iterable[tuple[int, int, float]]) -> Self:
        """The grid of the formula that fits a few measurements best.

        Arguments and errors as :meth:`PrefillFormula.fit`.
        """
        return cls.from_formula(PrefillFormula.fit(samples))

    def as_dict(self) -> dict[str, Any]:
        """The model as plain data for JSON; times are in seconds."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "cached_tokens": list(self.cached_tokens),
            "new_tokens": list(self.new_tokens),
            "seconds": [list(row) for row in self.seconds],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`as_dict`.

        Raises:
            ConfigurationError: It is something else, of another version, or damaged.
        """
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise ConfigurationError(f"this is no prefill profile: it lacks the mark {FORMAT!r}")
        if content.get("version") != FORMAT_VERSION:
            raise ConfigurationError(
                f"the prefill profile has the version {content.get('version')!r}, this release "
                f"reads {FORMAT_VERSION}: profile the model again"
            )
        names = ("cached_tokens", "new_tokens", "seconds")
        missing = [name for name in names if name not in content]
        if missing:
            msg = f"the prefill profile is damaged: {', '.join(missing)} is missing"
            raise ConfigurationError(msg)
        return cls(*(content[name] for name in names))

    def save(self, path: str | Path) -> None:
        """Write the model as JSON; others see either the old file or the whole new one.

        Folders that are missing are made.

        Raises:
            ConfigurationError: The place cannot be written to.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(json.dumps(self.as_dict()).encode() + b"\n")
        except OSError as error:
            msg = f"cannot write the prefill profile {path} ({error.strerror})"
            raise ConfigurationError(msg) from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            ConfigurationError: There is no such file, it is damaged, or it is something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.from_dict(content)
        except OSError as error:
            msg = f"cannot read the prefill profile {path} ({error.strerror})"
            raise ConfigurationError(msg) from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error
        except (ValueError, RecursionError) as error:
            msg = f"{path} is no prefill profile, or a damaged one: {error}"
            raise ConfigurationError(msg) from error


def profile_path(model: str, device: str, directory: Path | None = None) -> Path:
    """Where the profile of a model on a device is kept; it need not exist.

    Args:
        model: Hub name or absolute path, as :attr:`RAGCacheEngine.model` gives it.
        device: Name of the device.
        directory: Folder of all profiles; ``profiles`` in this package's cache by default.

    Raises:
        ConfigurationError: A name is empty.
    """
    for what, name in (("model", model), ("device", device)):
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"{what} must be a name, got {name!r}")
    digest = hashlib.blake2b(json.dumps([model, device]).encode(), digest_size=6).hexdigest()
    folder = cache_home() / "profiles" if directory is None else directory
    return folder / f"{_readable(Path(model).name)}--{_readable(device)}-{digest}.json"


def load_profile(model: str, device: str, directory: Path | None = None) -> PrefillCostModel | None:
    """The stored profile of a model on a device; arguments as :func:`profile_path`.

    Returns:
        ``None`` where there is none. One that cannot be read gives a warning in the log, and
        ``None``: a damaged cache shall not keep an engine from starting.
    """
    path = profile_path(model, device, directory)
    if not path.exists():
        return None
    try:
        return PrefillCostModel.load(path)
    except ConfigurationError as error:
        logger.warning("Ignoring the stored prefill profile: %s", error)
        return None


def _readable(name: str) -> str:
    """The part of a name that any system allows in a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name)[:MAX_READABLE].strip("-") or "unnamed"


def _axis(name: str, values: Any, smallest: int) -> tuple[int, ...]:
    try:
        axis = tuple(map(operator.index, values))
    except TypeError:
        msg = f"{name} must be a sequence of whole numbers, got {values!r}"
        raise ConfigurationError(msg) from None
    if len(axis) < 2 or axis[0] < smallest or any(a >= b for a, b in itertools.pairwise(axis)):  # noqa: PLR2004 - a cell has two ends
        msg = f"{name} must be at least two rising numbers from {smallest}, got {values!r}"
        raise ConfigurationError(msg)
    return axis


def _times(name: str, seconds: Any, rows: int, columns: int) -> tuple[tuple[float, ...], ...]:
    try:
        times = tuple(tuple(float(+time) for time in row) for row in seconds)  # + refuses strings
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"{name} must be rows of numbers: {error}") from None
    lengths = [len(row) for row in times]
    if lengths != [columns] * rows:
        msg = f"{name} must be {rows} rows of {columns} numbers, got rows of {lengths}"
        raise ConfigurationError(msg)
    for time in itertools.chain.from_iterable(times):
        if not (math.isfinite(time) and time >= 0):
            raise ConfigurationError(f"{name} must be finite and not negative, got {time}")
    return times
