"""Remembers how earlier turns of a conversation were split, to split them in the same way again.

The KV cache of an earlier turn can only be reused if its tokens are the same, and these depend on
where its documents begin and end. The request of this turn knows only its own documents. So the
positions at which messages were cut are remembered, under a hash of the messages.

The cuts of a beginning are used for requests with the same beginning in the same namespace only:
all messages up to some point, or the text that a raw prompt begins with. This reveals no more than
the engine's prefix cache, which serves the KV cache of this beginning to the same callers.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import accumulate
from operator import is_
from typing import TypeAlias

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.prompt import Message, Part, Prompt, PromptDocument, part_text

from .marking import mark_prompt

__all__ = ["SEGMENTATIONS", "Segmentations"]

Cut: TypeAlias = tuple[int, str | None]
"""End of a part of a text, and the id of the document; ``None`` for plain text."""

CAPACITY = 1 << 14
"""The most messages whose cuts are remembered."""

MAX_CUTS = 1 << 18
"""The most cuts of these messages together."""

HEAD = 64
"""Characters at the beginning of a raw prompt by which it is looked up; shorter prompts are not
remembered."""

MAX_LENGTHS = 32
"""The most beginnings of raw prompts that are remembered for one head."""


class Segmentations:
    """Remembers where messages were cut. Thread-safe; it holds hashes, lengths and ids, no text.

    Args:
        capacity: The most messages to remember. The least recently used are forgotten first.
        max_cuts: The most cuts of all messages together.

    Raises:
        ConfigurationError: An argument is below 1.
    """

    def __init__(self, capacity: int = CAPACITY, max_cuts: int = MAX_CUTS) -> None:
        self._capacity = check_int("capacity", capacity, 1)
        self._max_cuts = check_int("max_cuts", max_cuts, 1)
        self._lock = make_lock()
        self._reset()
        # The hashes have a secret key, so that nobody can construct texts that collide.
        self._secret = secrets.token_bytes(32)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self._lock.locked():  # the fork happened in the middle of another thread's change
            self._reset()

    def _reset(self) -> None:
        self._cuts: Memo[bytes, tuple[Cut, ...]] = Memo(
            self._capacity, max_size=self._max_cuts, size=lambda _, cuts: len(cuts)
        )
        self._lengths: Memo[bytes, tuple[int, ...]] = Memo(self._capacity)

    def __len__(self) -> int:
        return len(self._cuts)

    def settle(self, prompt: Prompt, marked: Prompt, namespace: str) -> Prompt:
        """Split the beginning of a prompt as it was split before, and remember the result.

        In a conversation, messages up to the last answer are split as before; documents that the
        caller marked stay as they are. Later messages are split as in ``marked`` or, if it has no
        documents there, as before. In raw text, the documents of a beginning that was split before
        are marked, too.

        Args:
            prompt: The caller's prompt.
            marked: The same text with this request's documents marked.
            namespace: Tenant; the messages of other tenants are not used.
        """
        if marked.messages:
            return self._settle_messages(prompt, marked, namespace)
        return self._settle_text(marked, namespace)

    def clear(self) -> None:
        """Forget all messages."""
        with self._lock:
            self._reset()

    def _settle_messages(self, prompt: Prompt, marked: Prompt, namespace: str) -> Prompt:
        keys = self._keys(marked.messages, namespace)
        earlier = _earlier_messages(marked.messages)
        settled = list(marked.messages)
        with self._lock:
            for number, (key, message) in enumerate(zip(keys, marked.messages, strict=True)):
                own = prompt.messages[number] if number < earlier else message
                known = None if _has_documents(own) else self._cuts.get(key)
                if known is not None:
                    settled[number] = message.with_parts(_split(message.text, known))
                self._cuts[key] = _cuts(settled[number].parts)
        same = all(map(is_, settled, marked.messages))
        return marked if same else replace(marked, messages=tuple(settled))

    def _settle_text(self, marked: Prompt, namespace: str) -> Prompt:
        text = "".join(map(part_text, marked.parts))
        if len(text) < HEAD:
            return marked
        head, *_ = self._hashes(text, [HEAD], namespace)
        with self._lock:
            lengths = [length for length in self._lengths.get(head, ()) if length <= len(text)]
            known = self._known_documents(text, lengths, namespace)
            settled = mark_prompt(marked, known)
            cuts = _up_to_last_document(_cuts(settled.parts))
            if cuts and cuts[-1][0] >= HEAD:
                end = cuts[-1][0]
                (key,) = self._hashes(text, [end], namespace)
                self._cuts[key] = cuts
                others = [length for length in self._lengths.get(head, ()) if length != end]
                self._lengths[head] = (*others, end)[-MAX_LENGTHS:]
        return settled

    def _known_documents(
        self, text: str, lengths: Sequence[int], namespace: str
    ) -> list[PromptDocument]:
        """The documents of the longest beginning that was split before."""
        for key in reversed(self._hashes(text, sorted(lengths), namespace)):
            if key in self._cuts:
                parts = _split(text, self._cuts[key])
                return [part for part in parts if isinstance(part, PromptDocument)]
        return []

    def _keys(self, messages: Sequence[Message], namespace: str) -> list[bytes]:
        """For each message, a hash of it and all messages before it."""
        digest = self._digest("messages", namespace)
        keys = []
        for message in messages:
            calls = [field for call in message.tool_calls for field in astuple(call)]
            number = str(len(calls))
            _add(digest, message.role, message.text, message.tool_call_id, number, *calls)
            keys.append(digest.copy().digest())
        return keys

    def _hashes(self, text: str, lengths: Sequence[int], namespace: str) -> list[bytes]:
        """Hashes of the beginnings of a text, whose lengths are ascending."""
        digest = self._digest("text", namespace)
        hashes, begin = [], 0
        for length in lengths:
            digest.update(_encode(text[begin:length]))
            hashes.append(digest.copy().digest())
            begin = length
        return hashes

    def _digest(self, kind: str, namespace: str) -> hashlib.blake2b:
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        _add(digest, kind, namespace)
        return digest


def _add(digest: hashlib.blake2b, *fields: str) -> None:
    for content in map(_encode, fields):
        digest.update(len(content).to_bytes(8, "big") + content)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _earlier_messages(messages: Sequence[Message]) -> int:
    """Number of messages up to the last answer."""
    answers = [n for n, message in enumerate(messages) if message.role == "assistant"]
    return answers[-1] + 1 if answers else 0


def _has_documents(message: Message) -> bool:
    return any(isinstance(part, PromptDocument) for part in message.parts)


def _cuts(parts: Sequence[Part]) -> tuple[Cut, ...]:
    ends = accumulate(len(part_text(part)) for part in parts)
    ids = (part.id if isinstance(part, PromptDocument) else None for part in parts)
    return tuple(zip(ends, ids, strict=True))


def _up_to_last_document(cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
    documents = [number for number, (_, name) in enumerate(cuts) if name is not None]
    return cuts[: documents[-1] + 1] if documents else ()


def _split(text: str, cuts: Sequence[Cut]) -> Iterator[Part]:
    begin = 0
    for end, name in cuts:
        part = text[begin:end]
        yield part if name is None else PromptDocument(part, name)
        begin = end


SEGMENTATIONS = Segmentations()
"""The cuts of the prompts of this process."""
