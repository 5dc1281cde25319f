"""Tokenizers for grammars: the text of a schema is tokenised as it is.

A tokenizer that makes text lower case, or composes its characters, has no tokens for what a schema
requires as soon as that holds a capital letter: guidance would force the tokens of another text,
and vLLM end the request with an error.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from ragcache_integrations.core.extras import require

__all__ = ["keeping_text"]

_CHANGING = frozenset(
    {"Lowercase", "StripAccents", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Strip"}
)


def keeping_text(tokenizer: Any) -> Any:
    """The tokenizer without what changes text before it is split; the same where nothing does.

    Args:
        tokenizer: One of ``transformers``; what has no backend of ``tokenizers`` is left as it is.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.normalizer is None:
        return tokenizer
    state = json.loads(backend.to_str())
    kept = _kept(state["normalizer"])
    if kept == state["normalizer"]:
        return tokenizer
    tokenizers = require("tokenizers", feature="the engine", extra="vllm")
    copied = copy.deepcopy(tokenizer)
    changed = tokenizers.Tokenizer.from_str(json.dumps({**state, "normalizer": kept}))
    copied.backend_tokenizer.normalizer = changed.normalizer
    return copied


def _kept(normalizer: dict[str, Any]) -> dict[str, Any] | None:
    if normalizer["type"] in _CHANGING:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    parts = [part for part in map(_kept, normalizer["normalizers"]) if part is not None]
    return {"type": "Sequence", "normalizers": parts} if parts else None
