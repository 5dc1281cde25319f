"""Per-query configuration as a LangChain Runnable: an adapter of AdaptivePipeline."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import PrivateAttr
from typing_extensions import override

from ragcache_integrations.adaptive import AdaptiveAnswer, Explanation, SynthesisPrompts
from ragcache_integrations.adaptive.profile import adraft_corpus, draft_corpus
from ragcache_integrations.adaptive.synthesis import DEFAULT_PROMPTS
from ragcache_integrations.chains.langchain import (
    LangChainAsker,
    LangChainModel,
    Output,
    StreamedRunnable,
    Template,
    marked_documents,
    read_question,
    unbound,
)
from ragcache_integrations.core.flows import Call, Each, Flow
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.retrievers.sharing import Identity

from .knobs import (
    PROFILER_KNOBS,
    AdaptiveKnobs,
    Pipelines,
)

__all__ = ["AdaptiveRAG"]


class AdaptiveRAG(AdaptiveKnobs, StreamedRunnable[str | dict[str, Any]]):
    """Chooses for each question how many chunks to read, and in which way (RAGServe).

    ::

        chain = AdaptiveRAG(retriever=retriever, llm=model, corpus="Articles of Wikipedia.")
        result = chain.invoke("why did the voyager 1 leave the solar system")
        result["answer"], str(result["explain"])

    A profiler determines what a question needs while its documents are being retrieved. Of the
    suitable configurations, the largest one is used that fits into the free memory, so that the
    question doesn't have to queue.

    The input is a question, or a dict with one. The output is a dict of the input, ``context`` (the
    documents that were read), ``explain`` (an
    :class:`~ragcache_integrations.adaptive.Explanation` of the configuration), ``answer``
    (a string), ``citations`` (the documents that the answer comes from), ``synthesis``
    (:class:`~ragcache_integrations.adaptive.Synthesised`) and ``cost``
    (:class:`~ragcache_integrations.adaptive.AdaptiveCost`). Streams have them in this order, the
    answer in pieces; the answer of ``map_rerank`` is one piece.

    Retrievers of vector stores, and those of this package, find ``max_chunks`` documents; set up
    others to find as many, 18 by default. The free memory is known if an engine of this process
    answers, or a vLLM server through ``base_url``, or if you set ``load``. Otherwise the median
    suitable configuration is used.

    In callbacks the runs of retriever, profiler and model are children of this chain's run.
    Arguments of a call, such as ``temperature``, are passed to the answering model. The knobs are
    those of :class:`~ragcache_integrations.chains.adaptive.knobs.AdaptiveKnobs`.

    Attributes:
        retriever: Finds the documents.
        llm: Answers: any chat model or LLM.
        profiler_llm: Profiles questions; ``None`` for ``llm``.
        embeddings: Embeds questions: similar questions share a profile. ``None`` for no sharing.
        prompts: The prompts of the synthesis.
        input_key: Name of the question in the input.
        document_prompt: Formats a document for the prompt.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range.
    """

    retriever: RetrieverLike
    llm: Runnable[Any, Any]
    profiler_llm: Runnable[Any, Any] | None = None
    embeddings: Embeddings | None = None
    prompts: SynthesisPrompts = DEFAULT_PROMPTS
    input_key: str = "input"
    document_prompt: Template = PromptTemplate.from_template("{page_content}")

    _written = frozenset({"context", "explain", "answer", "citations", "synthesis", "cost"})
    _model: LangChainModel = PrivateAttr()
    _pipelines: Pipelines = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make the pipeline."""
        super().model_post_init(context)
        self._model = self._model_of(self.llm)
        embeddings = self.embeddings
        embed = None if embeddings is None else embeddings.embed_query
        asker = LangChainAsker(self._model_of(self.profiler_llm or self.llm))
        parts = (Identity(self.profiler_llm or self.llm), Identity(embeddings))
        # Profilers don't depend on the settings of answers, so copies with others share them.
        profilers = self.shared_state.core(
            ("profilers", self.mode == "fixed", *parts, *self._values(*PROFILER_KNOBS)),
            lambda: self._profilers(asker, embed),
        )
        self._pipelines = self.shared_state.core("pipelines", Pipelines)
        self._pipeline = self._pipelines.get(
            (Identity(self.llm), *parts, self.prompts, *self._values()),
            lambda: self._make_pipeline(
                LangChainAsker(self._model), self.prompts, self._model.own, profilers
            ),
        )

    def _model_of(self, llm: Runnable[Any, Any]) -> LangChainModel:
        return self.shared_state.core(("model", Identity(llm)), lambda: LangChainModel(llm))

    def draft_corpus(self, documents: Sequence[Document | str]) -> str:
        """Draft a value of ``corpus`` from some of the documents, by the profiler's model."""
        return draft_corpus(self._profiler_asker(), _texts(documents))

    async def adraft_corpus(self, documents: Sequence[Document | str]) -> str:
        """Async version of :meth:`draft_corpus`."""
        return await adraft_corpus(self._profiler_asker(), _texts(documents))

    def close(self) -> None:
        """Stop golden feedback in the background; questions are still answered. Idempotent.

        This affects all chains that LangChain has made from this one with other settings, too.
        """
        self._pipelines.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        self._pipelines.close()  # does not wait

    def _profiler_asker(self) -> LangChainAsker:
        return LangChainAsker(LangChainModel(self.profiler_llm or self.llm))

    @override
    def _flow(
        self, value: Any, config: RunnableConfig, call: dict[str, Any], *, streamed: bool
    ) -> Flow:
        question = _Question(self, value, config, call)
        blocking = (question.text, question.retrieve, question.asker)
        awaited = (question.text, question.aretrieve, question.asker)
        pipeline = self._pipeline
        yield self._first_piece(question.inputs)
        if streamed:
            yield Each(
                partial(pipeline.stream, *blocking),
                partial(pipeline.astream, *awaited),
                question.piece,
            )
        else:
            answer = yield Call(
                partial(pipeline.answer, *blocking), partial(pipeline.aanswer, *awaited)
            )
            yield from map(question.piece, (answer.explanation, answer.text, answer))


class _Question:
    """An input of the chain, for the framework-free pipeline."""

    def __init__(
        self, chain: AdaptiveRAG, value: Any, config: RunnableConfig, call: Mapping[str, Any]
    ) -> None:
        self._chain = chain
        self._config = config
        self._documents: list[Document] = []
        self.asker = LangChainAsker(chain._model, config, call)  # noqa: SLF001 - a part of it
        self.inputs, self.text = read_question(value, chain.input_key)

    def retrieve(self, question: str, count: int) -> list[PromptDocument]:
        """Find documents."""
        retriever: Any = self._chain.retriever
        arguments = {"k": count} if _takes_k(retriever) else {}
        return self._read_documents(retriever.invoke(question, self._config, **arguments))

    async def aretrieve(self, question: str, count: int) -> list[PromptDocument]:
        """Async version of :meth:`retrieve`."""
        retriever: Any = self._chain.retriever
        arguments = {"k": count} if _takes_k(retriever) else {}
        return self._read_documents(await retriever.ainvoke(question, self._config, **arguments))

    def piece(self, piece: Explanation | str | AdaptiveAnswer) -> Output:
        """A piece of the output: before the answer, of it, and after it."""
        if isinstance(piece, str):
            return AddableDict(answer=piece)
        if isinstance(piece, Explanation):
            read = self._documents[: piece.config.num_chunks]
            return AddableDict(context=read, explain=piece)
        synthesised = piece.synthesised
        cited = [self._documents[citation.index] for citation in synthesised.citations]
        return AddableDict(citations=cited, synthesis=synthesised, cost=piece.cost)

    def _read_documents(self, documents: Sequence[Document]) -> list[PromptDocument]:
        self._documents = list(documents)
        return marked_documents(self._documents, self._chain.document_prompt)


def _takes_k(retriever: object) -> bool:
    """Whether a retriever accepts the number of documents to find."""
    inner = unbound(retriever, every=True).runnable
    if isinstance(inner, VectorStoreRetriever):
        return True
    method = getattr(inner, "_get_relevant_documents", None)
    return method is not None and "k" in inspect.signature(method).parameters


def _texts(documents: Sequence[Document | str]) -> list[str]:
    return [doc if isinstance(doc, str) else doc.page_content for doc in documents]
