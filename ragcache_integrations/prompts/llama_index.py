"""Prompts for LlamaIndex: steps in front of them.

LlamaIndex's spans are followed, and the results of all of its retrievers (:mod:`.recognition`).
Documents are ordered (:mod:`.order`), left out if they are irrelevant (:mod:`.relevance`), and said
once (:mod:`.repeats`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import llama_index.core.instrumentation as instrument
from llama_index.core.base.llms.types import CachePoint, ChatMessage, MessageRole, TextBlock
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.instrumentation.span import BaseSpan, active_span_id
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import ConfigDict
from typing_extensions import override

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.knobs import settings_of
from ragcache_integrations.core.prompt import Message, Part, Prompt, PromptDocument, part_text
from ragcache_integrations.core.threads import map_in_threads
from ragcache_integrations.errors import ConfigurationError

from .order import OrderKnobs, RequestDocuments, request_documents
from .recognition import REQUESTS, mark_documents
from .relevance import (
    RelevanceCheck,
    RelevanceKnobs,
    RelevanceSettings,
    sampling_arguments,
)
from .repeats import HELD, MIN_WORDS, Repeats, dump_parts, held_parts, is_in_full

__all__ = [
    "OWN_HANDLERS",
    "CacheFriendlyOrder",
    "RelevanceFilter",
    "current_run",
    "documents_once",
    "node_documents",
    "shown_text",
    "watch_retrievers",
]


def watch_retrievers() -> None:
    """Remember the results of every retriever in this process from now on, for their requests."""
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    if _RETRIEVALS not in root.event_handlers:
        root.add_event_handler(_RETRIEVALS)
        root.add_span_handler(_SPANS)


def current_run() -> str | None:
    """The span in which this code is executed; ``None`` outside of spans."""
    span: str | None = active_span_id.get()
    return span


class _RetrievalHandler(BaseEventHandler):
    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheRetrievalHandler"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Remember the texts of nodes as synthesizers write them, and without metadata."""
        if isinstance(event, RetrievalEndEvent):
            REQUESTS.remember(
                event.span_id,
                [
                    (item.node.node_id, item.node.get_content(metadata_mode=mode))
                    for item in event.nodes
                    for mode in (MetadataMode.LLM, MetadataMode.NONE)
                ],
            )


class _SpanHandler(BaseSpanHandler[BaseSpan]):
    """Reports every span. Unlike the base class, it keeps none."""

    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheSpanHandler"

    @override
    def span_enter(
        self,
        id_: str,
        bound_args: Any,
        instance: Any = None,
        parent_id: str | None = None,
        tags: Any = None,
        **kwargs: Any,
    ) -> None:
        REQUESTS.begin(id_, parent_id)

    @override
    def span_exit(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
    ) -> None:
        REQUESTS.end(id_)

    @override
    def span_drop(
        self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **kwargs: Any
    ) -> None:
        REQUESTS.end(id_, failed=True)

    @override
    def new_span(self, *args: Any, **kwargs: Any) -> None:
        return None

    @override
    def prepare_to_exit_span(self, *args: Any, **kwargs: Any) -> None:
        return None

    @override
    def prepare_to_drop_span(self, *args: Any, **kwargs: Any) -> None:
        return None


_RETRIEVALS = _RetrievalHandler()
_SPANS = _SpanHandler()

OWN_HANDLERS = frozenset({_RetrievalHandler, _SpanHandler})
"""The classes of the handlers that :func:`watch_retrievers` adds."""


def documents_once(
    messages: Sequence[ChatMessage], *, min_words: int = MIN_WORDS
) -> list[ChatMessage]:
    """Refer to what earlier documents of the same conversation say already.

    Documents are results of tools, and those of a ``RAGPromptTemplate`` with
    ``documents_once=True``. Applied to its own result it changes nothing; without the first
    messages of its result, what they said comes back in full.

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


def shown_text(message: ChatMessage) -> str:
    """A message's text, without anything between its blocks."""
    return "".join(_texts(message))


def _texts(message: ChatMessage) -> list[str]:
    return [block.text for block in message.blocks if isinstance(block, TextBlock)]


def _once(message: ChatMessage, repeats: Repeats) -> ChatMessage:
    texts = _texts(message)
    parts: tuple[Part, ...] | None = held_parts(message.additional_kwargs, "".join(texts))
    was_held = parts is not None
    if parts is None and message.role == MessageRole.TOOL:
        parts = tuple(PromptDocument(text) for text in texts if text)
    if not parts:
        return message
    # Marks for a provider's cache may follow; an image has no place among the parts, unless it was
    # added to a message that holds its parts already.
    marked = all(isinstance(block, CachePoint) for block in message.blocks[len(texts) :])
    others = [block for block in message.blocks if not isinstance(block, TextBlock)]
    whole = was_held or marked
    read = repeats.read(parts, in_full=is_in_full(message.additional_kwargs) or not whole)
    text = "".join(map(part_text, read))
    if not whole or text == "".join(texts):
        return message
    held = {**message.additional_kwargs, HELD: dump_parts(parts, read)}
    return message.model_copy(
        update={"blocks": [TextBlock(text=text), *others], "additional_kwargs": held}
    )


class CacheFriendlyOrder(OrderKnobs, BaseNodePostprocessor):
    """Orders retrieved nodes for the prompt.

    Make it the last of a query engine's ``node_postprocessors``::

        order = CacheFriendlyOrder(order="cached_first")
        engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[order])

    The nodes themselves and their scores are not changed. The knobs are those of
    :class:`~ragcache_integrations.prompts.order.knobs.OrderKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "CacheFriendlyOrder"

    def report(self, nodes: Sequence[NodeWithScore], cached_nodes: int) -> None:
        """Report how much of a prompt that was ordered here was cached.

        Args:
            nodes: The prompt's nodes, in the order of the prompt.
            cached_nodes: How many of the first ones were cached, completely or mostly, by the
                usage that the server reported.
        """
        self._report(nodes, cached_nodes)

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._arrange(nodes)

    @override
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        # LlamaIndex's own method would use a thread, which microseconds of work don't need.
        return self._arrange(nodes)

    @override
    def _read(self, documents: Sequence[NodeWithScore]) -> RequestDocuments:
        return request_documents(
            (item.node.node_id, item.node.get_content(metadata_mode=MetadataMode.LLM))
            for item in documents
        )


MAX_THREADS = 32
"""The most requests of a check that are sent at the same time."""


class RelevanceFilter(RelevanceKnobs, BaseNodePostprocessor):
    """Asks a model which nodes help to answer a question.

    It is a postprocessor of a query engine::

        engine = index.as_query_engine(node_postprocessors=[RelevanceFilter(llm=llm)])

    Attributes:
        llm: The model. ``RAGCacheLLM`` can only answer yes or no; others are instructed to.
        mode: ``parallel`` asks about each node separately, all at the same time, and drops the
            irrelevant ones. ``shared`` asks once about all of them, keeps them, so that the answer
            reuses their KV caches, and adds a note as the last node.
        prompt: With ``shared``: the prompt for the answer, with ``context_str`` before
            ``query_str``, so that both prompts have the same beginning; ``None`` for LlamaIndex's.
        instruction: With ``parallel``: the system text of each request.
        min_documents: With ``parallel``: the fewest nodes that stay. If too few are relevant, the
            first of the others stay, too.
        max_document_tokens: With ``parallel``: the most tokens of the nodes that stay. Each
            relevant node stays that fits in addition to those before it, and the first
            ``min_documents`` stay in any case; ``None`` for no limit.
        count_tokens: Counts the tokens of a text for that limit, such as ``engine.count_tokens``;
            ``None`` to estimate them.
        separator: With ``shared``: the text that the synthesizer puts between nodes.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range; an attribute of a
            finished object is assigned (``model_copy(update=...)`` makes an object with other
            values); or there is no question.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    llm: LLM
    prompt: BasePromptTemplate | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._check = RelevanceCheck(_Judge(self.llm), settings_of(RelevanceSettings, self))

    @classmethod
    @override
    def class_name(cls) -> str:
        return "RelevanceFilter"

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        verdict = self._check.check(_query(query_bundle), node_documents(nodes), self._lay_out)
        return verdict.apply(nodes, _note)

    @override
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        verdict = await self._check.acheck(
            _query(query_bundle), node_documents(nodes), self._lay_out
        )
        return verdict.apply(nodes, _note)

    def _lay_out(self, documents: Sequence[PromptDocument], question: str) -> Prompt:
        context = self.separator.join(document.text for document in documents)
        prompt = DEFAULT_TEXT_QA_PROMPT_SEL if self.prompt is None else self.prompt
        messages = prompt.format_messages(llm=self.llm, context_str=context, query_str=question)
        return Prompt(
            messages=tuple(
                Message(message.role.value, mark_documents(message.content or "", documents))
                for message in messages
            )
        )


class _Judge:
    """Any of LlamaIndex's LLMs."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        # Our own class cannot be imported here. It reads documents and accepts a choice.
        self._is_ours = "find_documents" in type(llm).model_fields

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        if len(prompts) == 1:
            return [self._ask_one(prompts[0], options)]
        return map_in_threads(partial(self._ask_one, options=options), prompts, MAX_THREADS)

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        answers = await asyncio.gather(
            *(
                self._llm.achat(_messages(prompt), **self._arguments(prompt, options))
                for prompt in prompts
            )
        )
        return [answer.message.content or "" for answer in answers]

    def _ask_one(self, prompt: Prompt, options: SamplingOptions) -> str:
        answer = self._llm.chat(_messages(prompt), **self._arguments(prompt, options))
        return answer.message.content or ""

    def _arguments(self, prompt: Prompt, options: SamplingOptions) -> dict[str, Any]:
        arguments = sampling_arguments(options, is_ours=self._is_ours)
        documents = list(prompt.documents) if self._is_ours else []
        return {**arguments, **({"documents": documents} if documents else {})}


def _messages(prompt: Prompt) -> list[ChatMessage]:
    return [ChatMessage(role=message.role, content=message.text) for message in prompt.messages]


def _query(bundle: QueryBundle | None) -> str:
    if bundle is None:
        msg = "a relevance check needs the question: pass query_bundle or query_str"
        raise ConfigurationError(msg)
    return bundle.query_str


def node_documents(nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
    """Nodes as synthesizers write them. An empty one becomes a blank: the others keep places."""
    return [
        PromptDocument(node.node.get_content(metadata_mode=MetadataMode.LLM) or " ", node.node_id)
        for node in nodes
    ]


def _note(text: str) -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text))
