"""Per-query configuration as a LangChain Runnable: an adapter of AdaptivePipeline."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import PromptTemplate, format_document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBinding
from langchain_core.runnables.utils import AddableDict
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import PrivateAttr
from typing_extensions import override

from ragcache_integrations.adaptive import (
    AdaptiveAnswer,
    Explanation,
    SynthesisPrompts,
    adraft_corpus,
    draft_corpus,
)
from ragcache_integrations.adaptive.synthesis.prompts import DEFAULT_PROMPTS
from ragcache_integrations.chains.adaptive.knobs import (
    PROFILER_KNOBS,
    AdaptiveKnobs,
    Pipelines,
)
from ragcache_integrations.chains.askers.langchain import LangChainAsker, LangChainModel
from ragcache_integrations.chains.streamed.langchain import Output, StreamedRunnable
from ragcache_integrations.chains.synthesis.langchain import DocumentPrompt
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.retrievers.sharing.shared_state import Identity

__all__ = ["AdaptiveRAG"]


class AdaptiveRAG(AdaptiveKnobs, StreamedRunnable[str | dict[str, Any]]):
    """Reads as many chunks, in the way, that each question takes and the memory allows (RAGServe).

    ::

        chain = AdaptiveRAG(retriever=retriever, llm=model, corpus="Articles of Wikipedia.")
        result = chain.invoke("why did the voyager 1 leave the solar system")
        result["answer"], str(result["explain"])

    A profiler says what a question needs while its documents are being retrieved. Of the
    configurations that suit, the largest that fits the free memory is taken, so that the question
    need not queue.

    The input is a question, or a dict with one. The output is a dict of the input, ``context`` (the
    documents that were read), ``explain`` (an
    :class:`~ragcache_integrations.adaptive.Explanation`: which configuration, and why), ``answer``
    (a string), ``citations`` (the documents that the answer comes from), ``synthesis``
    (:class:`~ragcache_integrations.adaptive.Synthesised`) and ``cost``
    (:class:`~ragcache_integrations.adaptive.AdaptiveCost`). Streams bring them in this order, the
    answer in pieces; that of ``map_rerank`` in one.

    Vector stores' retrievers, and those of this package, are asked for ``max_chunks`` documents;
    tell any other to find as many, 18 by default. The free memory is known where an engine of this
    process answers, or a vLLM server through ``base_url``; or say ``load``. Otherwise the middle
    of what suits the question is taken.

    For callbacks the runs of retriever, profiler and model are children of this one's. Arguments
    of a call, such as ``temperature``, are the answering model's. The knobs are those of
    :class:`~ragcache_integrations.chains.adaptive.knobs.AdaptiveKnobs`.

    Attributes:
        retriever: Finds the documents.
        llm: Answers: any chat model or LLM.
        profiler_llm: Says what a question needs; ``llm`` where ``None``.
        embeddings: Of questions: those close to one asked before share its profile.
        prompts: What is asked.
        input_key: Name of the question in the input.
        document_prompt: How a document stands in the prompt.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of its range.
    """

    retriever: RetrieverLike
    llm: Runnable[Any, Any]
    profiler_llm: Runnable[Any, Any] | None = None
    embeddings: Embeddings | None = None
    prompts: SynthesisPrompts = DEFAULT_PROMPTS
    input_key: str = "input"
    document_prompt: DocumentPrompt = PromptTemplate.from_template("{page_content}")

    _written = frozenset({"context", "explain", "answer", "citations", "synthesis", "cost"})
    _model: LangChainModel = PrivateAttr()
    _pipelines: Pipelines = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Look at the parts."""
        super().model_post_init(context)
        self._model = self._model_of(self.llm)
        own, embeddings = self._model.own, self.embeddings
        embed = None if embeddings is None else embeddings.embed_query
        asker = LangChainAsker(self._model_of(self.profiler_llm or self.llm))
        parts = (Identity(self.profiler_llm or self.llm), Identity(embeddings))
        # What was learnt of questions serves whatever the answers are made with.
        profilers = self.shared_state.core(
            ("profilers", self.mode == "fixed", *parts, *self._values(*PROFILER_KNOBS)),
            lambda: self._profilers(asker, embed),
        )
        self._pipelines = self.shared_state.core("pipelines", Pipelines)
        self._pipeline = self._pipelines.get(
            (Identity(self.llm), *parts, self.prompts, *self._values()),
            lambda: self._make_pipeline(
                LangChainAsker(self._model),
                profiler_asker=asker,
                prompts=self.prompts,
                embed=embed,
                backend=lambda: None if own is None else backend_of(own),
                namespace="" if own is None else own.namespace,
                profilers=profilers,
            ),
        )

    def _model_of(self, llm: Runnable[Any, Any]) -> LangChainModel:
        return self.shared_state.core(("model", Identity(llm)), lambda: LangChainModel(llm))

    def draft_corpus(self, documents: Sequence[Document | str]) -> str:
        """Have the profiler's model draft ``corpus`` from some of the documents, to look at."""
        return draft_corpus(self._profiler_asker(), _texts(documents))

    async def adraft_corpus(self, documents: Sequence[Document | str]) -> str:
        """Have it drafted without blocking the event loop."""
        return await adraft_corpus(self._profiler_asker(), _texts(documents))

    def close(self) -> None:
        """End what golden feedback learns in the background; questions go on. Idempotent.

        So it is for all chains that LangChain made from this one, or from which it was made.
        """
        self._pipelines.close()

    async def aclose(self) -> None:
        """End it from an event loop."""
        self._pipelines.close()  # which waits for nothing

    def _profiler_asker(self) -> LangChainAsker:
        return LangChainAsker(LangChainModel(self.profiler_llm or self.llm))

    @override
    def _whole(self, given: Any, config: RunnableConfig, call: dict[str, Any]) -> Output:
        asked = _Asked(self, given, config, call)
        return asked.whole(self._pipeline.answer(asked.question, asked.retrieve, asked.asker))

    @override
    async def _awhole(self, given: Any, config: RunnableConfig, call: dict[str, Any]) -> Output:
        asked = _Asked(self, given, config, call)
        return asked.whole(
            await self._pipeline.aanswer(asked.question, asked.aretrieve, asked.asker)
        )

    @override
    def _pieces(
        self, given: Any, config: RunnableConfig, call: dict[str, Any]
    ) -> Generator[Output]:
        asked = _Asked(self, given, config, call)
        yield self._passed_on(asked.inputs)
        stream = self._pipeline.stream(asked.question, asked.retrieve, asked.asker)
        with closing(stream) as pieces:
            for piece in pieces:
                yield asked.piece(piece)

    @override
    async def _apieces(
        self, given: Any, config: RunnableConfig, call: dict[str, Any]
    ) -> AsyncGenerator[Output]:
        asked = _Asked(self, given, config, call)
        yield self._passed_on(asked.inputs)
        stream = self._pipeline.astream(asked.question, asked.aretrieve, asked.asker)
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                yield asked.piece(piece)


class _Asked:
    """One input of a chain, in the core's terms."""

    def __init__(
        self, chain: AdaptiveRAG, given: Any, config: RunnableConfig, call: Mapping[str, Any]
    ) -> None:
        self._chain = chain
        self._config = config
        self._documents: list[Document] = []
        self.asker = LangChainAsker(chain._model, config, call)  # noqa: SLF001 - a part of it
        self.inputs: dict[str, Any] = (
            dict(given) if isinstance(given, Mapping) else {chain.input_key: given}
        )
        question = self.inputs.get(chain.input_key)
        if not isinstance(question, str):
            msg = f"the input must be a string, or a dict with {chain.input_key!r}, got {given!r}"
            raise ConfigurationError(msg)
        self.question = question

    def retrieve(self, question: str, count: int) -> list[PromptDocument]:
        """Find documents."""
        retriever: Any = self._chain.retriever
        arguments = {"k": count} if _takes_k(retriever) else {}
        return self._found(retriever.invoke(question, self._config, **arguments))

    async def aretrieve(self, question: str, count: int) -> list[PromptDocument]:
        """Find documents without blocking the event loop."""
        retriever: Any = self._chain.retriever
        arguments = {"k": count} if _takes_k(retriever) else {}
        return self._found(await retriever.ainvoke(question, self._config, **arguments))

    def before(self, explanation: Explanation) -> Output:
        """What the output has before the answer."""
        read = self._documents[: explanation.config.num_chunks]
        return {"context": read, "explain": explanation}

    def after(self, result: AdaptiveAnswer) -> Output:
        """What the output has behind the answer."""
        cited = [self._documents[one.index] for one in result.synthesised.citations]
        return {"citations": cited, "synthesis": result.synthesised, "cost": result.cost}

    def whole(self, result: AdaptiveAnswer) -> Output:
        """The output."""
        before = self.before(result.explanation)
        return {**self.inputs, **before, "answer": result.text, **self.after(result)}

    def piece(self, piece: Explanation | str | AdaptiveAnswer) -> Output:
        """A piece of a stream."""
        if isinstance(piece, str):
            return AddableDict(answer=piece)
        rest = self.before(piece) if isinstance(piece, Explanation) else self.after(piece)
        return AddableDict(rest)

    def _found(self, documents: Sequence[Document]) -> list[PromptDocument]:
        self._documents = list(documents)
        # A document without text says nothing; a blank keeps its place.
        return [
            PromptDocument(format_document(one, self._chain.document_prompt) or " ", one.id or "")
            for one in self._documents
        ]


def _takes_k(retriever: object) -> bool:
    """Whether a retriever can be asked for so many documents."""
    while isinstance(retriever, RunnableBinding):
        retriever = retriever.bound
    if isinstance(retriever, VectorStoreRetriever):
        return True
    method = getattr(retriever, "_get_relevant_documents", None)
    return method is not None and "k" in inspect.signature(method).parameters


def _texts(documents: Sequence[Document | str]) -> list[str]:
    return [one if isinstance(one, str) else one.page_content for one in documents]
