"""What of a prompt is read from stored documents, and what is computed in its place.

A request whose documents' KV caches are reused at any place is admitted as if everything before its
question had been computed. Stored documents are read; all else (the text around them, each
document's first tokens, which are its links to what comes before it, and documents that are not
stored) is computed in rows of the same step.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from ragcache_integrations.core.prompt import Span

__all__ = ["Load", "Plan", "make_plan"]


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of a stored document.

    Attributes:
        key: Its key in the store.
        begin: Where the document begins in the prompt.
        first: The first token that is read.
        end: The token after the last.
        tokens: Length of the document, of which the prompt's last token is not read.
    """

    key: bytes
    begin: int
    first: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How a prompt's beginning is come by.

    Attributes:
        loads: Tokens that are read, in the order of the prompt.
        rows: Spans that are computed, first token and token after the last, in this order, too.
        end: Where the rest begins, which is computed as in any request; at least one token.
        missing: Keys and spans of documents that are not stored.
    """

    loads: tuple[Load, ...]
    rows: tuple[tuple[int, int], ...]
    end: int
    missing: tuple[tuple[bytes, int, int], ...]

    @property
    def computed(self) -> int:
        """Tokens of all rows together."""
        return sum(end - first for first, end in self.rows)

    def after(self, local: int) -> Plan:
        """What is left of it if the first tokens are in the KV cache already."""
        return Plan(
            tuple(
                replace(load, first=max(load.first, local))
                for load in self.loads
                if load.end > local
            ),
            tuple((max(first, local), end) for first, end in self.rows if end > local),
            self.end,
            self.missing,
        )


def make_plan(
    spans: Sequence[Span],
    keys: Sequence[bytes],
    stored: Container[bytes],
    link_tokens: int,
    prompt_tokens: int,
    exact_until: int = 0,
) -> Plan:
    """Plan a request.

    Args:
        spans: Its documents, ordered and disjoint.
        keys: Their keys.
        stored: Keys of documents that can be read.
        link_tokens: First tokens of each document that are computed, not read.
        prompt_tokens: Length of the prompt, the last of which is always computed.
        exact_until: Tokens of the prompt's beginning of which nothing is read.
    """
    last = prompt_tokens - 1
    loads: list[Load] = []
    rows: list[tuple[int, int]] = []
    missing: list[tuple[bytes, int, int]] = []
    at = 0
    for key, (_, begin, document_end) in zip(keys, spans, strict=True):
        end = min(document_end, last)
        first = min(max(begin + link_tokens, exact_until), end)
        if key not in stored:
            missing.append((key, begin, document_end))
        elif first < end:
            if at < first:
                rows.append((at, first))
            loads.append(Load(key, begin, first, end, document_end - begin))
            at = end
    end = min(spans[-1][2], last) if spans else 0
    if at < end:
        rows.append((at, end))
    return Plan(tuple(loads), tuple(rows), end, tuple(missing))
