"""The settings of the demo."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Self

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.validation import check_tolerance
from ragcache_integrations.resources import load_passages, load_questions

__all__ = ["FLAGS", "FRAMEWORKS", "WORDS", "DemoSettings"]

FRAMEWORKS = {"langchain": "LangChain", "llama_index": "LlamaIndex"}

LIMITS = {
    "questions": 1,
    "distractors": 0,
    "top_k": 1,
    "max_tokens": 1,
    "seed": 0,
    "passages": 1,
    "scored": 0,
    "link_tokens": 0,
}
"""The least value of each number."""

WORDS: dict[str, Any] = tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))

FLAGS: dict[str, str] = WORDS["flags"]
"""Settings that the command line takes, under their own names, and what its help says of them."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings of the demo.

    Attributes:
        questions: Number of questions in the stream; at least 1.
        distractors: Number of generated vectors in the store besides the bundled passages. They
            have no text, and are too far from every question to be found.
        top_k: Documents per question; at least 1, at most ``passages``.
        tolerance: Largest distance at which the query cache answers; at least 0.
        max_tokens: Limit of an answer in tokens; answers to Natural Questions are short.
        kv_cache_gib: KV cache of each of the two engines in GiB.
        link_tokens: First tokens of each document that are computed where its KV cache is reused
            anywhere.
        document_cache_gib: Memory for documents that are reused anywhere, in GiB.
        model: Path or hub name of the model; ``None`` for the bundled one.
        seed: Seed of the questions and the distractors.
        passages: Number of bundled passages in the store, those that answer a question first.
        frameworks: Which of :data:`FRAMEWORKS` to run.
        scored: Number of questions that are answered in several ways to score the answers; those of
            a model with random weights are not scored.
        compiled: Whether vLLM compiles the model in both engines, as it does by default. Without it
            they start sooner.

    Raises:
        ConfigurationError: A setting is out of its range.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """

    questions: int = 24
    distractors: int = 300_000
    top_k: int = 5
    tolerance: float = 0.3
    max_tokens: int = 16
    kv_cache_gib: float = 0.5
    link_tokens: int = 16
    document_cache_gib: float = 2.0
    model: str | None = None
    seed: int = 0
    passages: int = len(load_passages())
    frameworks: tuple[str, ...] = tuple(FRAMEWORKS)
    scored: int = 30
    compiled: bool = True

    def __post_init__(self) -> None:
        for name, low in LIMITS.items():
            check_int(name, getattr(self, name), low)
        if self.top_k > self.passages:
            msg = f"top_k must be at most {self.passages}, the passages, got {self.top_k}"
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

    @property
    def topics(self) -> int:
        """Number of different questions that the stream is drawn from: twice its length, or all."""
        return min(2 * self.questions, len(load_questions()))

    def command(self) -> str:
        """Return the command that runs the demo with these settings."""
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
        """Return settings for about a minute: one framework, few questions, and no scores."""
        return replace(
            self,
            questions=min(self.questions, 20),
            passages=min(self.passages, 400),
            frameworks=("langchain",),
            scored=0,
            compiled=False,
        )
