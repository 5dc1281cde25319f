"""What surrounds a call of a step besides its arguments, and which calls may share its result.

A tool, a node, a chain or a wrapped retriever may read more than it is called with: LangGraph's
``context=`` and Store, ``configurable``, ``metadata`` and tags of the run, its thread, a person's
answer to ``interrupt()``, LlamaIndex's workflow, context variables. Its code does not show whether
it does, because any function, inner graph or library can call ``get_runtime()``. So this module
does not analyse code:

- A **value** that is plain data becomes part of the key. With any other value, the call is neither
  served nor kept.
- A Store cannot be part of a key, and a thread's id should not be: it differs in each conversation,
  and hardly any step reads it. These are **watched**: the step gets them in a form that notes their
  use, and the result of a step that used one is not kept.
- A call that resumes an interrupted task is neither served nor kept.

So a kept result was computed from nothing but its key.

The module imports no framework, and reads the context variables of those that are loaded.
"""

from __future__ import annotations

import contextvars
import dataclasses
import logging
import re
import sys
import weakref
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final, Protocol, cast

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.core.checks import check_names
from ragcache_integrations.errors import ConfigurationError

from .cache_keys import FrozenArguments, fields_of, freeze_arguments
from .own_code import NAMES
from .watched import SILENT, Note, WatchedName, WatchedValues, variables_around, watched_object

__all__ = ["StepWatch", "Surroundings", "check_ignores"]

logger = logging.getLogger(__name__)

_LANGCHAIN: Final = ("langchain_core.runnables.config", "var_child_runnable_config")
_WORKFLOWS: Final = ("workflows.runtime.types.results", "InternalContextVar")
_RUNTIME: Final = "__pregel_runtime"
_SCRATCHPAD: Final = "__pregel_scratchpad"
_UNSERVED: Final = "Nothing is served from the cache or kept"
_OF_ONE_RUN: Final = "run's "
_HOLDS_STORE: Final = (
    "the step's code names LangGraph's Store, whose items can't be compared. Pass "
    "ignores=['store'] if no result depends on them"
)
_PERSON: Final = "a person's answer, by interrupt()"

# The watched values of a run's configuration, under ``configurable`` and ``metadata``.
_WATCHED = ("thread_id", "run_id")
# LangGraph's entries, our own, and those of LangGraph's server that differ with every request. None
# of them identifies a user.
_OWN_PREFIXES = ("__pregel_", "__ragcache_")
_OWN_CONFIGURABLE = NAMES["own_configurable"]
_OWN_METADATA = NAMES["own_metadata"]
_DRAWN = NAMES["drawn"]
# The tags that frameworks give to the parts of a run: they are never handed on to parts within.
_OWN_TAG = re.compile(
    r"(seq:step|graph:step|retry:attempt|condition):-?\d+|branch:(\d+|default)|map:key:.*"
    r"|langsmith:(hidden|nostream)",
    re.DOTALL,
)
# LangChain adds this ``recursion_limit`` to a configuration that has none.
_DEFAULT_LIMIT = 25


_OWN_NAMES = NAMES["ignored"]
_PLACES = ("variable.", "configurable.", "metadata.", "baggage.")
_MANY_CALLS: Final = 32
"""Calls after which a warning says that no two were alike, or that a name was of no use."""
_MOST_NAMES: Final = 256


def check_ignores(value: object) -> frozenset[str]:
    """Return what ``ignores=`` was given as a set.

    Raises:
        ConfigurationError: It is not several names, or says where a value is, too.
    """
    names = check_names("ignores", value)
    for name in names:
        place = next((place for place in _PLACES if name.startswith(place)), None)
        if place is not None:
            plain = name.rpartition(".")[2] if place == "variable." else name[len(place) :]
            raise ConfigurationError(
                f"ignores takes names without their place, got {shortened(name)!r}; "
                f"did you mean {shortened(plain)!r}?"
            )
    return names


class Code(Protocol):
    """What is known of a step's code."""

    @property
    def reads_configs(self) -> bool:
        """Whether it may read all that a run's configuration holds."""

    @property
    def holds_store(self) -> bool:
        """Whether it holds a Store of LangGraph's itself, which no run hands to it."""


class ChangingCode(Code, Protocol):
    """Code that may change while it is in use."""

    def version(self) -> int:
        """Return a number that is another one after each change."""


class _Values(dict[str, Any]):
    """What counts, by its place.

    Attributes:
        names: What ``ignores=`` calls it, by its place.
        seen: Such names, with those that are ignored.
    """

    def __init__(self, ignores: frozenset[str]) -> None:
        super().__init__()
        self._ignores = ignores
        self.names: dict[str, str] = {}
        self.seen: set[str] = set()
        self._divided: list[tuple[str, str, Any]] = []

    def put(self, place: str, name: str, value: Any) -> None:
        """Put a value in, unless it is ignored."""
        self.seen.add(name)
        if name not in self._ignores:
            self[place] = value
            self.names[place] = name

    def put_fields(self, place: str, name: str, value: Any) -> None:
        """Put a value in by its fields, each of which may be ignored, if it has any."""
        self._divided.append((place, name, value))
        fields = fields_of(value)
        if fields is None or not all(isinstance(field, str) for field in fields):
            self.put(place, name, value)
            return
        kind = type(value)
        self.put(place, name, f"{kind.__module__}.{kind.__qualname__}")
        for field, held in fields.items():
            if name not in self._ignores:
                self.put(f"{place}.{field}", f"{name}.{field}", held)

    def again(self) -> _Values:
        """Return the same values, with what the fields hold by now."""
        made = _Values(self._ignores)
        fields = tuple(place for place, _, _ in self._divided)
        for place, value in self.items():
            if not place.startswith(fields or "\0"):
                made.put(place, self.names[place], value)
        for place, name, value in self._divided:
            made.put_fields(place, name, value)
        return made

    def name_of(self, path: str) -> str:
        """Return the name of the value that a path leads to, or leads into."""
        places = [place for place in self if path.startswith(place)]
        return self.names[max(places, key=len)] if places else path


class StepWatch:
    """Reads what surrounds the calls of one step. Thread-safe.

    Args:
        ignores: What the results do not depend on: names of values in ``configurable`` and
            ``metadata``, names of context variables, of tags of LlamaIndex's instrumentation and of
            OpenTelemetry's baggage, ``context`` or a field of it, such as ``context.request_id``,
            or ``instrument_tags``, ``previous``, ``recursion_limit``, ``run_id``, ``server``,
            ``store``, ``stream``, ``tags``, ``thread_id``, ``workflow``.
        code: The step's own code, if it is known; a :class:`ChangingCode` if it may change.

    Attributes:
        ignores: The same as a set.
        asks: Whether the step has ever asked a person.
    """

    def __init__(self, ignores: Collection[str] = (), code: Code | None = None) -> None:
        self.ignores = frozenset(ignores)
        self.asks = False
        self._code = code
        self._version: Callable[[], int] | None = getattr(code, "version", None)
        self._nothing: tuple[_Values, FrozenArguments] | None = None
        self._warned: set[str] = set()
        self._unmet = set(self.ignores - _OWN_NAMES)
        self._met: set[str] = set()
        self._calls = 0
        self._latest: dict[str, set[int]] = {}

    def surroundings(self, config: Mapping[str, Any] | None = None) -> Surroundings:
        """Return what surrounds a call that begins now.

        Args:
            config: LangChain's configuration for the step; ``None`` for that of the enclosing run,
                if any.
        """
        version = 0 if self._version is None else self._version()
        variable = getattr(sys.modules.get(_LANGCHAIN[0]), _LANGCHAIN[1], None)
        outer = (None if variable is None else variable.get()) or {}
        given = outer if config is None else config
        if self._nothing is not None and not (given or outer) and self._is_context_silent():
            return Surroundings(self, given, outer, *self._nothing, "", version)
        values = self._values_around(given, outer)
        frozen = freeze_arguments(values)
        self._compare(values, frozen)
        if not (values.keys() - {"run.ignores"} or given or outer):
            self._nothing = values, frozen
        private = ""
        if self.asks:
            private = "the step asks a person, whose answer counts for one run alone"
            self.warn(_UNSERVED, private)
        elif self._code is not None and self._code.holds_store and "store" not in self.ignores:
            private = _HOLDS_STORE
            self._nothing = None
            self.warn(_UNSERVED, private)
        elif _is_resumed(given) or _is_resumed(outer):
            private = "the task was resumed, so its result may hold a person's answer"
        return Surroundings(self, given, outer, values, frozen, private, version)

    def _values_around(self, given: Mapping[str, Any], outer: Mapping[str, Any]) -> _Values:
        values = _Values(self.ignores)
        for place, name, value in variables_around():
            whole = place.startswith("instrument_tags.") and "instrument_tags" in self.ignores
            values.put(place, "instrument_tags" if whole else name, value)
        self._put_config(values, given)
        if outer is not given:  # the step can read both
            others = _Values(self.ignores)
            self._put_config(others, outer)
            for place, value in others.items():
                if values.get(place, self) is not value:
                    values.put(f"outer {place}", others.names[place], value)
        if self.ignores:
            values.put("run.ignores", "", self.ignores)
        return values

    def _is_context_silent(self) -> bool:
        """Whether the context surely says nothing now, and no name or person is waited for."""
        tracing = sys.modules.get("opentelemetry.context")
        if self.asks or self._unmet or (tracing is not None and tracing.get_current()):
            return False
        for variable, value in contextvars.copy_context().items():
            if (variable, type(value)) not in SILENT:
                return False
        return True

    def warn(self, what: str, reason: str) -> None:
        """Log a warning, once."""
        if reason not in self._warned and len(self._warned) < _MOST_NAMES:
            self._warned.add(reason)
            logger.warning("%s: %s", what, reason)

    def _compare(self, values: _Values, frozen: FrozenArguments) -> None:
        """Warn of values that differ in each call, and of names that no call has."""
        found: dict[str, set[Any]] = {}
        for pair in frozen.key:
            place = str(cast("tuple[Hashable, ...]", pair)[0])
            found.setdefault(values.names[place], set()).add(pair)
        for name, several in found.items():
            if name and (name in self._latest or len(self._latest) < _MOST_NAMES):
                self._note_value(name, hash(frozenset(several)))
        if self._unmet:
            self._note_names(values.seen)

    def _note_value(self, name: str, value: int) -> None:
        latest = self._latest.setdefault(name, set())
        if value in latest:
            latest.clear()
        latest.add(value)
        if len(latest) == _MANY_CALLS:
            latest.clear()
            self.warn(
                "Hardly anything is served from the cache",
                f"{_MANY_CALLS} calls in a row had another {name!r} each. If it does not say who "
                f"asks and no result depends on it, pass ignores=[{name!r}]",
            )

    def _note_names(self, seen: set[str]) -> None:
        self._unmet -= seen
        self._calls += 1
        if len(self._met) < _MOST_NAMES:
            self._met |= seen - {""}
        if self._calls == _MANY_CALLS:
            for name in sorted(self._unmet):
                close = closest_names(name, self._met | _OWN_NAMES)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                others = ", ".join(map(repr, sorted(self._met)[:16])) or "nothing"
                self.warn(
                    "A name in ignores= does nothing",
                    f"none of the first {_MANY_CALLS} calls had {name!r}, but {others}{hint}",
                )

    def _put_config(self, values: _Values, config: Mapping[str, Any]) -> None:
        """Put the values of a configuration in that are part of the key."""
        # Of code that reads all of them, no result may be served in another thread.
        whole = self._code is not None and self._code.reads_configs
        configurable: Mapping[str, Any] = config.get("configurable") or {}
        for name, value in configurable.items():
            left_out = name in (_DRAWN if whole else _OWN_CONFIGURABLE)
            if not left_out and not name.startswith(_OWN_PREFIXES):
                values.put(f"configurable.{name}", name, value)
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        tags: list[Any] = config.get("tags") or []
        self._put_marks(values, "", metadata, tags, whole=whole)
        for place, others, more in _of_manager(config):
            unsaid = {
                name: value
                for name, value in others.items()
                if metadata.get(name, self) is not value
            }
            own = [tag for tag in more if tag not in tags]
            self._put_marks(values, place, unsaid, own, whole=whole)
        if whole and any("thread_id" in held for held in (configurable, metadata)):
            self.warn(
                "Nothing is served in another thread",
                "the step's code reads more of a run's configuration than single values by their "
                "names, so its thread_id counts. Read values by name, or pass "
                "ignores=['thread_id'] if no result depends on it",
            )
        limit = config.get("recursion_limit")  # an agent within may give up in words
        if type(limit) is int and limit != _DEFAULT_LIMIT:  # LangGraph's default is of a subclass
            values.put("run.recursion_limit", "recursion_limit", limit)
        runtime = configurable.get(_RUNTIME)
        for name, read in _OF_THE_RUNTIME.items() if runtime is not None else ():
            value = read(runtime)
            if value is not None and name == "context":
                values.put_fields(f"run.{name}", name, value)
            elif value is not None:
                values.put(f"run.{name}", name, value)

    def _put_marks(
        self,
        values: _Values,
        place: str,
        metadata: Mapping[str, Any],
        tags: list[Any],
        *,
        whole: bool,
    ) -> None:
        """Put the application's metadata and tags in."""
        for name, value in metadata.items():
            if name not in (_DRAWN if whole else _OWN_METADATA):
                values.put(f"{place}metadata.{name}", name, value)
        # Those of frameworks are of one run alone, and in no configuration.
        own = [tag for tag in tags if place != _OF_ONE_RUN or not _OWN_TAG.fullmatch(str(tag))]
        for number, tag in enumerate(own):
            values.put(f"{place}tag.{number}", "tags", tag)


@dataclasses.dataclass(eq=False)
class Surroundings:
    """What surrounds one call of a step.

    Attributes:
        watch: Made this object.
        given: LangChain's configuration for the step.
        outer: That of the enclosing run.
        values: The values that count, by their places.
        frozen: The same as a part of the key.
        private: Why the call is neither served nor kept although all values can be compared, or an
            empty text.
        version: Of the step's code, see :class:`Code`.
        notes: What the step used although the key does not hold it; grows while the step runs.
    """

    watch: StepWatch
    given: Mapping[str, Any]
    outer: Mapping[str, Any]
    values: _Values
    frozen: FrozenArguments
    private: str
    version: int = 0
    notes: dict[str, None] = dataclasses.field(default_factory=dict)  # an ordered set

    @property
    def _handed(self) -> _Watching:
        """What the step gets. A call that is served needs none of it.

        Not a ``cached_property``: before Python 3.12 that has a lock, which a fork may inherit
        locked. If two threads of one call make one each, the first counts.
        """
        handed: _Watching | None = self.__dict__.get("_handed_out")
        if handed is None:
            workflow = _workflow()
            made = _UNWATCHED
            if self.given or self.outer or workflow is not None:
                watched = self.watch.ignores, self.note, self.given, self.outer
                made = _Watching(*watched, workflow)
            handed = self.__dict__.setdefault("_handed_out", made)
        return handed

    def note(self, what: str) -> None:
        """Note something that the step used although the key does not hold it."""
        self.notes[what] = None
        if what == _PERSON:
            self.watch.asks = True

    @property
    def config(self) -> Any:
        """The configuration for the step, with watched values."""
        handed = self._handed
        return self.given if handed is _UNWATCHED else handed.config

    @property
    def flight(self) -> Hashable:
        """Equal for calls that may share one run while it lasts, if their keys are equal, too."""
        return self._handed.flight

    @property
    def alone(self) -> str:
        """Why the call is neither served nor kept, or an empty text."""
        if self.private or not self.frozen.opaque:
            return self.private
        names = sorted({self.values.name_of(path) for path, _ in self.frozen.opaque})
        reason = (
            f"{' and '.join(names)} can't be compared. "
            f"Pass ignores={names!r} if no result depends on it"
        )
        self.watch.warn(_UNSERVED, reason)
        return reason

    def alone_among(self, opaque: Collection[str]) -> str:
        """Why a search is for one call alone, if some arguments without a name can't be compared.

        Args:
            opaque: The places of these, with those of what surrounds the call.
        """
        return self.alone if opaque and self.frozen.opaque else self.private

    def note_thread(self, thread: object) -> None:
        """Note the conversation of a part of the step, unless it is that of the call.

        The step's use of the call's own is watched.
        """
        configs = (self.given, self.outer)
        parts = [config.get(name) for config in configs for name in ("configurable", "metadata")]
        own = [values.get("thread_id") for values in parts if values]
        if thread not in own and "thread_id" not in self.watch.ignores:
            self.note("a graph with a conversation of its own, by its thread_id")

    def spoilt(self) -> bool:
        """Whether the result must not be kept, because the key does not hold all that was used."""
        if not self.notes:  # a value may have changed meanwhile, deep inside
            values = self.values
            return bool(values) and freeze_arguments(values.again()).key != self.frozen.key
        used = " and ".join(list(self.notes))
        self.watch.warn(
            "A result is not kept", f"the step used {used}, which the key does not hold"
        )
        return True

    def watched(self) -> AbstractContextManager[None]:
        """Run the step inside this block, so that it finds the watched objects."""
        return self._watched() if self._handed.variables else nullcontext()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        tokens = [(variable, variable.set(value)) for variable, value in self._handed.variables]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                with suppress(ValueError):  # a generator that was closed in another context
                    variable.reset(token)

    def each(
        self, pieces: Iterable[Any], inside: Callable[[], Any] = nullcontext
    ) -> Generator[Any]:
        """Yield the pieces of a stream, and compute each inside :meth:`watched`.

        Args:
            pieces: The stream.
            inside: Returns a context manager in which each is computed, too.
        """
        iterator = iter(pieces)
        try:
            while True:
                with inside(), self.watched():
                    try:
                        piece = next(iterator)
                    except StopIteration:
                        return
                yield piece
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    async def aeach(
        self, pieces: AsyncIterable[Any], inside: Callable[[], Any] = nullcontext
    ) -> AsyncIterator[Any]:
        """Async version of :meth:`each`."""
        iterator = aiter(pieces)
        try:
            while True:
                with inside(), self.watched():
                    try:
                        piece = await anext(iterator)
                    except StopAsyncIteration:
                        return
                yield piece
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()


# LangGraph's runtime


def _server(runtime: Any) -> Any:
    """Return the user that LangGraph's server has authenticated, and the assistant."""
    server = getattr(runtime, "server_info", None)
    if server is None:
        return None
    user = server.user
    try:  # the server's classes follow a protocol that has a mapping's methods
        fields = None if user is None else {name: user[name] for name in user}
    except (TypeError, LookupError):
        fields = user
    return {
        "assistant_id": server.assistant_id,
        "graph_id": server.graph_id,
        "identity": getattr(user, "identity", None),
        "user": fields,
    }


def _of_manager(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], list[Any]]]:
    """Yield the metadata and tags of a manager of callbacks, for the run and for those within."""
    manager: Any = config.get("callbacks")
    if hasattr(manager, "inheritable_metadata"):
        yield _OF_ONE_RUN, manager.metadata, manager.tags
        yield "runs' ", manager.inheritable_metadata, manager.inheritable_tags


_OF_THE_RUNTIME: dict[str, Callable[[Any], Any]] = {
    "context": lambda runtime: getattr(runtime, "context", None),
    "previous": lambda runtime: getattr(runtime, "previous", None),
    "server": _server,
}


def _is_resumed(config: Mapping[str, Any]) -> bool:
    """Whether the task of a run was interrupted before, and continues now."""
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    scratchpad = configurable.get(_SCRATCHPAD)
    return scratchpad is not None and bool(
        scratchpad.resume
        or scratchpad.get_null_resume(False) is not None  # noqa: FBT003 - its only argument
        or configurable.get("__pregel_resuming")
        or configurable.get("__pregel_resume_map")
    )


class _Watching:
    """Makes the watched objects for one call.

    Attributes:
        config: The configuration for the step.
        variables: The frameworks' context variables, each with its value while the step runs.
        flight: See :class:`Surroundings`.
    """

    def __init__(
        self,
        ignores: frozenset[str],
        note: Note,
        given: Mapping[str, Any],
        outer: Mapping[str, Any],
        workflow: Any = None,
    ) -> None:
        self._ignores = ignores
        self._note = note
        self._parts: list[Hashable] = []
        self.variables: list[tuple[ContextVar[Any], Any]] = []
        self.config = self._watch(given)
        variable, of_workflows = _variable(*_LANGCHAIN), _variable(*_WORKFLOWS)
        if variable is not None and outer:
            self.variables.append((variable, self.config if outer is given else self._watch(outer)))
        if of_workflows is not None and workflow is not None and "workflow" not in ignores:
            # Kept here, as the variable refers to it weakly.
            self._workflow = self._whole(workflow, "the workflow's context")
            self.variables.append((of_workflows, weakref.ref(self._workflow)))
        if not self._parts:  # nothing to notice
            self.variables.clear()
        self.flight = tuple(self._parts)

    def _watch(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a configuration with watched values."""
        configurable: Mapping[str, Any] = config.get("configurable") or {}
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        managed = [values for _, values, _ in _of_manager(config)]
        names = [
            name
            for name in _WATCHED
            if name not in self._ignores
            and any(name in values for values in (configurable, metadata, *managed))
        ]
        runtime, scratchpad = configurable.get(_RUNTIME), configurable.get(_SCRATCHPAD)
        if not names and runtime is None and scratchpad is None:
            return config
        own: dict[str, Any] = {}
        if runtime is not None:
            own[_RUNTIME] = self._runtime(runtime)
        if scratchpad is not None:
            own[_SCRATCHPAD] = self._scratchpad(scratchpad)
        for name in names:
            self._parts.append((name, str(configurable.get(name)), str(metadata.get(name))))
        watched = {name: WatchedName(name, self._note) for name in names}
        found = {
            **config,
            "configurable": WatchedValues.of({**configurable, **own}, watched, self._note),
            "metadata": WatchedValues.of(metadata, watched, self._note),
        }
        callbacks: Any = config.get("callbacks")
        if hasattr(callbacks, "inheritable_metadata"):  # a manager, which a step can get as well
            callbacks = found["callbacks"] = callbacks.copy()
            for name in ("metadata", "inheritable_metadata"):
                values = WatchedValues.of(getattr(callbacks, name), watched, self._note)
                setattr(callbacks, name, values)
        return found

    def _runtime(self, runtime: Any) -> Any:
        changes: dict[str, Any] = {}
        if "store" not in self._ignores and getattr(runtime, "store", None) is not None:
            changes["store"] = self._whole(runtime.store, "the graph's store")
        info = getattr(runtime, "execution_info", None)
        names = frozenset(_WATCHED) - self._ignores
        if info is not None and names:
            changes["execution_info"] = watched_object(info, self._note, names, "")
        writer = getattr(runtime, "stream_writer", None)
        if writer is not None and "stream" not in self._ignores:

            def write(value: Any) -> Any:
                self._note("the stream that it wrote to")
                return writer(value)

            changes["stream_writer"] = write
        return dataclasses.replace(runtime, **changes) if changes else runtime

    def _scratchpad(self, scratchpad: Any) -> Any:
        """Return LangGraph's state of a task, watched for interrupts."""
        null_resume, count = scratchpad.get_null_resume, scratchpad.interrupt_counter

        def interrupt_counter() -> Any:
            self._note(_PERSON)
            return count()

        def get_null_resume(consume: bool = False) -> Any:
            if consume:  # by interrupt() in an inner graph, whose tasks have states of their own
                self._note(_PERSON)
            return null_resume(consume)

        self._parts.append(id(scratchpad))
        return dataclasses.replace(
            scratchpad, interrupt_counter=interrupt_counter, get_null_resume=get_null_resume
        )

    def _whole(self, value: object, what: str) -> Any:
        """Return an object that notes any use."""
        self._parts.append(id(value))
        return watched_object(value, self._note, None, what)


def _workflow() -> Any:
    """Return the context of LlamaIndex's workflow that runs, if any."""
    variable = _variable(*_WORKFLOWS)
    return None if variable is None else variable.get(_nothing)()


def _variable(module: str, name: str) -> ContextVar[Any] | None:
    """Return a framework's context variable, or ``None`` if the framework is not loaded."""
    return getattr(sys.modules.get(module), name, None)


def _nothing() -> None:
    """Take the place of a weak reference to nothing."""


_UNWATCHED = _Watching(frozenset(), lambda _: None, {}, {})
"""What a call gets that nothing surrounds."""
