"""The knobs of a chat history, the same in every framework, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.history.policy import Truncation

__all__ = ["HistoryArguments", "HistorySettings", "HistoryStats", "read_settings"]

POLICIES = ("half", "oldest")

_OTHERS = ("budget", "llm", "engine", "count_tokens", "system", "pin", "store", "chat_store")
"""Arguments of the frameworks' classes, for those who misspell them."""

MOST_CHARACTERS = 200
"""Of unknown names, in a message."""

SUMMARY_MARKUP = 32
"""Tokens that a summary takes besides its text: its heading and the chat template's markup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """What can be set on a chat history.

    Attributes:
        budget: The most tokens that the history may have, summary and pinned messages included.
            What the prompt holds besides it, such as documents and the question, comes on top.
        policy: ``half`` drops the oldest half at once; ``oldest`` drops the oldest turn whenever
            the budget is full, as most do, for comparison. ``oldest`` asks for no summaries.
        threshold: With ``half``: the share of the budget above which half is dropped.
        summary_tokens: The most tokens of a summary of what is dropped; 0 for none.
        summary_instruction: Asks for the summary, at the end of the conversation. ``{first}`` is
            replaced by how the first message that stays begins.
        prefill: Whether the shortened history's KV cache is computed in the background, by asking
            for one token that nobody sees.
        idle_wait: Seconds to wait for the engine to be idle before it is asked for a summary or a
            prefill; then it is asked beside what it is doing.
        timeout: Seconds that the model may take for a summary or a prefill; ``None`` for no limit.

    Raises:
        ConfigurationError: A value is out of its range.
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

    def __post_init__(self) -> None:
        if not is_whole(self.budget) or self.budget < 1:
            msg = f"budget must be a whole number of tokens above 0, got {self.budget!r}"
            raise ConfigurationError(msg)
        if self.policy not in POLICIES:
            msg = f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}"
            raise ConfigurationError(msg)
        if not is_number(self.threshold) or not 0 < self.threshold <= 1:
            msg = f"threshold must be a number above 0 and at most 1, got {self.threshold!r}"
            raise ConfigurationError(msg)
        if not is_whole(self.summary_tokens) or self.summary_tokens < 0:
            msg = f"summary_tokens must be a whole number of at least 0, got {self.summary_tokens}"
            raise ConfigurationError(msg)
        if not isinstance(self.summary_instruction, str) or not self.summary_instruction.strip():
            msg = f"summary_instruction must be a text, got {self.summary_instruction!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.prefill, bool):
            msg = f"prefill must be True or False, got {self.prefill!r}"
            raise ConfigurationError(msg)
        if not is_number(self.idle_wait) or self.idle_wait < 0:
            msg = f"idle_wait must be a number of seconds of at least 0, got {self.idle_wait!r}"
            raise ConfigurationError(msg)
        if self.timeout is not None and not (is_number(self.timeout) and self.timeout > 0):
            msg = f"timeout must be a number of seconds above 0, or None, got {self.timeout!r}"
            raise ConfigurationError(msg)

    def truncation(self, *, summarises: bool) -> Truncation:
        """The policy, for what the budget leaves to the messages themselves.

        Args:
            summarises: Whether there is a model to ask for summaries.

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
    """The fields of :class:`HistorySettings` but the budget, as keyword arguments."""

    policy: Literal["half", "oldest"]
    threshold: float
    summary_tokens: int
    summary_instruction: str
    prefill: bool
    idle_wait: float
    timeout: float | None


def read_settings(budget: int, knobs: Any) -> HistorySettings:
    """Check keyword arguments.

    Raises:
        ConfigurationError: One is unknown or out of its range.
    """
    allowed = HistoryArguments.__annotations__
    unknown = sorted(set(knobs) - set(allowed))
    if unknown:
        names = shortened(", ".join(unknown), MOST_CHARACTERS)
        msg = f"unknown argument {names}: allowed are {', '.join(sorted(allowed))}"
        meant = closest_names(unknown[0], [*allowed, *_OTHERS])
        raise ConfigurationError(f"{msg}; did you mean {meant[0]}?" if meant else msg)
    return HistorySettings(budget=budget, **knobs)


@dataclass(frozen=True, slots=True)
class HistoryStats:
    """What became of a conversation, in the life of one history object.

    Attributes:
        messages: Messages of the conversation, dropped ones included.
        kept_messages: Those that stand in the prompt.
        kept_tokens: Tokens of the history in the prompt, summary included.
        truncations: How often its beginning moved.
        forced_truncations: Those that could not wait for the background work.
        summaries: Summaries that came.
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
