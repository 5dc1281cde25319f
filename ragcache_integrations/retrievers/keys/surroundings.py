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
import copy
import dataclasses
import functools
import logging
import re
import sys
import types
import weakref
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, Self

from typing_extensions import override

from .cache_keys import FrozenArguments, freeze_arguments

__all__ = ["StepWatch", "Surroundings"]

logger = logging.getLogger(__name__)

Note = Callable[[str], None]
"""Called with the name of what a step used although its key does not hold it."""

_LANGCHAIN: Final = ("langchain_core.runnables.config", "var_child_runnable_config")
_WORKFLOWS: Final = ("workflows.runtime.types.results", "InternalContextVar")
_RUNTIME: Final = "__pregel_runtime"
_SCRATCHPAD: Final = "__pregel_scratchpad"
_UNSERVED: Final = "Nothing is served from the cache or kept"
_PERSON: Final = "a person's answer, by interrupt()"

# The watched values of a run's configuration, under ``configurable`` and ``metadata``.
_WATCHED = ("thread_id", "run_id")
# LangGraph's entries, our own, and those of LangGraph's server that differ with every request. None
# of them identifies a user.
_OWN_PREFIXES = ("__pregel_", "__ragcache_")
_OWN_CONFIGURABLE = {
    *_WATCHED,
    *("checkpoint_id", "checkpoint_ns", "checkpoint_map", "langgraph_request_id"),
    *("__request_start_time_ms__", "__after_seconds__"),
    *("__langsmith_project__", "__langsmith_example_id__"),
}
_OWN_METADATA = {
    *_WATCHED,
    *("langgraph_step", "langgraph_node", "langgraph_triggers", "langgraph_path"),
    *("langgraph_checkpoint_ns", "langgraph_request_id", "checkpoint_id", "checkpoint_ns"),
    *("run_attempt", "lc_versions", "lc_agent_name", "ls_integration"),
}
# Beginnings of tags that frameworks give to the parts of a run.
_OWN_TAGS = (
    *("seq:step:", "map:key:", "graph:step:", "branch:", "condition:", "retry:attempt:"),
    *("langsmith:",),
)
# LangChain adds this ``recursion_limit`` to a configuration that has none.
_DEFAULT_LIMIT = 25
# Modules that look names up only to copy or to trace a configuration.
_COPYING_MODULES = (
    *("langchain_core.runnables.config", "langchain_core.callbacks", "langchain_core.tracers"),
    *("langsmith", "ragcache_integrations"),
)
# Methods of callback handlers, which get the metadata of each run. Tracers look for a thread there.
_HANDLERS = {
    "on_chat_model_start",
    *(
        f"on_{what}_{when}"
        for what in ("chain", "llm", "retriever", "tool")
        for when in ("start", "end", "error")
    ),
}
_MOST_CALLERS = 16

# Packages whose context variables do not identify a user: frameworks (whose own are read below),
# tracing, logging, event loops, numbers, notebooks.
_SILENT_PACKAGES = {
    *("langchain", "langchain_classic", "langchain_community", "langchain_core", "langgraph"),
    *("langsmith", "llama_index", "llama_index_instrumentation"),
    *("ragcache_integrations", "ddtrace", "langfuse", "openinference", "opentelemetry"),
    *("sentry_sdk", "asgi_correlation_id", "loguru", "logging", "structlog"),
    *("anyio", "asyncio", "sniffio", "trio", "decimal", "numpy", "scipy", "torch", "transformers"),
    *("vllm", "anthropic", "griffe", "huggingface_hub", "openai", "pydantic", "rich"),
    *("hypothesis", "IPython", "ipykernel", "jupyter_core", "prompt_toolkit", "pytest"),
}
# The same of LlamaIndex's package whose name an application may have, too.
_SILENT_MODULES = (
    *("workflows.runtime.types.", "workflows.plugins.basic", "workflows.context.serializers"),
)
# The same for variables that are no module's attribute.
_SILENT_NAMES = {"current_context", "decimal_context", "parent_header"} | {
    *("shell_parent", "shell_parent_ident", "usage_metadata_callback"),
}
_SILENT_PREFIXES = ("structlog_", "langchain", "langgraph", "langsmith")
_TAGS = "instrument_tags"
_NUMBER = re.compile(r"@\d+")


class StepWatch:
    """Reads what surrounds the calls of one step. Thread-safe.

    Args:
        ignores: What the results do not depend on: names of values in ``configurable`` and
            ``metadata``, names of context variables, or ``context``, ``previous``,
            ``recursion_limit``, ``run_id``, ``server``, ``store``, ``stream``, ``tags``,
            ``thread_id``, ``workflow``.

    Attributes:
        ignores: The same as a set.
        asks: Whether the step has ever asked a person.
    """

    def __init__(self, ignores: Collection[str] = ()) -> None:
        self.ignores = frozenset(ignores)
        self.asks = False
        self._warned: set[str] = set()

    def surroundings(self, config: Mapping[str, Any] | None = None) -> Surroundings:
        """Return what surrounds a call that begins now.

        Args:
            config: LangChain's configuration for the step; ``None`` for that of the enclosing run,
                if any.
        """
        outer = _langchain_config() or {}
        given = outer if config is None else config
        values = self._variables() | self._values(given)
        if outer is not given:  # the step can read both
            others = self._values(outer).items()
            unsaid = {name: value for name, value in others if values.get(name, self) is not value}
            if unsaid:
                values["run.outer"] = unsaid
        if self.ignores:
            values["run.ignores"] = self.ignores
        private = ""
        if self.asks:
            private = "the step asks a person, whose answer counts for one run alone"
            self.warn(_UNSERVED, private)
        elif _is_resumed(given) or _is_resumed(outer):
            private = "the task was resumed, so its result may hold a person's answer"
        return Surroundings(self, given, outer, values, freeze_arguments(values), private)

    def warn(self, what: str, reason: str) -> None:
        """Log a warning, once."""
        known = _NUMBER.sub("", reason)  # of variables that an application makes for each call
        if known not in self._warned:
            self._warned.add(known)
            logger.warning("%s: %s", what, reason)

    def _variables(self) -> dict[str, Any]:
        """Return the values of the application's context variables."""
        values: dict[str, Any] = {}
        for variable, value in contextvars.copy_context().items():
            place = _place(variable)
            if place is None or variable.name in self.ignores:
                continue
            if place == _TAGS:
                own = {name: value[name] for name in value if not _is_llama_index_s(name)}
                if own:
                    values[f"variable.{place}"] = own
            else:
                values[f"variable.{place}"] = value
        return values

    def _values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a configuration that are part of the key."""
        configurable: Mapping[str, Any] = config.get("configurable") or {}
        values = {
            f"configurable.{name}": value
            for name, value in configurable.items()
            if name not in _OWN_CONFIGURABLE
            and name not in self.ignores
            and not name.startswith(_OWN_PREFIXES)
        }
        metadata: Mapping[str, Any] = config.get("metadata") or {}
        tags: list[Any] = config.get("tags") or []
        values |= self._marks("", metadata, tags)
        for place, others, more in _of_manager(config):
            unsaid = {
                name: value
                for name, value in others.items()
                if metadata.get(name, self) is not value
            }
            values |= self._marks(place, unsaid, [tag for tag in more if tag not in tags])
        limit = config.get("recursion_limit")  # an agent within may give up in words
        own = type(limit) is int and limit != _DEFAULT_LIMIT  # LangGraph's default is of a subclass
        if own and "recursion_limit" not in self.ignores:
            values["run.recursion_limit"] = limit
        runtime = configurable.get(_RUNTIME)
        for name, read in _OF_THE_RUNTIME.items() if runtime is not None else ():
            value = None if name in self.ignores else read(runtime)
            if value is not None:
                values[f"run.{name}"] = value
        return values

    def _marks(self, place: str, metadata: Mapping[str, Any], tags: list[Any]) -> dict[str, Any]:
        """Return the application's metadata and tags as parts of the key."""
        values = {
            f"{place}metadata.{name}": value
            for name, value in metadata.items()
            if name not in _OWN_METADATA and name not in self.ignores
        }
        if "tags" not in self.ignores:
            own = (tag for tag in tags if not str(tag).startswith(_OWN_TAGS))
            values |= {f"{place}tag.{number}": tag for number, tag in enumerate(own)}
        return values


@dataclasses.dataclass(eq=False)
class Surroundings:
    """What surrounds one call of a step.

    Attributes:
        watch: Made this object.
        given: LangChain's configuration for the step.
        outer: That of the enclosing run.
        values: The values that count.
        frozen: The same as a part of the key.
        private: Why the call is neither served nor kept although all values can be compared, or an
            empty text.
        notes: What the step used although the key does not hold it; grows while the step runs.
    """

    watch: StepWatch
    given: Mapping[str, Any]
    outer: Mapping[str, Any]
    values: Mapping[str, Any]
    frozen: FrozenArguments
    private: str
    notes: dict[str, None] = dataclasses.field(default_factory=dict)  # an ordered set

    @functools.cached_property
    def _handed(self) -> _Watching:
        """What the step gets. A call that is served needs none of it."""
        return _Watching(self.watch.ignores, self.note, self.given, self.outer)

    def note(self, what: str) -> None:
        """Note something that the step used although the key does not hold it."""
        self.notes[what] = None
        if what == _PERSON:
            self.watch.asks = True

    @property
    def config(self) -> Any:
        """The configuration for the step, with watched values."""
        return self._handed.config

    @property
    def flight(self) -> Hashable:
        """Equal for calls that may share one run while it lasts, if their keys are equal, too."""
        return self._handed.flight

    @property
    def alone(self) -> str:
        """Why the call is neither served nor kept, or an empty text."""
        if self.private or not self.frozen.opaque:
            return self.private
        places = " and ".join(place for place, _ in self.frozen.opaque)
        reason = f"{places} can't be compared. Name it in ignores= if no result depends on it"
        self.watch.warn(_UNSERVED, reason)
        return reason

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
            return freeze_arguments(self.values).key != self.frozen.key
        used = " and ".join(list(self.notes))
        self.watch.warn(
            "A result is not kept", f"the step used {used}, which the key does not hold"
        )
        return True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the step inside this block, so that it finds the watched objects."""
        tokens = [(variable, variable.set(value)) for variable, value in self._handed.variables]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                with suppress(ValueError):  # a generator that was closed in another context
                    variable.reset(token)

    def each(self, pieces: Iterable[Any]) -> Iterator[Any]:
        """Yield the pieces of a stream, and compute each inside :meth:`watched`."""
        iterator = iter(pieces)
        try:
            while True:
                with self.watched():
                    try:
                        piece = next(iterator)
                    except StopIteration:
                        return
                yield piece
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    async def aeach(self, pieces: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Async version of :meth:`each`."""
        iterator = aiter(pieces)
        try:
            while True:
                with self.watched():
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
        yield "run's ", manager.metadata, manager.tags
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
    ) -> None:
        self._ignores = ignores
        self._note = note
        self._parts: list[Hashable] = []
        self.variables: list[tuple[ContextVar[Any], Any]] = []
        self.config = self._watch(given)
        variable, workflow = _variable(*_LANGCHAIN), _variable(*_WORKFLOWS)
        if variable is not None and outer:
            self.variables.append((variable, self.config if outer is given else self._watch(outer)))
        context = None if workflow is None else workflow.get(_nothing)()
        if workflow is not None and context is not None and "workflow" not in ignores:
            # Kept here, as the variable refers to it weakly.
            self._workflow = self._whole(context, "the workflow's context")
            self.variables.append((workflow, weakref.ref(self._workflow)))
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
        watched = {name: _WatchedName(name, self._note) for name in names}
        found = {
            **config,
            "configurable": _WatchedValues.of({**configurable, **own}, watched, self._note),
            "metadata": _WatchedValues.of(metadata, watched, self._note),
        }
        callbacks: Any = config.get("callbacks")
        if hasattr(callbacks, "inheritable_metadata"):  # a manager, which a step can get as well
            callbacks = found["callbacks"] = callbacks.copy()
            for name in ("metadata", "inheritable_metadata"):
                values = _WatchedValues.of(getattr(callbacks, name), watched, self._note)
                setattr(callbacks, name, values)
        return found

    def _runtime(self, runtime: Any) -> Any:
        changes: dict[str, Any] = {}
        if "store" not in self._ignores and getattr(runtime, "store", None) is not None:
            changes["store"] = self._whole(runtime.store, "the graph's store")
        info = getattr(runtime, "execution_info", None)
        names = frozenset(_WATCHED) - self._ignores
        if info is not None and names:
            changes["execution_info"] = _watched_object(info, self._note, names, "")
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
        return _watched_object(value, self._note, None, what)


class _WatchedName(str):
    """A key of a mapping that notes lookups.

    A mapping that notes its readers is not enough, because the frameworks copy configurations all
    the time, by ``{**configurable}`` and the like. Such copies keep the key objects. To find a key,
    a dict compares it with the given name, and Python lets an instance of a subclass of ``str``
    answer that comparison.
    """

    __slots__ = ("_note",)

    _note: Note

    def __new__(cls, name: str, note: Note) -> Self:
        made = super().__new__(cls, name)
        made._note = note
        return made

    def __eq__(self, other: object) -> bool:
        same = str.__eq__(self, other)
        if same is True and not _only_copies(sys._getframe(1)):
            self.note()
        return same

    def __ne__(self, other: object) -> bool:
        same = str.__ne__(self, other)
        if same is False and not _only_copies(sys._getframe(1)):
            self.note()
        return same

    __hash__ = str.__hash__

    def note(self) -> None:
        """Note a lookup."""
        self._note(f"the run's {self!s}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str.__str__(self),)


class _WatchedValues(dict[str, Any]):
    """A mapping with watched names that also notes when all of its values are read at once."""

    names: tuple[_WatchedName, ...] = ()

    @classmethod
    def of(
        cls, values: Mapping[str, Any], watched: Mapping[str, _WatchedName], note: Note
    ) -> _WatchedValues:
        """Return values with watched names; names that are watched already stay so."""
        made = cls()
        for name, value in values.items():
            key = watched.get(name, name)
            if key is not name and isinstance(name, _WatchedName):  # by an enclosing step
                key = _WatchedName(str.__str__(name), _both(name, note))
            made[key] = value
        made.names = tuple(name for name in dict.keys(made) if isinstance(name, _WatchedName))
        return made

    def _read(self, frame: FrameType) -> None:
        if not _only_copies(frame):
            for name in self.names:
                name.note()

    @override
    def items(self) -> Any:
        self._read(sys._getframe(1))  # noqa: SLF001 - who asks
        return super().items()

    @override
    def values(self) -> Any:
        self._read(sys._getframe(1))  # noqa: SLF001 - who asks
        return super().values()

    @override
    def copy(self) -> _WatchedValues:
        return self.__copy__()

    def __copy__(self) -> _WatchedValues:
        made = _WatchedValues(self)
        made.names = self.names
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> _WatchedValues:
        made = _WatchedValues(copy.deepcopy(dict(self), memo))
        made.names = self.names
        return made

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, ({str(name): value for name, value in super().items()},)


def _both(outer: _WatchedName, note: Note) -> Note:
    def both(what: str) -> None:
        outer.note()
        note(what)

    return both


def _only_copies(frame: FrameType) -> bool:
    """Whether a lookup copies a configuration, or is made by a handler of callbacks."""
    if str(frame.f_globals.get("__name__")).startswith(_COPYING_MODULES):
        return True
    callers: FrameType | None = frame
    for _ in range(_MOST_CALLERS):
        if callers is None:
            return False
        if callers.f_code.co_name in _HANDLERS:
            return True
        callers = callers.f_back
    return False


def _watched_object(value: object, note: Note, names: frozenset[str] | None, what: str) -> Any:
    """Return a substitute for an object, an instance of a subclass of the object's class.

    Args:
        value: The object.
        note: Called with ``what`` when an attribute is read.
        names: The attributes that count; ``None`` for all.
        what: The text for ``note``; an empty one for the attribute's name.
    """
    kind: Any = type(value)
    try:
        made: Any = object.__new__(_watched_class(kind))
        object.__setattr__(made, "_ragcache_watch", (value, note, names, what))
    except TypeError:  # its class allows no subclasses
        note(what)
        return value
    return made


@functools.lru_cache(maxsize=256)
def _watched_class(kind: type) -> type:
    def getattribute(self: Any, name: str) -> Any:
        value, note, names, what = object.__getattribute__(self, "_ragcache_watch")
        if name in names if names is not None else not name.startswith("__"):
            note(what or f"the run's {name}")
        return getattr(value, name)

    def fill(body: dict[str, Any]) -> None:
        body["__getattribute__"] = getattribute
        body["__module__"] = kind.__module__
        # Threads and connections end with the object itself, not with its substitute.
        body["__del__"] = lambda _: None

    return types.new_class(kind.__name__, (kind,), exec_body=fill)


# Context variables


def _langchain_config() -> Mapping[str, Any] | None:
    """Return LangChain's configuration of the enclosing run, if any."""
    variable = _variable(*_LANGCHAIN)
    return None if variable is None else variable.get()


def _variable(module: str, name: str) -> ContextVar[Any] | None:
    """Return a framework's context variable, or ``None`` if the framework is not loaded."""
    return getattr(sys.modules.get(module), name, None)


def _nothing() -> None:
    """Take the place of a weak reference to nothing."""


def _is_llama_index_s(tag: object) -> bool:
    """Whether a tag comes from a workflow itself, and not from the application."""
    return isinstance(tag, str) and tag.startswith("llamaindex.")


@functools.lru_cache(maxsize=1024)
def _place(variable: ContextVar[Any]) -> str | None:
    """Return a context variable's name in keys, or ``None`` if it does not identify a user."""
    owners = [
        name
        for name, module in list(sys.modules.items())
        if any(value is variable for value in list(getattr(module, "__dict__", {}).values()))
    ]
    if variable.name == _TAGS and any(name.startswith("llama_index") for name in owners):
        return _TAGS
    if any(
        name.partition(".")[0] in _SILENT_PACKAGES or name.startswith(_SILENT_MODULES)
        for name in owners
    ):
        return None
    if owners:
        return f"{min(owners)}.{variable.name}"
    if variable.name in _SILENT_NAMES or variable.name.startswith(_SILENT_PREFIXES):
        return None
    # Variables that are no module's attribute may share a name.
    return f"{variable.name}@{id(variable)}"
