"""Settings of per-query configuration, the same for every framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ragcache_integrations.core.checks import check_choice, check_int, check_number, check_seconds
from ragcache_integrations.errors import ConfigurationError

from .choice import LEEWAY
from .profile import MAX_PIECES
from .types import SynthesisConfig

__all__ = ["MAX_CHUNKS", "AdaptiveSettings", "Mode"]

Mode = Literal["adaptive", "median", "fixed"]

MAX_CHUNKS = LEEWAY * MAX_PIECES
"""The most chunks that any profile requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSettings:
    """Settings of per-query configuration.

    ::

        AdaptiveSettings(latency_budget=2.0)
        AdaptiveSettings(mode="fixed", config=SynthesisConfig("stuff", 5))

    Attributes:
        mode: ``adaptive`` takes the best configuration that fits the free memory; ``median`` the
            median of what suits the question, without looking at the memory; ``fixed`` always
            ``config``.
        config: The configuration for ``fixed``; ``None`` for the other modes.
        max_chunks: Number of chunks to retrieve while the question is being profiled.
        min_confidence: Profiles below this confidence (0 to 1) are not trusted: the pipeline uses
            what suited recent questions instead.
        profile_timeout: Seconds after the question at which the pipeline stops waiting for its
            profile, and uses what suited recent questions instead.
        latency_budget: Seconds that the answer may take, estimated by the prefill cost model and
            the answers so far; ``None`` for no limit.
        golden_every: One in this many questions is answered again with the most expensive
            configuration while the model is idle, and the profiler learns from it; 30 in the
            paper. ``None`` for never.
        golden_token_budget: The most tokens to spend on these answers.

    Raises:
        ConfigurationError: A value is out of its range, or is not for the mode.
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
        check_choice("mode", self.mode, get_args(Mode))
        if (self.mode == "fixed") != isinstance(self.config, SynthesisConfig):
            msg = (
                "mode='fixed' takes a SynthesisConfig as config, the other modes take none; "
                f"got mode={self.mode!r} and config={self.config!r}"
            )
            raise ConfigurationError(msg)
        check_int("max_chunks", self.max_chunks, 1)
        check_number("min_confidence", self.min_confidence, 0, 1)
        check_number("profile_timeout", self.profile_timeout, 0, above=True, unit="seconds")
        check_seconds("latency_budget", self.latency_budget)
        if self.golden_every is not None:
            check_int("golden_every", self.golden_every, 1, also="None")
        check_int("golden_token_budget", self.golden_token_budget, 1)
