"""A conversation that stays within a budget of tokens and keeps its KV cache.

The messages of a conversation are kept in a store; this module decides which of them go into the
prompt. When half of them has to go (see :mod:`~ragcache_integrations.prompts.history.policy`), a
background thread asks the model for a summary of that half. It asks at the end of the conversation
that the model has just answered, so that only the request for the summary has to be computed. Then
it prefills the shortened history. The prompt changes when both are done. Turns never wait for
them: if the budget runs out first, the half is dropped without a summary.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from ragcache_integrations.core.forks import make_reentrant_lock, renew_after_fork
from ragcache_integrations.errors import ConfigurationError

from .policy import (
    Entry,
    HistorySettings,
    HistoryStats,
    Truncation,
    kept_entries,
    kept_indices,
)
from .saved import SavedConversation

__all__ = ["ChatHistory", "Dialect", "HistoryModel", "HistoryStore", "Summary"]

logger = logging.getLogger(__name__)

IDLE_POLL_SECONDS = 0.02
"""Seconds between two looks at whether the engine is idle."""

QUOTED_CHARACTERS = 80
"""Characters of the first message that stays, for the model to recognise it."""

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of the messages before another one.

    Attributes:
        text: The summary.
        start: Index of the first message of the conversation that it leaves out.
    """

    text: str
    start: int


class HistoryModel(Protocol[M_contra]):
    """The model of the conversation, used here for summaries and prefills only."""

    def ask(self, messages: Sequence[M_contra], max_tokens: int, timeout: float | None) -> str:
        """Answer a prompt that begins as the conversation's prompts do. Called from a thread.

        Args:
            messages: The prompt.
            max_tokens: The most tokens of the answer.
            timeout: Seconds that it may take; ``None`` for no limit.
        """

    def is_idle(self) -> bool:
        """Whether it has nothing to do now, as far as that is known."""


class HistoryStore(Protocol[M]):
    """Keeps the messages, summaries among them. Its errors reach the caller."""

    def read(self) -> list[M]:
        """Return all messages, oldest first."""

    def append(self, messages: Sequence[M]) -> None:
        """Add messages at the end."""

    def replace(self, messages: Sequence[M]) -> None:
        """Replace all messages by these."""


class Dialect(Protocol[M]):
    """A framework's messages."""

    def entry(self, message: M) -> Entry:
        """Count a message's tokens and find the tool calls that tie it to others."""

    def text(self, message: M) -> str:
        """Return a message's text."""

    def question(self, text: str) -> M:
        """Make a message of the user."""

    def summary(self, summary: Summary) -> M:
        """Make a message that holds a summary, for the prompt and for the store."""

    def read_summary(self, message: M) -> Summary | None:
        """Return the summary that a message holds; ``None`` for every other message."""

    def unmarked(self, message: M) -> M:
        """Make an ordinary message of a summary."""

    def documents_once(self, messages: Sequence[M]) -> list[M]:
        """Refer to what earlier documents say already."""


@dataclass(slots=True)
class _State(Generic[M]):
    """A conversation as the history knows it. Guarded by the history's lock.

    The policy wants the history to begin at ``planned``. In the prompt it begins at ``start``,
    which is smaller while the background thread works on the summary.
    """

    messages: list[M] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    planned: int = 0
    start: int = 0
    summary: M | None = None
    ready: tuple[int, M | None] | None = None
    spoken: bool = True  # something was added since the last prompt
    working: int | None = None  # the beginning that the background works towards
    interrupted: int | None = None  # the same, if the conversation was saved in the meantime
    worker: threading.Thread | None = None


class ChatHistory(Generic[M]):
    """The history of one conversation; see the module. Thread-safe.

    Concurrent turns each add all their messages together. A prompt has what was added before it
    was made.

    Args:
        settings: Budget, policy and the other knobs.
        dialect: Reads and makes the framework's messages.
        store: Keeps the messages. It is read when the history is first used, and again after it
            failed.
        model: Writes summaries and prefills; without one the prompt is shortened immediately.
        system: Messages that the application's prompts have before the history.
        saved: A conversation to continue. An empty store is filled with it. A store that holds
            another conversation, which doesn't begin with this one, is right.

    Raises:
        ConfigurationError: Summaries would take more than half of the budget.
    """

    def __init__(
        self,
        settings: HistorySettings,
        dialect: Dialect[M],
        store: HistoryStore[M],
        model: HistoryModel[M] | None = None,
        system: Sequence[M] = (),
        saved: SavedConversation[M] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._system = list(system)
        self._saved = saved
        # Without its model a conversation is still cut where it would be cut with it.
        self._summarises = saved is not None and saved.summarises
        self._lock = make_reentrant_lock()
        self.connect(dialect, model)
        self._state: _State[M] | None = None
        self._stats = HistoryStats()
        self._warned: set[str] = set()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self._state is not None:  # the thread exists in the parent process only
            self._state.worker = self._state.working = None

    def connect(self, dialect: Dialect[M], model: HistoryModel[M] | None) -> None:
        """Use another dialect and model from now on.

        Args:
            dialect: Counts messages that are added later.
            model: Writes summaries and prefills; ``None`` for none.

        Raises:
            ConfigurationError: Summaries would take more than half of the budget; nothing changes.
        """
        settings = self._settings
        model = model if settings.policy == "half" else None
        summarises = self._summarises if model is None else settings.summary_tokens > 0
        policy = settings.truncation(summarises=summarises)
        with self._lock:
            self._dialect = dialect
            self._model = model
            self._summarises = summarises
            self._policy: Truncation = policy

    def save(self) -> SavedConversation[M]:
        """The conversation as it is now; background work begins again when it is restored."""
        with self._lock:
            state = self._load()
            return SavedConversation(
                1,
                tuple(state.messages),
                tuple(state.entries),
                self._policy,
                state.planned,
                state.start,
                state.summary,
                state.ready,
                state.working if state.interrupted is None else state.interrupted,
                state.spoken,
                self._summarises,
                missing=(),
            )

    def view(self) -> list[M]:
        """The prompt: pinned messages, the summary, and the messages since.

        It stays the same between two calls of :meth:`add`.
        """
        with self._lock:
            state = self._load()
            if state.spoken and state.ready is not None:
                start, summary = state.ready
                state.ready = None
                self._begin_at(state, start, summary)
                self._settle_limit(state)  # a late summary takes tokens, too
            state.spoken = False
            self._resume(state)
            return self._prompt(state, state.start, state.summary)

    def messages(self) -> list[M]:
        """All messages of the conversation, including dropped ones but no summaries."""
        with self._lock:
            return list(self._load().messages)

    def add(self, messages: Sequence[M]) -> None:
        """Add messages at the end: all of them, or none.

        Summaries of other conversations are ordinary messages here.

        Raises:
            ConfigurationError: They cannot be kept within the budget.
        """
        messages = [self._ordinary(message) for message in messages]
        entries = [self._dialect.entry(message) for message in messages]
        if not entries:
            return
        with self._lock:
            state = self._load()
            planned = self._plan(state.entries, entries, state.planned)
            self._write(self._store.append, messages)
            state.messages += messages
            state.entries += entries
            state.planned = planned
            state.spoken = True
            self._settle_limit(state)
            self._work(state)

    def replace(self, messages: Sequence[M]) -> None:
        """Replace all messages by these; the result of background work is discarded.

        The last summary among them summarises everything before it, as in a prompt of
        :meth:`view`.

        Raises:
            ConfigurationError: They cannot be kept within the budget; nothing is replaced.
        """
        kept: list[M] = []
        summary, start = None, 0
        for message in messages:
            parsed = self._dialect.read_summary(message)
            if parsed is None:
                kept.append(message)
            else:
                start = len(kept)
                summary = self._dialect.summary(Summary(parsed.text, start))
        entries = [self._dialect.entry(message) for message in kept]
        with self._lock:
            planned = max(start, self._plan([], entries, 0))
            stored = [*kept[:start], *([] if summary is None else [summary]), *kept[start:]]
            self._write(self._store.replace, stored)
            self._saved = None
            self._state = _State(kept, entries, planned, planned, summary)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do in the background.

        Args:
            timeout: Seconds to wait; ``None`` for no limit.

        Returns:
            Whether nothing is left to do.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self._saved is not None:
                self._load()
            if self._state is not None:
                self._resume(self._state)
        while True:
            with self._lock:
                worker = self._state.worker if self._state is not None else None
            if worker is None:
                return True
            worker.join(None if until is None else max(0.0, until - time.monotonic()))
            if worker.is_alive():
                return False

    def stats(self) -> HistoryStats:
        """Counters of the conversation; all are 0 before the store was read."""
        with self._lock:
            state = self._state
            if state is None:
                return self._stats
            return replace(
                self._stats,
                messages=len(state.messages),
                kept_messages=len(kept_indices(state.entries, state.start)),
                kept_tokens=self._size(state),
            )

    def _ordinary(self, message: M) -> M:
        dialect = self._dialect
        return message if dialect.read_summary(message) is None else dialect.unmarked(message)

    # Under the lock

    def _load(self) -> _State[M]:
        if self._state is None:
            stored = self._store.read()
            if self._saved is not None:
                stored = stored or self._fill_store(self._saved)
                self._state = self._continue(self._saved, stored)
                self._saved = None
            if self._state is None:
                self._state = self._begin(stored)
        return self._state

    def _begin(self, stored: Sequence[M]) -> _State[M]:
        """The conversation as the store has it."""
        state: _State[M] = _State()
        summarised = 0
        for message in stored:
            summary = self._dialect.read_summary(message)
            if summary is None:
                state.messages.append(message)
            elif summary.start <= len(state.messages):
                state.summary, summarised = message, summary.start
        state.entries = [self._dialect.entry(message) for message in state.messages]
        planned = self._policy.advance(state.entries)
        state.planned = max(planned, summarised)
        # Messages without a summary stay until there is one, as they would have without a restart.
        state.start = summarised if self._summarises else state.planned
        self._settle_limit(state)
        return state

    def _fill_store(self, saved: SavedConversation[M]) -> list[M]:
        ready = saved.ready[1] if saved.ready is not None else None
        stored = [*saved.messages, *(m for m in (saved.summary, ready) if m is not None)]
        if stored:
            self._store.replace(stored)
        return stored

    def _continue(self, saved: SavedConversation[M], stored: Sequence[M]) -> _State[M] | None:
        """The conversation as it was saved; ``None`` if the store has another one by now."""
        messages = [message for message in stored if self._dialect.read_summary(message) is None]
        count = len(saved.messages)
        if messages[:count] != list(saved.messages) or saved.policy != self._policy:
            return None
        new = [self._dialect.entry(message) for message in messages[count:]]
        entries = [*saved.entries, *new]
        state = _State(
            messages,
            entries,
            self._policy.advance(entries, saved.planned, count),
            saved.start,
            saved.summary,
            saved.ready,
            saved.spoken or bool(new),
            interrupted=saved.working,
        )
        # The summary is left out: it may have been counted by another model's tokenizer.
        size = sum(entry.tokens for entry in kept_entries(entries, state.start))
        return state if size <= self._settings.budget else None

    def _resume(self, state: _State[M]) -> None:
        if state.interrupted is not None and self._model is not None:
            target, state.interrupted = state.interrupted, None
            self._work_towards(state, target)

    def _plan(self, before: Sequence[Entry], new: Sequence[Entry], start: int) -> int:
        entries = [*before, *new]
        planned = self._policy.advance(entries, start, len(before))
        size = sum(entry.tokens for entry in kept_entries(entries, planned))
        if size > self._policy.budget:
            longest = max(new, key=lambda entry: entry.tokens, default=Entry(0, ""))
            pins = sum(entry.tokens for entry in entries if entry.pinned)
            raise ConfigurationError(
                f"these messages leave {size} tokens that cannot be separated, and at most "
                f"{self._policy.budget} of the budget of {self._settings.budget} are for messages; "
                f"the longest has {longest.tokens}, of role {longest.role!r}, and pinned ones have "
                f"{pins} together: shorten it, or raise the budget"
            )
        return planned

    def _write(self, write: Callable[[Sequence[M]], None], messages: Sequence[M]) -> None:
        try:
            write(messages)
        except BaseException:
            self._state = None  # what was written is not known: the store is read again
            raise

    def _settle_limit(self, state: _State[M]) -> None:
        """Shorten the prompt now if there is no model to wait for, or if it is too long."""
        if state.start < state.planned and (
            self._model is None or self._size(state) > self._settings.budget
        ):
            self._count(forced_truncations=int(self._model is not None))
            self._begin_at(state, state.planned, None)

    def _begin_at(self, state: _State[M], start: int, summary: M | None) -> None:
        moved = max(state.start, start)
        self._count(truncations=int(moved > state.start))
        state.start = moved
        if summary is not None:
            state.summary = summary

    def _prompt(self, state: _State[M], start: int, summary: M | None) -> list[M]:
        kept = kept_indices(state.entries, start)
        messages = [state.messages[index] for index in kept]
        if summary is not None:
            # After the leading system messages: templates expect messages of the system there.
            leading = takewhile(lambda i: i < start and state.entries[i].role == "system", kept)
            messages.insert(len(list(leading)), summary)
        return self._dialect.documents_once(messages) if self._settings.documents_once else messages

    def _size(self, state: _State[M]) -> int:
        size = sum(entry.tokens for entry in kept_entries(state.entries, state.start))
        return size + (0 if state.summary is None else self._dialect.entry(state.summary).tokens)

    def _work(self, state: _State[M]) -> None:
        """Have the background work towards the planned beginning, unless it works already."""
        self._resume(state)
        reached = state.start if state.ready is None else max(state.start, state.ready[0])
        if reached < state.planned:
            self._work_towards(state, state.planned)

    def _work_towards(self, state: _State[M], start: int) -> None:
        if self._model is None or state.worker is not None:
            return
        # The last request that the model answered begins with all of this, so it is cached.
        prompt = self._prompt(state, state.start, state.summary)
        while prompt and self._dialect.entry(prompt[-1]).role == "user":
            prompt.pop()  # it has no answer yet, and models refuse two questions in a row
        worker = threading.Thread(
            target=self._shorten,
            args=(state, self._model, start, prompt),
            name="ragcache-history",
            daemon=True,
        )
        try:
            worker.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many
            logger.warning("cannot start a thread to shorten a chat history", exc_info=True)
        else:
            state.worker, state.working = worker, start

    # In the background

    def _shorten(
        self, state: _State[M], model: HistoryModel[M], start: int, prompt: list[M]
    ) -> None:
        summary: M | None = None
        try:
            self._await_idle(model)
            if self._summarises:
                summary = self._summarise(state, model, start, prompt)
            if self._settings.prefill:
                self._prefill(state, model, start, summary)
        finally:
            with self._lock:
                state.worker = state.working = None
                state.ready = (start, summary)

    def _await_idle(self, model: HistoryModel[M]) -> None:
        until = time.monotonic() + self._settings.idle_wait
        while time.monotonic() < until:
            try:
                if model.is_idle():
                    return
            except Exception as error:  # noqa: BLE001 - if the engine is down, ask() fails, too
                logger.debug("cannot find out whether the engine is idle: %s", error)
                return
            time.sleep(IDLE_POLL_SECONDS)

    def _summarise(
        self, state: _State[M], model: HistoryModel[M], start: int, prompt: list[M]
    ) -> M | None:
        settings = self._settings
        first = self._dialect.text(state.messages[start])[:QUOTED_CHARACTERS]
        question = self._dialect.question(settings.summary_instruction.replace("{first}", first))
        messages = [*self._system, *prompt, question]
        try:
            text = model.ask(messages, settings.summary_tokens, settings.timeout).strip()
            if not text:
                msg = "the model's answer is empty"
                raise ValueError(msg)  # noqa: TRY301 - to be treated as any other failure
            summary = self._dialect.summary(Summary(text, start))
        except Exception as error:  # noqa: BLE001 - no caller waits for it
            self._count(failed_summaries=1)
            self._warn("the history is shortened without a summary", error)
            return None
        with self._lock:
            if state is self._state:
                self._count(summaries=1)
                try:
                    self._store.append([summary])
                except Exception as error:  # noqa: BLE001 - it is missed only after a restart
                    self._warn("the summary cannot be stored", error)
        return summary

    def _prefill(
        self, state: _State[M], model: HistoryModel[M], start: int, summary: M | None
    ) -> None:
        with self._lock:
            if state is not self._state:
                return
            shortened = self._prompt(state, max(start, state.start), summary or state.summary)
        try:
            model.ask([*self._system, *shortened], 1, self._settings.timeout)
        except Exception as error:  # noqa: BLE001 - the next turn computes the KV cache instead
            self._count(failed_prefills=1)
            self._warn("the shortened history cannot be prefilled", error)
        else:
            self._count(prefills=1)

    def _count(self, **more: int) -> None:
        with self._lock:
            now = {name: getattr(self._stats, name) + number for name, number in more.items()}
            self._stats = replace(self._stats, **now)

    def _warn(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        logger.log(level, "%s: %s", what, error, exc_info=error)
