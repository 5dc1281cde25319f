"""Cached results of LangChain tools and of nodes of LangGraph."""

from __future__ import annotations

import inspect
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, no_type_check

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

from ragcache_integrations.answers.flow import AWAITING, BLOCKING, Way, finished
from ragcache_integrations.answers.tools import (
    Framework,
    KeptResults,
    Results,
    ToolCalls,
    check_tool,
    declared_part,
)
from ragcache_integrations.errors import ConfigurationError

from .cache import HeardRun, silent
from .values import WATCHED, chosen_names, nameless, names_in, renewed, why_none

if TYPE_CHECKING:
    from ragcache_integrations._arguments import AnswerArguments

__all__ = ["CachedNode", "CachedTool", "cached_node", "cached_tool"]

_COPIED = (
    *("name", "description", "return_direct", "verbose", "tags", "metadata", "extras"),
    *("handle_tool_error", "handle_validation_error", "response_format"),
)


def _attributes(tool: BaseTool) -> dict[str, Any]:
    private, extra = tool.__pydantic_private__ or {}, tool.__pydantic_extra__ or {}
    return {**vars(tool), **private, **extra}


class CachedTool(KeptResults, BaseTool):
    """A tool whose results are served again; made by :func:`cached_tool`.

    Runs of the tool itself are children of its runs, so traces show which calls it was asked for.
    """

    _original: BaseTool = PrivateAttr()
    # With the attributes that the tool had then.
    _copied: tuple[Any, dict[str, Any]] = PrivateAttr(default=(None, {}))
    _calls: ToolCalls[Any] = PrivateAttr()

    def __init__(self, tool: BaseTool, calls: ToolCalls[Any]) -> None:
        copied = {name: getattr(tool, name) for name in _COPIED if hasattr(tool, name)}
        super().__init__(args_schema=tool.args_schema or tool.get_input_schema(), **copied)
        self._original, self._calls = tool, calls

    @property
    def _tool(self) -> BaseTool:
        """The tool as it is now, whose errors come through."""
        copied, before = self._copied
        now = _attributes(self._original)
        if now.keys() != before.keys() or any(now[name] is not before[name] for name in now):
            # An error is no result: it has to come through, and the cached tool handles it.
            inner = {"handle_tool_error": False, "handle_validation_error": False}
            copied = self._original.model_copy(update=inner)
            self._copied = copied, now
        tool: BaseTool = copied
        return tool

    def _run(
        self,
        *texts: str,
        config: RunnableConfig,
        run_manager: CallbackManagerForToolRun | None = None,
        **arguments: Any,
    ) -> Any:
        return finished(self._serve(BLOCKING, texts, config, run_manager, arguments))

    async def _arun(
        self,
        *texts: str,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
        **arguments: Any,
    ) -> Any:
        return await self._serve(AWAITING, texts, config, run_manager, arguments)

    async def _serve(
        self,
        way: Way,
        texts: Sequence[str],
        config: RunnableConfig,
        run: CallbackManagerForToolRun | AsyncCallbackManagerForToolRun | None,
        arguments: dict[str, Any],
    ) -> Any:
        arguments |= zip(self.args, texts, strict=False)  # a text alone is the first argument
        child = config if run is None else patch_config(config, callbacks=run.get_child())
        around = self._calls.flow.watch.surroundings(child)
        called, heard = self._call(arguments), HeardRun()
        artifacts, own = self.response_format != "content", names_in(arguments)

        async def call(way: Way, *, again: bool = False) -> Any:
            tool, given = self._tool, silent(config) if again else heard.within(around)
            output = await way(tool.invoke, tool.ainvoke, called, given)
            if not artifacts:
                return output
            assert isinstance(output, ToolMessage)  # noqa: S101 - the answer to a tool call
            return output.content, output.artifact

        results = Results(
            lambda content: heard.reason or why_none(content),
            lambda result: renewed(result, own),
            lambda result: result[0] if artifacts else result,
        )
        question = self._calls.question(arguments, around)
        return await self._calls.serve(way, question, around, call, results)

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


def cached_tool(
    tool: BaseTool,
    *,
    query_argument: str | None = None,
    embeddings: Embeddings | None = None,
    keep: Callable[[Any], bool] | None = None,
    **knobs: Unpack[AnswerArguments],
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
    calls = ToolCalls(
        _LANGCHAIN,
        tool,
        f"an argument of {tool.name}",
        list(tool.args),
        query_argument,
        embeddings,
        keep,
        knobs,
    )
    return CachedTool(tool, calls)


def _gets_call_id(tool: BaseTool) -> bool:
    fields: dict[str, Any] = getattr(tool.args_schema, "model_fields", None) or {}
    parts = [part for field in fields.values() for part in getattr(field, "metadata", ())]
    return any(part is InjectedToolCallId or type(part) is InjectedToolCallId for part in parts)


class CachedNode(KeptResults, Runnable[Any, Any]):
    """A node of a graph whose results are served again; made by :func:`cached_node`."""

    def __init__(
        self,
        node: Runnable[Any, Any],
        reads: tuple[str, ...],
        calls: ToolCalls[Any],
        written: Any = None,
    ) -> None:
        self.name = node.get_name()
        self._node, self._reads, self._calls = node, reads, calls
        # LangGraph reads the state's schema and the edges of a Command from a node's annotations.
        self.__annotations__ = {} if written is None else dict(written.__annotations__)
        if written is not None:
            self.__wrapped__ = written

    @no_type_check  # LangGraph is to see the annotations of the object, not of its method
    def __call__(self, state, config=None):  # noqa: ANN001, ANN204 - LangGraph reads them
        """Answer as a function would; the same as :meth:`invoke`."""
        return self.invoke(state, config)

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return finished(self._serve(BLOCKING, input, config, kwargs))

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return await self._serve(AWAITING, input, config, kwargs)

    async def _serve(
        self, way: Way, state: Any, config: RunnableConfig | None, arguments: dict[str, Any]
    ) -> Any:
        config, heard = ensure_config(config), HeardRun()
        around = self._calls.flow.watch.surroundings(config)

        async def call(way: Way, *, again: bool = False) -> Any:
            node, given = self._node, silent(config) if again else heard.within(around)
            part = declared_part(state, self._reads)
            return await way(node.invoke, node.ainvoke, part, given, **arguments)

        read = self._read(state)
        question = self._calls.question(read, around, arguments)
        own = names_in(read)
        others = names_in(state) - own

        def served(result: Any) -> Any:
            # A chosen id that the state has may mean that message, which the result replaces.
            return None if chosen_names(result) & others else renewed(result, own)

        results = Results(
            lambda result: heard.reason or why_none(result),
            served,
            never=lambda result: bool(names_in(result) & others),
        )
        return await self._calls.serve(way, question, around, call, results)

    def _read(self, state: Any) -> dict[str, Any]:
        # What the state does not have is left out: a node may take it for something else than None.
        mapping = isinstance(state, Mapping)
        has, get = (operator.contains, operator.getitem) if mapping else (hasattr, getattr)
        return {name: get(state, name) for name in self._reads if has(state, name)}


def cached_node(
    node: Callable[..., Any] | Runnable[Any, Any],
    *,
    reads: Sequence[str],
    query_argument: str | None = None,
    embeddings: Embeddings | None = None,
    keep: Callable[[Any], bool] | None = None,
    **knobs: Unpack[AnswerArguments],
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
            raise ConfigurationError(
                f"a cached node may take the state and its config alone: the node gets "
                f"{', '.join(sorted(others))}, so its results depend on more"
            )
        node = RunnableLambda(node)
    calls = ToolCalls(
        _LANGCHAIN,
        node,
        "a value of reads=",
        reads,
        query_argument,
        embeddings,
        keep,
        knobs,
    )
    return CachedNode(node, tuple(reads), calls, written)


def _written(node: Callable[..., Any]) -> Any:
    """Return the function or method that a node's annotations are written at, if there is one."""
    if inspect.isfunction(node) or inspect.ismethod(node):
        return node
    call = getattr(node, "__call__", None)  # noqa: B004 - LangGraph reads its annotations
    return call if inspect.ismethod(call) else None


def _same(one: Any, other: Any) -> bool:
    return bool(nameless(one) == nameless(other))


_LANGCHAIN: Framework[Any] = Framework(WATCHED, Embeddings, "embeddings", "embed_query", _same)
