"""Speculative pipelining as a LlamaIndex query engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.chains.llama_index import (
    Answer,
    RetrieverEngine,
    check_retriever,
    deltas,
)
from ragcache_integrations.core.flows import Call, Each, Flow, entering
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.llms.handover import answered_by, arguments_of, marked
from ragcache_integrations.llms.llama_index import RAGCacheLLM, chat_prompt
from ragcache_integrations.retrievers.retrieval import DocumentStage
from ragcache_integrations.speculation import (
    SpeculationReport,
    StageOfDocuments,
    stage_of_search,
    stages_of_pair,
)

from .knobs import SpeculationKnobs, Speculators

if TYPE_CHECKING:
    from ragcache_integrations._arguments import SpeculationArguments

__all__ = ["SPECULATION_METADATA", "SpeculativeQueryEngine"]

SPECULATION_METADATA = "speculation"
"""Key of the :class:`~ragcache_integrations.speculation.SpeculationReport` in the metadata of a
response."""

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

    # The running answer

    def _answer(self, query: QueryBundle) -> Flow:
        speculator = yield Call(self._speculators.get, self._speculators.aget)
        if speculator is None:
            nodes = yield Call(partial(self.retrieve, query), partial(self.aretrieve, query))
            yield Answer(self._in_sequence(query, nodes), nodes, _metadata(nodes, None))
            return
        question = _Question(self._llm, self._text_qa_template, query)
        stages, astages = self._stages(query, speculator.interval())
        asked = {"prompt_of": question.prompt, **question.arguments()}
        try:
            stream = yield Call(
                lambda: speculator.stream(stages(), **asked),
                lambda: speculator.astream(astages(), **asked),
            )
        except _NothingFoundError:
            yield Answer(self._in_sequence(query, []))
            return
        nodes = list(stream.documents)
        metadata = _metadata(nodes, stream.report)
        yield Answer(_replay(question, stream, metadata), nodes, metadata, question.parse)

    def _in_sequence(self, query: QueryBundle, nodes: Sequence[NodeWithScore]) -> Flow:
        template, variables = self._text_qa_template, _variables(query, nodes)
        llm = self._llm
        if not nodes:
            yield _EMPTY
        elif self._streaming:
            yield Each(
                partial(llm.stream, template, **variables),
                partial(llm.astream, template, **variables),
                str,
            )
        else:
            yield (
                yield Call(
                    partial(llm.predict, template, **variables),
                    partial(llm.apredict, template, **variables),
                )
            )

    # The search

    def _stages(
        self, query: QueryBundle, interval: float | None
    ) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """What begins a search in stages: for callers that block, and for those that await."""
        retriever: Any = self._retriever
        search, asearch = partial(self.retrieve, query), partial(self.aretrieve, query)
        if self._first is not None:
            guess = partial(self._found, self._first, query)
            aguess = partial(self._afound, self._first, query)
            return partial(stages_of_pair, guess, search), partial(stages_of_pair, aguess, asearch)
        # A retriever may have only one of the two.
        stages, astages = (getattr(retriever, name, None) for name in ("stages", "astages"))
        return (
            partial(stage_of_search, search)
            if stages is None
            else lambda: self._processed_stages(stages(query, interval=interval), query),
            partial(stage_of_search, asearch)
            if astages is None
            else lambda: self._aprocessed_stages(astages(query, interval=interval), query),
        )

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

    def texts(self, stream: Any) -> Each:
        """The texts of the running answer, as the LLM class streams them."""
        nodes = stream.documents
        llm = answered_by(self._llm, self.prompt(nodes), stream)
        return deltas(llm, self._prompt(nodes), documents=_marks(nodes))

    # Parts of LLM.predict and LLM.stream, which are not public.

    def parse(self, text: str) -> str:
        """Parse a whole answer by the LLM's output parser."""
        return self._llm._parse_output(text)  # noqa: SLF001 - see above

    def _prompt(self, nodes: Sequence[NodeWithScore]) -> str | list[ChatMessage]:
        variables = _variables(self._query, nodes)
        if self._llm.metadata.is_chat_model:
            return self._llm._get_messages(self._template, **variables)  # noqa: SLF001 - see above
        return self._llm._get_prompt(self._template, **variables)  # noqa: SLF001 - see above


def _replay(question: _Question, stream: Any, metadata: dict[str, Any]) -> Flow:
    yield entering(stream)
    yield question.texts(stream)
    metadata[SPECULATION_METADATA] = stream.report


def _variables(query: QueryBundle, nodes: Sequence[NodeWithScore]) -> dict[str, str]:
    texts = [item.node.get_content(MetadataMode.LLM) for item in nodes]
    return {"context_str": _SEPARATOR.join(texts), "query_str": query.query_str}


def _marks(nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
    texts = [(item.node_id, item.node.get_content(MetadataMode.LLM)) for item in nodes]
    return [PromptDocument(text, name) for name, text in texts if text]


def _metadata(nodes: Sequence[NodeWithScore], report: SpeculationReport | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {item.node_id: item.node.metadata for item in nodes}
    return metadata | {SPECULATION_METADATA: report}
