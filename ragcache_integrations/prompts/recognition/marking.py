"""Finds the documents inside a prompt that a framework has already rendered.

Chains format their documents into one string before the model sees it. The engine needs to know
which part of that string is which document, so that each is tokenised separately and its KV cache
can be reused. The text is not changed: the concatenated parts are the original string.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ragcache_integrations.core.prompt import Part, Prompt, PromptDocument, part_text

__all__ = ["mark_documents", "mark_prompt"]


def mark_documents(text: str, documents: Sequence[PromptDocument]) -> tuple[Part, ...]:
    """Split ``text`` at the documents that it contains verbatim.

    Every occurrence is marked, since an earlier turn of a conversation may contain the same
    document, too, and must be tokenised as it was then. Of overlapping occurrences, the one that
    begins first wins, then the longer one, then the first one in ``documents``. The rest of the
    others becomes a separate document, so that no part of an occurrence is plain text. Documents
    that don't occur are ignored. Each document takes a few scans of the text.

    Args:
        text: A rendered prompt, or a message of it.
        documents: The documents to look for.

    Returns:
        Plain text and documents in the order of the text, which is their concatenation. No plain
        text is empty.
    """
    return _mark_parts([text], documents)


def mark_prompt(prompt: Prompt, documents: Sequence[PromptDocument]) -> Prompt:
    """Mark documents in every plain-text part of a prompt; see :func:`mark_documents`.

    Parts that are documents already stay as they are. If one of them overlaps an occurrence of a
    document to be marked, the rest of that occurrence becomes a separate document, too.
    """
    if not documents:
        return prompt
    return replace(
        prompt,
        messages=tuple(
            message.with_parts(_mark_parts(message.parts, documents)) for message in prompt.messages
        ),
        parts=_mark_parts(prompt.parts, documents),
    )


def _mark_parts(parts: Sequence[Part], documents: Sequence[PromptDocument]) -> tuple[Part, ...]:
    marked: list[Part] = []
    for part in parts:
        marked += _split(part, documents) if isinstance(part, str) else [part]
    return tuple(_mark_rests(marked, documents))


def _split(text: str, documents: Sequence[PromptDocument]) -> Iterator[Part]:
    """Split a text at the occurrences that win."""
    position = 0
    for start, document in _occurrences(text, documents):
        if start > position:
            yield text[position:start]
        yield document
        position = start + len(document.text)
    if position < len(text):
        yield text[position:]


def _mark_rests(parts: Sequence[Part], documents: Sequence[PromptDocument]) -> Iterator[Part]:
    """Make documents of the plain text that belongs to occurrences."""
    covered = deque(_covered("".join(map(part_text, parts)), documents))
    end = 0
    for part in parts:
        begin, end = end, end + len(part_text(part))
        while covered and covered[0][1] <= begin:
            covered.popleft()
        if not isinstance(part, str):
            yield part
            continue
        position = begin
        for first, last in covered:
            if first >= end:
                break
            start, stop = max(first, begin), min(last, end)
            if start > position:
                yield part[position - begin : start - begin]
            yield PromptDocument(part[start - begin : stop - begin])
            position = stop
        if position < end:
            yield part[position - begin :]


def _covered(text: str, documents: Sequence[PromptDocument]) -> list[tuple[int, int]]:
    """The disjoint stretches that all occurrences cover, from left to right."""
    backwards = text[::-1]
    texts = {document.text for document in documents}
    union: list[tuple[int, int]] = []
    for start, end in sorted(chain.from_iterable(_runs(text, backwards, t) for t in texts)):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _runs(text: str, backwards: str, document: str) -> Iterator[tuple[int, int]]:
    """The stretches that occurrences of one document cover, including overlapping ones.

    Each step goes from an occurrence to the last one that touches it. Two such steps pass the
    length of the document, so that a document of one repeated letter takes no more time than
    others. The last occurrence is found in the reversed text by ``find``, because ``rfind`` does
    not take linear time.
    """
    length, size = len(document), len(text)
    reverse = document[::-1]
    start = text.find(document)
    while start >= 0:
        begin = start
        last = start
        while last >= 0:
            start = last
            # Occurrences that begin in (start, start + length] end in (.., start + 2 * length].
            place = backwards.find(reverse, max(0, size - start - 2 * length), size - start - 1)
            last = size - place - length if place >= 0 else -1
        yield begin, start + length
        start = text.find(document, start + length)


def _occurrences(
    text: str, documents: Sequence[PromptDocument]
) -> Iterator[tuple[int, PromptDocument]]:
    """Yield non-overlapping occurrences from left to right.

    The heap holds the next occurrence of each document. An occurrence that overlaps an accepted
    document is replaced by the next one after it, so that no document scans a stretch of the text
    twice.
    """
    first_of_text = {document.text: document for document in reversed(documents)}
    candidates = list(reversed(first_of_text.values()))
    upcoming = [
        (start, -len(document.text), order)
        for order, document in enumerate(candidates)
        if (start := text.find(document.text)) >= 0
    ]
    heapq.heapify(upcoming)
    position = 0
    while upcoming:
        start, _, order = upcoming[0]
        document = candidates[order]
        if start >= position:
            yield start, document
            position = start + len(document.text)
        start = text.find(document.text, position)
        if start >= 0:
            heapq.heapreplace(upcoming, (start, -len(document.text), order))
        else:
            heapq.heappop(upcoming)
