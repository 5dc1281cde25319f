"""When two questions whose embeddings are alike must not be taken for one another.

An embedding model distinguishes two texts only as far as it reads them: many map emoji, case or
accents to the same tokens, and all stop reading at the end of their window. What answers the
question may read more, as a search for words does.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from ragcache_integrations.core.ids import content_id
from ragcache_integrations.embeddings import MiniLM
from ragcache_integrations.retrievers.embedder import Texts

from .question_guard import question_marks, unify_unicode

__all__ = ["TextIdentity", "TextWindow", "normalize_text", "window_of"]

TextWindow = Callable[[str], bool]
"""Whether an embedding model leaves out a part of a text."""

PROMPT_TOKENS = 32
"""Tokens of the window that are left for what a model's class writes before a question."""

# Where classes of frameworks keep the model; none of them is public.
_INNER = ("_model", "model", "_client", "client", "_embed_model", "underlying_embeddings")
_MAX_DEPTH = 4


def normalize_text(text: str) -> str:
    """Return a text without differences of case, of white space and of Unicode's spellings."""
    folded = unify_unicode(text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


class TextIdentity:
    """Says which texts belong into the cache key, so that no other text shares the entry.

    Args:
        exact: Compare all texts, regardless of their embeddings.
        window: Returns whether the embedding model leaves out a part of a text; ``None`` where
            that is not known.
        guard: Compare the texts' marks, see :func:`.question_marks`.
    """

    def __init__(self, window: TextWindow | None, *, exact: bool, guard: bool = False) -> None:
        self._exact = exact
        self._window = window
        self._guard = guard

    def of(self, texts: Texts, *, embedded: bool = True) -> Hashable | None:
        """Return the texts' marks, and their hashes where their embedding does not identify them.

        Args:
            texts: The texts.
            embedded: Whether the model has read them.
        """
        window = self._window if embedded else None
        hashes: Texts | None = None
        if self._exact or (window is not None and any(map(window, texts))):
            hashes = tuple(map(content_id, texts))
        return (hashes, tuple(map(question_marks, texts))) if self._guard else hashes


def window_of(model: object) -> TextWindow:
    """Return a function that returns whether a model leaves out the end of a text.

    Knows the offline embedding model and the models of sentence-transformers, in any class of a
    framework; other models are assumed to read everything. The model is looked for at the first
    call, which must come after a first embedding, since some models are loaded by that.
    """

    @functools.cache
    def window() -> TextWindow | None:
        inner = next(_models_with_window(model, _MAX_DEPTH), None)
        if isinstance(inner, MiniLM):
            return inner.leaves_out
        return None if inner is None else _window_of_tokens(inner)

    def is_cut(text: str) -> bool:
        cuts = window()
        return cuts is not None and cuts(text)

    return is_cut


def _models_with_window(model: object, depth: int) -> Iterator[Any]:
    if isinstance(model, MiniLM) or _reads_tokens(model):
        yield model
    elif depth:
        for name in _INNER:
            inner = getattr(model, "__dict__", {}).get(name) or _private(model, name)
            if inner is not None and not isinstance(inner, str):
                yield from _models_with_window(inner, depth - 1)


def _private(model: object, name: str) -> object:
    return (getattr(model, "__pydantic_private__", None) or {}).get(name)


def _reads_tokens(model: object) -> bool:
    if not type(model).__module__.startswith("sentence_transformers."):
        return False
    return isinstance(getattr(model, "max_seq_length", None), int)


def _window_of_tokens(model: Any) -> TextWindow:
    from tokenizers import Tokenizer  # noqa: PLC0415 - comes with the model

    limit = int(model.max_seq_length) - PROMPT_TOKENS
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: nobody knows whether it may be used meanwhile
        return lambda text: len(text) > limit
    # A copy: the model's own refuses to be used by two threads at once, and cuts what it reads.
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def is_cut(text: str) -> bool:
        if text.isascii() and len(text) <= limit:  # a token is a character at least
            return False
        return len(tokenizer.encode(text).ids) > limit

    return is_cut
