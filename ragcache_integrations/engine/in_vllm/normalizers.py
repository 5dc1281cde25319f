"""Tokenizers for grammars, which tokenise the text of a schema unchanged.

A tokenizer that converts text to lower case, or composes its characters, has no tokens for a
capital letter that a schema requires: guidance would force the tokens of another text, and vLLM
would end the request with an error.
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
    """A copy of a tokenizer without normalizers that change text; the tokenizer if it has none.

    Args:
        tokenizer: A tokenizer of ``transformers``; one without a ``tokenizers`` backend is returned
            unchanged.
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
