"""What the demo can be told."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Self

from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.validation import check_tolerance
from ragcache_integrations.resources import load_passages, load_questions

__all__ = ["FLAGS", "FRAMEWORKS", "DemoSettings"]

FRAMEWORKS = {"langchain": "LangChain", "llama_index": "LlamaIndex"}

LIMITS = {
    "questions": 1,
    "distractors": 0,
    "top_k": 1,
    "max_tokens": 1,
    "seed": 0,
    "passages": 1,
    "scored": 0,
}
"""Least values."""

FLAGS = (
    "questions",
    "distractors",
    "top_k",
    "tolerance",
    "max_tokens",
    "kv_cache_gib",
    "model",
    "seed",
    "scored",
)
"""Settings that the command line takes, under their own names."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo runs.

    Attributes:
        questions: Length of the stream of questions.
        distractors: Generated vectors in the store besides the bundled passages.
        top_k: Documents per question.
        tolerance: Largest distance at which the query cache answers.
        max_tokens: Length of an answer; those to Natural Questions are short.
        kv_cache_gib: KV cache of each of the two engines.
        model: Path or hub name of the model; ``None`` is the bundled one.
        seed: Decides questions and distractors.
        passages: How many of the bundled passages are in the store, those that answer a question
            first.
        frameworks: Which of :data:`FRAMEWORKS` to run.
        scored: How many questions are answered in several ways, and the answers scored; none of a
            model with random weights.
        compiled: Whether vLLM compiles the model, as it does by default; both engines alike.
            Without, they start sooner.

    Raises:
        ConfigurationError: A setting is out of its range.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """

    questions: int = 150
    distractors: int = 300_000
    top_k: int = 5
    tolerance: float = 0.3
    max_tokens: int = 8
    kv_cache_gib: float = 0.5
    model: str | None = None
    seed: int = 0
    passages: int = len(load_passages())
    frameworks: tuple[str, ...] = tuple(FRAMEWORKS)
    scored: int = 100
    compiled: bool = True

    def __post_init__(self) -> None:
        for name, low in LIMITS.items():
            value = getattr(self, name)
            if value < low:
                msg = f"{name} must be at least {low}, got {value}"
                raise ConfigurationError(msg)
        stored = self.passages + self.distractors
        if self.top_k > stored:
            msg = f"top_k must be at most {stored}, the size of the store, got {self.top_k}"
            raise ConfigurationError(msg)
        if self.scored > len(load_questions()):
            msg = f"scored must be at most {len(load_questions())}, got {self.scored}"
            raise ConfigurationError(msg)
        check_tolerance(self.tolerance)
        engine_settings(self.model, kv_cache_gib=self.kv_cache_gib)
        unknown = [name for name in self.frameworks if name not in FRAMEWORKS]
        if unknown or not self.frameworks:
            msg = f"frameworks must be some of {', '.join(FRAMEWORKS)}, got {self.frameworks}"
            raise ConfigurationError(msg)

    def command(self) -> str:
        """The command that runs this again."""
        quick = type(self)().quick()
        is_quick = (self.frameworks, self.compiled) == (quick.frameworks, quick.compiled)
        usual = quick if is_quick else type(self)()
        words = ["ragcache demo", *(["--quick"] if is_quick else [])]
        for name in FLAGS:
            value = getattr(self, name)
            if value != getattr(usual, name):
                words.append(f"--{name.replace('_', '-')} {shlex.quote(str(value))}")
        return " ".join(words)

    def quick(self) -> Self:
        """The same, cut down to less than a minute: one framework, 40 questions at most."""
        return replace(
            self,
            questions=min(self.questions, 40),
            passages=min(self.passages, 400),
            frameworks=("langchain",),
            scored=min(self.scored, 20),
            compiled=False,
        )
