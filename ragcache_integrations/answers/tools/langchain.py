"""Cached results of LangChain tools."""

from __future__ import annotations

import inspect
import operator
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack, no_type_check

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
from langchain_core.embeddings import Embeddings
from langchain_core.messages import ToolMessage
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableLambda,
    ensure_config,
    patch_config,
)
from langchain_core.tools import BaseTool, InjectedToolCallId
from pydantic import PrivateAttr
from typing_extensions import override

from ragcache_integrations.answers.changes import ChangeWatch
from ragcache_integrations.answers.entries import Question, Vector
from ragcache_integrations.answers.knobs import AnswerKnobArguments
from ragcache_integrations.answers.langchain.heard import HeardRun
from ragcache_integrations.answers.langchain.messages import (
    chosen_names,
    nameless,
    names_in,
    renewed,
)
from ragcache_integrations.answers.langchain.values import WATCHED, why_none
from ragcache_integrations.answers.types import AnswerStats
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import Surroundings

from .calls import Results, ToolCalls, check_parts, check_tool, declared_part

__all__ = ["CachedNode", "CachedTool", "cached_node", "cached_tool"]

_COPIED = (
    *("name", "description", "return_direct", "verbose", "tags", "metadata", "extras"),
    *("handle_tool_error", "handle_validation_error", "response_format"),
)


class _Copied(NamedTuple):
    """A copy of a tool, and the attributes that the tool had then."""

    tool: BaseTool
    attributes: dict[str, Any]


def _copy(tool: BaseTool) -> _Copied:
    attributes = _attributes(tool)
    # An error is no result: it has to come through, and the cached tool handles it.
    inner = {"handle_tool_error": False, "handle_validation_error": False}
    return _Copied(tool.model_copy(update=inner), attributes)


def _attributes(tool: BaseTool) -> dict[str, Any]:
    private, extra = tool.__pydantic_private__ or {}, tool.__pydantic_extra__ or {}
    return {**vars(tool), **private, **extra}


def _is_other(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() != before.keys() or any(now[name] is not before[name] for name in now)


class CachedTool(BaseTool):
    """A tool whose results are served again; made by :func:`cached_tool`.

    Runs of the tool itself are children of its runs, so traces show which calls it was asked for.
    """

    _original: BaseTool = PrivateAttr()
    _copied: _Copied = PrivateAttr()
    _calls: ToolCalls[Any] = PrivateAttr()
    _embeddings: Embeddings | None = PrivateAttr()

    def __init__(
        self, tool: BaseTool, calls: ToolCalls[Any], embeddings: Embeddings | None
    ) -> None:
        copied = {name: getattr(tool, name) for name in _COPIED if hasattr(tool, name)}
        super().__init__(args_schema=tool.args_schema or tool.get_input_schema(), **copied)
        self._original, self._calls, self._embeddings = tool, calls, embeddings
        self._copied = _copy(tool)

    @property
    def _tool(self) -> BaseTool:
        """The tool as it is now, whose errors come through."""
        copied = self._copied
        if _is_other(_attributes(self._original), copied.attributes):
            copied = self._copied = _copy(self._original)
        return copied.tool

    def stats(self) -> AnswerStats:
        """Return what was done so far. Touches memory alone."""
        return self._calls.flow.core.stats()

    def clear(self) -> None:
        """Forget all results."""
        self._calls.flow.core.clear()

    def _run(
        self,
        *texts: str,
        config: RunnableConfig,
        run_manager: CallbackManagerForToolRun | None = None,
        **arguments: Any,
    ) -> Any:
        arguments |= zip(self.args, texts, strict=False)  # a text alone is the first argument
        around = self._calls.flow.watch.surroundings(_child_config(config, run_manager))
        call, silent = self._call(arguments), _silent(config)
        heard = HeardRun()
        return self._calls.serve(
            self._calls.question(arguments, around),
            around,
            _embed_with(self._embeddings),
            lambda: self._result(self._tool.invoke(call, heard.within(around))),
            lambda: self._result(self._tool.invoke(call, silent)),
            self._results(arguments, heard),
        )

    async def _arun(
        self,
        *texts: str,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
        **arguments: Any,
    ) -> Any:
        arguments |= zip(self.args, texts, strict=False)  # as above
        around = self._calls.flow.watch.surroundings(_child_config(config, run_manager))
        call, silent = self._call(arguments), _silent(config)
        heard = HeardRun()

        async def invoke(config: RunnableConfig) -> Any:
            return self._result(await self._tool.ainvoke(call, config))

        return await self._calls.aserve(
            self._calls.question(arguments, around),
            around,
            _aembed_with(self._embeddings),
            lambda: invoke(heard.within(around)),
            lambda: self._result(self._tool.invoke(call, silent)),
            partial(invoke, silent),
            self._results(arguments, heard),
        )

    def _results(self, arguments: dict[str, Any], heard: HeardRun) -> Results[Any]:
        artifacts = self.response_format != "content"
        own = names_in(arguments)
        return Results(
            lambda result: heard.reason or why_none(result[0] if artifacts else result),
            lambda result: renewed(result, own),
        )

    def _call(self, arguments: dict[str, Any]) -> Any:
        """Return a call of the tool whose answer has the artifact, where it makes one."""
        if self.response_format == "content":
            return arguments
        return {
            "type": "tool_call",
            "id": uuid.uuid4().hex,
            "name": self.name,
            "args": arguments,
        }

    def _result(self, output: Any) -> Any:
        if self.response_format == "content":
            return output
        assert isinstance(output, ToolMessage)  # noqa: S101 - the answer to a tool call
        return output.content, output.artifact


def cached_tool(
    tool: BaseTool,
    *,
    query_argument: str | None = None,
    embeddings: Embeddings | None = None,
    keep: Callable[[Any], bool] | None = None,
    **knobs: Unpack[AnswerKnobArguments],
) -> CachedTool:
    """Return a tool that serves the results of earlier calls, for any agent.

    ::

        search = cached_tool(search, query_argument="query", ttl=600)

    Results are those of calls with equal arguments; of the query, case and white space don't count.
    With ``embeddings``, a query in other words gets an earlier result up to a tolerance that is
    learnt, as :class:`~ragcache_integrations.langchain.AnswerCache` does, but only if results of
    near queries turn out to be equal. Arguments that can't be compared, such as an injected
    runtime, are never cached, nor are errors. What the run says of who asks counts: its
    ``context``, ``configurable``, ``metadata`` and tags, and the application's context variables.
    A result of a tool that used the Store, the thread's id or ``interrupt()`` is not kept.

    Args:
        tool: The tool: one that only reads, and whose results may be as old as ``ttl``.
        query_argument: Name of the argument that is a text; ``None``: all arguments must be equal.
        embeddings: Embeds queries; ``None``: only the same words count.
        keep: Returns whether a result is to be kept; ``None``: each that is neither empty nor an
            error, nor of a model whose answer was cut off or filtered.
        **knobs: See :class:`~ragcache_integrations.answers.AnswerKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range, or the tool is none, has no such
            argument, or gets the id of each call.
    """
    check_tool(tool, BaseTool)
    if _gets_call_id(tool):
        msg = f"{tool.name} gets the id of each call, so its results depend on more"
        raise ConfigurationError(msg)
    check_parts(keep, "embeddings", embeddings, Embeddings)
    keeps = keep
    if keep is not None and tool.response_format != "content":
        keeps = _of_content(keep)
    watch = ChangeWatch(tool, WATCHED)
    calls = ToolCalls[Any](
        f"an argument of {tool.name}",
        list(tool.args),
        query_argument,
        knobs,
        keeps,
        _same,
        watch,
        embeddings,
    )
    return CachedTool(tool, calls, embeddings)


def _of_content(keep: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a function of a result with its artifact."""
    return lambda result: keep(result[0])


def _gets_call_id(tool: BaseTool) -> bool:
    fields: dict[str, Any] = getattr(tool.args_schema, "model_fields", None) or {}
    parts = [part for field in fields.values() for part in getattr(field, "metadata", ())]
    return any(part is InjectedToolCallId or type(part) is InjectedToolCallId for part in parts)


class CachedNode(Runnable[Any, Any]):
    """A node of a graph whose results are served again; made by :func:`cached_node`."""

    def __init__(
        self,
        node: Runnable[Any, Any],
        reads: tuple[str, ...],
        calls: ToolCalls[Any],
        embeddings: Embeddings | None,
        written: Any = None,
    ) -> None:
        self.name = node.get_name()
        self._node, self._reads = node, reads
        self._calls, self._embeddings = calls, embeddings
        # LangGraph reads the state's schema and the edges of a Command from a node's annotations.
        self.__annotations__ = {} if written is None else dict(written.__annotations__)
        if written is not None:
            self.__wrapped__ = written

    def stats(self) -> AnswerStats:
        """Return what was done so far. Touches memory alone."""
        return self._calls.flow.core.stats()

    def clear(self) -> None:
        """Forget all results."""
        self._calls.flow.core.clear()

    @no_type_check  # LangGraph is to see the annotations of the object, not of its method
    def __call__(self, state, config=None):  # noqa: ANN001, ANN204 - LangGraph reads them
        """Answer as a function would; the same as :meth:`invoke`."""
        return self.invoke(state, config)

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        config, heard = ensure_config(config), HeardRun()
        around = self._calls.flow.watch.surroundings(config)

        def run(config: RunnableConfig) -> Any:
            return self._node.invoke(declared_part(input, self._reads), config, **kwargs)

        return self._calls.serve(
            self._question(input, around, kwargs),
            around,
            _embed_with(self._embeddings),
            lambda: run(heard.within(around)),
            lambda: run(_silent(config)),
            self._results(input, heard),
        )

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        config, heard = ensure_config(config), HeardRun()
        around = self._calls.flow.watch.surroundings(config)

        def again() -> Any:
            part = declared_part(input, self._reads)
            return self._node.invoke(part, _silent(config), **kwargs)

        async def run(config: RunnableConfig) -> Any:
            return await self._node.ainvoke(declared_part(input, self._reads), config, **kwargs)

        return await self._calls.aserve(
            self._question(input, around, kwargs),
            around,
            _aembed_with(self._embeddings),
            lambda: run(heard.within(around)),
            again,
            lambda: run(_silent(config)),
            self._results(input, heard),
        )

    def _question(
        self, state: Any, around: Surroundings, arguments: dict[str, Any]
    ) -> Question | None:
        return self._calls.question(self._read(state), around, arguments)

    def _read(self, state: Any) -> dict[str, Any]:
        # What the state does not have is left out: a node may take it for something else than None.
        mapping = isinstance(state, Mapping)
        has, get = (operator.contains, operator.getitem) if mapping else (hasattr, getattr)
        return {name: get(state, name) for name in self._reads if has(state, name)}

    def _results(self, state: Any, heard: HeardRun) -> Results[Any]:
        own = names_in(self._read(state))
        others = names_in(state) - own

        def served(result: Any) -> Any:
            # A chosen id that the state has may mean that message, which the result replaces.
            return None if chosen_names(result) & others else renewed(result, own)

        return Results(
            lambda result: heard.reason or why_none(result),
            served,
            lambda result: bool(names_in(result) & others),
        )


def cached_node(
    node: Callable[..., Any] | Runnable[Any, Any],
    *,
    reads: Sequence[str],
    query_argument: str | None = None,
    embeddings: Embeddings | None = None,
    keep: Callable[[Any], bool] | None = None,
    **knobs: Unpack[AnswerKnobArguments],
) -> CachedNode:
    """Return a LangGraph node that serves its earlier results, such as those of a search.

    ::

        search = cached_node(search, reads=["question"], query_argument="question", ttl=600)
        graph.add_node("search", search)

    A result is served again where all values of the state that the node reads are equal, and what
    the run says of who asks, as for :func:`cached_tool`; the query may differ as that of
    :func:`cached_tool`. LangGraph's own ``CachePolicy`` compares the whole state byte for byte.

    Args:
        node: A function of the state, and of the configuration if it likes, or a Runnable: one
            that only reads.
        reads: Names of the state's values that its result depends on, at least one. The node gets
            these alone: if it asks for another one that the state has, the call is refused.
        query_argument: Name of the one that is a text; ``None``: all must be equal.
        embeddings: Embeds queries; ``None``: only the same words count.
        keep: Returns whether a result is to be kept; ``None``: as for :func:`cached_tool`.
        **knobs: See :class:`~ragcache_integrations.answers.AnswerKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range, or the node reads no such value, or
            gets something else that its result may depend on, such as the runtime.
    """
    if isinstance(reads, str) or not reads or not all(isinstance(name, str) for name in reads):
        msg = f"reads must be one or more names of the state's values, got {reads!r:.100}"
        raise ConfigurationError(msg)
    written = None
    if not isinstance(node, Runnable):
        written = _written(node)
        others = set(list(inspect.signature(node).parameters)[1:]) - {"config"}
        if others:
            msg = (
                f"a cached node may take the state and its config alone: the node gets "
                f"{', '.join(sorted(others))}, so its results depend on more"
            )
            raise ConfigurationError(msg)
        node = RunnableLambda(node)
    check_parts(keep, "embeddings", embeddings, Embeddings)
    watch = ChangeWatch(node, WATCHED)
    calls = ToolCalls[Any](
        "a value of reads=", reads, query_argument, knobs, keep, _same, watch, embeddings
    )
    return CachedNode(node, tuple(reads), calls, embeddings, written)


def _written(node: Callable[..., Any]) -> Any:
    """Return the function or method that a node's annotations are written at, if there is one."""
    if inspect.isfunction(node) or inspect.ismethod(node):
        return node
    call = getattr(node, "__call__", None)  # noqa: B004 - LangGraph reads its annotations
    return call if inspect.ismethod(call) else None


def _embed_with(model: Embeddings | None) -> Callable[[str], Vector] | None:
    return None if model is None else lambda text: np.asarray(model.embed_query(text), np.float32)


def _aembed_with(model: Embeddings | None) -> Callable[[str], Awaitable[Vector]] | None:
    if model is None:
        return None

    async def embed(text: str) -> Vector:
        return np.asarray(await model.aembed_query(text), np.float32)

    return embed


def _silent(config: RunnableConfig) -> RunnableConfig:
    """Return a configuration for a run that nobody hears of."""
    return patch_config(config, callbacks=None) | {"callbacks": []}


def _child_config(
    config: RunnableConfig,
    run: CallbackManagerForToolRun | AsyncCallbackManagerForToolRun | None,
) -> RunnableConfig:
    return config if run is None else patch_config(config, callbacks=run.get_child())


def _same(one: Any, other: Any) -> bool:
    return bool(nameless(one) == nameless(other))
