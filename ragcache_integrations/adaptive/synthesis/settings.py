"""Settings of synthesis, the same for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ragcache_integrations.core.checks import check_choice, check_int
from ragcache_integrations.errors import ConfigurationError

from .prompts import DEFAULT_PROMPTS, SynthesisPrompts

__all__ = ["Ranking", "SynthesisSettings"]

Ranking = Literal["auto", "logprobs", "self_rated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisSettings:
    """Settings of synthesis.

    Attributes:
        max_tokens: Limit of an answer in tokens; ``None`` for the model's own setting. The
            summaries of ``map_reduce`` are limited by ``intermediate_length``.
        context_window: Tokens of prompt and answer together; ``None`` for the window that the model
            reports. If it reports none, no chunk is left out or cut.
        max_concurrency: The most calls of the model at a time.
        ranking: How ``map_rerank`` finds the best answer. ``logprobs``: by the mean
            log-probability of its tokens. ``self_rated``: by a score from 0 to 100 that the model
            gives itself, and no log-probabilities are requested. ``auto``: by log-probabilities
            if the model returns them, else by its score, which is logged once.
        prompts: The texts of the prompts.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    max_tokens: int | None = None
    context_window: int | None = None
    max_concurrency: int = 32
    ranking: Ranking = "auto"
    prompts: SynthesisPrompts = DEFAULT_PROMPTS

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1)
        if self.context_window is not None:
            check_int("context_window", self.context_window, 2)
        check_int("max_concurrency", self.max_concurrency, 1)
        check_choice("ranking", self.ranking, get_args(Ranking))
        if not isinstance(self.prompts, SynthesisPrompts):
            msg = f"prompts must be SynthesisPrompts, got {type(self.prompts).__name__}"
            raise ConfigurationError(msg)
