"""Speculative pipelining as a LlamaIndex query engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
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
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.chains.copying import CopiedBySettings
from ragcache_integrations.chains.speculative.knobs import (
    SpeculationArguments,
    Speculators,
    read_speculation_knobs,
)
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.handover import answered_by, arguments_of, marked
from ragcache_integrations.llms.llama_index.model import RAGCacheLLM, chat_prompt
from ragcache_integrations.retrievers.retrieval import DocumentStage
from ragcache_integrations.speculation import (
    AsyncSpeculativeStream,
    SpeculationReport,
    SpeculativeStream,
    StageOfDocuments,
    stage_of_search,
    stages_of_pair,
)

__all__ = ["SPECULATION_METADATA", "SpeculativeQueryEngine"]

SPECULATION_METADATA = "speculation"
"""Key of the :class:`~ragcache_integrations.speculation.SpeculationReport` in the metadata of a
response."""

Texts = TypeVar("Texts")

dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]  # re-exported untyped

_SEPARATOR = "\n\n"
_EMPTY = "Empty Response"  # what LlamaIndex answers where nothing was found


class SpeculativeQueryEngine(CopiedBySettings, BaseQueryEngine):
    """Retrieves and answers; generation begins while the search is still running (RAGCache §5.3).

    Takes the place of ``RetrieverQueryEngine``::

        query_engine = SpeculativeQueryEngine.from_args(
            StagedFaissRetriever.from_index(index), llm=llm
        )
        query_engine.query("a question")

    All nodes stand in one prompt. The response has them as ``source_nodes`` and, besides their
    metadata, what speculation did under :data:`SPECULATION_METADATA`; of a streaming response it
    is complete when the stream has ended. A wrong guess never shows; the answer is what it would
    be without.

    The retriever may be any. One with stages is guessed from: ``StagedFaissRetriever``, also
    behind an ``ApproximateCacheRetriever``. So is ``first``, a fast one, beside a slow one that
    decides. Otherwise, or where ``llm`` is not answered by an engine of this process, the answer
    begins when the search has ended.

    Args:
        retriever: Finds the nodes.
        llm: Answers: ``RAGCacheLLM``, or any other; LlamaIndex's ``Settings.llm`` where ``None``.
        first: A fast approximate retriever, whose nodes are guessed with until ``retriever`` has
            found the right ones.
        text_qa_template: What is asked, with ``context_str`` and ``query_str``; LlamaIndex's own
            where ``None``.
        node_postprocessors: Applied to the nodes of every stage, so they should be quick.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.
        **knobs: See :class:`~ragcache_integrations.chains.speculative.knobs.SpeculationKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of its range.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        *,
        llm: LLM | None = None,
        first: BaseRetriever | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **knobs: Unpack[SpeculationArguments],
    ) -> None:
        for name, given in (("retriever", retriever), ("first", first)):
            if not isinstance(given, BaseRetriever) and (given is not None or name == "retriever"):
                msg = f"{name} must be a BaseRetriever, got {given!r:.100}"
                raise ConfigurationError(msg)
        self._retriever = retriever
        self._first = first
        self._llm: LLM = llm or Settings.llm
        self._template = text_qa_template or DEFAULT_TEXT_QA_PROMPT_SEL
        self._postprocessors = tuple(node_postprocessors or ())
        self._streaming = streaming
        self._knobs = read_speculation_knobs(knobs)
        self._speculators = Speculators(self._llm, self._knobs)
        super().__init__(callback_manager or Settings.callback_manager)
        for one in self._postprocessors:
            one.callback_manager = self.callback_manager

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever,
        llm: LLM | None = None,
        *,
        first: BaseRetriever | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **knobs: Unpack[SpeculationArguments],
    ) -> Self:
        """Make one, as ``RetrieverQueryEngine.from_args`` does; arguments as for the class."""
        return cls(
            retriever,
            llm=llm,
            first=first,
            text_qa_template=text_qa_template,
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
        """Return the nodes that a question is answered from."""
        return self._postprocessed(self._retriever.retrieve(query_bundle), query_bundle)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return them without blocking the event loop."""
        nodes = await self._retriever.aretrieve(query_bundle)
        return await self._apostprocessed(nodes, query_bundle)

    def _arguments(self) -> dict[str, Any]:
        return {
            "retriever": self._retriever,
            "llm": self._llm,
            "first": self._first,
            "text_qa_template": self._template,
            "node_postprocessors": self._postprocessors,
            "streaming": self._streaming,
            **dict(self._knobs),
        }

    def _get_prompts(self) -> dict[str, Any]:
        return {"text_qa_template": self._template}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._template = prompts.get("text_qa_template", self._template)

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    # A whole query

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            answer = self._answer(query_bundle)
            with self._synthesis(query_bundle) as told:
                if self._streaming:
                    told.response = StreamingResponse(answer.texts, answer.nodes, answer.metadata)
                else:
                    text = "".join(answer.texts)
                    told.response = Response(text, answer.nodes, answer.metadata)
            event.on_end(payload={EventPayload.RESPONSE: told.response})
        return told.response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            answer = await self._aanswer(query_bundle)
            with self._synthesis(query_bundle) as told:
                if self._streaming:
                    told.response = AsyncStreamingResponse(
                        answer.texts, answer.nodes, answer.metadata
                    )
                else:
                    async with aclosing(answer.texts) as texts:
                        text = "".join([one async for one in texts])
                    told.response = Response(text, answer.nodes, answer.metadata)
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

    # The answer in the making

    def _answer(self, query: QueryBundle) -> _Answer[Generator[str]]:
        speculator = self._speculators.get()
        if speculator is None:
            nodes = self.retrieve(query)
            return _Answer(nodes, _metadata(nodes, None), self._plain(query, nodes))
        question = _Question(self._llm, self._template, query)
        stages = self._stages(query, speculator.interval())
        try:
            stream = speculator.stream(stages, question.prompt, **question.arguments())
        except _NothingFoundError:
            return _Answer([], {}, self._plain(query, []))
        nodes = list(stream.documents)
        metadata = _metadata(nodes, stream.report)
        return _Answer(nodes, metadata, self._replayed(question, stream, metadata))

    async def _aanswer(self, query: QueryBundle) -> _Answer[AsyncGenerator[str]]:
        speculator = await self._speculators.aget()
        if speculator is None:
            nodes = await self.aretrieve(query)
            return _Answer(nodes, _metadata(nodes, None), self._aplain(query, nodes))
        question = _Question(self._llm, self._template, query)
        stages = self._astages(query, speculator.interval())
        try:
            stream = await speculator.astream(stages, question.prompt, **question.arguments())
        except _NothingFoundError:
            return _Answer([], {}, self._aplain(query, []))
        nodes = list(stream.documents)
        metadata = _metadata(nodes, stream.report)
        return _Answer(nodes, metadata, self._areplayed(question, stream, metadata))

    def _replayed(
        self,
        question: _Question,
        stream: SpeculativeStream[NodeWithScore],
        metadata: dict[str, Any],
    ) -> Generator[str]:
        with stream:
            if self._streaming:
                yield from question.texts(stream)
            else:
                yield question.parsed("".join(question.texts(stream)))
            metadata[SPECULATION_METADATA] = stream.report

    async def _areplayed(
        self,
        question: _Question,
        stream: AsyncSpeculativeStream[NodeWithScore],
        metadata: dict[str, Any],
    ) -> AsyncGenerator[str]:
        async with stream, aclosing(question.atexts(stream)) as texts:
            if self._streaming:
                async for text in texts:
                    yield text
            else:
                yield question.parsed("".join([text async for text in texts]))
            metadata[SPECULATION_METADATA] = stream.report

    def _plain(self, query: QueryBundle, nodes: Sequence[NodeWithScore]) -> Generator[str]:
        """Answer in sequence."""
        variables = _variables(query, nodes)
        if not nodes:
            yield _EMPTY
        elif self._streaming:
            yield from self._llm.stream(self._template, **variables)
        else:
            yield self._llm.predict(self._template, **variables)

    async def _aplain(
        self, query: QueryBundle, nodes: Sequence[NodeWithScore]
    ) -> AsyncGenerator[str]:
        variables = _variables(query, nodes)
        if not nodes:
            yield _EMPTY
        elif self._streaming:
            async for text in await self._llm.astream(self._template, **variables):
                yield text
        else:
            yield await self._llm.apredict(self._template, **variables)

    # The search

    def _postprocessed(self, nodes: list[NodeWithScore], query: QueryBundle) -> list[NodeWithScore]:
        for one in self._postprocessors:
            nodes = one.postprocess_nodes(nodes, query_bundle=query)
        return nodes

    async def _apostprocessed(
        self, nodes: list[NodeWithScore], query: QueryBundle
    ) -> list[NodeWithScore]:
        for one in self._postprocessors:
            nodes = await one.apostprocess_nodes(nodes, query_bundle=query)
        return nodes

    def _stages(self, query: QueryBundle, interval: float | None) -> Any:
        first, retriever = self._first, self._retriever
        if first is not None:

            def guess() -> list[NodeWithScore]:
                return self._postprocessed(first.retrieve(query), query)

            return stages_of_pair(guess, partial(self.retrieve, query))
        if hasattr(retriever, "stages"):
            return self._processed_stages(retriever.stages(query, interval=interval), query)
        return stage_of_search(partial(self.retrieve, query))

    def _astages(self, query: QueryBundle, interval: float | None) -> Any:
        first, retriever = self._first, self._retriever
        if first is not None:

            async def guess() -> list[NodeWithScore]:
                return await self._apostprocessed(await first.aretrieve(query), query)

            return stages_of_pair(guess, partial(self.aretrieve, query))
        if hasattr(retriever, "astages"):
            return self._aprocessed_stages(retriever.astages(query, interval=interval), query)
        return stage_of_search(partial(self.aretrieve, query))

    def _processed_stages(
        self, search: Generator[DocumentStage[NodeWithScore]], query: QueryBundle
    ) -> Generator[StageOfDocuments[NodeWithScore]]:
        with closing(search) as stages:
            for stage in stages:
                nodes = self._postprocessed(list(stage.documents), query)
                yield StageOfDocuments(tuple(nodes), stage.final)

    async def _aprocessed_stages(
        self, search: AsyncGenerator[DocumentStage[NodeWithScore]], query: QueryBundle
    ) -> AsyncGenerator[StageOfDocuments[NodeWithScore]]:
        async with aclosing(search) as stages:
            async for stage in stages:
                nodes = await self._apostprocessed(list(stage.documents), query)
                yield StageOfDocuments(tuple(nodes), stage.final)


@dataclass
class _Told:
    response: RESPONSE_TYPE = field(default_factory=lambda: Response(None))


@dataclass(frozen=True)
class _Answer(Generic[Texts]):
    """An answer in the making."""

    nodes: list[NodeWithScore]
    metadata: dict[str, Any]
    texts: Texts


class _NothingFoundError(Exception):
    """There is nothing to ask about."""


class _Question:
    """One question, and what is asked about the nodes for it, of an LLM of ours."""

    def __init__(self, llm: Any, template: BasePromptTemplate, query: QueryBundle) -> None:
        self._llm: RAGCacheLLM = llm
        self._template = template
        self._query = query

    def prompt(self, nodes: Sequence[NodeWithScore]) -> Prompt:
        """Return what is asked, as the engine is asked.

        Raises:
            _NothingFoundError: There are no nodes.
        """
        if not nodes:
            raise _NothingFoundError
        chat = self._llm.metadata.is_chat_model
        prompt = chat_prompt(self._messages(nodes)) if chat else Prompt.raw(self._text(nodes))
        return marked(self._llm, prompt, _marks(nodes))

    def arguments(self) -> dict[str, Any]:
        """Return what the engine is given besides."""
        return arguments_of(self._llm, {})

    def texts(self, stream: SpeculativeStream[NodeWithScore]) -> Iterator[str]:
        """Have the LLM tell the answer in the making to the question over its nodes."""
        nodes, marks = stream.documents, _marks(stream.documents)
        llm = answered_by(self._llm, self.prompt(nodes), stream)
        told: Any = (
            llm.stream_chat(self._messages(nodes), documents=marks)
            if llm.metadata.is_chat_model
            else llm.stream_complete(self._text(nodes), formatted=True, documents=marks)
        )
        with closing(told):
            for response in told:
                yield response.delta or ""

    async def atexts(self, stream: AsyncSpeculativeStream[NodeWithScore]) -> AsyncGenerator[str]:
        """Do so without blocking the event loop."""
        nodes, marks = stream.documents, _marks(stream.documents)
        llm = answered_by(self._llm, self.prompt(nodes), stream)
        told: Any = await (
            llm.astream_chat(self._messages(nodes), documents=marks)
            if llm.metadata.is_chat_model
            else llm.astream_complete(self._text(nodes), formatted=True, documents=marks)
        )
        async with aclosing(told):
            async for response in told:
                yield response.delta or ""

    # What LLM.predict and LLM.stream do, which have no public parts.

    def parsed(self, text: str) -> str:
        """Return a whole answer as the LLM's output parser wants it."""
        return self._llm._parse_output(text)  # noqa: SLF001 - see above

    def _messages(self, nodes: Sequence[NodeWithScore]) -> list[ChatMessage]:
        variables = _variables(self._query, nodes)
        return self._llm._get_messages(self._template, **variables)  # noqa: SLF001 - see above

    def _text(self, nodes: Sequence[NodeWithScore]) -> str:
        variables = _variables(self._query, nodes)
        return self._llm._get_prompt(self._template, **variables)  # noqa: SLF001 - see above


def _variables(query: QueryBundle, nodes: Sequence[NodeWithScore]) -> dict[str, str]:
    texts = [one.node.get_content(MetadataMode.LLM) for one in nodes]
    return {"context_str": _SEPARATOR.join(texts), "query_str": query.query_str}


def _marks(nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
    texts = [(one.node.node_id, one.node.get_content(MetadataMode.LLM)) for one in nodes]
    return [PromptDocument(text, name) for name, text in texts if text]


def _metadata(nodes: Sequence[NodeWithScore], report: SpeculationReport | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {one.node.node_id: one.node.metadata for one in nodes}
    return metadata | {SPECULATION_METADATA: report}
