"""Relevance checks for LangChain: an adapter, see :mod:`.check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import BaseLanguageModel, BaseLLM, LanguageModelInput
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import ConfigDict, SkipValidation
from typing_extensions import override

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.knobs import settings_of
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.langchain import (
    CompletionPromptValue,
    message_content,
    message_role,
)

from .check import (
    Layout,
    RelevanceCheck,
    RelevanceKnobs,
    RelevanceSettings,
    Verdict,
    mark_question,
    sampling_arguments,
)

__all__ = ["RelevanceFilter"]

Values = dict[str, Any]


class RelevanceFilter(RelevanceKnobs, RunnableSerializable[Values, Values], BaseDocumentCompressor):
    """Asks a model which documents help to answer a question.

    It is a Runnable between a retriever and the prompt, whose input and output are the prompt's
    values; or a document compressor, for retrievers that use one::

        chain = {"context": retriever, "question": RunnablePassthrough()} | RelevanceFilter(llm=llm)

    Attributes:
        llm: The model. ``ChatRAGCache`` can only answer yes or no; others are instructed to.
        mode: ``parallel`` asks about each document separately, all at the same time, and drops the
            irrelevant ones. ``shared`` asks once about all of them, keeps them, so that the answer
            reuses their KV caches, and adds a note as the last document.
        prompt: With ``shared``: the prompt for the answer, with the documents before the question,
            so that both prompts have the same beginning.
        instruction: With ``parallel``: the system text of each request.
        min_documents: With ``parallel``: the fewest documents that stay. If too few are relevant,
            the first of the others stay, too.
        max_document_tokens: With ``parallel``: the most tokens of the documents that stay. Each
            relevant document stays that fits in addition to those before it, and the first
            ``min_documents`` stay in any case; ``None`` for no limit.
        count_tokens: Counts the tokens of a text for that limit, such as ``engine.count_tokens``;
            ``None`` to estimate them.
        documents_key: Name of the documents among the values.
        query_key: Name of the question among the values.
        separator: With ``shared``: the text that your chain puts between documents.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range, or an attribute of a
            finished object is assigned; ``model_copy(update=...)`` makes an object with other
            values.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    # Not validated: pydantic treats a generic class with another parameter as another class.
    llm: Annotated[BaseLanguageModel[Any], SkipValidation]
    prompt: Annotated[BasePromptTemplate[Any] | None, SkipValidation] = None
    documents_key: str = "context"
    query_key: str = "question"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        check_type("llm", self.llm, BaseLanguageModel, "a BaseLanguageModel")
        check_type("prompt", self.prompt, BasePromptTemplate | None, "a BasePromptTemplate")
        self._check = RelevanceCheck(_Judge(self.llm), settings_of(RelevanceSettings, self))

    @override
    def invoke(self, input: Values, config: RunnableConfig | None = None, **kwargs: Any) -> Values:
        return self._call_with_config(self._filter, input, config, **kwargs)

    @override
    async def ainvoke(
        self, input: Values, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Values:
        return await self._acall_with_config(self._afilter, input, config, **kwargs)

    @override
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Drop irrelevant documents or, with ``shared``, add a note as the last document."""
        verdict = self._check.check(query, _convert(documents), self._layout({}))
        return _apply(verdict, documents)

    @override
    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Async version of :meth:`compress_documents`."""
        verdict = await self._check.acheck(query, _convert(documents), self._layout({}))
        return _apply(verdict, documents)

    def _filter(self, values: Values) -> Values:
        documents, query = self._read(values)
        verdict = self._check.check(query, _convert(documents), self._layout(values))
        return {**values, self.documents_key: _apply(verdict, documents)}

    async def _afilter(self, values: Values) -> Values:
        documents, query = self._read(values)
        verdict = await self._check.acheck(query, _convert(documents), self._layout(values))
        return {**values, self.documents_key: _apply(verdict, documents)}

    def _read(self, values: Values) -> tuple[list[Document], str]:
        check_type("the values", values, Mapping, "a dict")
        missing = [name for name in (self.documents_key, self.query_key) if name not in values]
        if missing:
            msg = f"the values must have {', '.join(missing)}, got {', '.join(map(str, values))}"
            raise ConfigurationError(msg)
        return list(values[self.documents_key]), values[self.query_key]

    def _layout(self, values: Values) -> Layout | None:
        return None if self.prompt is None else partial(self._lay_out, self.prompt, values)

    def _lay_out(
        self,
        prompt: BasePromptTemplate[Any],
        values: Values,
        documents: Sequence[PromptDocument],
        question: str,
    ) -> Prompt:
        context = self.separator.join(document.text for document in documents)
        filled = prompt.invoke({**values, self.documents_key: context, self.query_key: question})
        messages = (
            Message(message_role(message), mark_question(str(message.text), documents, question))
            for message in filled.to_messages()
        )
        return Prompt(messages=tuple(messages))


class _Judge:
    """Any of LangChain's models."""

    def __init__(self, llm: BaseLanguageModel[Any]) -> None:
        self._llm = llm
        # Our own class cannot be imported here. It reads documents and accepts a choice.
        self._is_ours = "find_documents" in type(llm).model_fields

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        messages = [self._input(prompt) for prompt in prompts]
        arguments = sampling_arguments(options, is_ours=self._is_ours)
        return [_text(answer) for answer in self._llm.batch(messages, **arguments)]

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        messages = [self._input(prompt) for prompt in prompts]
        arguments = sampling_arguments(options, is_ours=self._is_ours)
        return [_text(answer) for answer in await self._llm.abatch(messages, **arguments)]

    def _input(self, prompt: Prompt) -> LanguageModelInput:
        if isinstance(self._llm, BaseLLM):
            return CompletionPromptValue.of(prompt, is_ours=self._is_ours)
        return [
            {"role": message.role, "content": message_content(message, is_ours=self._is_ours)}
            for message in prompt.messages
        ]


def _text(answer: object) -> str:
    return str(answer.text) if isinstance(answer, BaseMessage) else str(answer)


def _convert(documents: Sequence[Document]) -> list[PromptDocument]:
    # An empty document becomes a blank, so that the others keep their places.
    return [PromptDocument(doc.page_content or " ", doc.id or "") for doc in documents]


def _apply(verdict: Verdict, documents: Sequence[Document]) -> list[Document]:
    kept = [documents[index] for index in verdict.kept]
    return [*kept, Document(verdict.note)] if verdict.note else kept
