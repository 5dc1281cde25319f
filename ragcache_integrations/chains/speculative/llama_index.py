"""Speculative pipelining as a LlamaIndex query engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.chains.query_engine.llama_index import RetrieverEngine, check_retriever
from ragcache_integrations.chains.streams import adeltas, deltas
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.core.prompt import Prompt, PromptDocument
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

from .knobs import SpeculationArguments, SpeculationKnobs, Speculators

__all__ = ["SPECULATION_METADATA", "SpeculativeQueryEngine"]

SPECULATION_METADATA = "speculation"
"""Key of the :class:`~ragcache_integrations.speculation.SpeculationReport` in the metadata of a
response."""

Texts = TypeVar("Texts")

_SEPARATOR = "\n\n"
_EMPTY = "Empty Response"  # LlamaIndex's answer if there are no nodes


class SpeculativeQueryEngine(RetrieverEngine):
    """Retrieves and answers; generation begins while the search is still running (RAGCache §5.3).

    Drop-in replacement for ``RetrieverQueryEngine``::

        query_engine = SpeculativeQueryEngine.from_args(
            StagedFaissRetriever.from_index(index), llm=llm
        )
        query_engine.query("a question")

    All nodes go into one prompt. The response has them as ``source_nodes``. Its metadata has,
    besides that of the nodes, a report about the speculation under :data:`SPECULATION_METADATA`;
    for a streaming response it is complete when the stream has ended. Wrong guesses have no effect
    on the answer.

    Guesses come from the stages of a retriever such as ``StagedFaissRetriever``, which may be
    inside of an ``ApproximateCacheRetriever``, or from ``first``, a fast retriever besides a slow
    one that decides. With other retrievers, or if ``llm`` doesn't run on an engine of this process,
    the answer begins when the search has ended.

    Args:
        retriever: Finds the nodes.
        llm: Answers: ``RAGCacheLLM``, or any other; ``None`` for LlamaIndex's ``Settings.llm``.
        first: A fast approximate retriever, whose nodes are the guess until ``retriever`` has found
            the right ones; ``None`` for none.
        text_qa_template: The prompt, with ``context_str`` and ``query_str``; ``None`` for
            LlamaIndex's.
        node_postprocessors: Applied to the nodes of every stage, so they should be quick.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.
        **knobs: See :class:`~ragcache_integrations.chains.speculative.knobs.SpeculationKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    _argument_names: ClassVar[tuple[str, ...]] = (
        *RetrieverEngine._argument_names,  # noqa: SLF001 - of the base class
        *("llm", "first", "text_qa_template"),
    )

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
        if first is not None:
            check_retriever("first", first)
        self._first = first
        self._llm: LLM = llm or Settings.llm
        self._text_qa_template = text_qa_template or DEFAULT_TEXT_QA_PROMPT_SEL
        speculation_knobs = self._knobs = read_knobs(SpeculationKnobs, knobs)
        self._speculators = Speculators(self._llm, speculation_knobs)
        super().__init__(
            retriever, node_postprocessors, streaming=streaming, callback_manager=callback_manager
        )

    def _get_prompts(self) -> dict[str, Any]:
        return {"text_qa_template": self._text_qa_template}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._text_qa_template = prompts.get("text_qa_template", self._text_qa_template)

    # A whole query

    def _respond(self, query: QueryBundle) -> RESPONSE_TYPE:
        answer = self._answer(query)
        with self._synthesis(query) as pending:
            if self._streaming:
                pending.response = StreamingResponse(answer.texts, answer.nodes, answer.metadata)
            else:
                text = "".join(answer.texts)
                pending.response = Response(text, answer.nodes, answer.metadata)
        return pending.response

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        answer = await self._aanswer(query)
        with self._synthesis(query) as pending:
            if self._streaming:
                pending.response = AsyncStreamingResponse(
                    answer.texts, answer.nodes, answer.metadata
                )
            else:
                async with aclosing(answer.texts) as texts:
                    text = "".join([part async for part in texts])
                pending.response = Response(text, answer.nodes, answer.metadata)
        return pending.response

    # The running answer

    def _answer(self, query: QueryBundle) -> _Answer[Generator[str]]:
        speculator = self._speculators.get()
        if speculator is None:
            nodes = self.retrieve(query)
            return _Answer(nodes, _metadata(nodes, None), self._plain(query, nodes))
        question = _Question(self._llm, self._text_qa_template, query)
        stages = self._stages(query, speculator.interval())
        try:
            stream = speculator.stream(stages, question.prompt, **question.arguments())
        except _NothingFoundError:
            return _Answer([], {}, self._plain(query, []))
        nodes = list(stream.documents)
        metadata = _metadata(nodes, stream.report)
        return _Answer(nodes, metadata, self._replay(question, stream, metadata))

    async def _aanswer(self, query: QueryBundle) -> _Answer[AsyncGenerator[str]]:
        speculator = await self._speculators.aget()
        if speculator is None:
            nodes = await self.aretrieve(query)
            return _Answer(nodes, _metadata(nodes, None), self._aplain(query, nodes))
        question = _Question(self._llm, self._text_qa_template, query)
        stages = self._astages(query, speculator.interval())
        try:
            stream = await speculator.astream(stages, question.prompt, **question.arguments())
        except _NothingFoundError:
            return _Answer([], {}, self._aplain(query, []))
        nodes = list(stream.documents)
        metadata = _metadata(nodes, stream.report)
        return _Answer(nodes, metadata, self._areplay(question, stream, metadata))

    def _replay(
        self,
        question: _Question,
        stream: SpeculativeStream[NodeWithScore],
        metadata: dict[str, Any],
    ) -> Generator[str]:
        with stream:
            if self._streaming:
                yield from question.texts(stream)
            else:
                yield question.parse("".join(question.texts(stream)))
            metadata[SPECULATION_METADATA] = stream.report

    async def _areplay(
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
                yield question.parse("".join([text async for text in texts]))
            metadata[SPECULATION_METADATA] = stream.report

    def _plain(self, query: QueryBundle, nodes: Sequence[NodeWithScore]) -> Generator[str]:
        """Answer in sequence."""
        variables = _variables(query, nodes)
        if not nodes:
            yield _EMPTY
        elif self._streaming:
            yield from self._llm.stream(self._text_qa_template, **variables)
        else:
            yield self._llm.predict(self._text_qa_template, **variables)

    async def _aplain(
        self, query: QueryBundle, nodes: Sequence[NodeWithScore]
    ) -> AsyncGenerator[str]:
        variables = _variables(query, nodes)
        if not nodes:
            yield _EMPTY
        elif self._streaming:
            async for text in await self._llm.astream(self._text_qa_template, **variables):
                yield text
        else:
            yield await self._llm.apredict(self._text_qa_template, **variables)

    # The search

    def _stages(self, query: QueryBundle, interval: float | None) -> Any:
        first, retriever = self._first, self._retriever
        if first is not None:

            def guess() -> list[NodeWithScore]:
                return self._postprocess(first.retrieve(query), query)

            return stages_of_pair(guess, partial(self.retrieve, query))
        if hasattr(retriever, "stages"):
            return self._processed_stages(retriever.stages(query, interval=interval), query)
        return stage_of_search(partial(self.retrieve, query))

    def _astages(self, query: QueryBundle, interval: float | None) -> Any:
        first, retriever = self._first, self._retriever
        if first is not None:

            async def guess() -> list[NodeWithScore]:
                return await self._apostprocess(await first.aretrieve(query), query)

            return stages_of_pair(guess, partial(self.aretrieve, query))
        if hasattr(retriever, "astages"):
            return self._aprocessed_stages(retriever.astages(query, interval=interval), query)
        return stage_of_search(partial(self.aretrieve, query))

    def _processed_stages(
        self, search: Generator[DocumentStage[NodeWithScore]], query: QueryBundle
    ) -> Generator[StageOfDocuments[NodeWithScore]]:
        with closing(search) as stages:
            for stage in stages:
                nodes = self._postprocess(list(stage.documents), query)
                yield StageOfDocuments(tuple(nodes), stage.final)

    async def _aprocessed_stages(
        self, search: AsyncGenerator[DocumentStage[NodeWithScore]], query: QueryBundle
    ) -> AsyncGenerator[StageOfDocuments[NodeWithScore]]:
        async with aclosing(search) as stages:
            async for stage in stages:
                nodes = await self._apostprocess(list(stage.documents), query)
                yield StageOfDocuments(tuple(nodes), stage.final)


@dataclass(frozen=True)
class _Answer(Generic[Texts]):
    """A running answer."""

    nodes: list[NodeWithScore]
    metadata: dict[str, Any]
    texts: Texts


class _NothingFoundError(Exception):
    """There are no nodes."""


class _Question:
    """A question, and the prompts about its nodes, for an LLM of this package."""

    def __init__(self, llm: Any, template: BasePromptTemplate, query: QueryBundle) -> None:
        self._llm: RAGCacheLLM = llm
        self._template = template
        self._query = query

    def prompt(self, nodes: Sequence[NodeWithScore]) -> Prompt:
        """Return the prompt for the engine.

        Raises:
            _NothingFoundError: There are no nodes.
        """
        if not nodes:
            raise _NothingFoundError
        ours = self._prompt(nodes)
        if isinstance(ours, str):
            prompt = Prompt.raw(ours)
        else:
            prompt = chat_prompt(ours, self._llm.model_name)
        return marked(self._llm, prompt, _marks(nodes))

    def arguments(self) -> dict[str, Any]:
        """Return the other arguments for the engine."""
        return arguments_of(self._llm, {})

    def texts(self, stream: SpeculativeStream[NodeWithScore]) -> Generator[str]:
        """The texts of the running answer, as the LLM class streams them."""
        nodes = stream.documents
        llm = answered_by(self._llm, self.prompt(nodes), stream)
        return deltas(llm, self._prompt(nodes), documents=_marks(nodes))

    def atexts(self, stream: AsyncSpeculativeStream[NodeWithScore]) -> AsyncGenerator[str]:
        """Async version of :meth:`texts`."""
        nodes = stream.documents
        llm = answered_by(self._llm, self.prompt(nodes), stream)
        return adeltas(llm, self._prompt(nodes), documents=_marks(nodes))

    # Parts of LLM.predict and LLM.stream, which are not public.

    def parse(self, text: str) -> str:
        """Parse a whole answer by the LLM's output parser."""
        return self._llm._parse_output(text)  # noqa: SLF001 - see above

    def _prompt(self, nodes: Sequence[NodeWithScore]) -> str | list[ChatMessage]:
        variables = _variables(self._query, nodes)
        if self._llm.metadata.is_chat_model:
            return self._llm._get_messages(self._template, **variables)  # noqa: SLF001 - see above
        return self._llm._get_prompt(self._template, **variables)  # noqa: SLF001 - see above


def _variables(query: QueryBundle, nodes: Sequence[NodeWithScore]) -> dict[str, str]:
    texts = [item.node.get_content(MetadataMode.LLM) for item in nodes]
    return {"context_str": _SEPARATOR.join(texts), "query_str": query.query_str}


def _marks(nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
    texts = [(item.node_id, item.node.get_content(MetadataMode.LLM)) for item in nodes]
    return [PromptDocument(text, name) for name, text in texts if text]


def _metadata(nodes: Sequence[NodeWithScore], report: SpeculationReport | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {item.node_id: item.node.metadata for item in nodes}
    return metadata | {SPECULATION_METADATA: report}
