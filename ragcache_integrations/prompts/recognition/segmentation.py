"""How the earlier turns of a conversation were split, so that they are split in the same way again.

The KV cache of an earlier turn can be reused only if its tokens are the same, and those depend on
where its documents begin and end. This turn's request knows its own documents and no others. What
is remembered is therefore where messages were cut, under a hash of them.

Only who sends the same beginning in the same namespace gets the same cuts of it: all messages up to
some point, or the text that a raw prompt begins with. That tells nobody more than the engine's
prefix cache does, which serves the KV cache of just this beginning to the same callers.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition.marking import mark_prompt

__all__ = ["SEGMENTATIONS", "Segmentations"]

Part = str | PromptDocument
Cut: TypeAlias = tuple[int, str | None]
"""Where a part of a text ends, and the id of the document that it is, if it is one."""

CAPACITY = 1 << 14
"""Messages whose cuts are remembered."""

MAX_CUTS = 1 << 18
"""Cuts that they may have together."""

HEAD = 64
"""Characters that a raw prompt has at least, and by which its beginning is looked up."""

MAX_LENGTHS = 32
"""Beginnings of raw prompts that are remembered for one head."""


class Segmentations:
    """Remembers where messages were cut. Thread-safe; holds hashes, lengths and ids, no text.

    Args:
        capacity: The most messages to remember. Those not seen for longest are forgotten first.
        max_cuts: The most cuts that they may have together.

    Raises:
        ConfigurationError: An argument is below 1.
    """

    def __init__(self, capacity: int = CAPACITY, max_cuts: int = MAX_CUTS) -> None:
        if capacity < 1 or max_cuts < 1:
            msg = f"capacity and max_cuts must be at least 1, got {capacity} and {max_cuts}"
            raise ConfigurationError(msg)
        self._capacity = capacity
        self._max_cuts = max_cuts
        self._lock = make_lock()
        self._cuts: OrderedDict[bytes, tuple[Cut, ...]] = OrderedDict()
        self._count = 0
        self._lengths: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        # Hashes that nobody outside can compute: what collides cannot be prepared.
        self._secret = secrets.token_bytes(32)
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self._lock.locked():  # another thread was in the middle of a change
            self._cuts, self._lengths, self._count = OrderedDict(), OrderedDict(), 0

    def __len__(self) -> int:
        return len(self._cuts)

    def settle(self, given: Prompt, marked: Prompt, namespace: str) -> Prompt:
        """Return a prompt split as its beginning was split before, and remember how it is split.

        In a conversation, messages up to the last answer are split as they were; documents that
        the caller's own blocks name stay as they are. Messages behind it are split as ``marked``
        says, and where it found nothing, as they were. In raw text, the documents of a beginning
        that was there before are marked, too.

        Args:
            given: What the caller sent.
            marked: The same text with this request's documents marked.
            namespace: Tenant; nothing is known of the messages of another.
        """
        if marked.messages:
            return self._settle_messages(given, marked, namespace)
        return self._settle_text(marked, namespace)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._cuts.clear()
            self._lengths.clear()
            self._count = 0

    def _settle_messages(self, given: Prompt, marked: Prompt, namespace: str) -> Prompt:
        keys = self._keys(marked.messages, namespace)
        earlier = _earlier_messages(marked.messages)
        settled: list[Message] = []
        with self._lock:
            for number, (key, message) in enumerate(zip(keys, marked.messages, strict=True)):
                own = given.messages[number] if number < earlier else message
                known = None if _has_documents(own) else self._cuts.get(key)
                if known is None:
                    chosen = message
                else:
                    chosen = Message(message.role, _split(message.text, known))
                self._remember(key, _cuts(chosen.parts))
                settled.append(chosen)
        return Prompt(messages=tuple(settled))

    def _settle_text(self, marked: Prompt, namespace: str) -> Prompt:
        text = "".join(_text(part) for part in marked.parts)
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
                self._remember(key, cuts)
                others = [length for length in self._lengths.pop(head, ()) if length != end]
                self._lengths[head] = (*others, end)[-MAX_LENGTHS:]
                if len(self._lengths) > self._capacity:
                    self._lengths.popitem(last=False)
        return settled

    def _known_documents(
        self, text: str, lengths: Sequence[int], namespace: str
    ) -> list[PromptDocument]:
        """The documents of the longest beginning that was there before."""
        for key in reversed(self._hashes(text, sorted(lengths), namespace)):
            if key in self._cuts:
                parts = _split(text, self._cuts[key])
                return [part for part in parts if isinstance(part, PromptDocument)]
        return []

    def _remember(self, key: bytes, cuts: tuple[Cut, ...]) -> None:
        self._count += len(cuts) - len(self._cuts.pop(key, ()))
        self._cuts[key] = cuts
        while len(self._cuts) > self._capacity or self._count > self._max_cuts:
            _, forgotten = self._cuts.popitem(last=False)
            self._count -= len(forgotten)

    def _keys(self, messages: Sequence[Message], namespace: str) -> list[bytes]:
        """For each message a hash of it and all before it."""
        digest = self._digest("messages", namespace)
        keys = []
        for message in messages:
            for field in (message.role, message.text):
                _add(digest, field)
            keys.append(digest.copy().digest())
        return keys

    def _hashes(self, text: str, lengths: Sequence[int], namespace: str) -> list[bytes]:
        """Hashes of the beginnings of some ascending lengths."""
        digest = self._digest("text", namespace)
        hashes, begin = [], 0
        for length in lengths:
            digest.update(_encoded(text[begin:length]))
            hashes.append(digest.copy().digest())
            begin = length
        return hashes

    def _digest(self, kind: str, namespace: str) -> hashlib.blake2b:
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        _add(digest, kind)
        _add(digest, namespace)
        return digest


def _add(digest: hashlib.blake2b, field: str) -> None:
    content = _encoded(field)
    digest.update(len(content).to_bytes(8, "big") + content)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _earlier_messages(messages: Sequence[Message]) -> int:
    """How many messages stand up to the last answer."""
    answers = [n for n, message in enumerate(messages) if message.role == "assistant"]
    return answers[-1] + 1 if answers else 0


def _has_documents(message: Message) -> bool:
    return any(isinstance(part, PromptDocument) for part in message.parts)


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part.text


def _cuts(parts: Sequence[Part]) -> tuple[Cut, ...]:
    ends = accumulate(len(_text(part)) for part in parts)
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
"""How the prompts of this process were split."""
