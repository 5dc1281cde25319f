"""Names of documents that are kept, to be reused at any place."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

__all__ = ["document_key"]


def document_key(salt: str, token_ids: Sequence[int]) -> bytes:
    """The key of a document: of its tokens and its tenant, so that none meets another's."""
    content = hashlib.blake2b(array("I", [len(token_ids), *token_ids]).tobytes(), digest_size=20)
    content.update(salt.encode("utf-8", "surrogatepass"))  # it may hold any character
    return content.digest()
