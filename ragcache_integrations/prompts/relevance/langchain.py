"""Relevance checks for LangChain: an adapter, see :mod:`.check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import BaseLanguageModel, BaseLLM, LanguageModelInput
from langchain_core.messages import BaseMessage, ChatMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from pydantic import ConfigDict, PrivateAttr, SkipValidation, ValidationError
from typing_extensions import override

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.completion.langchain import CompletionPromptValue
from ragcache_integrations.prompts.fixed_settings import FixedSettings
from ragcache_integrations.prompts.relevance.check import (
    INSTRUCTION,
    Layout,
    RelevanceCheck,
    RelevanceSettings,
    Verdict,
    mark_asked,
)

__all__ = ["RelevanceFilter"]

Values = dict[str, Any]


class RelevanceFilter(FixedSettings, RunnableSerializable[Values, Values], BaseDocumentCompressor):
    """Asks a model which documents help to answer a question.

    A Runnable that stands between a retriever and the prompt, and takes and gives the values of
    the prompt; or a document compressor, for a retriever that takes one::

        chain = {"context": retriever, "question": RunnablePassthrough()} | RelevanceFilter(llm=llm)

    Attributes:
        llm: What is asked. ``ChatRAGCache`` answers with one token of two; others are asked to.
        mode: ``parallel`` asks about each document by itself, all at once, and drops the irrelevant
            ones. ``shared`` asks once about all of them, keeps them, so that the answer finds their
            KV caches, and adds a note as a last document.
        prompt: With ``shared``: the prompt for the answer, with the documents in front of the
            question, so that both begin alike.
        instruction: With ``parallel``: the system text of each request.
        min_documents: With ``parallel``: so many documents stay at least, the first ones where
            too few are relevant.
        documents_key: Name of the documents among the values.
        query_key: Name of the question among the values.
        separator: With ``shared``: what your chain puts between documents.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of its range, or one is set on a
            finished object, for which ``model_copy(update=...)`` makes another one.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    # Skipped: pydantic takes a generic class of another parameter for something else.
    llm: Annotated[BaseLanguageModel[Any], SkipValidation]
    mode: Literal["parallel", "shared"] = "parallel"
    prompt: Annotated[BasePromptTemplate[Any] | None, SkipValidation] = None
    instruction: str = INSTRUCTION
    min_documents: int = 0
    documents_key: str = "context"
    query_key: str = "question"
    separator: str = "\n\n"

    _check: RelevanceCheck = PrivateAttr()

    def __init__(self, **arguments: Any) -> None:
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
        for name, kind in (("llm", BaseLanguageModel), ("prompt", BasePromptTemplate)):
            given = getattr(self, name)
            if not isinstance(given, kind) and not (name == "prompt" and given is None):
                msg = f"{name} must be a {kind.__name__}, got {type(given).__name__}"
                raise ConfigurationError(msg)
        settings = RelevanceSettings(
            mode=self.mode, instruction=self.instruction, min_documents=self.min_documents
        )
        self._check = RelevanceCheck(_Judge(self.llm), settings)

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
        """Drop what does not help, or with ``shared`` say so in a last document."""
        layout = self._layout({})
        verdict = self._check.check(query, _translated(documents), layout)
        return _kept(documents, verdict)

    @override
    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The async twin of :meth:`compress_documents`."""
        layout = self._layout({})
        verdict = await self._check.acheck(query, _translated(documents), layout)
        return _kept(documents, verdict)

    def _filter(self, values: Values) -> Values:
        documents, query = self._read(values)
        verdict = self._check.check(query, _translated(documents), self._layout(values))
        return {**values, self.documents_key: _kept(documents, verdict)}

    async def _afilter(self, values: Values) -> Values:
        documents, query = self._read(values)
        verdict = await self._check.acheck(query, _translated(documents), self._layout(values))
        return {**values, self.documents_key: _kept(documents, verdict)}

    def _read(self, values: object) -> tuple[list[Document], str]:
        if not isinstance(values, Mapping):
            msg = f"the values must be a dict, got {type(values).__name__}"
            raise ConfigurationError(msg)
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
        asked: str,
    ) -> Prompt:
        context = self.separator.join(document.text for document in documents)
        filled = prompt.invoke({**values, self.documents_key: context, self.query_key: asked})
        return Prompt(
            messages=tuple(
                Message(_role(message), mark_asked(str(message.text), documents, asked))
                for message in filled.to_messages()
            )
        )


class _Judge:
    """Any of LangChain's models."""

    def __init__(self, llm: BaseLanguageModel[Any]) -> None:
        self._llm = llm
        # Ours, which cannot be imported here: it knows documents and keeps to a choice.
        self._is_ours = "find_documents" in type(llm).model_fields

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        messages = [self._input(prompt) for prompt in prompts]
        return [_text(answer) for answer in self._llm.batch(messages, **self._arguments(options))]

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        messages = [self._input(prompt) for prompt in prompts]
        answers = await self._llm.abatch(messages, **self._arguments(options))
        return [_text(answer) for answer in answers]

    def _input(self, prompt: Prompt) -> LanguageModelInput:
        if isinstance(self._llm, BaseLLM):
            return CompletionPromptValue.of(prompt, is_ours=self._is_ours)
        return [
            {"role": message.role, "content": self._content(message)} for message in prompt.messages
        ]

    def _content(self, message: Message) -> Any:
        if not self._is_ours or all(isinstance(part, str) for part in message.parts):
            return message.text
        return [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "text-plain", "text": part.text, "id": part.id}
            for part in message.parts
        ]

    def _arguments(self, options: SamplingOptions) -> dict[str, Any]:
        if not self._is_ours:
            return {"max_tokens": options.max_tokens}
        own = {"choice": options.choice, "json_schema": options.json_schema}
        return {"max_tokens": options.max_tokens, "temperature": 0.0} | {
            name: value for name, value in own.items() if value
        }


def _text(answer: object) -> str:
    return str(answer.text) if isinstance(answer, BaseMessage) else str(answer)


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    return {"human": "user", "ai": "assistant"}.get(message.type, message.type)


def _translated(documents: Sequence[Document]) -> list[PromptDocument]:
    # A document without text says nothing; a blank keeps its place.
    return [PromptDocument(doc.page_content or " ", doc.id or "") for doc in documents]


def _kept(documents: Sequence[Document], verdict: Verdict) -> list[Document]:
    kept = [documents[index] for index in verdict.kept]
    return [*kept, Document(verdict.note)] if verdict.note else kept
