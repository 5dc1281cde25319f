"""Measures a question's prompts and chunks in tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_integrations.adaptive.asker import Asker
from ragcache_integrations.adaptive.synthesis import SynthesisSettings, Window
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.ids import content_id
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.prompt import PromptDocument

from .best_fit import PromptSizes
from .mapping import PrunedSpace

__all__ = ["Measures"]

MAX_REMEMBERED = 10_000
"""Number of chunks whose lengths are kept, since popular ones are retrieved again and again."""


class Measures:
    """Counts tokens by the model's tokenizer, and keeps the lengths of chunks. Thread-safe.

    Args:
        asker: The model, which counts.
        settings: Its prompts are measured.
    """

    def __init__(self, asker: Asker, settings: SynthesisSettings) -> None:
        self._asker = asker
        self._settings = settings
        self._lock = make_lock()
        self._lengths: Memo[str, int] = Memo(MAX_REMEMBERED)  # by the hash of the text

    def sizes(self, question: str, space: PrunedSpace) -> PromptSizes:
        """Measure the prompts of a space's methods without their chunks."""
        count, prompts = self._asker.count_prompt, self._settings.prompts
        methods = space.methods
        limits = self._asker.limits()
        scored = self._settings.ranking == "self_rated" or not self._asker.logprob_support.available
        stuff = mapper = reduce = rerank = 0
        if "stuff" in methods:
            stuff = count(prompts.stuff(question, ()))
        if "map_reduce" in methods:
            mapper = count(prompts.map(question, (), 100))
            reduce = count(prompts.combine(question, ()))
        if "map_rerank" in methods:
            rerank = count(prompts.rerank(question, (), scored=scored))
        return PromptSizes(
            stuff=stuff,
            mapper=mapper,
            reduce=reduce,
            rerank=rerank,
            answer=self._settings.max_tokens or limits.answer_tokens,
            separator=Window(self._asker, self._settings).separator,
            window=self._settings.context_window or limits.context_window,
        )

    def lengths(self, chunks: Sequence[PromptDocument]) -> tuple[int, ...]:
        """Return the length of each chunk in tokens."""
        return tuple(map(self._length, chunks))

    def _length(self, chunk: PromptDocument) -> int:
        key = content_id(chunk.text)
        with self._lock:
            known = self._lengths.get(key)
        if known is not None:
            return known
        length = max(1, self._asker.count_tokens(chunk.text))
        with self._lock:
            self._lengths[key] = length
        return length
