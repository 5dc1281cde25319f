"""A backend for our LLM classes that answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_integrations.engine import Generation, Prompt, Usage

__all__ = ["ANSWER", "InstantBackend"]

ANSWER = "Cats purr."
_TOKENS = (1, 2, 3)


class InstantBackend:
    """Answers every prompt with the same few tokens."""

    model = "instant"
    max_model_len = 4096
    has_chat_template = True
    supports_tools = False

    def generate(self, prompt: Prompt, *_: Any, **__: Any) -> Generation:
        """Answer a prompt."""
        del prompt
        return Generation(ANSWER, _TOKENS, "stop", Usage(100, len(_TOKENS), 0))

    async def agenerate(self, prompt: Prompt, *_: Any, **__: Any) -> Generation:
        """Async version of :meth:`generate`."""
        return self.generate(prompt)

    def generate_batch(self, prompts: Sequence[Prompt], *_: Any, **__: Any) -> list[Generation]:
        """Answer several prompts."""
        return [self.generate(prompt) for prompt in prompts]

    async def agenerate_batch(
        self, prompts: Sequence[Prompt], *_: Any, **__: Any
    ) -> list[Generation]:
        """Async version of :meth:`generate_batch`."""
        return self.generate_batch(prompts)

    def stream(self, *_: Any, **__: Any) -> Any:
        """Refuse: nothing is streamed here."""
        raise NotImplementedError  # the protocol asks for it, the benchmark never calls it

    async def astream(self, *_: Any, **__: Any) -> Any:
        """Async version of :meth:`stream`."""
        raise NotImplementedError  # the protocol asks for it, the benchmark never calls it

    def count_tokens(self, text: str) -> int:
        """Count words."""
        return len(text.split())

    def tokenize(self, text: str) -> list[int]:
        """Number the words."""
        return list(range(self.count_tokens(text)))

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
