"""Per-query configuration as a LlamaIndex query engine: an adapter of AdaptivePipeline."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, Unpack

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.synthesis import (
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    Explanation,
    SynthesisPrompts,
    adraft_corpus,
    draft_corpus,
)
from ragcache_integrations.adaptive.synthesis.prompts import DEFAULT_PROMPTS
from ragcache_integrations.chains.adaptive.knobs import AdaptiveArguments, read_adaptive_knobs
from ragcache_integrations.chains.askers.llama_index import LlamaIndexAsker
from ragcache_integrations.chains.copying import CopiedBySettings
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.llms.knobs import LLMKnobs

__all__ = ["COST_METADATA", "EXPLAIN_METADATA", "AdaptiveQueryEngine"]

EXPLAIN_METADATA = "explain"
"""Key of the :class:`~ragcache_integrations.adaptive.Explanation` in the metadata of a response."""

COST_METADATA = "cost"
"""Key of the :class:`~ragcache_integrations.adaptive.AdaptiveCost` likewise."""

SYNTHESIS_METADATA = "synthesis"

dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]  # re-exported untyped


class AdaptiveQueryEngine(CopiedBySettings, BaseQueryEngine):
    """Reads as many nodes, in the way, that each question takes and the memory allows (RAGServe).

    Takes the place of ``RetrieverQueryEngine``::

        query_engine = AdaptiveQueryEngine.from_args(
            index.as_retriever(similarity_top_k=18), llm=llm, corpus="Articles of Wikipedia."
        )
        response = query_engine.query("why did the voyager 1 leave the solar system")
        str(response), str(response.metadata["explain"])

    A profiler says what a question needs while its nodes are being retrieved. Of the
    configurations that suit, the largest that fits the free memory is taken, so that the question
    need not queue. LlamaIndex's retrievers cannot be told how many nodes to find by the question:
    have yours find as many as the most demanding one takes, 18.

    The response has the nodes that were read as ``source_nodes`` and, besides their metadata,
    under :data:`EXPLAIN_METADATA` which configuration was chosen and why, under
    :data:`COST_METADATA` what it cost, and under ``synthesis`` a
    :class:`~ragcache_integrations.adaptive.Synthesised`; of a streaming response they are complete
    when the stream has ended.

    Args:
        retriever: Finds the nodes.
        llm: Answers; LlamaIndex's ``Settings.llm`` where ``None``.
        profiler_llm: Says what a question needs; ``llm`` where ``None``.
        embeddings: Of questions: those close to one asked before share its profile.
        prompts: What is asked.
        node_postprocessors: Applied to the nodes before they are chosen from.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.
        **knobs: See :class:`~ragcache_integrations.chains.adaptive.knobs.AdaptiveKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """

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
        if not isinstance(retriever, BaseRetriever):
            msg = f"retriever must be a BaseRetriever, got {retriever!r:.100}"
            raise ConfigurationError(msg)
        read = read_adaptive_knobs(knobs)
        answering = llm or Settings.llm
        self._retriever = retriever
        self._parts = {
            "llm": answering,
            "profiler_llm": profiler_llm,
            "embeddings": embeddings,
            "prompts": prompts,
        }
        self._knobs = read
        self._postprocessors = tuple(node_postprocessors or ())
        self._streaming = streaming
        self._profiler_asker = LlamaIndexAsker(profiler_llm or answering)
        own = answering if isinstance(answering, LLMKnobs) else None
        self._pipeline = read._make_pipeline(  # noqa: SLF001 - for the adapters
            LlamaIndexAsker(answering),
            profiler_asker=self._profiler_asker,
            prompts=prompts,
            embed=None if embeddings is None else embeddings.get_query_embedding,
            backend=lambda: None if own is None else backend_of(own),
            namespace="" if own is None else own.namespace,
        )
        super().__init__(callback_manager or Settings.callback_manager)
        for one in self._postprocessors:
            one.callback_manager = self.callback_manager

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever,
        llm: LLM | None = None,
        *,
        profiler_llm: LLM | None = None,
        embeddings: BaseEmbedding | None = None,
        prompts: SynthesisPrompts = DEFAULT_PROMPTS,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **knobs: Unpack[AdaptiveArguments],
    ) -> Self:
        """Make one, as ``RetrieverQueryEngine.from_args`` does; arguments as for the class."""
        return cls(
            retriever,
            llm=llm,
            profiler_llm=profiler_llm,
            embeddings=embeddings,
            prompts=prompts,
            node_postprocessors=node_postprocessors,
            streaming=streaming,
            callback_manager=callback_manager,
            **knobs,
        )

    @property
    def retriever(self) -> BaseRetriever:
        """Finds the nodes."""
        return self._retriever

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes that are chosen from."""
        nodes = self._retriever.retrieve(query_bundle)
        for one in self._postprocessors:
            nodes = one.postprocess_nodes(nodes, query_bundle=query_bundle)
        return nodes

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return them without blocking the event loop."""
        nodes = await self._retriever.aretrieve(query_bundle)
        for one in self._postprocessors:
            nodes = await one.apostprocess_nodes(nodes, query_bundle=query_bundle)
        return nodes

    def draft_corpus(self, nodes: Sequence[BaseNode | str]) -> str:
        """Have the profiler's model draft ``corpus`` from some of the nodes, to look at."""
        return draft_corpus(self._profiler_asker, _texts(nodes))

    async def adraft_corpus(self, nodes: Sequence[BaseNode | str]) -> str:
        """Have it drafted without blocking the event loop."""
        return await adraft_corpus(self._profiler_asker, _texts(nodes))

    def close(self) -> None:
        """End what golden feedback learns in the background; questions go on. Idempotent."""
        self._pipeline.close()

    async def aclose(self) -> None:
        """End it from an event loop."""
        await self._pipeline.aclose()

    def _arguments(self) -> dict[str, Any]:
        return {
            "retriever": self._retriever,
            "node_postprocessors": self._postprocessors,
            "streaming": self._streaming,
            **self._parts,
            **dict(self._knobs),
        }

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            asked = _Asked(self, query_bundle)
            with self._synthesis(query_bundle) as told:
                if self._streaming:
                    stream = self._pipeline.stream(query_bundle.query_str, asked.retrieve)
                    asked.explained(next(stream))
                    told.response = StreamingResponse(
                        asked.texts(stream), asked.read, asked.metadata
                    )
                else:
                    answer = self._pipeline.answer(query_bundle.query_str, asked.retrieve)
                    told.response = asked.answered(answer)
            event.on_end(payload={EventPayload.RESPONSE: told.response})
        return told.response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            asked = _Asked(self, query_bundle)
            with self._synthesis(query_bundle) as told:
                if self._streaming:
                    stream = self._pipeline.astream(query_bundle.query_str, asked.aretrieve)
                    asked.explained(await anext(stream))
                    told.response = AsyncStreamingResponse(
                        asked.atexts(stream), asked.read, asked.metadata
                    )
                else:
                    answer = await self._pipeline.aanswer(query_bundle.query_str, asked.aretrieve)
                    told.response = asked.answered(answer)
            event.on_end(payload={EventPayload.RESPONSE: told.response})
        return told.response

    @contextmanager
    def _synthesis(self, query: QueryBundle) -> Iterator[_Told]:
        """Tell callbacks and events what a response synthesizer would."""
        told = _Told()
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query.query_str}
        dispatcher.event(SynthesizeStartEvent(query=query))
        with self.callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:
            yield told
            event.on_end(payload={EventPayload.RESPONSE: told.response})
        dispatcher.event(SynthesizeEndEvent(query=query, response=told.response))


@dataclass
class _Told:
    response: RESPONSE_TYPE = field(default_factory=lambda: Response(None))


class _Asked:
    """One question, in the core's terms."""

    def __init__(self, engine: AdaptiveQueryEngine, query: QueryBundle) -> None:
        self._engine = engine
        self._query = query
        self._nodes: list[NodeWithScore] = []
        self.read: list[NodeWithScore] = []
        self.metadata: dict[str, Any] = {}

    def retrieve(self, question: str, count: int) -> list[PromptDocument]:  # noqa: ARG002 - the core's
        """Find nodes."""
        return self._found(self._engine.retrieve(self._query))

    async def aretrieve(self, question: str, count: int) -> list[PromptDocument]:  # noqa: ARG002 - the core's
        """Find nodes without blocking the event loop."""
        return self._found(await self._engine.aretrieve(self._query))

    def explained(self, explanation: object) -> None:
        """Note what a stream begins with."""
        if isinstance(explanation, Explanation):
            self.read = self._nodes[: explanation.config.num_chunks]
            self.metadata |= {one.node.node_id: one.node.metadata for one in self.read}
            self.metadata[EXPLAIN_METADATA] = explanation

    def answered(self, answer: AdaptiveAnswer) -> Response:
        """Translate a whole answer."""
        self.explained(answer.explanation)
        self._ended(answer)
        return Response(answer.text, self.read, self.metadata)

    def texts(self, stream: Generator[Explanation | str | AdaptiveAnswer]) -> Generator[str]:
        """Translate the rest of a stream."""
        with closing(stream) as pieces:
            for piece in pieces:
                if isinstance(piece, str):
                    yield piece
                elif isinstance(piece, AdaptiveAnswer):
                    self._ended(piece)

    async def atexts(
        self, stream: AsyncGenerator[Explanation | str | AdaptiveAnswer]
    ) -> AsyncGenerator[str]:
        """Translate the rest of a stream."""
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    yield piece
                elif isinstance(piece, AdaptiveAnswer):
                    self._ended(piece)

    def _ended(self, answer: AdaptiveAnswer) -> None:
        self.metadata[COST_METADATA] = answer.cost
        self.metadata[SYNTHESIS_METADATA] = answer.synthesised

    def _found(self, nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
        self._nodes = list(nodes)
        # A node without text says nothing; a blank keeps its place.
        return [
            PromptDocument(one.node.get_content(MetadataMode.LLM) or " ", one.node.node_id)
            for one in self._nodes
        ]


def _texts(nodes: Sequence[BaseNode | str]) -> list[str]:
    return [one if isinstance(one, str) else one.get_content(MetadataMode.NONE) for one in nodes]
