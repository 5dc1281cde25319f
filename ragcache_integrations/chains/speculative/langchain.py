"""Speculative pipelining as a LangChain Runnable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from langchain_core.documents import Document
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    format_document,
)
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
)
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.utils import AddableDict
from pydantic import BeforeValidator, PrivateAttr, SkipValidation
from typing_extensions import override

from ragcache_integrations.chains.speculative.knobs import SpeculationKnobs, Speculators
from ragcache_integrations.chains.streamed.langchain import Output, StreamedRunnable
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.handover import answered_by, arguments_of, marked
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.langchain.translation import chat_prompt, own_call
from ragcache_integrations.retrievers.sharing.shared_state import Identity
from ragcache_integrations.speculation import stage_of_search, stages_of_pair

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


def _check_template(value: object) -> object:
    if isinstance(value, BasePromptTemplate):
        return value
    msg = f"a prompt must be one of LangChain's prompt templates, got {value!r:.100}"
    raise ConfigurationError(msg)


# Without pydantic's own check, which would make a new one.
_Template = Annotated[BasePromptTemplate[Any], SkipValidation, BeforeValidator(_check_template)]


class SpeculativeRAG(SpeculationKnobs, StreamedRunnable[str | dict[str, Any]]):
    """Retrieves and answers; generation begins while the search is still running (RAGCache §5.3).

    Takes the place of ``create_retrieval_chain(retriever, create_stuff_documents_chain(llm,
    prompt))``::

        chain = SpeculativeRAG(retriever=StagedFaissRetriever.from_vectorstore(store), llm=model)
        chain.invoke({"input": "a question"})["answer"]

    The input is a question, or a dict with one and whatever else the prompt wants. The output is a
    dict of the input, ``context`` (the documents), ``answer`` (a string) and ``speculation`` (a
    :class:`~ragcache_integrations.speculation.SpeculationReport`). Streams bring them in this
    order, the answer in pieces. A wrong guess never shows; the answer is what it would be without.

    The retriever may be any. One with stages is guessed from: ``StagedFaissRetriever``, also
    behind an ``ApproximateCacheRetriever``. So is ``first``, a fast one, beside a slow one that
    decides. Otherwise, or where ``llm`` is not answered by an engine of this process, the answer
    begins when the search has ended.

    For callbacks, the retriever's run and the model's are children of this one's. The model's
    begins with the final documents, though its answer may have begun before.

    The knobs are those of
    :class:`~ragcache_integrations.chains.speculative.knobs.SpeculationKnobs`.

    Attributes:
        retriever: Finds the documents.
        llm: Answers: ``ChatRAGCache`` or ``RAGCacheLLM``, also after ``bind``; or any other.
        prompt: What is asked; takes the documents, the question and whatever the input has besides.
        first: A fast approximate retriever, whose documents are guessed with until ``retriever``
            has found the right ones.
        input_key: Name of the question in the input and in the prompt.
        document_variable_name: Name of the documents in the prompt.
        document_prompt: How a document stands in the prompt.
        document_separator: Stands between two documents.

    Raises:
        ConfigurationError: An argument is unknown, out of its range or missing, or the prompt does
            not take documents.
    """

    retriever: RetrieverLike
    llm: Runnable[Any, Any]
    prompt: _Template = _PROMPT
    first: RetrieverLike | None = None
    input_key: str = "input"
    document_variable_name: str = "context"
    document_prompt: _Template = PromptTemplate.from_template("{page_content}")
    document_separator: str = "\n\n"

    _written = frozenset({"context", "answer", "speculation"})
    _model: _Bound = PrivateAttr()
    _speculators: Speculators = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Look at the parts."""
        super().model_post_init(context)
        wanted = self.prompt.input_variables
        if self.document_variable_name not in wanted:
            msg = (
                f"the prompt must take the documents as {self.document_variable_name!r}, "
                f"it takes {', '.join(wanted) or 'nothing'}"
            )
            raise ConfigurationError(msg)
        self._model = _Bound.of(self.llm)
        names = SpeculationKnobs.model_fields
        knobs = SpeculationKnobs(**{name: getattr(self, name) for name in names})
        runnable = self._model.runnable
        self._speculators = self.shared_state.core(
            ("speculators", Identity(runnable), *(getattr(knobs, name) for name in names)),
            lambda: Speculators(runnable, knobs),
        )

    @override
    def _pieces(
        self, given: Any, config: RunnableConfig, call: dict[str, Any]
    ) -> Generator[Output]:
        question = _Question(self, given, self._model.call(call))
        yield self._passed_on(question.inputs)
        model = self._model.configured(config)
        speculator = self._speculators.get()
        if speculator is None:
            documents = self._search(question.text, config)
            yield AddableDict(context=documents)
            value = question.value(documents)
            for chunk in model.runnable.stream(value, model.config, **question.call):
                yield AddableDict(answer=_text(chunk))
            yield AddableDict(speculation=None)
            return
        stages = self._stages(question.text, config, speculator.interval())
        with speculator.stream(stages, question.prompt, **question.arguments()) as stream:
            documents = list(stream.documents)
            yield AddableDict(context=documents)
            for chunk in question.answered(stream).stream(
                question.value(documents), model.config, **question.call_with(documents)
            ):
                yield AddableDict(answer=_text(chunk))
            yield AddableDict(speculation=stream.report)

    @override
    async def _apieces(
        self, given: Any, config: RunnableConfig, call: dict[str, Any]
    ) -> AsyncGenerator[Output]:
        question = _Question(self, given, self._model.call(call))
        yield self._passed_on(question.inputs)
        model = self._model.configured(config)
        speculator = await self._speculators.aget()
        if speculator is None:
            documents = await self._asearch(question.text, config)
            yield AddableDict(context=documents)
            value = question.value(documents)
            async for chunk in model.runnable.astream(value, model.config, **question.call):
                yield AddableDict(answer=_text(chunk))
            yield AddableDict(speculation=None)
            return
        stages = self._astages(question.text, config, speculator.interval())
        async with await speculator.astream(
            stages, question.prompt, **question.arguments()
        ) as stream:
            documents = list(stream.documents)
            yield AddableDict(context=documents)
            async for chunk in question.answered(stream).astream(
                question.value(documents), model.config, **question.call_with(documents)
            ):
                yield AddableDict(answer=_text(chunk))
            yield AddableDict(speculation=stream.report)

    # The search

    def _search(self, query: str, config: RunnableConfig) -> list[Document]:
        return list(self.retriever.invoke(query, config))

    async def _asearch(self, query: str, config: RunnableConfig) -> list[Document]:
        return list(await self.retriever.ainvoke(query, config))

    def _stages(self, query: str, config: RunnableConfig, interval: float | None) -> Any:
        first, own = self.first, _Bound.of(self.retriever).configured(config)
        if first is not None:
            return stages_of_pair(
                partial(first.invoke, query, config), partial(self._search, query, config)
            )
        if hasattr(own.runnable, "stages"):
            return own.runnable.stages(query, own.config, interval=interval, **own.arguments)
        return stage_of_search(partial(self._search, query, config))

    def _astages(self, query: str, config: RunnableConfig, interval: float | None) -> Any:
        first, own = self.first, _Bound.of(self.retriever).configured(config)
        if first is not None:
            return stages_of_pair(
                partial(first.ainvoke, query, config), partial(self._asearch, query, config)
            )
        if hasattr(own.runnable, "astages"):
            return own.runnable.astages(query, own.config, interval=interval, **own.arguments)
        return stage_of_search(partial(self._asearch, query, config))


@dataclass(frozen=True)
class _Bound:
    """A Runnable with what was bound to it."""

    runnable: Any
    arguments: Mapping[str, Any]
    config: RunnableConfig

    @classmethod
    def of(cls, runnable: Any) -> _Bound:
        arguments: dict[str, Any] = {}
        config = RunnableConfig()
        while isinstance(runnable, RunnableBinding) and not runnable.config_factories:
            arguments = {**runnable.kwargs, **arguments}
            config = merge_configs(runnable.config, config)
            runnable = runnable.bound
        return cls(runnable, arguments, config)

    def call(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call that is given some."""
        return {**self.arguments, **given}

    def configured(self, config: RunnableConfig) -> _Bound:
        return _Bound(self.runnable, self.arguments, merge_configs(self.config, config))


class _Question:
    """One question, and what is asked about the documents for it."""

    def __init__(self, chain: SpeculativeRAG, given: Any, call: dict[str, Any]) -> None:
        self._chain = chain
        self._model = chain._model.runnable  # noqa: SLF001 - a part of it
        self.call = call
        self.inputs: dict[str, Any] = (
            dict(given) if isinstance(given, Mapping) else {chain.input_key: given}
        )
        text = self.inputs.get(chain.input_key)
        if not isinstance(text, str):
            msg = f"the input must be a string, or a dict with {chain.input_key!r}, got {given!r}"
            raise ConfigurationError(msg)
        self.text = text
        known = {*self.inputs, chain.document_variable_name}
        missing = sorted(set(chain.prompt.input_variables) - known)
        if missing:
            msg = f"the prompt wants {', '.join(missing)}, the input has {', '.join(self.inputs)}"
            raise ConfigurationError(msg)

    def value(self, documents: Sequence[Document]) -> PromptValue:
        """Return what is asked, as the model is asked."""
        context = self._chain.document_separator.join(self._texts(documents))
        variables = {**self.inputs, self._chain.document_variable_name: context}
        return self._chain.prompt.format_prompt(**variables)

    def prompt(self, documents: Sequence[Document]) -> Prompt:
        """Return what is asked, as the engine is asked."""
        value = self.value(documents)
        chat = isinstance(self._model, ChatRAGCache)
        prompt = chat_prompt(value.to_messages()) if chat else Prompt.raw(value.to_string())
        return marked(self._model, prompt, self._marks(documents))

    def arguments(self) -> dict[str, Any]:
        """Return what the engine is given besides."""
        return arguments_of(self._model, own_call(self.call))

    def call_with(self, documents: Sequence[Document]) -> dict[str, Any]:
        """Return the arguments of the model's call."""
        return {**self.call, "documents": self._marks(documents)}

    def answered(self, stream: Any) -> Any:
        """Return the model, with an answer in the making to the question over its documents."""
        return answered_by(self._model, self.prompt(stream.documents), stream)

    def _texts(self, documents: Sequence[Document]) -> list[str]:
        return [format_document(one, self._chain.document_prompt) for one in documents]

    def _marks(self, documents: Sequence[Document]) -> list[PromptDocument]:
        texts = self._texts(documents)
        return [
            PromptDocument(text, one.id or "")
            for one, text in zip(documents, texts, strict=True)
            if text
        ]


def _text(chunk: Any) -> str:
    return chunk if isinstance(chunk, str) else str(chunk.text)
