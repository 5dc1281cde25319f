"""Finding the documents inside a prompt that a framework has already rendered.

Chains format their documents into one string before the model sees it. The engine wants to know
which part of that string is which document, so that each is tokenised by itself and its KV cache
can be found again. Nothing is changed: the parts concatenated are the text that came in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ragcache_integrations.engine.prompt import Message, Prompt, PromptDocument

__all__ = ["mark_documents", "mark_prompt"]

Part = str | PromptDocument


def mark_documents(text: str, documents: Sequence[PromptDocument]) -> tuple[Part, ...]:
    """Split ``text`` where documents stand in it verbatim.

    Every occurrence is marked, since an earlier turn of a conversation may hold the same document
    again and must be tokenised as it was then. Where occurrences overlap, the one that begins
    first wins, then the longer one, then the one given first; a document that stands nowhere is
    passed over. Takes one scan of the text for each document.

    Args:
        text: A rendered prompt, or one message of it.
        documents: What may stand in it.

    Returns:
        Plain text and documents in the order in which they stand; concatenated, their texts are
        ``text``. No plain text is empty.
    """
    parts: list[Part] = []
    position = 0
    for start, document in _occurrences(text, documents):
        if start > position:
            parts.append(text[position:start])
        parts.append(document)
        position = start + len(document.text)
    if position < len(text):
        parts.append(text[position:])
    return tuple(parts)


def mark_prompt(prompt: Prompt, documents: Sequence[PromptDocument]) -> Prompt:
    """Mark documents in every plain-text part of a prompt; see :func:`mark_documents`.

    Parts that are documents already stay as they are.
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
        marked += mark_documents(part, documents) if isinstance(part, str) else [part]
    return tuple(marked)


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
