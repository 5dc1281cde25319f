"""The base of both frameworks' LLM classes: from the arguments of a call to its backend."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from pydantic import (
    ConfigDict,
    PrivateAttr,
    SecretStr,
    model_validator,
)
from typing_extensions import override

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable
from ragcache_integrations.core.checks import check_int, check_seconds, check_text, unknown_name
from ragcache_integrations.core.generation import SamplingOptions, Usage
from ragcache_integrations.core.knobs import explained_errors
from ragcache_integrations.core.prompt import (
    NO_TOOLS,
    Prompt,
    PromptDocument,
    Tool,
    check_steps,
    check_tool_choice,
    tools_of,
)
from ragcache_integrations.engine.protocol import MOST_URGENT, CacheSettings
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition import REQUESTS, SEGMENTATIONS, mark_prompt

from .backend import BackendSource, SharedBackends
from .backend_kinds import (
    LOCAL_ENGINE,
    REUSE_KNOBS,
    SERVER,
    USER_BACKEND,
    BackendKind,
    is_modular,
)
from .headers import EXTRA_HEADERS, checked_headers
from .knobs import MODULAR, SAMPLING_KNOBS, LLMKnobs
from .openai import OpenAIServer, strict_form
from .steps import NEXT_STEPS, NO_STEP, STEP, StepHint
from .structured import RESPONSE_FORMAT, format_arguments

__all__ = ["CALL_NAMES", "BaseRAGCacheLLM"]


PRIORITY = "priority"
DEFAULT_MODEL_NAME = "ragcache-default"

NO_MODULAR_TOOLS = (
    "a modular engine calls no tools: it has no grammar, and reads no calls in an answer. Take "
    "another engine for agents"
)

# Read at every call, so that they can be assigned; what an engine is made from cannot.
_ASSIGNABLE = frozenset(
    {*SAMPLING_KNOBS, "namespace", "timeout", "find_documents", STEP, NEXT_STEPS}
)
_SERVICES = frozenset(
    {"engine", "shared_state", "cache", "callbacks", "callback_manager", "rate_limiter"}
)

_SECRETS = frozenset({"api_key", "default_headers"})

_OPTION_NAMES = tuple(field.name for field in fields(SamplingOptions))
CALL_NAMES = (
    *_OPTION_NAMES,
    *("namespace", "timeout", "documents", "tools", *REUSE_KNOBS, PRIORITY, STEP, NEXT_STEPS),
    *(EXTRA_HEADERS, RESPONSE_FORMAT),
)


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of one call, checked."""

    options: SamplingOptions
    namespace: str
    timeout: float | None
    documents: tuple[PromptDocument, ...]
    headers: dict[str, SecretStr]
    tools: tuple[Tool, ...]
    reuse: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """What every method of a backend takes besides the prompt.

        Headers are a server's alone, and not every backend reuses documents as a call says.
        """
        shared = {"options": self.options, "namespace": self.namespace, "timeout": self.timeout}
        return shared | self.reuse | ({"headers": self.headers} if self.headers else {})


class BaseRAGCacheLLM(Closeable, AsyncCloseable, LLMKnobs):
    """An LLM object, without its framework; nothing starts before the first call.

    An LLM object has one of four backends: ``engine=``, an engine that you already have;
    ``engine="modular"``, a model in this process that reuses documents' KV at any position, as
    ``strategy`` says; ``base_url=``, a server that speaks the OpenAI protocol; or by default a
    local engine, which is started at the first call from ``model`` and the knobs that
    :class:`~ragcache_integrations.engine.RAGCacheEngine` has under the same names. LLM objects
    with the same settings share an engine, even if their strategies differ; it ends when the last
    of them is closed or collected. An engine of yours is never closed.

    A call may override every sampling knob, ``namespace``, ``timeout``, ``reuse``,
    ``link_tokens``, ``step`` and ``next_steps``. It may also have ``priority`` (requests with lower
    numbers go first, and keep their documents longer), ``json_schema``, ``strict``, ``choice`` and
    ``ignore_eos`` (see :class:`~ragcache_integrations.engine.SamplingOptions`),
    ``response_format`` (a schema in OpenAI's form) and ``documents``: the retrieved documents,
    whose text is verbatim in the prompt, so that their KV caches are kept by document.
    With this argument, even an empty list, no other documents are searched for. ``tools`` are
    definitions of functions in OpenAI's form, with ``tool_choice`` and ``parallel_tool_calls``; the
    frameworks' own methods for tools pass them. ``extra_headers``
    are HTTP headers of that call, only for a server; they override ``default_headers`` of the same
    name. Traces, errors and cached answers hide their values like the key. If you bind them to a
    Runnable of LangChain, use ``SecretStr``, because the Runnable shows its bound arguments.

    Raises:
        ConfigurationError: A knob is unknown, out of range or excludes another one.
    """

    # Listed last among the bases, this wins over the frameworks' own settings.
    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    _source: BackendSource = PrivateAttr()
    _is_first: bool = PrivateAttr(default=False)

    def __init__(self, *args: Any, **knobs: Any) -> None:
        with explained_errors(type(self), secrets=_SECRETS):
            super().__init__(*args, **knobs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ASSIGNABLE:
            value = getattr(self.model_copy(update={name: value}), name)
        elif name in LLMKnobs.model_fields:
            raise ConfigurationError(
                f"{name} cannot be changed on a finished {type(self).__name__}: "
                f"make another one by model_copy(update={{{name!r}: ...}})"
            )
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        """Whether class, settings and the user's engine are the same."""
        if type(other) is not type(self):
            return NotImplemented
        names = type(self).model_fields.keys() - (_SERVICES - {"engine"})
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]  # settings can be assigned

    @model_validator(mode="after")
    def _check_knobs(self) -> Self:
        if self.device is not None and self.engine != MODULAR:
            raise ConfigurationError(f'device is for engine="{MODULAR}": other engines find theirs')
        if self.strategy is not None and not self._kind.is_modular:
            msg = f'strategy needs engine="{MODULAR}" or a ModularEngine: others are exact'
            raise ConfigurationError(msg)
        if self.default_headers and self.base_url is None:
            msg = "default_headers are for base_url: a local engine is sent none"
            raise ConfigurationError(msg)
        self._kind.check(self)
        self._call(None, {})  # checks the sampling knobs
        self._start()
        return self

    @property
    def model_name(self) -> str:
        """The model's name in traces, which is known before anything is started."""
        if self.engine is None or isinstance(self.engine, str):
            return self.model or DEFAULT_MODEL_NAME
        return self.engine.model

    @override
    def close(self) -> None:
        """Release the engine or the connections; further calls raise ``EngineClosedError``.

        A local engine ends with the last LLM object that shares it; an engine of yours stays open.
        Copies of this object are closed with it, and so is everything that was started for them; a
        copy's ``close`` ends nothing that others use.
        """
        for source in self._released():
            source.close()

    @override
    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        for source in self._released():
            await source.aclose()

    def pin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        namespace: str | None = None,
    ) -> Usage:
        """Keep documents' KV caches in the GPU under any load.

        Args:
            documents: Documents or nodes of the framework, texts, or a prompt of ours. They stay at
                one place: after ``system``, in this order.
            ttl: Seconds; ``None`` until :meth:`unpin`.
            system: System text before the documents.
            namespace: The tenant; the object's own if ``None``.

        Raises:
            ConfigurationError: There would be no room for the longest request, or the tenant's
                pins would exceed its quota; or this is no local engine with a knowledge tree. A
                server takes the field ``pin`` of a request.
        """
        call = {"ttl": ttl, "system": system, "namespace": self._tenant(namespace)}
        usage: Usage = _pinning(self._source.get()).pin(documents, **call)
        return usage

    async def apin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        namespace: str | None = None,
    ) -> Usage:
        """Async version of :meth:`pin`."""
        call = {"ttl": ttl, "system": system, "namespace": self._tenant(namespace)}
        usage: Usage = await _pinning(await self._source.aget()).apin(documents, **call)
        return usage

    def unpin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        system: str = "",
        namespace: str | None = None,
    ) -> bool:
        """Let pinned documents be evicted again; whether they were pinned."""
        call = {"system": system, "namespace": self._tenant(namespace)}
        return bool(_pinning(self._source.get()).unpin(documents, **call))

    async def aunpin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        system: str = "",
        namespace: str | None = None,
    ) -> bool:
        """Async version of :meth:`unpin`."""
        call = {"system": system, "namespace": self._tenant(namespace)}
        return bool(await _pinning(await self._source.aget()).aunpin(documents, **call))

    def _tenant(self, namespace: str | None) -> str:
        return self.namespace if namespace is None else namespace

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Make an object with other settings, checked as on construction.

        It uses the same engine if the changed settings allow it. Otherwise it uses another one,
        which is started once for all copies with these settings, and ends when this object is
        closed or all of them are collected.

        Args:
            update: The settings to change, by name.
            deep: Whether the settings' values are copied, too. Engines never are.

        Raises:
            ConfigurationError: A setting is unknown or out of its range.
        """
        copied = copy.deepcopy(self) if deep else copy.copy(self)
        if update:
            values = {name: getattr(copied, name) for name in type(self).model_fields}
            was_set = copied.model_fields_set | update.keys()
            with explained_errors(type(self), secrets=_SECRETS):
                # As the constructor does, which a subclass may have given other arguments.
                type(self).__pydantic_validator__.validate_python(
                    values | dict(update), self_instance=copied
                )
            object.__setattr__(copied, "__pydantic_fields_set__", was_set)
        return copied

    def __copy__(self) -> Self:
        copied: Self = super().__copy__()
        copied._join()
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        # Engines, handlers and the like stand for something outside, and many cannot be copied.
        for name in _SERVICES & self.__dict__.keys():
            memo[id(self.__dict__[name])] = self.__dict__[name]
        copied = self.__copy__()
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        if not isinstance(self.engine, str | None):
            raise TypeError(
                f"a {type(self).__name__} that was given an engine cannot be pickled, since an "
                "engine cannot leave its process: give the engine's settings instead of engine=, "
                "such as model and kv_cache_gib, and a copy starts one at its first call; or "
                "base_url for a server"
            )
        state = super().__getstate__()
        private = state["__pydantic_private__"] or {}
        without = {name: value for name, value in private.items() if name != "_source"}
        fields = {**state["__dict__"], "shared_state": None}
        return {**state, "__dict__": fields, "__pydantic_private__": without}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        self._start()

    # For the adapters.

    def _check_tools(self, call: dict[str, Any]) -> None:
        """Check the arguments of calls with tools, as far as is known before anything is started.

        Raises:
            ConfigurationError: An argument is wrong, or the model has not learnt to call tools.
        """
        checked = self._call(None, call)
        backend = self._source.peek()
        if checked.tools and backend is not None and not getattr(backend, "supports_tools", False):
            raise ConfigurationError(NO_TOOLS)

    def _known_window(self) -> int | None:
        """The context window as far as it is known before anything is started or asked."""
        if self.max_model_len is not None or self.engine is None:
            return self.max_model_len
        if self.engine == MODULAR or isinstance(self.engine, OpenAIServer):
            return None
        window = getattr(self.engine, "max_model_len", None)
        return window if isinstance(window, int) else None

    def _watch_retrievers(self) -> None:
        """Make the framework report the documents of its retrievers, in the whole process.

        Called for every object that finds documents, so that it must be idempotent.
        """

    def _identity(self) -> dict[str, Any]:
        """Values on which answers depend, without keys; they are known before anything runs."""
        sampling = {name: getattr(self, name) for name in SAMPLING_KNOBS}
        place = {"model_name": self.model_name, "base_url": self.base_url}
        return {**place, "namespace": self.namespace, **sampling, **self._kind.identity(self)}

    def _stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def _ready(
        self,
        prompt: Prompt,
        stop: Sequence[str] | None,
        call: dict[str, Any],
        run: Hashable | None = None,
    ) -> tuple[Prompt, dict[str, Any]]:
        """Mark the documents of a prompt, and check the arguments of its call.

        Args:
            prompt: The prompt.
            stop: Stop strings instead of the knob's; ``None`` for the knob's.
            call: Arguments of this call alone; ``documents`` are already translated.
            run: The framework's run around this call, see
                :class:`~ragcache_integrations.prompts.recognition.requests.Requests`.

        Returns:
            The prompt, and the other arguments for the backend's methods.
        """
        (marked,), arguments = self._ready_all([prompt], stop, call, [run])
        return marked, arguments

    def _ready_all(
        self,
        prompts: Sequence[Prompt],
        stop: Sequence[str] | None,
        call: dict[str, Any],
        runs: Sequence[Hashable | None],
    ) -> tuple[list[Prompt], dict[str, Any]]:
        """The same for prompts that are answered together, with a run for each of them."""
        checked = self._call(stop, call)
        searched = self.find_documents and call.get("documents") is None
        ready = []
        for bare, run in zip(prompts, runs, strict=True):
            prompt = replace(bare, tools=checked.tools) if checked.tools else bare
            marked = mark_prompt(prompt, checked.documents)
            if searched and not marked.documents:
                marked = REQUESTS.mark(marked, run, checked.namespace)
            if self.find_documents:
                marked = SEGMENTATIONS.settle(prompt, marked, checked.namespace)
            ready.append(marked)
        return ready, checked.arguments

    def _call(self, stop: Sequence[str] | None, call: dict[str, Any]) -> _Call:
        unknown = sorted(set(call) - set(CALL_NAMES))
        if unknown:
            raise ConfigurationError(unknown_name("argument", unknown[0], CALL_NAMES))
        knobs = {name: getattr(self, name) for name in SAMPLING_KNOBS}
        call = {**({} if stop is None else {"stop": stop}), **call}
        if call.get(RESPONSE_FORMAT) is not None:
            said = format_arguments(call[RESPONSE_FORMAT])
            if "json_schema" in said and call.get("json_schema") is not None:
                msg = f"{RESPONSE_FORMAT} and json_schema exclude each other, both were given"
                raise ConfigurationError(msg)
            call = {**call, **said}
        options = SamplingOptions(**knobs | {n: call[n] for n in _OPTION_NAMES if n in call})
        namespace = check_text("namespace", call.get("namespace", self.namespace))
        timeout = call.get("timeout", self.timeout)
        check_seconds("timeout", timeout)
        if options.needs_grammar and self._kind.is_modular:
            msg = "json_schema and choice need a grammar, which a modular engine has none of"
            raise ConfigurationError(msg)
        if options.strict and self.base_url is not None:
            strict_form(options)  # checks it
        tools = tools_of(call.get("tools"))
        if options.tool_choice != "auto":
            check_tool_choice(options.tool_choice, tools)
        if tools and self._kind.is_modular:
            raise ConfigurationError(NO_MODULAR_TOOLS)
        headers = checked_headers(call.get(EXTRA_HEADERS))
        if headers and not (self.base_url or getattr(self.engine, "takes_headers", False)):
            msg = f"{EXTRA_HEADERS} are for base_url: a local engine is sent none"
            raise ConfigurationError(msg)
        documents = _documents(call.get("documents"))
        reuse = self._reuse(call) | self._steps(call)
        return _Call(options, namespace, timeout, documents, headers, tools, reuse)

    def _reuse(self, call: dict[str, Any]) -> dict[str, Any]:
        """How a call's documents are kept and reused, if it is not the backend that knows."""
        own = {name: call[name] for name in REUSE_KNOBS if call.get(name) is not None}
        if own:
            CacheSettings(**own)  # checks them
        if call.get(PRIORITY) is not None:
            own[PRIORITY] = check_int(PRIORITY, call[PRIORITY], -MOST_URGENT, MOST_URGENT)
        if own and not self._takes_reuse:
            names = " and ".join(own)
            raise ConfigurationError(f"{names} of a call: this engine has no such choice")
        if self.base_url is None or own.get("reuse") == "prefix":
            return own
        return self._kind.reuse(self) | own

    def _steps(self, call: dict[str, Any]) -> dict[str, Any]:
        """The step that a call is, and those that come next, if anybody has said so."""
        own = {name: getattr(self, name) for name in (STEP, NEXT_STEPS)}
        own |= {name: call[name] for name in own if call.get(name) is not None}
        step, coming = check_steps(own[STEP], own[NEXT_STEPS] or {})
        if step and not self._takes_reuse:
            msg = f"{STEP} is for an engine with a knowledge tree, which this one has not"
            raise ConfigurationError(msg)
        hint = StepHint(step, dict(coming)) if step else self._step_hint()
        if not hint.step or not self._takes_reuse:
            return {}
        return {STEP: hint.step, NEXT_STEPS: hint.next_steps}

    def _step_hint(self) -> StepHint:
        """What the framework's workflow around this call says of it."""
        return NO_STEP

    @property
    def _takes_reuse(self) -> bool:
        """Whether a call may say how its KV caches are kept and reused."""
        return self.engine is None or getattr(self.engine, "takes_reuse", False)

    @property
    def _kind(self) -> BackendKind:
        engine: object = self.engine
        if engine == MODULAR or is_modular(engine):
            from ragcache_integrations import modular  # noqa: PLC0415 - another distribution's

            kind: BackendKind = getattr(
                modular, "USER_MODULAR" if is_modular(engine) else "MODULAR_MODEL"
            )
            return kind
        if engine is not None:
            return USER_BACKEND
        return LOCAL_ENGINE if self.base_url is None else SERVER

    def _start(self) -> None:
        if self.shared_state is None:
            self.__dict__["shared_state"] = shared = SharedBackends()
            self._is_first = True
            self._source = self._kind.source(self, shared)
        elif isinstance(self.shared_state, SharedBackends):
            self._join()
        else:
            msg = f"shared_state is not to be given, got {self.shared_state!r:.100}"
            raise ConfigurationError(msg)
        if self.find_documents:
            self._watch_retrievers()

    def _join(self) -> None:
        """Become one of those that share with the object that this one was made from."""
        self._is_first = False
        self._source = self._kind.source(self, self.shared_state)

    def _released(self) -> list[BackendSource]:
        """The sources that are closed with this object."""
        shared: SharedBackends = self.shared_state
        return shared.release_all() if self._is_first else shared.release(self._source)


def _documents(documents: object) -> tuple[PromptDocument, ...]:
    listed = [] if documents is None else documents
    if isinstance(listed, list | tuple):
        marked = [PromptDocument(doc) if isinstance(doc, str) else doc for doc in listed if doc]
        if all(isinstance(document, PromptDocument) for document in marked):
            return tuple(marked)
    msg = f"documents must be a list of documents or strings, got {documents!r:.100}"
    raise ConfigurationError(msg)


def _pinning(backend: Any) -> Any:
    if not hasattr(backend, "pin"):
        raise ConfigurationError(
            f"documents are pinned in a local engine, got {type(backend).__name__}: send the field "
            "`pin` in a request to `ragcache serve`"
        )
    return backend
