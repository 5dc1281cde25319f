"""Document order for LlamaIndex."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from pydantic import ConfigDict
from typing_extensions import override

from .knobs import (
    OrderKnobs,
    RequestDocuments,
    request_documents,
)

__all__ = ["CacheFriendlyOrder"]


class CacheFriendlyOrder(OrderKnobs, BaseNodePostprocessor):
    """Orders retrieved nodes for the prompt.

    Make it the last of a query engine's ``node_postprocessors``::

        order = CacheFriendlyOrder(order="cached_first")
        engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[order])

    The nodes themselves and their scores are not changed. The knobs are those of
    :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CacheFriendlyOrder"

    def report(self, nodes: Sequence[NodeWithScore], cached_nodes: int) -> None:
        """Report how much of a prompt that was ordered here was cached.

        Args:
            nodes: The prompt's nodes, in the order of the prompt.
            cached_nodes: How many of the first ones were cached, completely or mostly, by the
                usage that the server reported.
        """
        self._report(nodes, cached_nodes)

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._arrange(nodes)

    @override
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        # LlamaIndex's own method would use a thread, which microseconds of work don't need.
        return self._arrange(nodes)

    @override
    def _read(self, documents: Sequence[NodeWithScore]) -> RequestDocuments:
        return request_documents(
            (item.node.node_id, item.node.get_content(metadata_mode=MetadataMode.LLM))
            for item in documents
        )
