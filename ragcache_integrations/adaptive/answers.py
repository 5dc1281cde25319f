"""What the pipeline reports with an answer: why this configuration, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ragcache_integrations.core.generation import Usage

from .best_fit import Choice, PrunedSpace
from .profile import ProfileEstimate
from .resources import MemoryLoad
from .settings import Mode
from .types import SynthesisConfig, Synthesised

__all__ = ["AdaptiveAnswer", "AdaptiveCost", "Explanation", "Why"]

Why = Literal[
    "fits",
    "fallback",
    "late",
    "queued",
    "fixed",
    "enough",
    "no more",
    "largest",
    "median",
    "load unknown",
    "nothing found",
]

_WHY = {
    "fixed": "fixed",
    "enough": "that was enough, so no more was read",
    "no more": "nothing larger suits the question and what is known of the memory and time left",
    "largest": "the largest of what suits the question",
    "median": "the median of what suits the question",
    "load unknown": "the median of what suits the question, since the free memory is unknown",
    "nothing found": "nothing was retrieved",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which configuration was chosen, and why. ``str`` says it in words.

    Attributes:
        mode: The pipeline's mode.
        config: The configuration.
        why: ``fits``, ``fallback``, ``late`` and ``queued`` as in
            :class:`~ragcache_integrations.adaptive.best_fit.Choice`; ``fixed``, ``largest``
            and ``median`` by the mode; ``enough``: the mode ``gradual`` found the answer before it
            had read all that it might; ``no more``: it did not, and nothing larger suits the
            question and fits what is known to be left; ``load unknown``: the median of the space,
            since the free memory is unknown; ``nothing found``: no chunk was retrieved.
        found: Chunks that were retrieved.
        estimate: The profiler's estimate; ``None`` if it was not called.
        trusted: Whether its profile was used. If not, the spaces of recent questions were.
        space: The configurations that suit the question; ``None`` for a fixed configuration.
        choice: What best fit compared, in the mode ``gradual`` for the last step; ``None`` if it
            did not choose.
        load: The load at the time of this choice; ``None`` if it was not read.
        tried: What the mode ``gradual`` read before, which did not have the answer.
    """

    mode: Mode
    config: SynthesisConfig
    why: Why
    found: int
    estimate: ProfileEstimate | None = None
    trusted: bool = False
    space: PrunedSpace | None = None
    choice: Choice | None = None
    load: MemoryLoad | None = None
    tried: tuple[SynthesisConfig, ...] = ()

    def __str__(self) -> str:
        parts = [f"{_described(self.config)}: {self._reason()}"]
        if self.tried:
            parts.append(f"; {_described(self.tried[-1])} did not have the answer")
        if self.estimate is not None:
            parts.append(f"; {self._profile(self.estimate)}")
        return "".join(parts)

    def _reason(self) -> str:
        choice = self.choice
        if choice is None or self.why in _WHY:
            return _WHY[self.why]
        reasons = {
            "fits": f"the largest of {choice.considered} that fits",
            "fallback": f"none of {choice.considered} fits, this does:",
            "late": "nothing finishes in time, so the smallest one:",
            "queued": "nothing fits, so the smallest one:",
        }
        return (
            f"{reasons[choice.reason]} {max(choice.free_tokens, 0)} free tokens, and needs "
            f"{choice.need}; about {choice.seconds:.2g} s"
        )

    def _profile(self, estimate: ProfileEstimate) -> str:
        if estimate.profile is None:
            return f"no profile ({estimate.problem}), so as recent questions"
        text = f"profile {estimate.profile.answer} ({estimate.source}"
        text += ")" if estimate.confidence is None else f", confidence {estimate.confidence:.2f})"
        return text if self.trusted else f"{text} is too unsure, so as recent questions"


def _described(config: SynthesisConfig) -> str:
    chunks = "1 chunk" if config.num_chunks == 1 else f"{config.num_chunks} chunks"
    words = config.intermediate_length
    summaries = "" if words is None else f" and summaries of {words} words"
    return f"{config.method} with {chunks}{summaries}"


@dataclass(frozen=True, slots=True)
class AdaptiveCost:
    """What an answer cost.

    Attributes:
        total_seconds: From the question to the complete answer.
        profile_seconds: How long the profiler ran, concurrently with retrieval, or until its
            timeout.
        profile_wait_seconds: How long the pipeline waited for it after retrieval had ended.
        retrieval_seconds: How long retrieval took.
        choice_seconds: Reading the load, measuring the chunks and choosing what to read first.
        synthesis_seconds: From this choice to the complete answer.
        calls: Number of calls of the answering model.
        usage: Tokens of these calls; ``None`` if the model does not report them.
        profile_usage: Tokens of the profiler's call; ``None`` if the model does not report them.
    """

    total_seconds: float
    profile_seconds: float
    profile_wait_seconds: float
    retrieval_seconds: float
    choice_seconds: float
    synthesis_seconds: float
    calls: int
    usage: Usage | None
    profile_usage: Usage | None

    @property
    def profile_share(self) -> float:
        """Share of the delay during which the profiler was running (RAGServe figure 18)."""
        return self.profile_seconds / self.total_seconds if self.total_seconds else 0.0


@dataclass(frozen=True, slots=True)
class AdaptiveAnswer:
    """An answer, why it was made this way, and what it cost.

    Attributes:
        synthesised: The answer, its citations and steps.
        explanation: Which configuration was chosen, and why.
        cost: Seconds, calls and tokens.
    """

    synthesised: Synthesised
    explanation: Explanation
    cost: AdaptiveCost

    @property
    def text(self) -> str:
        """The answer."""
        return self.synthesised.text
