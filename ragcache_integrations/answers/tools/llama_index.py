"""Cached results of LlamaIndex tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.tools import (
    AsyncBaseTool,
    BaseTool,
    ToolMetadata,
    ToolOutput,
    adapt_to_async_tool,
)
from llama_index.core.tools.function_tool import FunctionTool
from typing_extensions import override

from ragcache_integrations.answers.changes import ChangeWatch
from ragcache_integrations.answers.entries import Question, Vector
from ragcache_integrations.answers.knobs import AnswerKnobArguments
from ragcache_integrations.answers.llama_index import HeardModels, renewed, why_none
from ragcache_integrations.answers.types import AnswerStats
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import Surroundings

from .calls import Results, ToolCalls, check_parts, check_tool

__all__ = ["CachedTool", "cached_tool"]


class CachedTool(AsyncBaseTool):
    """A tool whose results are served again; made by :func:`cached_tool`."""

    def __init__(
        self,
        tool: AsyncBaseTool,
        calls: ToolCalls[ToolOutput],
        embed_model: BaseEmbedding | None,
    ) -> None:
        self._tool, self._calls, self._embed_model = tool, calls, embed_model

    @property
    @override
    def metadata(self) -> ToolMetadata:
        return self._tool.metadata

    def stats(self) -> AnswerStats:
        """Return what was done so far. Touches memory alone."""
        return self._calls.flow.core.stats()

    def clear(self) -> None:
        """Forget all results."""
        self._calls.flow.core.clear()

    @override
    def call(self, *args: Any, **kwargs: Any) -> ToolOutput:
        again = partial(self._tool.call, *args, **kwargs)
        embed = None if self._embed_model is None else self._embed
        around = self._calls.flow.watch.surroundings()
        heard = HeardModels()

        def call() -> ToolOutput:
            with heard.listening():
                return again()

        question = self._question(args, kwargs, around)
        return self._calls.serve(question, around, embed, call, again, _results(heard))

    @override
    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        call = partial(self._tool.call, *args, **kwargs)
        aagain = partial(self._tool.acall, *args, **kwargs)
        aembed = None if self._embed_model is None else self._aembed
        around = self._calls.flow.watch.surroundings()
        heard = HeardModels()

        async def acall() -> ToolOutput:
            with heard.listening():
                return await aagain()

        question = self._question(args, kwargs, around)
        return await self._calls.aserve(
            question, around, aembed, acall, call, aagain, _results(heard)
        )

    def _embed(self, text: str) -> Vector:
        assert self._embed_model is not None  # noqa: S101 - passed on only if there is a model
        return np.asarray(self._embed_model.get_query_embedding(text), np.float32)

    async def _aembed(self, text: str) -> Vector:
        assert self._embed_model is not None  # noqa: S101 - as in _embed
        return np.asarray(await self._embed_model.aget_query_embedding(text), np.float32)

    def _question(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], around: Surroundings
    ) -> Question | None:
        schema = self.metadata.fn_schema
        names = () if schema is None else tuple(schema.model_fields)
        by_place = dict(zip(names, args, strict=False))
        return self._calls.question(by_place | kwargs, around, {"more": args[len(names) :]})


def cached_tool(
    tool: BaseTool,
    *,
    query_argument: str | None = None,
    embed_model: BaseEmbedding | None = None,
    keep: Callable[[Any], bool] | None = None,
    **knobs: Unpack[AnswerKnobArguments],
) -> CachedTool:
    """Return a tool that serves the results of earlier calls, for any agent.

    ::

        search = cached_tool(search, query_argument="query", ttl=600)

    Results are those of calls with equal arguments; of the query, case and white space don't count.
    With ``embed_model``, a query in other words gets an earlier result up to a tolerance that is
    learnt, as :class:`~ragcache_integrations.llama_index.AnswerCache` does, but only if results of
    near queries turn out to be equal. Arguments that can't be compared are never cached, nor are
    errors. The application's context variables and instrumentation tags count. A result of a tool
    that used the workflow's context is not kept.

    Args:
        tool: The tool: one that only reads, and whose results may be as old as ``ttl``.
        query_argument: Name of the argument that is a text; ``None``: all arguments must be equal.
        embed_model: Embeds queries; ``None``: only the same words count.
        keep: Returns whether a raw result is to be kept; ``None``: each that is not empty, nor of a
            model whose answer was cut off or filtered.
        **knobs: See :class:`~ragcache_integrations.answers.AnswerKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range, the tool is none, has no such
            argument, or needs the workflow's context.
    """
    check_tool(tool, BaseTool)
    if isinstance(tool, FunctionTool) and tool.requires_context:
        msg = f"{tool.metadata.name} gets the workflow's context, so its results depend on more"
        raise ConfigurationError(msg)
    schema = tool.metadata.fn_schema
    names = [] if schema is None else list(schema.model_fields)
    check_parts(keep, "embed_model", embed_model, BaseEmbedding)
    calls = ToolCalls[ToolOutput](
        f"an argument of {tool.metadata.name}",
        names,
        query_argument,
        knobs,
        None if keep is None else _of_output(keep),
        _same,
        ChangeWatch(tool, ("llama_index",)),
        embed_model,
    )
    return CachedTool(adapt_to_async_tool(tool), calls, embed_model)


def _of_output(keep: Callable[[Any], bool]) -> Callable[[ToolOutput], bool]:
    """Return a function of a tool's output, whose errors are never kept."""
    return lambda output: not output.is_error and bool(keep(output.raw_output))


def _results(heard: HeardModels) -> Results[ToolOutput]:
    def why(output: ToolOutput) -> str | None:
        reason = "the tool failed" if output.is_error else heard.reason
        return reason or why_none(output.raw_output)

    return Results(why, renewed)


def _same(one: ToolOutput, other: ToolOutput) -> bool:
    return bool(one.raw_output == other.raw_output)
