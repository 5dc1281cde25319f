"""Speculative pipelining as a LangChain Runnable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate, format_document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict
from pydantic import PrivateAttr
from typing_extensions import override

from ragcache_integrations.chains.langchain import (
    BoundRunnable,
    StreamedRunnable,
    Template,
    chunk_piece,
    read_question,
    unbound,
)
from ragcache_integrations.core.flows import Call, Each, Flow
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.handover import answered_by, arguments_of, marked
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.langchain.translation import chat_prompt, own_call
from ragcache_integrations.retrievers.sharing import Identity
from ragcache_integrations.speculation import stage_of_search, stages_of_pair

from .knobs import SpeculationKnobs, Speculators

__all__ = ["SpeculativeRAG"]

_PROMPT = ChatPromptTemplate.from_messages(
    [
        (
            "system",
            (
                "You answer questions from the passages that you are given. "
                "Keep to what they say, in a few words; say so if they do not tell."
            ),
        ),
        ("human", "{context}\n\nQuestion: {input}\nAnswer:"),
    ]
)


class SpeculativeRAG(SpeculationKnobs, StreamedRunnable[str | dict[str, Any]]):
    """Retrieves and answers; generation begins while the search is still running (RAGCache §5.3).

    Drop-in replacement for ``create_retrieval_chain(retriever, create_stuff_documents_chain(llm,
    prompt))``::

        chain = SpeculativeRAG(retriever=StagedFaissRetriever.from_vectorstore(store), llm=model)
        chain.invoke({"input": "a question"})["answer"]

    The input is a question, or a dict with one and other variables of the prompt. The output is a
    dict of the input, ``context`` (the documents), ``answer`` (a string) and ``speculation`` (a
    :class:`~ragcache_integrations.speculation.SpeculationReport`). Streams have them in this
    order, the answer in pieces. Wrong guesses have no effect on the answer.

    Guesses come from the stages of a retriever such as ``StagedFaissRetriever``, which may be
    inside of an ``ApproximateCacheRetriever``, or from ``first``, a fast retriever besides a slow
    one that decides. With other retrievers, or if ``llm`` doesn't run on an engine of this process,
    the answer begins when the search has ended.

    In callbacks, the runs of retriever and model are children of this chain's run. The model's run
    begins with the final documents, although its answer may have begun before.

    The knobs are those of
    :class:`~ragcache_integrations.chains.speculative.knobs.SpeculationKnobs`.

    Attributes:
        retriever: Finds the documents.
        llm: Answers: ``ChatRAGCache`` or ``RAGCacheLLM``, also after ``bind``; or any other.
        prompt: The prompt, with variables for the documents, the question and other inputs.
        first: A fast approximate retriever, whose documents are the guess until ``retriever`` has
            found the right ones; ``None`` for none.
        input_key: Name of the question in the input and in the prompt.
        document_variable_name: Name of the documents in the prompt.
        document_prompt: Formats a document for the prompt.
        document_separator: Text between two documents.

    Raises:
        ConfigurationError: An argument is unknown, out of range or missing, or the prompt has no
            variable for documents.
    """

    retriever: RetrieverLike
    llm: Runnable[Any, Any]
    prompt: Template = _PROMPT
    first: RetrieverLike | None = None
    input_key: str = "input"
    document_variable_name: str = "context"
    document_prompt: Template = PromptTemplate.from_template("{page_content}")
    document_separator: str = "\n\n"

    _written = frozenset({"context", "answer", "speculation"})
    _model: BoundRunnable = PrivateAttr()
    _speculators: Speculators = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Check the prompt, and find the speculators."""
        super().model_post_init(context)
        variables = self.prompt.input_variables
        if self.document_variable_name not in variables:
            raise ConfigurationError(
                f"the prompt must take the documents as {self.document_variable_name!r}, "
                f"it takes {', '.join(variables) or 'nothing'}"
            )
        self._model = unbound(self.llm)
        knobs = {name: getattr(self, name) for name in SpeculationKnobs.model_fields}
        runnable = self._model.runnable
        self._speculators = self.shared_state.core(
            ("speculators", Identity(runnable), *knobs.values()),
            lambda: Speculators(runnable, SpeculationKnobs(**knobs)),
        )

    @override
    def _flow(
        self, value: Any, config: RunnableConfig, call: dict[str, Any], *, streamed: bool
    ) -> Flow:
        del streamed  # the whole answer is the sum of the pieces
        question = _Question(self, value, {**self._model.arguments, **call})
        yield self._first_piece(question.inputs)
        speculator = yield Call(self._speculators.get, self._speculators.aget)
        model, arguments, stream = self._model.runnable, question.call, None
        if speculator is None:
            documents = list((yield Call(*_searches(self.retriever, question.text, config))))
        else:
            stages, astages = self._stages(question.text, config, speculator.interval())
            asked = {"prompt_of": question.prompt, **question.arguments()}
            stream = yield Call(
                lambda: speculator.stream(stages(), **asked),
                lambda: speculator.astream(astages(), **asked),
                entered=True,
            )
            documents = list(stream.documents)
            model, arguments = question.replay(stream), question.call_with(documents)
        yield AddableDict(context=documents)
        given = (question.value(documents), self._model.configured(config).config)
        yield Each(
            partial(model.stream, *given, **arguments),
            partial(model.astream, *given, **arguments),
            chunk_piece,
        )
        yield AddableDict(speculation=None if stream is None else stream.report)

    def _stages(
        self, query: str, config: RunnableConfig, interval: float | None
    ) -> list[Callable[[], Any]]:
        """What begins a search in stages: for callers that block, and for those that await."""
        searches = _searches(self.retriever, query, config)
        own = unbound(self.retriever).configured(config)
        if self.first is not None:
            pairs = zip(_searches(self.first, query, config), searches, strict=True)
            return [partial(stages_of_pair, *pair) for pair in pairs]
        # A retriever may have only one of the two.
        methods = [getattr(own.runnable, name, None) for name in ("stages", "astages")]
        return [
            partial(stage_of_search, search)
            if method is None
            else partial(method, query, own.config, interval=interval, **own.arguments)
            for method, search in zip(methods, searches, strict=True)
        ]


def _searches(
    retriever: RetrieverLike, query: str, config: RunnableConfig
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A search, for callers that block and for those that await."""
    return partial(retriever.invoke, query, config), partial(retriever.ainvoke, query, config)


class _Question:
    """A question, and the prompts about its documents."""

    def __init__(self, chain: SpeculativeRAG, value: Any, call: dict[str, Any]) -> None:
        self._chain = chain
        self._model = chain._model.runnable  # noqa: SLF001 - a part of it
        self.call = call
        self.inputs, self.text = read_question(value, chain.input_key)
        known = {*self.inputs, chain.document_variable_name}
        missing = sorted(set(chain.prompt.input_variables) - known)
        if missing:
            msg = f"the prompt wants {', '.join(missing)}, the input has {', '.join(self.inputs)}"
            raise ConfigurationError(msg)

    def value(self, documents: Sequence[Document]) -> PromptValue:
        """Return the prompt for the model."""
        context = self._chain.document_separator.join(self._texts(documents))
        variables = {**self.inputs, self._chain.document_variable_name: context}
        return self._chain.prompt.format_prompt(**variables)

    def prompt(self, documents: Sequence[Document]) -> Prompt:
        """Return the prompt for the engine."""
        value = self.value(documents)
        if isinstance(self._model, ChatRAGCache):
            prompt = chat_prompt(value.to_messages(), self._model.model_name)
        else:
            prompt = Prompt.raw(value.to_string())
        return marked(self._model, prompt, self._marks(documents))

    def arguments(self) -> dict[str, Any]:
        """Return the other arguments for the engine."""
        return arguments_of(self._model, own_call(self.call))

    def call_with(self, documents: Sequence[Document]) -> dict[str, Any]:
        """Return the arguments of the model's call."""
        return {**self.call, "documents": self._marks(documents)}

    def replay(self, stream: Any) -> Any:
        """Return a model that replays the running answer."""
        return answered_by(self._model, self.prompt(stream.documents), stream)

    def _texts(self, documents: Sequence[Document]) -> list[str]:
        return [format_document(document, self._chain.document_prompt) for document in documents]

    def _marks(self, documents: Sequence[Document]) -> list[PromptDocument]:
        texts = self._texts(documents)
        return [
            PromptDocument(text, document.id or "")
            for document, text in zip(documents, texts, strict=True)
            if text
        ]
