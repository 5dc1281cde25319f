"""What can be set on synthesis, whichever the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.errors import ConfigurationError

from .prompts import DEFAULT_PROMPTS, SynthesisPrompts

__all__ = ["Ranking", "SynthesisSettings"]

Ranking = Literal["auto", "logprobs", "self_rated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisSettings:
    """What can be set on synthesis.

    Attributes:
        max_tokens: The most tokens of an answer; the model's own setting where ``None``. The
            summaries of ``map_reduce`` have ``intermediate_length``.
        context_window: Tokens that prompt and answer may take together; what the model says where
            ``None``. Where it says nothing, nothing is left out or cut.
        max_concurrency: So many calls of the model at once, at most.
        ranking: How ``map_rerank`` tells which answer is best. ``logprobs``: by the mean
            log-probability of its tokens. ``self_rated``: by a score from 0 to 100 that the model
            gives itself, and no log-probabilities are asked for. ``auto``: by log-probabilities
            where the model gives them, else by its score, which is logged once.
        prompts: What is asked.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    max_tokens: int | None = None
    context_window: int | None = None
    max_concurrency: int = 32
    ranking: Ranking = "auto"
    prompts: SynthesisPrompts = DEFAULT_PROMPTS

    def __post_init__(self) -> None:
        for name, low in (("max_tokens", 1), ("context_window", 2), ("max_concurrency", 1)):
            value = getattr(self, name)
            if value is None and name != "max_concurrency":
                continue
            if not is_whole(value) or value < low:
                msg = f"{name} must be a whole number of at least {low}, got {value!r}"
                raise ConfigurationError(msg)
        if self.ranking not in get_args(Ranking):
            msg = f"ranking must be one of {', '.join(get_args(Ranking))}, got {self.ranking!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.prompts, SynthesisPrompts):
            msg = f"prompts must be SynthesisPrompts, got {type(self.prompts).__name__}"
            raise ConfigurationError(msg)
