"""What can be set on per-query configuration, whichever the framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.errors import ConfigurationError

from .choice import LEEWAY
from .profile import MAX_PIECES
from .types import SynthesisConfig

__all__ = ["MAX_CHUNKS", "AdaptiveSettings", "Mode"]

Mode = Literal["adaptive", "median", "fixed"]

MAX_CHUNKS = LEEWAY * MAX_PIECES
"""The most chunks that any profile asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSettings:
    """What can be set on per-query configuration.

    Attributes:
        mode: ``adaptive`` takes the best configuration that fits the free memory; ``median`` the
            middle of what suits the question, whatever is free; ``fixed`` always ``config``.
        config: For ``fixed``: the configuration.
        max_chunks: So many chunks are retrieved while the question is being profiled.
        min_confidence: Below it, a profile is not trusted: what suited recent questions is taken
            for what suits this one.
        profile_timeout: Seconds to wait for a profile, from the question on; then likewise.
        latency_budget: Seconds that the answer may take, by the prefill cost model and what was
            seen so far; ``None`` for no limit.
        golden_every: One question in so many is answered again with the most expensive
            configuration, once there is nothing else to do, and the profiler learns from it; 30 in
            the paper. ``None`` for never.
        golden_token_budget: The most tokens to spend on that.

    Raises:
        ConfigurationError: A value is out of its range, or does not go with the mode.
    """

    mode: Mode = "adaptive"
    config: SynthesisConfig | None = None
    max_chunks: int = MAX_CHUNKS
    min_confidence: float = 0.9
    profile_timeout: float = 10.0
    latency_budget: float | None = None
    golden_every: int | None = None
    golden_token_budget: int = 200_000

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            msg = f"mode must be one of {', '.join(get_args(Mode))}, got {self.mode!r}"
            raise ConfigurationError(msg)
        if (self.mode == "fixed") != isinstance(self.config, SynthesisConfig):
            msg = (
                "mode='fixed' takes a SynthesisConfig as config, the others none; "
                f"got mode={self.mode!r} and config={self.config!r}"
            )
            raise ConfigurationError(msg)
        for name in ("max_chunks", "golden_every", "golden_token_budget"):
            value = getattr(self, name)
            if value is None and name == "golden_every":
                continue
            if not is_whole(value) or value < 1:
                msg = f"{name} must be a whole number of at least 1, got {value!r}"
                raise ConfigurationError(msg)
        if not is_number(self.min_confidence) or not 0 <= self.min_confidence <= 1:
            msg = f"min_confidence must be a number from 0 to 1, got {self.min_confidence!r}"
            raise ConfigurationError(msg)
        for name in ("profile_timeout", "latency_budget"):
            value = getattr(self, name)
            if value is None and name == "latency_budget":
                continue
            if not is_number(value) or value <= 0:
                msg = f"{name} must be a number of seconds above 0, got {value!r}"
                raise ConfigurationError(msg)
