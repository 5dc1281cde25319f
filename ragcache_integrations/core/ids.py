"""Stable ids for documents that have none."""

from __future__ import annotations

import hashlib

__all__ = ["content_id"]


def content_id(text: str) -> str:
    """Hash of a document's text, the same on every machine: 32 hexadecimal digits.

    Lone surrogates are hashed as they are, so that every ``str`` has an id.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
    return digest.hexdigest()
