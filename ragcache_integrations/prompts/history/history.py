"""A conversation that stays within a budget of tokens and keeps its KV cache.

The messages of a conversation live in a store; what of them goes into the prompt is decided here.
When half of them is to go (see :mod:`~ragcache_integrations.prompts.history.policy`), a thread in
the background asks the model for a summary of that half, at the end of the very conversation that
the model has just answered, so that only the question for the summary is computed. Then it has the
KV cache of the shortened history computed. Only when both are done the prompt changes, and no turn
ever waits for them: where the budget runs out before, the half goes without.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from ragcache_integrations.core.forks import make_reentrant_lock, renew_after_fork
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.history.policy import (
    Entry,
    Truncation,
    kept_entries,
    kept_indices,
)
from ragcache_integrations.prompts.history.saved import SavedConversation
from ragcache_integrations.prompts.history.settings import HistorySettings, HistoryStats

__all__ = ["ChatHistory", "Dialect", "HistoryModel", "HistoryStore", "Summary"]

logger = logging.getLogger(__name__)

IDLE_POLL_SECONDS = 0.02
QUOTED_CHARACTERS = 80

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of what was said before a message.

    Attributes:
        text: The summary.
        start: Index of the first message of the conversation that it leaves out.
    """

    text: str
    start: int


class HistoryModel(Protocol[M_contra]):
    """What answers the conversation, asked here for summaries and prefills alone."""

    def ask(self, messages: Sequence[M_contra], max_tokens: int, timeout: float | None) -> str:
        """Answer a prompt that begins as the conversation's prompts do. Called from a thread."""

    def is_idle(self) -> bool:
        """Whether it has nothing to do now, as far as one can tell."""


class HistoryStore(Protocol[M]):
    """Where the messages are kept, summaries among them. Its errors reach the caller."""

    def read(self) -> list[M]:
        """Return all messages, oldest first."""

    def append(self, messages: Sequence[M]) -> None:
        """Add messages at the end."""

    def replace(self, messages: Sequence[M]) -> None:
        """Put these in the place of all messages."""


class Dialect(Protocol[M]):
    """A framework's messages."""

    def entry(self, message: M) -> Entry:
        """Count a message and say what ties it to others."""

    def text(self, message: M) -> str:
        """Return a message's text."""

    def question(self, text: str) -> M:
        """Make a message of the user."""

    def summary(self, summary: Summary) -> M:
        """Make a message that holds a summary, in the prompt as well as in the store."""

    def read_summary(self, message: M) -> Summary | None:
        """Return the summary that a message holds; ``None`` for every other message."""

    def unmarked(self, message: M) -> M:
        """Make an ordinary message of a summary."""


@dataclass(slots=True)
class _State(Generic[M]):
    """A conversation, as far as it is known. Guarded by the history's lock.

    ``planned`` is where the policy has the history begin. ``start`` is where it does begin in the
    prompt: behind, while the background works towards it.
    """

    messages: list[M] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    planned: int = 0
    start: int = 0
    summary: M | None = None
    ready: tuple[int, M | None] | None = None
    spoken: bool = True  # something was added since the prompt was last asked for
    working: int | None = None  # the beginning that the background works towards
    interrupted: int | None = None  # that, where it was saved meanwhile
    worker: threading.Thread | None = None


class ChatHistory(Generic[M]):
    """The history of one conversation; see the module. Thread-safe.

    Of concurrent turns, each adds its messages as one; their prompts are what was known when they
    were asked for.

    Args:
        settings: The knobs.
        dialect: The framework's messages.
        store: Where they are kept. It is read when the history is first used, and anew after
            it failed.
        model: Asked for summaries and prefills; without one the prompt is shortened at once.
        system: What the application's prompts have in front of the history.
        saved: A conversation to go on with. Where the store has another one, which does not begin
            with it, the store is right; one that is empty is filled.

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
        # Without its model a conversation is still cut where it would have been with it.
        self._summarises = saved is not None and saved.summarises
        self._lock = make_reentrant_lock()
        self.connect(dialect, model)
        self._state: _State[M] | None = None
        self._stats = HistoryStats()
        self._warned: set[str] = set()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        if self._state is not None:  # the parent's thread shortens it for the parent
            self._state.worker = self._state.working = None

    def connect(self, dialect: Dialect[M], model: HistoryModel[M] | None) -> None:
        """Count by this dialect and ask this model from now on.

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
        """The conversation as it is now; what the background works on is begun again later."""
        with self._lock:
            state = self._load()
            return SavedConversation(
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
            )

    def view(self) -> list[M]:
        """What goes into the prompt: pinned messages, the summary, and what was said since.

        Between two calls of :meth:`add` it stays the same.
        """
        with self._lock:
            state = self._load()
            if state.spoken and state.ready is not None:
                start, summary = state.ready
                state.ready = None
                self._begin_at(state, start, summary)
                self._settle_limit(state)  # a late summary may have come on top
            state.spoken = False
            self._resume(state)
            return self._prompt(state, state.start, state.summary)

    def messages(self) -> list[M]:
        """All messages of the conversation, dropped ones included, summaries not."""
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
        """Put these in the place of all messages; what the background works on is forgotten.

        The last summary among them stands for what was said before it, as in a prompt of
        :meth:`view`.

        Raises:
            ConfigurationError: They cannot be kept within the budget; nothing is replaced.
        """
        kept: list[M] = []
        summary, start = None, 0
        for message in messages:
            found = self._dialect.read_summary(message)
            if found is None:
                kept.append(message)
            else:
                start = len(kept)
                summary = self._dialect.summary(Summary(found.text, start))
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
        """What became of the conversation; what was not read from the store yet counts as none."""
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
                self._state = self._go_on(self._saved, stored)
                self._saved = None
            if self._state is None:
                self._state = self._begin(stored)
        return self._state

    def _begin(self, stored: Sequence[M]) -> _State[M]:
        """The conversation as far as the store tells."""
        state: _State[M] = _State()
        summarised = 0
        for message in stored:
            found = self._dialect.read_summary(message)
            if found is None:
                state.messages.append(message)
            elif found.start <= len(state.messages):
                state.summary, summarised = message, found.start
        state.entries = [self._dialect.entry(message) for message in state.messages]
        planned = self._policy.advance(state.entries)
        state.planned = max(planned, summarised)
        # What has no summary yet waits for one, as it would have done without an interruption.
        state.start = summarised if self._summarises else state.planned
        self._settle_limit(state)
        return state

    def _fill_store(self, saved: SavedConversation[M]) -> list[M]:
        ready = saved.ready[1] if saved.ready is not None else None
        stored = [*saved.messages, *(m for m in (saved.summary, ready) if m is not None)]
        if stored:
            self._store.replace(stored)
        return stored

    def _go_on(self, saved: SavedConversation[M], stored: Sequence[M]) -> _State[M] | None:
        """The conversation as it was saved; ``None`` where it went on differently meanwhile."""
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
        # Without the summary, which may have to be counted by another counter than its own.
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
            msg = (
                f"these messages leave {size} tokens that cannot be parted, and at most "
                f"{self._policy.budget} of the budget of {self._settings.budget} are for messages; "
                f"the longest has {longest.tokens}, of role {longest.role!r}, and pinned ones have "
                f"{pins} together: shorten it, or raise the budget"
            )
            raise ConfigurationError(msg)
        return planned

    def _write(self, write: Callable[[Sequence[M]], None], messages: Sequence[M]) -> None:
        try:
            write(messages)
        except BaseException:
            self._state = None  # the store knows what it has
            raise

    def _settle_limit(self, state: _State[M]) -> None:
        """Shorten the prompt now where nothing is to be waited for, or where it is too long."""
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
        said = [state.messages[index] for index in kept]
        if summary is None:
            return said
        # Behind what the system says, where templates expect what is of its role.
        head = 0
        while head < len(kept) and kept[head] < start:
            if state.entries[kept[head]].role != "system":
                break
            head += 1
        return [*said[:head], summary, *said[head:]]

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
        # What the model has answered last begins with all of this, so its KV cache is there.
        said = self._prompt(state, state.start, state.summary)
        while said and self._dialect.entry(said[-1]).role == "user":
            said.pop()  # the answer is still to come, and two questions in a row are refused
        worker = threading.Thread(
            target=self._shorten,
            args=(state, self._model, start, said),
            name="ragcache-history",
            daemon=True,
        )
        try:
            worker.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many
            logger.warning("no thread to shorten a chat history; tried again later", exc_info=True)
        else:
            state.worker, state.working = worker, start

    # In the background

    def _shorten(self, state: _State[M], model: HistoryModel[M], start: int, said: list[M]) -> None:
        summary: M | None = None
        try:
            self._await_idle(model)
            if self._summarises:
                summary = self._summarise(state, model, start, said)
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
            except Exception as error:  # noqa: BLE001 - the model itself says more, if it is down
                logger.debug("nobody can tell whether the engine is idle: %s", error)
                return
            time.sleep(IDLE_POLL_SECONDS)

    def _summarise(
        self, state: _State[M], model: HistoryModel[M], start: int, said: list[M]
    ) -> M | None:
        settings = self._settings
        first = self._dialect.text(state.messages[start])[:QUOTED_CHARACTERS]
        question = self._dialect.question(settings.summary_instruction.replace("{first}", first))
        asked = [*self._system, *said, question]
        try:
            text = model.ask(asked, settings.summary_tokens, settings.timeout).strip()
            if not text:
                msg = "the model answered nothing"
                raise ValueError(msg)  # noqa: TRY301 - to be treated as any other failure
            summary = self._dialect.summary(Summary(text, start))
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and a next one comes
            self._count(failed_summaries=1)
            self._warn("the history is shortened without a summary", error)
            return None
        with self._lock:
            if state is self._state:
                self._count(summaries=1)
                try:
                    self._store.append([summary])
                except Exception as error:  # noqa: BLE001 - it is missed after a restart alone
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
        except Exception as error:  # noqa: BLE001 - the next turn computes what it would have
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
