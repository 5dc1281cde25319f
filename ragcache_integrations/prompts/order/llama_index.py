"""Document order for LlamaIndex."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from pydantic import ConfigDict
from typing_extensions import override

from ragcache_integrations.prompts.order.knobs import OrderKnobs, Retrieved, retrieved

__all__ = ["CacheFriendlyOrder"]


class CacheFriendlyOrder(OrderKnobs, BaseNodePostprocessor):
    """Puts retrieved nodes into the order in which they stand in the prompt.

    The last of a query engine's ``node_postprocessors``::

        order = CacheFriendlyOrder(order="cached_first")
        engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[order])

    The very nodes that came in come out, with their scores, none changed.

    The knobs are those of :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CacheFriendlyOrder"

    def schedule(
        self, requests: Sequence[Sequence[NodeWithScore]]
    ) -> list[tuple[int, list[NodeWithScore]]]:
        """Order the nodes of many requests, and the requests among themselves.

        For a job whose requests are all known, and wait for nobody.

        Args:
            requests: The nodes of each, the most relevant first.

        Returns:
            In the order in which to send them: each request's place in ``requests``, and its nodes
            in order.
        """
        scheduled = self._schedule([_read(one) for one in requests])
        return [(number, _take(requests[number], order)) for number, order in scheduled]

    async def aschedule(
        self, requests: Sequence[Sequence[NodeWithScore]]
    ) -> list[tuple[int, list[NodeWithScore]]]:
        """The async twin of :meth:`schedule`: it computes in a thread."""
        return await asyncio.to_thread(self.schedule, requests)

    def report(self, nodes: Sequence[NodeWithScore], cached_nodes: int) -> None:
        """Tell how much of a prompt that was ordered here its usage reported as cached.

        Args:
            nodes: The prompt's nodes, in the order in which they stood.
            cached_nodes: How many of the first ones were cached, whole or mostly.
        """
        self._report(_read(nodes), cached_nodes)

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return _take(nodes, self._arrange(_read(nodes)))

    @override
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        # It takes microseconds: LlamaIndex's own twin would use a thread.
        return self._postprocess_nodes(nodes, query_bundle)


def _read(nodes: Sequence[NodeWithScore]) -> Retrieved:
    return retrieved(
        (found.node.node_id, found.node.get_content(metadata_mode=MetadataMode.LLM))
        for found in nodes
    )


def _take(nodes: Sequence[NodeWithScore], order: Sequence[int]) -> list[NodeWithScore]:
    return [nodes[place] for place in order]
