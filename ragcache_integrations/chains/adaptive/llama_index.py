"""Per-query configuration as a LlamaIndex query engine: an adapter of AdaptivePipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.adaptive import AdaptiveAnswer, Explanation, SynthesisPrompts
from ragcache_integrations.adaptive.profile import adraft_corpus, draft_corpus
from ragcache_integrations.adaptive.synthesis import DEFAULT_PROMPTS
from ragcache_integrations.chains.llama_index import (
    Answer,
    LlamaIndexAsker,
    RetrieverEngine,
    texts_before,
)
from ragcache_integrations.core.flows import Call, Flow, aoutputs, outputs
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.prompts.llama_index import node_documents

from .knobs import AdaptiveKnobs

if TYPE_CHECKING:
    from ragcache_integrations._arguments import AdaptiveArguments

__all__ = ["COST_METADATA", "EXPLAIN_METADATA", "AdaptiveQueryEngine"]

EXPLAIN_METADATA = "explain"
"""Key of the :class:`~ragcache_integrations.adaptive.Explanation` in the metadata of a response."""

COST_METADATA = "cost"
"""Key of the :class:`~ragcache_integrations.adaptive.AdaptiveCost` in the metadata."""

SYNTHESIS_METADATA = "synthesis"


class AdaptiveQueryEngine(RetrieverEngine):
    """Chooses for each question how many nodes to read, and in which way (RAGServe).

    Drop-in replacement for ``RetrieverQueryEngine``::

        query_engine = AdaptiveQueryEngine.from_args(
            index.as_retriever(similarity_top_k=18), llm=llm, corpus="Articles of Wikipedia."
        )
        response = query_engine.query("why did the voyager 1 leave the solar system")
        str(response), str(response.metadata["explain"])

    A profiler determines what a question needs while its nodes are being retrieved. Of the suitable
    configurations, the largest one is used that fits into the free memory, so that the question
    doesn't have to queue. The number of nodes that LlamaIndex's retrievers find doesn't depend on
    the question: let yours find as many as the most demanding question needs, 18.

    The response has the nodes that were read as ``source_nodes``. Its metadata has, besides that of
    the nodes, the chosen configuration with reasons under :data:`EXPLAIN_METADATA`, its cost under
    :data:`COST_METADATA`, and a :class:`~ragcache_integrations.adaptive.Synthesised` under
    ``synthesis``. For a streaming response they are complete when the stream has ended.

    Args:
        retriever: Finds the nodes.
        llm: Answers; ``None`` for LlamaIndex's ``Settings.llm``.
        profiler_llm: Profiles questions; ``None`` for ``llm``.
        embeddings: Embeds questions: similar questions share a profile. ``None`` for no sharing.
        prompts: The prompts of the synthesis.
        node_postprocessors: Applied to the nodes before some of them are chosen.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.
        **knobs: See :class:`~ragcache_integrations.chains.adaptive.knobs.AdaptiveKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    _argument_names: ClassVar[tuple[str, ...]] = (
        *RetrieverEngine._argument_names,  # noqa: SLF001 - of the base class
        *("llm", "profiler_llm", "embeddings", "prompts"),
    )

    def __init__(
        self,
        retriever: BaseRetriever,
        *,
        llm: LLM | None = None,
        profiler_llm: LLM | None = None,
        embeddings: BaseEmbedding | None = None,
        prompts: SynthesisPrompts = DEFAULT_PROMPTS,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **knobs: Unpack[AdaptiveArguments],
    ) -> None:
        adaptive_knobs = self._knobs = read_knobs(AdaptiveKnobs, knobs)
        self._llm = llm or Settings.llm
        self._profiler_llm = profiler_llm
        self._embeddings = embeddings
        self._prompts = prompts
        self._profiler_asker = LlamaIndexAsker(profiler_llm or self._llm)
        own = self._llm if isinstance(self._llm, BaseRAGCacheLLM) else None
        embed = None if embeddings is None else embeddings.get_query_embedding
        profilers = adaptive_knobs._profilers(self._profiler_asker, embed)  # noqa: SLF001 - for the adapters
        self._pipeline = adaptive_knobs._make_pipeline(  # noqa: SLF001 - for the adapters
            LlamaIndexAsker(self._llm), prompts, own, profilers
        )
        super().__init__(
            retriever, node_postprocessors, streaming=streaming, callback_manager=callback_manager
        )

    def draft_corpus(self, nodes: Sequence[BaseNode | str]) -> str:
        """Draft a value of ``corpus`` from some of the nodes, by the profiler's model."""
        return draft_corpus(self._profiler_asker, _texts(nodes))

    async def adraft_corpus(self, nodes: Sequence[BaseNode | str]) -> str:
        """Async version of :meth:`draft_corpus`."""
        return await adraft_corpus(self._profiler_asker, _texts(nodes))

    def close(self) -> None:
        """Stop golden feedback in the background; questions are still answered. Idempotent."""
        self._pipeline.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        await self._pipeline.aclose()

    # Of the events that a synthesizer reports, ours are around the search, too.

    def _respond(self, query: QueryBundle) -> RESPONSE_TYPE:
        with self._synthesis(query) as pending:
            (answer,) = outputs(self._answer(query))
            pending.response = self._response(answer)
        return pending.response

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        with self._synthesis(query) as pending:
            (answer,) = [output async for output in aoutputs(self._answer(query))]
            pending.response = await self._aresponse(answer)
        return pending.response

    def _answer(self, query: QueryBundle) -> Flow:
        question = _Question(self, query)
        pipeline, asked = self._pipeline, query.query_str
        retrieve, aretrieve = question.retrieve, question.aretrieve
        if self._streaming:
            stream, astream = pipeline.stream(asked, retrieve), pipeline.astream(asked, aretrieve)
            question.begin((yield Call(partial(next, stream), partial(anext, astream))))
            texts = texts_before(stream, astream, question.end)
        else:
            answer = yield Call(
                partial(pipeline.answer, asked, retrieve),
                partial(pipeline.aanswer, asked, aretrieve),
            )
            question.begin(answer.explanation)
            question.end(answer)
            texts = (text for text in (answer.text,))
        yield Answer(texts, question.read, question.metadata)


class _Question:
    """A question, for the framework-free pipeline."""

    def __init__(self, engine: AdaptiveQueryEngine, query: QueryBundle) -> None:
        self._engine = engine
        self._query = query
        self._nodes: list[NodeWithScore] = []
        self.read: list[NodeWithScore] = []
        self.metadata: dict[str, Any] = {}

    def retrieve(self, question: str, count: int) -> list[PromptDocument]:  # noqa: ARG002 - the core's
        """Find nodes."""
        return self._read_nodes(self._engine.retrieve(self._query))

    async def aretrieve(self, question: str, count: int) -> list[PromptDocument]:  # noqa: ARG002 - the core's
        """Async version of :meth:`retrieve`."""
        return self._read_nodes(await self._engine.aretrieve(self._query))

    def begin(self, explanation: Explanation) -> None:
        """Read the explanation, with which a stream begins."""
        self.read = self._nodes[: explanation.config.num_chunks]
        self.metadata |= {item.node.node_id: item.node.metadata for item in self.read}
        self.metadata[EXPLAIN_METADATA] = explanation

    def end(self, answer: AdaptiveAnswer) -> None:
        """Read the result that a stream ends with."""
        self.metadata[COST_METADATA] = answer.cost
        self.metadata[SYNTHESIS_METADATA] = answer.synthesised

    def _read_nodes(self, nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
        self._nodes = list(nodes)
        return node_documents(self._nodes)


def _texts(nodes: Sequence[BaseNode | str]) -> list[str]:
    return [n if isinstance(n, str) else n.get_content(MetadataMode.NONE) for n in nodes]
