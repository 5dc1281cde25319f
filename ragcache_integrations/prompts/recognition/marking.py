"""Finding the documents inside a prompt that a framework has already rendered.

Chains format their documents into one string before the model sees it. The engine wants to know
which part of that string is which document, so that each is tokenised by itself and its KV cache
can be found again. Nothing is changed: the parts concatenated are the text that came in.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument

__all__ = ["mark_documents", "mark_prompt"]

Part = str | PromptDocument


def mark_documents(text: str, documents: Sequence[PromptDocument]) -> tuple[Part, ...]:
    """Split ``text`` where documents stand in it verbatim.

    Every occurrence is marked, since an earlier turn of a conversation may hold the same document
    again and must be tokenised as it was then. Where occurrences overlap, the one that begins
    first wins, then the longer one, then the one given first; what is left over of the others is a
    document by itself, so that nothing of any occurrence is plain text. A document that stands
    nowhere is passed over. Takes a few scans of the text for each document.

    Args:
        text: A rendered prompt, or one message of it.
        documents: What may stand in it.

    Returns:
        Plain text and documents in the order in which they stand; concatenated, their texts are
        ``text``. No plain text is empty.
    """
    return _mark_parts([text], documents)


def mark_prompt(prompt: Prompt, documents: Sequence[PromptDocument]) -> Prompt:
    """Mark documents in every plain-text part of a prompt; see :func:`mark_documents`.

    Parts that are documents already stay as they are. Where one of them overlaps an occurrence of
    a document to be marked, the rest of that occurrence is a document by itself, too.
    """
    if not documents:
        return prompt
    return replace(
        prompt,
        messages=tuple(
            Message(message.role, _mark_parts(message.parts, documents))
            for message in prompt.messages
        ),
        parts=_mark_parts(prompt.parts, documents),
    )


def _mark_parts(parts: Sequence[Part], documents: Sequence[PromptDocument]) -> tuple[Part, ...]:
    marked: list[Part] = []
    for part in parts:
        marked += _split(part, documents) if isinstance(part, str) else [part]
    return tuple(_without_remains(marked, documents))


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


def _without_remains(parts: Sequence[Part], documents: Sequence[PromptDocument]) -> Iterator[Part]:
    """Make documents of the plain text that belongs to an occurrence."""
    covered = deque(_covered("".join(map(_text, parts)), documents))
    end = 0
    for part in parts:
        begin, end = end, end + len(_text(part))
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
    """The stretches that occurrences cover together, from left to right and apart."""
    backwards = text[::-1]
    texts = {document.text for document in documents}
    joined: list[tuple[int, int]] = []
    for start, end in sorted(chain.from_iterable(_runs(text, backwards, one) for one in texts)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _runs(text: str, backwards: str, document: str) -> Iterator[tuple[int, int]]:
    """The stretches that occurrences of one document cover, also where they overlap.

    From one occurrence it goes to the last that touches it: two such steps pass the length of the
    document, so that a document of one letter, a thousand times, costs no more than another. That
    last one is searched for from behind by ``find``, which is linear, as ``rfind`` is not.
    """
    length, size = len(document), len(text)
    reverse = document[::-1]
    start = text.find(document)
    while start >= 0:
        begin = start
        found = start
        while found >= 0:
            start = found
            # Occurrences that begin in (start, start + length] end in (.., start + 2 * length].
            place = backwards.find(reverse, max(0, size - start - 2 * length), size - start - 1)
            found = size - place - length if place >= 0 else -1
        yield begin, start + length
        start = text.find(document, start + length)


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part.text


def _occurrences(
    text: str, documents: Sequence[PromptDocument]
) -> Iterator[tuple[int, PromptDocument]]:
    """Yield non-overlapping occurrences from left to right.

    The heap holds the next occurrence of each document. One that an accepted document has run
    over is looked up again behind it, so that no document scans a stretch of the text twice.
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
