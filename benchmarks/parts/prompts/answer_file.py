"""Answers that a broken-off run need not generate again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions

__all__ = ["Answers"]

ANSWER_TOKENS = 40


class Answers:
    """Answers by their prompts' texts, kept in a file.

    Args:
        engine: Returns what answers; called only for answers that are not in the file.
        path: The file; ``None`` to keep them in memory alone.
    """

    def __init__(self, engine: Callable[[], RAGCacheEngine], path: Path | None) -> None:
        self._engine, self._path = engine, path
        self._known: dict[str, str] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._known.update(json.loads(line))

    def ask(self, prompts: Sequence[Prompt]) -> list[str]:
        """Answer prompts greedily, those that were not answered before."""
        keys = [hashlib.sha256(repr(prompt).encode()).hexdigest() for prompt in prompts]
        asked = dict(zip(keys, prompts, strict=True))
        new = {key: prompt for key, prompt in asked.items() if key not in self._known}
        options = SamplingOptions(max_tokens=ANSWER_TOKENS)
        answers = self._engine().generate_batch(new.values(), options) if new else []
        found = {key: answer.text for key, answer in zip(new, answers, strict=True)}
        self._known |= found
        if self._path is not None and found:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
        return [self._known[key] for key in keys]
