"""The knobs and counters of a chat history, the same in every framework."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from ragcache_integrations.core.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_seconds,
    check_share,
    unknown_name,
)
from ragcache_integrations.errors import ConfigurationError

from .policy import Truncation

__all__ = ["HistoryArguments", "HistorySettings", "HistoryStats", "read_settings"]

POLICIES = ("half", "oldest")

SUMMARY_MARKUP = 32
"""Tokens of a summary besides its text: its heading and the chat template's markup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
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

    Raises:
        ConfigurationError: A value is out of range.
    """

    budget: int
    policy: Literal["half", "oldest"] = "half"
    threshold: float = 0.8
    summary_tokens: int = 256
    summary_instruction: str = (
        "Summarise this conversation up to the message that begins with “{first}”, and not beyond, "
        "so that it can be continued without what you summarise: who wants what, names, numbers, "
        "decisions, open questions. Include what an earlier summary says. Write the summary alone."
    )
    prefill: bool = True
    idle_wait: float = 5.0
    timeout: float | None = 120.0
    documents_once: bool = False

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "budget": check_int("budget", self.budget, 1, unit="tokens"),
            "policy": check_choice("policy", self.policy, POLICIES),
            "threshold": check_share("threshold", self.threshold),
            "summary_tokens": check_int("summary_tokens", self.summary_tokens, 0, unit="tokens"),
            "prefill": check_flag("prefill", self.prefill),
            "idle_wait": check_number("idle_wait", self.idle_wait, 0, unit="seconds"),
            "timeout": check_seconds("timeout", self.timeout),
            "documents_once": check_flag("documents_once", self.documents_once),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.summary_instruction, str) or not self.summary_instruction.strip():
            msg = f"summary_instruction must be a text, got {self.summary_instruction!r}"
            raise ConfigurationError(msg)

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
                msg = (
                    f"summary_tokens must be at most {self.budget // 2 - SUMMARY_MARKUP}, to leave "
                    f"half of the budget of {self.budget} tokens to the messages, or 0 for no "
                    f"summaries; got {self.summary_tokens}"
                )
                raise ConfigurationError(msg)
        return Truncation(room, int(room * self.threshold) if half else room, half=half)


class HistoryArguments(TypedDict, total=False):
    """The fields of :class:`HistorySettings` except the budget, as keyword arguments."""

    policy: Literal["half", "oldest"]
    threshold: float
    summary_tokens: int
    summary_instruction: str
    prefill: bool
    idle_wait: float
    timeout: float | None
    documents_once: bool


def read_settings(budget: int, knobs: Any, others: Iterable[str] = ()) -> HistorySettings:
    """Check keyword arguments.

    Args:
        budget: The most tokens of the history.
        knobs: The other settings, by name.
        others: Names of the class's other arguments, for the message about an unknown one.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
    """
    allowed = HistoryArguments.__annotations__
    for name in sorted(set(knobs) - set(allowed)):
        raise ConfigurationError(unknown_name("argument", name, ["budget", *allowed, *others]))
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
