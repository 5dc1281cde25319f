"""Prompts for LangChain: what it makes of them on the way to a model, and steps in front of it.

For models that complete text, LangChain makes one string of the messages, and leaves out
``text-plain`` content blocks: the model would never see the documents. Here they are kept.
LangChain's runs are followed, and the results of all of its retrievers (:mod:`.recognition`).
Documents are ordered (:mod:`.order`), left out if they are irrelevant (:mod:`.relevance`), and said
once (:mod:`.repeats`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import BaseLanguageModel, BaseLLM, LanguageModelInput
from langchain_core.messages import (
    BaseMessage,
    ChatMessage,
    HumanMessage,
    ToolMessage,
    get_buffer_string,
)
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableSerializable, ensure_config
from langchain_core.tracers.context import register_configure_hook
from langchain_core.utils.utils import LC_AUTO_PREFIX
from pydantic import ConfigDict, SkipValidation
from typing_extensions import override

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.knobs import settings_of
from ragcache_integrations.core.prompt import (
    MarkedText,
    Message,
    Part,
    Prompt,
    PromptDocument,
    part_text,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.rendering import completion_text, merge_texts

from .order import (
    Order,
    OrderKnobs,
    RequestDocuments,
    request_documents,
)
from .recognition import REQUESTS
from .relevance import (
    Layout,
    RelevanceCheck,
    RelevanceKnobs,
    RelevanceSettings,
    mark_question,
    sampling_arguments,
)
from .repeats import HELD, MIN_WORDS, Repeats, dump_parts, held_parts, is_in_full

if TYPE_CHECKING:
    from ragcache_integrations._arguments import OrderKnobArguments

__all__ = [
    "BlocksPromptValue",
    "CompletionPromptValue",
    "OrderDocuments",
    "RelevanceFilter",
    "block_document",
    "current_run",
    "documents_once",
    "message_content",
    "message_role",
    "order_documents",
    "part_block",
    "run_around",
    "shown_text",
    "watch_retrievers",
]


class CompletionPromptValue(PromptValue):
    """A text that keeps its documents on the way to the model.

    Attributes:
        text: The prompt.
    """

    text: Annotated[str, SkipValidation]  # pydantic would make a plain string of it

    @classmethod
    def of(cls, prompt: Prompt, *, is_ours: bool) -> Self:
        """Write a conversation as text.

        Args:
            prompt: The conversation.
            is_ours: Whether the model belongs to this package, and reads documents.
        """
        text = completion_text(prompt)
        return cls(text=text if is_ours else str(text))

    @override
    def to_string(self) -> str:
        return self.text

    @override
    def to_messages(self) -> list[BaseMessage]:
        return [HumanMessage(str(self.text))]


class BlocksPromptValue(ChatPromptValue):
    """Messages whose ``text-plain`` blocks are written out for a model that completes text."""

    @override
    def to_string(self) -> str:
        parts: list[Part] = []
        for message in self.messages:
            parts += ["\n"] if parts else []
            parts += _message_parts(message)
        return MarkedText(merge_texts(parts))


def message_content(message: Message, *, is_ours: bool) -> Any:
    """A message's content for a chat model.

    Args:
        message: The message.
        is_ours: Whether the model belongs to this package, and reads documents.
    """
    if not is_ours or all(isinstance(part, str) for part in message.parts):
        return message.text
    return [part_block(part) for part in message.parts]


def message_role(message: BaseMessage) -> str:
    """The role of a message, in the words of chat templates."""
    if isinstance(message, ChatMessage):
        return message.role
    return {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}.get(
        message.type, message.type
    )


def part_block(part: Part) -> dict[str, str]:
    """A content block of a text or a document."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "text-plain", "text": part.text, "id": part.id, "mime_type": "text/plain"}


def block_document(text: str, block: dict[str, Any]) -> PromptDocument:
    """The document of a ``text-plain`` block.

    Args:
        text: The block's text, which is not empty.
        block: The block.
    """
    block_id = str(block.get("id") or "")
    # LangChain makes up random ids; the text's hash is the same the next time.
    return PromptDocument(text, "" if block_id.startswith(LC_AUTO_PREFIX) else block_id)


def _message_parts(message: BaseMessage) -> Iterator[Part]:
    """The result of :func:`get_buffer_string` for a message, but with all its text."""
    if isinstance(message.content, str):
        yield get_buffer_string([message])
        return
    # LangChain writes the role before the content, and tool calls after it.
    around = get_buffer_string([message.model_copy(update={"content": ""})])
    role, colon, rest = around.partition(": ")
    yield role + colon
    for block in message.content:
        yield from _parts(block)
    yield rest


def _parts(block: str | dict[str, Any]) -> Iterator[Part]:
    if isinstance(block, str):
        yield block
        return
    kind, text = block.get("type"), block.get("text")
    if not isinstance(text, str) or not text:
        return
    if kind == "text":
        yield text
    if kind == "text-plain":
        yield block_document(text, block)


# The run around the last call of a chat model in this context.
_asking: ContextVar[UUID | None] = ContextVar("ragcache_asking", default=None)


@functools.cache
def watch_retrievers() -> None:
    """Remember the results of every retriever in this process from now on, for their requests.

    LangChain cannot remove a hook. That does no harm, because the memory of results is bounded.
    """
    # Every context and thread has the default. Inheritable, because LangGraph hands its own runs'
    # handlers on to the runs of its nodes, which do not read the hook; one that is there already is
    # not added twice.
    handler: ContextVar[Any] = ContextVar("ragcache_retrievals", default=_RetrievalHandler())  # noqa: B039 - it has no state
    register_configure_hook(handler, inheritable=True)


def current_run() -> UUID | None:
    """The run in which this code is executed; ``None`` outside of runs."""
    run: UUID | None = getattr(ensure_config().get("callbacks"), "parent_run_id", None)
    return run


def run_around(run_manager: Any) -> UUID | None:
    """The run around a model's own, in which its documents were retrieved.

    Args:
        run_manager: The model's run manager; ``None`` if LangChain passes none, as for streams of
            chat models. The last call that LangChain reported in this context is then this one.
    """
    if run_manager is None:
        return _asking.get()
    run: UUID | None = run_manager.parent_run_id
    return run


class _RetrievalHandler(BaseCallbackHandler):
    """Reports all runs in which documents may be retrieved, and the documents.

    LangChain awaits the handlers for the beginning of a run in the context of the code that begins
    it, which :class:`~ragcache_integrations.prompts.recognition.requests.Requests` needs; those for
    the end run in another task.
    """

    run_inline = True  # it takes microseconds; a thread would take longer
    ignore_llm = True
    ignore_retry = True
    ignore_custom_event = True

    @override
    def on_chat_model_start(
        self, *args: Any, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        _asking.set(parent_run_id)

    @override
    def on_chain_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        REQUESTS.begin(run_id, parent_run_id)

    @override
    def on_chain_end(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id)

    @override
    def on_chain_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        REQUESTS.end(run_id, failed=True)

    on_tool_start = on_retriever_start = on_chain_start
    on_tool_end = on_chain_end
    on_tool_error = on_retriever_error = on_chain_error

    @override
    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any
    ) -> None:
        # LangChain does not check what retrievers return.
        results = documents if isinstance(documents, list | tuple) else ()
        REQUESTS.remember(
            run_id,
            [
                (getattr(document, "id", None), getattr(document, "page_content", None))
                for document in results
            ],
        )
        REQUESTS.end(run_id)


_CACHE_MARK = "cache_control"
_BLOCK_FIELDS = {"type", "text", "id", "mime_type", _CACHE_MARK}


def documents_once(
    messages: Sequence[BaseMessage], *, min_words: int = MIN_WORDS
) -> list[BaseMessage]:
    """Refer to what earlier documents of the same conversation say already.

    Documents are results of tools, ``text-plain`` content blocks, and those of a
    ``RAGPromptTemplate`` with ``documents_once=True``. Applied to its own result it changes
    nothing; without the first messages of its result, what they said comes back in full. In an
    agent::

        @wrap_model_call
        def once(request, handler):
            return handler(request.override(messages=documents_once(request.messages)))

    Args:
        messages: All messages of the prompt. One with ``additional_kwargs={"in_full": True}`` stays
            as it is.
        min_words: Words of the shortest text that is referred to.

    Returns:
        The messages; those with references hold their whole text in ``additional_kwargs``.

    Raises:
        ConfigurationError: ``min_words`` is below 8.
    """
    repeats = Repeats(min_words)
    return [_once(message, repeats) for message in messages]


def shown_text(message: BaseMessage) -> str:
    """A message's text, that of documents in its content blocks included."""
    if isinstance(message.content, str):
        return message.content
    return "".join(filter(None, map(_block_text, message.content)))


def _block_text(block: str | dict[str, Any]) -> str | None:
    text = block if isinstance(block, str) else block.get("text")
    return text if isinstance(text, str) else None


def _once(message: BaseMessage, repeats: Repeats) -> BaseMessage:
    extras = message.additional_kwargs
    parts = held_parts(extras, shown_text(message))
    is_tool = isinstance(message, ToolMessage)
    if parts is None and isinstance(message.content, list):
        return _once_in_blocks(message, message.content, repeats)
    if parts is None and is_tool and message.content:
        parts = (PromptDocument(str(message.content)),)
    if parts is None:
        return message
    read = repeats.read(parts, in_full=is_in_full(extras))
    content: Any = "".join(map(part_text, read))
    if isinstance(message.content, list):
        # An image that was added since has no place among the parts, and follows them.
        others = (item for item in message.content if _block_text(item) is None)
        content = [*_blocks(read, message), *others]
    return message if content == message.content else _referring(message, content, parts, read)


def _once_in_blocks(message: BaseMessage, blocks: Sequence[Any], repeats: Repeats) -> BaseMessage:
    """Read a message of content blocks; if all are text, it can hold its parts."""
    kinds = {"text", "text-plain"} if isinstance(message, ToolMessage) else {"text-plain"}
    parts: list[Part] = []
    whole = True
    for item in blocks:
        block = {"type": "text", "text": item} if isinstance(item, str) else item
        kind, text = block.get("type"), block.get("text")
        if not set(block) <= _BLOCK_FIELDS:
            whole = False  # such as an image, which has no place among parts
        elif isinstance(text, str) and text and kind in kinds:
            parts.append(block_document(text, block))
        elif isinstance(text, str) and text and kind == "text":
            parts.append(text)
        else:
            whole = False
    read = repeats.read(parts, in_full=is_in_full(message.additional_kwargs) or not whole)
    if read == tuple(parts):
        return message
    return _referring(message, _blocks(read, message), parts, read)


def _referring(
    message: BaseMessage, content: Any, parts: Sequence[Part], shown: Sequence[Part]
) -> BaseMessage:
    """A message with references, which holds all of its parts."""
    held = {**message.additional_kwargs, HELD: dump_parts(parts, shown)}
    return message.model_copy(update={"content": content, "additional_kwargs": held})


def _blocks(parts: Sequence[Part], message: BaseMessage) -> list[dict[str, Any]]:
    """Content blocks of the parts, with the mark for a provider's cache after the last of them."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": part_text(part)}
        if isinstance(message, ToolMessage)
        else part_block(part)
        for part in parts
    ]
    last = message.content[-1]
    if isinstance(last, dict) and _CACHE_MARK in last:
        blocks[-1][_CACHE_MARK] = last[_CACHE_MARK]
    return blocks


class OrderDocuments(OrderKnobs, RunnableSerializable[Sequence[Document], list[Document]]):
    """Orders retrieved documents for the prompt; :func:`order_documents` makes it.

    The documents themselves are not changed. ``batch`` and ``abatch`` look ahead: of the documents
    that are not cached, those come first that save most in the batch's other requests.

    The knobs are those of :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @override
    def invoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Order the documents of one request.

        Args:
            input: The documents, the most relevant first.
            config: As for every Runnable.
            **kwargs: As for every Runnable.

        Raises:
            ConfigurationError: An item is no document.
        """
        return self._call_with_config(self._arrange, input, config, **kwargs)

    @override
    async def ainvoke(
        self, input: Sequence[Document], config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Async version of :meth:`invoke`; it takes microseconds, so it needs no thread."""

        async def order(documents: Sequence[Document]) -> list[Document]:
            return self._arrange(documents)

        return await self._acall_with_config(order, input, config, **kwargs)

    @override
    def batch(
        self,
        inputs: list[Sequence[Document]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any | None,
    ) -> list[list[Document]]:
        """Order the documents of several requests, taking the others into account."""
        return self._batch_with_config(
            self._order_all, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    @override
    async def abatch(
        self,
        inputs: list[Sequence[Document]],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any | None,
    ) -> list[list[Document]]:
        """Async version of :meth:`batch`."""

        async def order(requests: list[Sequence[Document]]) -> list[Exception | list[Document]]:
            return self._order_all(requests)

        return await self._abatch_with_config(
            order, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def report(self, documents: Sequence[Document], cached_documents: int) -> None:
        """Report how much of a prompt that was ordered here was cached.

        Args:
            documents: The prompt's documents, in the order of the prompt.
            cached_documents: How many of the first ones were cached, completely or mostly, by the
                usage that the server reported.
        """
        self._report(documents, cached_documents)

    def _order_all(self, requests: list[Sequence[Document]]) -> list[Exception | list[Document]]:
        try:
            return [*self._arrange_all(requests)]
        except ConfigurationError:  # of one request: the others must get their results
            return [self._try(documents) for documents in requests]

    def _try(self, documents: Sequence[Document]) -> Exception | list[Document]:
        try:
            return self._arrange(documents)
        except ConfigurationError as error:
            return error

    @override
    def _read(self, documents: Sequence[Document]) -> RequestDocuments:
        for document in documents:
            if not isinstance(document, Document):
                msg = f"only LangChain Documents can be ordered, got {type(document).__name__}"
                raise ConfigurationError(msg)
        return request_documents((document.id, document.page_content) for document in documents)


def order_documents(
    order: Order = "relevance", **knobs: Unpack[OrderKnobArguments]
) -> OrderDocuments:
    """Make a step between retriever and prompt that orders documents.

    ::

        chain = {"context": retriever | order_documents("cached_first") | format_docs, ...} | prompt

    Args:
        order: ``relevance``, ``reverse``, ``cached_first`` or ``auto``.
        **knobs: The other knobs of
            :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """
    return OrderDocuments(order=order, **knobs)


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
        filtered = self._filter({self.documents_key: documents, self.query_key: query})
        return list(filtered[self.documents_key])

    @override
    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Async version of :meth:`compress_documents`."""
        filtered = await self._afilter({self.documents_key: documents, self.query_key: query})
        return list(filtered[self.documents_key])

    def _filter(self, values: Values) -> Values:
        documents, query = self._read(values)
        verdict = self._check.check(query, _convert(documents), self._layout(values))
        return {**values, self.documents_key: verdict.apply(documents, Document)}

    async def _afilter(self, values: Values) -> Values:
        documents, query = self._read(values)
        verdict = await self._check.acheck(query, _convert(documents), self._layout(values))
        return {**values, self.documents_key: verdict.apply(documents, Document)}

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
