"""Repeats requests whose stored KV cache could not be read back.

vLLM ends such a request with an error that it calls retryable, and answers 500. Nobody has to hear
of a damaged file: what could not be read is forgotten, so the same request is computed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

__all__ = ["repeat_failed"]

ATTEMPTS = 3
"""Each may meet another damaged file; the files that were met are gone."""


def repeat_failed(engine: Any) -> None:
    """Make vLLM's ``AsyncLLM`` repeat a request that fails before its first output.

    Args:
        engine: The engine client, whose method ``generate`` is replaced.
    """
    generate = engine.generate

    async def repeating(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any]:
        # Prompts of these kinds can be read once, or have a name of their own.
        once = isinstance(prompt, AsyncIterator) or hasattr(prompt, "request_id")
        for attempt in range(1 if once else ATTEMPTS):
            last = once or attempt == ATTEMPTS - 1
            name = f"{request_id}-again-{attempt}" if attempt else request_id
            begun = False
            async with aclosing(generate(prompt, sampling_params, name, **options)) as outputs:
                async for output in outputs:
                    if not begun and not last and _failed(output):
                        break
                    begun = True
                    yield output
                else:
                    return

    engine.generate = repeating


def _failed(output: Any) -> bool:
    return any(choice.finish_reason == "error" for choice in output.outputs)
