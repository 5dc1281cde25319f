"""Which messages of a conversation stay in the prompt: the policies, their knobs, counters.

Dropping a message at the beginning of a conversation invalidates the KV cache of every token after
it, so the whole history is computed again. A policy that drops the oldest message pays that price
in every turn. A policy that drops the oldest half, long before the limit, pays it once in many
turns, just as a dynamic array copies itself when it grows. See "KV cache centric LLM application
design", section 1, in Chinese, after Manus's "Context Engineering for AI Agents".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from ragcache_integrations.core.checks import (
    check_choice,
    check_int,
    check_number,
    unknown_name,
)
from ragcache_integrations.core.knobs import CheckedSettings, Flag, SecondsOrNone, Share, checked
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "Entry",
    "HistoryKnobs",
    "HistorySettings",
    "HistoryStats",
    "Truncation",
    "kept_entries",
    "kept_indices",
    "pinned",
    "read_settings",
]

POLICIES = ("half", "oldest")

MAX_TOKENS = 1 << 40
"""The most tokens of a message that is loaded; sums of them are exact in JSON."""

SUMMARY_MARKUP = 32
"""Tokens of a summary besides its text: its heading and the chat template's markup."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the policies need to know about a message.

    Attributes:
        tokens: Its length in the prompt, including the chat template's markup.
        role: ``system``, ``user``, ``assistant`` or ``tool``.
        pinned: Whether it always stays.
        calls: Ids of the tool calls that it makes.
        answers: Ids of the tool calls that it answers.
    """

    tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS, strict=True)]
    role: str
    pinned: Annotated[bool, Field(strict=True)] = False
    calls: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncation:
    """Where the history begins, as a function of its messages alone.

    Messages come one at a time. Each time the history has more than ``limit`` tokens, its beginning
    moves forward, starting from where it was. The same messages always give the same beginning,
    whether they have just been added or were read from a store.

    The beginning moves to a message of the user, so that no tool call is separated from its answer
    and the rest begins like a conversation. Only if the last turn alone exceeds the budget does it
    move into that turn, but never between a call and its answer. The last turn, or its end that
    cannot be separated, is never dropped.

    Attributes:
        budget: The most tokens that the history may have.
        limit: Number of tokens above which messages are dropped; at most the budget.
        half: Whether at least half of what is not pinned is dropped; otherwise only what must be.
    """

    budget: int
    limit: int
    half: bool = True

    def advance(self, entries: Sequence[Entry], start: int = 0, done: int = 0) -> int:
        """Find the beginning after some more messages.

        Args:
            entries: All messages of the conversation, dropped ones included.
            start: The beginning after the first ``done`` of them.
            done: How many messages ``start`` takes into account.

        Returns:
            Index of the first message that is kept; earlier pinned messages are kept, too.
        """
        size = sum(entry.tokens for entry in kept_entries(entries[:done], start))
        for end in range(done + 1, len(entries) + 1):
            newest = entries[end - 1]
            size += newest.tokens
            if newest.answers:  # it may be left out, or bring back the call that it is pinned with
                size = sum(entry.tokens for entry in kept_entries(entries[:end], start))
            if size > self.limit:
                start = self._cut(entries[:end], start, size)
                size = sum(entry.tokens for entry in kept_entries(entries[:end], start))
        return start

    def _cut(self, entries: Sequence[Entry], start: int, size: int) -> int:
        may_go = set(kept_indices(entries, start)) - pinned(entries)
        # dropped[i]: tokens that go when the history begins at i.
        dropped = {start: 0}
        for index in range(start, len(entries) - 1):
            tokens = entries[index].tokens if index in may_go else 0
            dropped[index + 1] = dropped[index] + tokens
        most = sum(entries[index].tokens for index in may_go)
        target = most / 2 if self.half else size - self.limit
        whole = _seams(entries, start)
        turns = [index for index in whole if entries[index].role == "user"]
        for seams in (turns, whole):
            furthest = seams[-1] if seams else start
            cut = next((index for index in seams if dropped[index] >= target), furthest)
            if size - dropped[cut] <= self.budget:
                return cut
        return whole[-1] if whole else start


def kept_entries(entries: Sequence[Entry], start: int) -> list[Entry]:
    """The entries of the messages in the prompt, see :func:`kept_indices`."""
    return [entries[index] for index in kept_indices(entries, start)]


def kept_indices(entries: Sequence[Entry], start: int) -> list[int]:
    """Indices of the messages in the prompt: pinned ones, and those from ``start`` on.

    The answer to a call that was dropped is left out: models refuse an answer without its call.
    """
    if not start:
        return list(range(len(entries)))
    held = pinned(entries)
    gone = {answer for call, answer in _pairs(entries) if call < start and call not in held}
    return [
        index
        for index in range(len(entries))
        if index in held or (index >= start and index not in gone)
    ]


def pinned(entries: Sequence[Entry]) -> set[int]:
    """Indices of the pinned entries; a tool call and its answers are pinned together."""
    held = {index for index, entry in enumerate(entries) if entry.pinned}
    pairs = _pairs(entries) if held else []
    before = -1
    while before != len(held):  # an entry can answer calls of several others
        before = len(held)
        held.update(index for pair in pairs if held.intersection(pair) for index in pair)
    return held


def _pairs(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """Tool calls and their answers; some models number the calls of each turn from 0 again."""
    latest: dict[str, int] = {}
    pairs = []
    for index, entry in enumerate(entries):
        pairs += [(latest[call], index) for call in entry.answers if call in latest]
        latest |= dict.fromkeys(entry.calls, index)
    return pairs


def _seams(entries: Sequence[Entry], start: int) -> list[int]:
    """Indices at which the history may begin without separating a tool call from its answer.

    There is none between a call whose answers are still to come and the user's next message.
    """
    reaches: dict[int, int] = {}
    answers: dict[int, set[str]] = {}
    for call, answer in _pairs(entries):
        reaches[call] = max(reaches.get(call, answer), answer)
        answers.setdefault(call, set()).update(entries[answer].answers)
    waits = False
    last_answer = start  # index of the last answer to a call so far: no seam up to there
    seams = []
    for index in range(start, len(entries)):
        entry = entries[index]
        waits = waits and entry.role != "user"
        if index > last_answer and not waits and entry.role != "tool":
            seams.append(index)
        if entry.calls:
            last_answer = max(last_answer, reaches.get(index, index))
            waits = waits or not set(entry.calls) <= answers.get(index, set())
    return seams


def _check_instruction(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"summary_instruction must be a text, got {value!r}")
    return value


class HistoryKnobs(BaseModel):
    """The settings of a chat history.

    Attributes:
        budget: The most tokens that the history may have, including the summary and pinned
            messages. The rest of the prompt, such as documents and the question, is not counted.
        policy: ``half`` drops the oldest half together; ``oldest`` drops the oldest turn whenever
            the budget is full, like most histories, for comparison. ``oldest`` has no summaries.
        threshold: With ``half``: the share of the budget above which half is dropped.
        summary_tokens: The most tokens of a summary of what is dropped; 0 for no summaries.
        summary_instruction: Asks for the summary, at the end of the conversation. ``{first}`` is
            replaced by the beginning of the first message that stays.
        prefill: Whether the shortened history's KV cache is computed in the background, by asking
            for one token that is discarded.
        idle_wait: Seconds to wait for the engine to be idle before asking for a summary or a
            prefill; after that the request is sent in any case.
        timeout: Seconds that the model may take for a summary or a prefill; ``None`` for no limit.
        documents_once: Whether text of a document or of a tool's result that is earlier in the
            prompt is referred to, instead of said again. The budget counts every message in full,
            so that there is room for what comes back when its turn is dropped.
    """

    budget: Annotated[int, checked(check_int, 1, unit="tokens")]
    policy: Annotated[Literal["half", "oldest"], checked(check_choice, POLICIES)] = "half"
    threshold: Share = 0.8
    summary_tokens: Annotated[int, checked(check_int, 0, unit="tokens")] = 256
    summary_instruction: Annotated[str, BeforeValidator(_check_instruction)] = (
        "Summarise this conversation up to the message that begins with “{first}”, and not beyond, "
        "so that it can be continued without what you summarise: who wants what, names, numbers, "
        "decisions, open questions. Include what an earlier summary says. Write the summary alone."
    )
    prefill: Flag = True
    idle_wait: Annotated[float, checked(check_number, 0, unit="seconds")] = 5.0
    timeout: SecondsOrNone = 120.0
    documents_once: Flag = False


class HistorySettings(CheckedSettings, HistoryKnobs):
    """The knobs of a history, checked.

    Raises:
        ConfigurationError: A value is out of range.
    """

    def truncation(self, *, summarises: bool) -> Truncation:
        """The policy, for the part of the budget that is left to the messages themselves.

        Args:
            summarises: Whether there is a model that writes summaries.

        Raises:
            ConfigurationError: Summaries would take more than half of the budget.
        """
        half = self.policy == "half"
        room = self.budget
        if summarises and self.summary_tokens and half:
            room -= self.summary_tokens + SUMMARY_MARKUP
            if 2 * room < self.budget:
                raise ConfigurationError(
                    f"summary_tokens must be at most {self.budget // 2 - SUMMARY_MARKUP}, to leave "
                    f"half of the budget of {self.budget} tokens to the messages, or 0 for no "
                    f"summaries; got {self.summary_tokens}"
                )
        return Truncation(room, int(room * self.threshold) if half else room, half=half)


def read_settings(budget: int, knobs: Any, others: Iterable[str] = ()) -> HistorySettings:
    """Check keyword arguments.

    Args:
        budget: The most tokens of the history.
        knobs: The other settings, by name.
        others: Names of the class's other arguments, for the message about an unknown one.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    allowed = HistorySettings.model_fields
    for name in sorted(set(knobs) - set(allowed)):
        raise ConfigurationError(unknown_name("argument", name, [*allowed, *others]))
    return HistorySettings(budget=budget, **knobs)


@dataclass(frozen=True, slots=True)
class HistoryStats:
    """Counters of one history object.

    Attributes:
        messages: Messages of the conversation, including dropped ones.
        kept_messages: Messages in the prompt.
        kept_tokens: Tokens of the history in the prompt, including the summary.
        truncations: How often its beginning moved.
        forced_truncations: Those that could not wait for the background work.
        summaries: Summaries that were written.
        failed_summaries: Summaries that failed.
        prefills: Shortened histories whose KV cache was computed in the background.
        failed_prefills: Those that failed.
    """

    messages: int = 0
    kept_messages: int = 0
    kept_tokens: int = 0
    truncations: int = 0
    forced_truncations: int = 0
    summaries: int = 0
    failed_summaries: int = 0
    prefills: int = 0
    failed_prefills: int = 0
