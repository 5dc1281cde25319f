"""Cached results of LangChain tools."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
from langchain_core.embeddings import Embeddings
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, patch_config
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from ragcache_integrations.answers.copies import copy_answer
from ragcache_integrations.answers.core import Vector
from ragcache_integrations.answers.knobs import AnswerKnobArguments
from ragcache_integrations.answers.types import AnswerStats
from ragcache_integrations.errors import ConfigurationError

from .calls import ToolCalls

__all__ = ["CachedTool", "cached_tool"]

_COPIED = (
    *("name", "description", "return_direct", "verbose", "tags", "metadata", "extras"),
    *("handle_tool_error", "handle_validation_error", "response_format"),
)


class CachedTool(BaseTool):
    """A tool whose results are served again; made by :func:`cached_tool`.

    Runs of the tool itself are children of its runs, so traces show which calls it was asked for.
    """

    _tool: BaseTool = PrivateAttr()
    _calls: ToolCalls[Any] = PrivateAttr()
    _embeddings: Embeddings | None = PrivateAttr()

    def __init__(
        self, tool: BaseTool, calls: ToolCalls[Any], embeddings: Embeddings | None
    ) -> None:
        copied = {name: getattr(tool, name) for name in _COPIED if hasattr(tool, name)}
        super().__init__(args_schema=tool.args_schema or tool.get_input_schema(), **copied)
        # An error is no result: it has to come through, and is handled out here.
        inner = {"handle_tool_error": False, "handle_validation_error": False}
        self._tool, self._calls = tool.model_copy(update=inner), calls
        self._embeddings = embeddings

    def stats(self) -> AnswerStats:
        """Return what was done so far. Touches memory alone."""
        return self._calls.flow.core.stats()

    def clear(self) -> None:
        """Forget all results."""
        self._calls.flow.core.clear()

    def _run(
        self,
        *,
        config: RunnableConfig,
        run_manager: CallbackManagerForToolRun | None = None,
        **arguments: Any,
    ) -> Any:
        child = _child_config(config, run_manager)
        question = self._calls.question(arguments)
        if question is None:
            return self._result(self._tool.invoke(self._call(arguments), child))
        lookup = self._calls.flow.look_up(question, self._embed_of(question.text))
        if lookup.entry is None:
            result = self._result(self._tool.invoke(self._call(arguments), child))
            if self._calls.keeps(self._content(result)):
                self._calls.flow.keep_copy(lookup, result)
            return result
        silent = patch_config(child, callbacks=None) | {"callbacks": []}
        again = partial(self._tool.invoke, self._call(arguments), silent)
        self._calls.flow.check(lookup, lambda: self._result(again()))
        return copy_answer(lookup.entry.answer)

    async def _arun(
        self,
        *,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
        **arguments: Any,
    ) -> Any:
        child = _child_config(config, run_manager)
        question = self._calls.question(arguments)
        if question is None:
            return self._result(await self._tool.ainvoke(self._call(arguments), child))
        lookup = await self._calls.flow.alook_up(question, self._aembed_of(question.text))
        if lookup.entry is None:
            result = self._result(await self._tool.ainvoke(self._call(arguments), child))
            if self._calls.keeps(self._content(result)):
                self._calls.flow.keep_copy(lookup, result)
            return result
        silent = patch_config(child, callbacks=None) | {"callbacks": []}

        async def again() -> Any:
            return self._result(await self._tool.ainvoke(self._call(arguments), silent))

        plain = partial(self._tool.invoke, self._call(arguments), silent)
        self._calls.flow.check(lookup, lambda: self._result(plain()), again)
        return copy_answer(lookup.entry.answer)

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

    def _content(self, result: Any) -> Any:
        return result if self.response_format == "content" else result[0]

    def _embed_of(self, text: str) -> Callable[[], Vector] | None:
        model = self._embeddings
        return None if model is None else lambda: np.asarray(model.embed_query(text), np.float32)

    def _aembed_of(self, text: str) -> Callable[[], Any] | None:
        model = self._embeddings
        if model is None:
            return None

        async def embed() -> Vector:
            return np.asarray(await model.aembed_query(text), np.float32)

        return embed


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
    runtime, are never cached, nor are errors.

    Args:
        tool: The tool: one that only reads, and whose results may be as old as ``ttl``.
        query_argument: Name of the argument that is a text; ``None``: all arguments must be equal.
        embeddings: Embeds queries; ``None``: only the same words count.
        keep: Returns whether a result is to be kept; ``None``: each that is not empty.
        **knobs: See :class:`~ragcache_integrations.answers.AnswerKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range, or the tool is none, or has no such
            argument.
    """
    if not isinstance(tool, BaseTool):
        msg = f"tool must be a BaseTool, got {tool!r:.100}"
        raise ConfigurationError(msg)
    calls = ToolCalls[Any](tool.name, list(tool.args), query_argument, knobs, keep, _same)
    return CachedTool(tool, calls, embeddings)


def _child_config(
    config: RunnableConfig,
    run: CallbackManagerForToolRun | AsyncCallbackManagerForToolRun | None,
) -> RunnableConfig:
    return config if run is None else patch_config(config, callbacks=run.get_child())


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)
