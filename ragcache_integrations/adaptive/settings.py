"""Settings of per-query configuration, the same for every framework."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, model_validator

from ragcache_integrations.core.checks import check_choice, check_number, or_none
from ragcache_integrations.core.knobs import (
    CheckedSettings,
    Positive,
    PositiveOrNone,
    Seconds,
    SecondsOrNone,
    checked,
)
from ragcache_integrations.errors import ConfigurationError

from .best_fit import LEEWAY, Held
from .profile import MAX_PIECES
from .types import Synthesis, SynthesisConfig

__all__ = ["MAX_CHUNKS", "AdaptiveSettings", "Mode", "PipelineKnobs"]

Mode = Literal["adaptive", "gradual", "largest", "median", "fixed"]

MAX_CHUNKS = LEEWAY * MAX_PIECES
"""The most chunks that any profile requires."""


class PipelineKnobs(BaseModel):
    """The knobs of per-query configuration.

    Attributes:
        mode: ``adaptive`` takes the largest configuration that fits the free memory; ``gradual``
            the smallest that suits the question first, and larger ones that fit only while the
            model says that the answer is not in what it has read; ``largest`` the largest of what
            suits the question and ``median`` the median of it, without looking at the memory;
            ``fixed`` always ``config``.
        config: For ``fixed``: a :class:`~ragcache_integrations.adaptive.SynthesisConfig`; ``None``
            for the other modes.
        method: Synthesis method of all questions: ``stuff``, ``map_reduce`` or ``map_rerank``;
            ``None`` if each question decides it.
        num_chunks: The number of chunks that all questions read; ``None`` if each decides it.
        intermediate_length: The most words of the summaries of all questions, for ``map_reduce``;
            ``None`` if each question decides it.
        max_chunks: Number of chunks to retrieve while the question is being profiled, unless
            ``num_chunks`` or ``config`` says how many it reads.
        min_confidence: Profiles below this confidence (0 to 1) are not trusted: the pipeline uses
            what suited recent questions instead.
        profile_timeout: Seconds after the question at which the pipeline stops waiting for its
            profile, and uses what suited recent questions instead.
        latency_budget: Seconds that the answer may take, estimated by the prefill cost model and
            the answers so far; ``None`` for no limit. For ``gradual``, all steps share it: one is
            begun only if it should end in time.
        golden_every: One in this many questions is answered again with the most expensive
            configuration while the model is idle, and the profiler learns from it; 30 in the
            paper. ``None`` for never.
        golden_token_budget: The most tokens to spend on these answers.
    """

    mode: Annotated[Mode, checked(check_choice, get_args(Mode))] = "adaptive"
    config: SynthesisConfig | None = None
    method: Annotated[Synthesis | None, checked(or_none(check_choice), get_args(Synthesis))] = None
    num_chunks: PositiveOrNone = None
    intermediate_length: PositiveOrNone = None
    max_chunks: Positive = MAX_CHUNKS
    min_confidence: Annotated[float, checked(check_number, 0, 1)] = 0.9
    profile_timeout: Seconds = 10.0
    latency_budget: SecondsOrNone = None
    golden_every: PositiveOrNone = None
    golden_token_budget: Positive = 200_000


class AdaptiveSettings(CheckedSettings, PipelineKnobs):
    """Settings of per-query configuration.

    ::

        AdaptiveSettings(latency_budget=2.0)
        AdaptiveSettings(method="stuff")  # each question decides the number of chunks alone
        AdaptiveSettings(mode="fixed", config=SynthesisConfig("stuff", 5))

    Raises:
        ConfigurationError: A value is out of its range, or is not for the mode.
    """

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if (self.mode == "fixed") != isinstance(self.config, SynthesisConfig):
            raise ConfigurationError(
                "mode='fixed' takes a SynthesisConfig as config, the other modes take none; "
                f"got mode={self.mode!r} and config={self.config!r}"
            )
        held = self.held
        if self.mode == "fixed" and held != Held():
            raise ConfigurationError(f"mode='fixed' takes all values from config, got {held}")
        if self.mode == "gradual" and self.num_chunks is not None:
            msg = f"mode='gradual' chooses the number of chunks, got num_chunks={self.num_chunks!r}"
            raise ConfigurationError(msg)
        return self

    @property
    def held(self) -> Held:
        """The knobs that do not depend on the question."""
        length = self.intermediate_length
        return Held(method=self.method, num_chunks=self.num_chunks, intermediate_length=length)

    @property
    def most_chunks(self) -> int:
        """The most chunks that an answer reads, and so the number to retrieve."""
        if self.config is not None:
            return self.config.num_chunks
        return self.num_chunks or self.max_chunks
