"""Cached answers as a LlamaIndex query engine."""

from __future__ import annotations

import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Unpack

import llama_index.core.instrumentation as instrument
import numpy as np
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    TextBlock,
    ThinkingBlock,
)
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.indices.base import BaseIndex
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMCompletionEndEvent,
    LLMCompletionInProgressEvent,
)
from llama_index.core.llms import callbacks as llm_callbacks
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import (
    BaseNode,
    MediaResource,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
    QueryType,
)
from llama_index.core.tools.types import ToolOutput
from typing_extensions import override

from ragcache_integrations.chains.llama_index import QueryEngine
from ragcache_integrations.core.checks import check_flag, check_type
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.core.saved_values import decode_value, encode_value
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError, RAGCacheError
from ragcache_integrations.retrievers.cached.llama_index.requests import said_by_bundle
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.keys import (
    Surroundings,
    context_text,
    freeze_arguments,
    parts_within,
    window_of,
)
from ragcache_integrations.retrievers.retrieval import checked_results

from . import finish
from .changes import CHANGED, ChangeWatch
from .controls import AnswerControls
from .core import AnswerCore
from .entries import Question, Vector, document_identity
from .finish import (
    EMPTY,
    attributes_of,
    forget_usage,
    is_blank,
    is_something,
    unfinished,
    why_unkept,
)
from .flow import AnswerFlow, Lookup, same_text, says_same
from .knobs import AnswerKnobArguments, AnswerKnobs, check_embedded
from .records import AnswerCodec
from .types import AnswerExplanation, AnswerTrace, unkept_explanation

__all__ = ["ANSWER_CACHE_METADATA", "AnswerCache", "HeardModels", "renewed", "why_none"]

ANSWER_CACHE_METADATA = "answer_cache"
"""Key of the :class:`~ragcache_integrations.answers.AnswerTrace` in the metadata of a response."""

_EMPTY = frozenset(("empty response", "none"))
"""What LlamaIndex answers if there are no nodes, or no answer."""
_NO_ENGINES = {
    BaseRetriever: "RetrieverQueryEngine.from_args(retriever) makes one of a retriever",
    BaseIndex: "index.as_query_engine() makes one",
    BaseChatEngine: "a chat engine answers by all of a conversation; pass the query engine in it",
}
_FAILED = "its model failed"
_UNADDED = "its stream had something else than text, which may be all of the answer so far"
_INCOMPARABLE = "a node's metadata hold values that can't be compared"
_LONGEST = 200
_NOT_SHOWN = frozenset(
    (
        *("id_", "text", "metadata", "relationships", "start_char_idx", "end_char_idx"),
        *("embedding", "text_embedding", "excluded_embed_metadata_keys", "obj"),
    )
)
"""Fields of a node that are compared otherwise, or that say nothing to a model."""

Nodes = list[NodeWithScore]


@dataclass(frozen=True, slots=True)
class _Stored:
    """An answer without its nodes, which every question finds for itself.

    Attributes:
        response: The response.
        streams: Whether the query engine gave it as a stream.
    """

    response: Response | PydanticResponse
    streams: bool = False

    @property
    def text(self) -> str:
        """The text of the answer."""
        return str(self.response)


class HeardModels:
    """Hears how the answers of models ended, by LlamaIndex's events.

    Events come in the context in which the model was called, and in contexts that were copied from
    it, such as those of tasks.
    """

    def __init__(self) -> None:
        self._failed = False
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why what was answered is no answer; ``None``: it is one, as far as models report."""
        return _FAILED if self._reason is None and self._failed else self._reason

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what happens in this context."""
        if _HANDLER not in _MODELS.event_handlers:
            _MODELS.add_event_handler(_HANDLER)
        token = _LISTENERS.set((*_LISTENERS.get(), self))
        try:
            yield
        finally:
            _LISTENERS.reset(token)

    def hear(self, event: BaseEvent) -> None:
        """Take an event."""
        if isinstance(event, LLMChatInProgressEvent | LLMCompletionInProgressEvent):
            # Providers name the reason in any of the last pieces.
            self._reason = self._reason or unfinished(event.response.raw)
        elif isinstance(event, LLMChatEndEvent | LLMCompletionEndEvent):
            self._failed = False
            self._reason = self._reason or _why_no_response(event.response)
        elif isinstance(event, ExceptionEvent):
            self._failed = True


# Of the events of models alone: the root's handlers would have every search report itself.
_MODELS = instrument.get_dispatcher(llm_callbacks.__name__)  # type: ignore[attr-defined]  # re-exported untyped
_LISTENERS: ContextVar[tuple[HeardModels, ...]] = ContextVar("listeners", default=())


class _Handler(BaseEventHandler):
    """Hears all models of the process, as LlamaIndex has no way to remove a handler."""

    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheAnswerHandler"

    @override
    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        for listener in _LISTENERS.get():
            listener.hear(event)


_HANDLER = _Handler()


def _why_no_response(response: ChatResponse | CompletionResponse | None) -> str | None:
    """Return why what a model said is no answer; ``None``: it is one."""
    if response is None:
        return "its model said nothing"
    message = response.message if isinstance(response, ChatResponse) else None
    more = {} if message is None else message.additional_kwargs
    reason = unfinished([response.raw, response.additional_kwargs, more])
    if reason is not None:
        return reason
    if isinstance(response, CompletionResponse):
        return "its model said nothing" if is_blank(response.text) else None
    return _why_no_message(response.message)


def _why_no_message(message: ChatMessage) -> str | None:
    others = [block for block in message.blocks if not isinstance(block, TextBlock | ThinkingBlock)]
    said = others or message.additional_kwargs.get("tool_calls") or is_something(message.content)
    return None if said else EMPTY


def why_none(answer: object) -> str | None:
    """Return why what a query engine or a tool returned is no answer; ``None``: it is one."""
    return finish.why_none(answer, _why_no_object)


def _why_no_object(value: Any) -> str | None:
    """Return why an object of LlamaIndex's is no answer, see :func:`why_none`."""
    reason: str | None = None
    if isinstance(value, StreamingResponse | AsyncStreamingResponse):
        reason = "it is a stream"
    elif isinstance(value, ChatResponse | CompletionResponse):
        reason = _why_no_response(value)
    elif isinstance(value, ChatMessage):
        reason = unfinished(value.additional_kwargs) or _why_no_message(value)
    elif isinstance(value, Response | PydanticResponse):
        said = value.response
        empty = isinstance(said, str) and said.strip().casefold() in _EMPTY
        reason = EMPTY if empty else unfinished(_told(value.metadata)) or why_none(said)
    elif isinstance(value, ToolOutput):
        reason = "a tool failed" if value.is_error else why_none(value.raw_output)
    elif not isinstance(value, BaseNode | NodeWithScore):
        return None
    return reason or ""


def _told(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Return the metadata of a response, without those of its nodes."""
    return {key: value for key, value in (metadata or {}).items() if not isinstance(value, dict)}


def renewed(answer: Any) -> Any:
    """Return a copy of an answer that is served again, which reports that no tokens were used."""
    copied = deepcopy(answer)
    _forget_usage(copied)
    return copied


def _forget_usage(value: Any, depth: int = 4) -> None:
    if isinstance(value, ChatResponse | CompletionResponse | ChatMessage):
        forget_usage(getattr(value, "raw", None))
        forget_usage(value.additional_kwargs)
    elif isinstance(value, Response | PydanticResponse):
        forget_usage(value.metadata)
    if depth and not isinstance(value, str):
        parts = value if isinstance(value, list | tuple) else attributes_of(value).values()
        for part in list(parts):
            _forget_usage(part, depth - 1)


class AnswerCache(AnswerControls, QueryEngine):
    """Serves the answer to an earlier question again, where nothing that it depends on differs.

    Wrap a query engine that retrieves and synthesizes, such as ``index.as_query_engine()``::

        cached = AnswerCache(index.as_query_engine(llm=llm))
        cached.query("who wrote the iliad")
        cached.query("who wrote the iliad, please")  # from the cache, once that is proven safe

    The nodes are retrieved for every question. An earlier answer is served only if its question

    - found the same nodes, by id, text, metadata, templates, images and other fields,
    - came in the same namespace, and no setting of the query engine has changed since,
    - came with the same values of the application's context variables, which may say who asks,
    - has the same numbers, dates, names, units, negations and comparisons (``guard``),
    - and the same words, or is nearer than the tolerance, which is learnt (``tolerance="auto"``).

    A query engine answers the same question from the same nodes in the same way only if it is
    deterministic: choose temperature 0. The response has the nodes that were just retrieved, and a
    :class:`~ragcache_integrations.answers.AnswerTrace` in its metadata, under
    :data:`ANSWER_CACHE_METADATA`. It is safe to use from several threads and event loops. Equal
    questions at the same time are not joined.

    Args:
        query_engine: Retrieves and synthesizes.
        embed_model: Embeds questions; ``None`` for the retriever's model. Without any only the same
            words are served again.
        same_answer: Whether the texts of two answers say the same, from which is learnt; ``None``:
            whether they are equal but for what cannot carry meaning.
        judge: Called in the background for two answers whose texts differ, with a dict of
            ``question``, ``answer``, ``other_question`` and ``other_answer``; returns whether they
            say the same, or a text that begins with *yes*.
        keep: Returns whether a response is kept, given without its nodes; ``None``: each that is
            an answer, and neither empty, cut off nor filtered, as far as it and its models report.
        callback_manager: As for any query engine.
        **knobs: See :class:`~ragcache_integrations.answers.AnswerKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range, another argument is of the wrong
            type, or the query engine does not retrieve and synthesize in two steps.
    """

    _argument_names = ("query_engine", "embed_model", "same_answer", "judge", "keep")

    def __init__(
        self,
        query_engine: BaseQueryEngine,
        *,
        embed_model: BaseEmbedding | None = None,
        same_answer: Callable[[str, str], bool] | None = None,
        judge: Callable[[dict[str, str]], object] | None = None,
        keep: Callable[[Response | PydanticResponse], object] | None = None,
        callback_manager: CallbackManager | None = None,
        **knobs: Unpack[AnswerKnobArguments],
    ) -> None:
        _check_engine(query_engine)
        check_type("embed_model", embed_model, BaseEmbedding | None, "a BaseEmbedding or None")
        for name, function in (*(("same_answer", same_answer), ("judge", judge), ("keep", keep)),):
            if function is not None and not callable(function):
                msg = f"{name} must be a function or None, got {function!r:.100}"
                raise ConfigurationError(msg)
        self._query_engine = query_engine
        self._embed_model = embed_model
        self._same_answer, self._judge, self._keep = same_answer, judge, keep
        checked = self._knobs = read_knobs(AnswerKnobs, knobs)
        retriever = self._retriever
        if isinstance(retriever, BaseRetriever) and self._model is None:
            # One within it may note the question's embedding in the question.
            stores = parts_within(retriever).stores
            embeds = any(isinstance(each, BaseEmbedding) for each in stores)
            check_embedded(checked, "embed_model=", embeds=embeds)
        self._namespace = checked.namespace
        same = partial(_same, same_answer or same_text)
        self._watch = ChangeWatch(query_engine, ("llama_index",))
        asked = None if judge is None else partial(_ask, judge)
        self._flow = AnswerFlow[_Stored](AnswerCore(checked), same, asked, _CODEC, self._watch)
        self._is_cut = window_of(self._model)
        super().__init__(streaming=False, callback_manager=callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> Nodes:
        """Return the wrapped engine's nodes for a question."""
        return list(checked_results(self._query_engine.retrieve(query_bundle), NodeWithScore))

    async def aretrieve(self, query_bundle: QueryBundle) -> Nodes:
        """Async version of :meth:`retrieve`."""
        engine: Any = self._query_engine  # a base class without it
        return list(checked_results(await engine.aretrieve(query_bundle), NodeWithScore))

    # The prompts are the wrapped engine's, under its names.

    def _get_prompts(self) -> PromptDictType:
        return self._query_engine._get_prompts()  # noqa: SLF001 - of the same mixin

    def _get_prompt_modules(self) -> PromptMixinType:
        return self._query_engine._get_prompt_modules()  # noqa: SLF001 - of the same mixin

    def _update_prompts(self, prompts_dict: PromptDictType) -> None:
        self._query_engine._update_prompts(prompts_dict)  # noqa: SLF001 - of the same mixin

    def _respond(self, query: QueryBundle) -> RESPONSE_TYPE:
        around = self._flow.watch.surroundings()
        nodes = self.retrieve(query)
        question = self._question(query, nodes, around)
        if question is None:
            return self._unkept(self._query_engine.synthesize(query, nodes), around)
        lookup = self._flow.look_up(question, self._embedder(query), around)
        if lookup.entry is not None:
            self._flow.check(lookup, partial(self._answer_again, query, nodes))
            return _served(lookup.entry.answer, nodes, lookup.trace)
        heard = HeardModels()
        with heard.listening(), around.watched():
            response = self._query_engine.synthesize(query, nodes)
        if isinstance(response, StreamingResponse):
            pieces = around.each(response.response_gen)
            response.response_gen = self._heard(lookup, pieces, response.metadata, heard)
        else:
            self._put(lookup, _stored(response), heard)
        return _noted(response, lookup.trace)

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        around = self._flow.watch.surroundings()
        nodes = await self.aretrieve(query)
        question = self._question(query, nodes, around)
        if question is None:
            return self._unkept(await self._query_engine.asynthesize(query, nodes), around)
        lookup = await self._flow.alook_up(question, self._aembedder(query), around)
        if lookup.entry is not None:
            answer = partial(self._answer_again, query, nodes)
            self._flow.check(lookup, answer, partial(self._aanswer_again, query, nodes))
            return _aserved(lookup.entry.answer, nodes, lookup.trace)
        heard = HeardModels()
        with heard.listening(), around.watched():
            response = await self._query_engine.asynthesize(query, nodes)
        if isinstance(response, AsyncStreamingResponse):
            apieces = around.aeach(response.response_gen)
            response.response_gen = self._aheard(lookup, apieces, response.metadata, heard)
        elif isinstance(response, StreamingResponse):
            pieces = around.each(response.response_gen)
            response.response_gen = self._heard(lookup, pieces, response.metadata, heard)
        else:
            await self._aput(lookup, _stored(response), heard)
        return _noted(response, lookup.trace)

    # The question, with all that its answer depends on

    def _question(self, query: QueryBundle, nodes: Nodes, around: Surroundings) -> Question | None:
        identities = [
            document_identity(
                node.node.node_id,
                node.node.get_content(MetadataMode.NONE),
                node.node.metadata,
                _shown(node.node),
            )
            for node in nodes
        ]
        said = said_by_bundle(query) | {"image": query.image_path, "streams": self._streams}
        frozen = freeze_arguments(said)
        if None in identities or frozen.opaque or around.alone:
            return None
        scope = (self._namespace, frozen.key | around.frozen.key)
        context = context_text(query.custom_embedding_strs)
        documents = frozenset(filter(None, identities))
        return Question(query.query_str, documents, scope, context, around.version)

    def _embedder(self, query: QueryBundle) -> Callable[[], Vector | None] | None:
        retriever, model = self._retriever, self._model
        known = self._has_embedding(query)
        own = isinstance(retriever, ApproximateCacheRetriever) and self._embed_model is None
        if not known and not own and model is None:
            return None

        def embed() -> Vector | None:
            if known:
                embedding: Vector = np.asarray(query.embedding, np.float32)
            elif own:
                embedding = retriever.embed_question(query)
            else:
                assert model is not None  # noqa: S101 - checked above
                strings = query.embedding_strs
                embedding = np.asarray(model.get_agg_embedding_from_queries(strings), np.float32)
            return self._unless_cut(query, embedding)

        return embed

    def _aembedder(self, query: QueryBundle) -> Callable[[], Awaitable[Vector | None]] | None:
        embed, retriever, model = self._embedder(query), self._retriever, self._model

        async def aembed() -> Vector | None:
            if self._has_embedding(query):
                embedding: Vector = np.asarray(query.embedding, np.float32)
            elif isinstance(retriever, ApproximateCacheRetriever) and self._embed_model is None:
                embedding = await retriever.aembed_question(query)
            else:
                assert model is not None  # noqa: S101 - as in _embedder
                strings = query.embedding_strs
                embedding = np.asarray(
                    await model.aget_agg_embedding_from_queries(strings), np.float32
                )
            return self._unless_cut(query, embedding)

        return None if embed is None else aembed

    def _unless_cut(self, query: QueryBundle, embedding: Vector) -> Vector | None:
        """Return an embedding if its model has read all of the question."""
        return None if any(map(self._is_cut, query.embedding_strs)) else embedding

    def _has_embedding(self, query: QueryBundle) -> bool:
        """Whether the embedding that LlamaIndex's retrievers note in a query is the one to use."""
        return query.embedding is not None and self._embed_model is None

    @property
    def _streams(self) -> bool | None:
        """Whether the engine answers with streams, as another process's may; ``None``: unknown."""
        synthesizer = getattr(self._query_engine, "_response_synthesizer", None)
        streams = getattr(synthesizer, "_streaming", None)
        return streams if isinstance(streams, bool) else None

    @property
    def _retriever(self) -> Any:
        return getattr(self._query_engine, "retriever", None)

    @property
    def _model(self) -> BaseEmbedding | None:
        model = self._embed_model or getattr(self._retriever, "_embed_model", None)
        return model if isinstance(model, BaseEmbedding) else None

    # The answer

    def _answer_again(self, query: QueryBundle, nodes: Nodes) -> _Stored:
        heard = HeardModels()
        with heard.listening():
            response = self._query_engine.synthesize(query, nodes)
            if isinstance(response, StreamingResponse):
                response.get_response()
        return self._checked(_stored(response), heard)

    async def _aanswer_again(self, query: QueryBundle, nodes: Nodes) -> _Stored:
        heard = HeardModels()
        with heard.listening():
            response = await self._query_engine.asynthesize(query, nodes)
            if isinstance(response, AsyncStreamingResponse):
                response = await response.get_response()
            elif isinstance(response, StreamingResponse):
                response.get_response()
        return self._checked(_stored(response), heard)

    def _checked(self, answer: _Stored, heard: HeardModels) -> _Stored:
        reason = self._why_none(answer, heard)
        if reason is not None:
            msg = f"the answer can't be compared: {reason}"
            raise RAGCacheError(msg)
        return answer

    def _heard(
        self,
        lookup: Lookup[_Stored],
        given: Iterable[str],
        metadata: Any,
        heard: HeardModels,
    ) -> Generator[str, None, None]:
        """Pass a stream on, and keep it once it has ended."""
        pieces: list[str] = []
        stream = iter(given)
        ended = object()
        while True:
            with heard.listening():  # the model answers when it is asked for the next piece
                piece: Any = next(stream, ended)
            if piece is ended:
                break
            pieces.append(piece)
            yield piece
        whole = self._whole(pieces, metadata)
        if whole is not None:
            self._put(lookup, whole, heard)

    async def _aheard(
        self,
        lookup: Lookup[_Stored],
        given: AsyncIterable[str],
        metadata: Any,
        heard: HeardModels,
    ) -> AsyncGenerator[str]:
        """Async version of :meth:`_heard`."""
        pieces: list[str] = []
        stream = aiter(given)
        ended = object()
        while True:
            with heard.listening():
                piece: Any = await anext(stream, ended)
            if piece is ended:
                break
            pieces.append(piece)
            yield piece
        whole = self._whole(pieces, metadata)
        if whole is not None:
            await self._aput(lookup, whole, heard)

    def _whole(self, pieces: list[str], metadata: Any) -> _Stored | None:
        """Return the answer of a stream; ``None`` where its pieces are no texts."""
        if not all(isinstance(piece, str) for piece in pieces):
            self._flow.leave_out(_UNADDED)
            return None
        whole = Response("".join(pieces), metadata=metadata)
        return replace(_stored(whole), streams=True)

    def _put(self, lookup: Lookup[_Stored], answer: _Stored, heard: HeardModels) -> None:
        if self._may_keep(lookup, answer, heard):
            self._flow.keep(lookup, answer)

    async def _aput(self, lookup: Lookup[_Stored], answer: _Stored, heard: HeardModels) -> None:
        """Async version of :meth:`_put`."""
        if self._may_keep(lookup, answer, heard):
            await self._flow.akeep(lookup, answer)

    def _may_keep(self, lookup: Lookup[_Stored], answer: _Stored, heard: HeardModels) -> bool:
        reason = self._why_none(answer, heard)
        if reason is not None:
            self._flow.leave_out(reason)
            return False
        return self._is_current(lookup)

    def _why_none(self, answer: _Stored, heard: HeardModels) -> str | None:
        """Return why this is no answer; ``None``: it is one."""
        if self._keep is not None:
            return why_unkept(self._keep, answer.response)
        return heard.reason or why_none(answer.response)

    def _is_current(self, lookup: Lookup[_Stored]) -> bool:
        """Whether no setting has changed meanwhile: before the answer, or after it."""
        if self._watch.version() == lookup.question.version:
            return True
        self._flow.leave_out(CHANGED)
        return False

    def _unkept(self, response: RESPONSE_TYPE, around: Surroundings) -> RESPONSE_TYPE:
        self._flow.leave_out()
        return _noted(response, AnswerTrace(hit=False, reason=around.alone or _INCOMPARABLE))

    # Explanations and statistics

    def explain(self, query: QueryType) -> AnswerExplanation:
        """Explain why a question would be served an earlier answer, or not. Nothing is answered.

        Raises:
            Exception: Any error of the retriever or the embedding model.
        """
        bundle = QueryBundle(query) if isinstance(query, str) else query
        around = self._flow.watch.surroundings()
        question = self._question(bundle, self.retrieve(bundle), around)
        embed = self._embedder(bundle)
        if question is None:
            return unkept_explanation(around.alone or _INCOMPARABLE)
        return self._flow.explain(question, None if embed is None else embed())

    async def aexplain(self, query: QueryType) -> AnswerExplanation:
        """Async version of :meth:`explain`."""
        bundle = QueryBundle(query) if isinstance(query, str) else query
        around = self._flow.watch.surroundings()
        nodes = await self.aretrieve(bundle)
        question = self._question(bundle, nodes, around)
        aembed = self._aembedder(bundle)
        if question is None:
            return unkept_explanation(around.alone or _INCOMPARABLE)
        return await self._flow.aexplain(question, None if aembed is None else await aembed())

    def _codec(self) -> AnswerCodec[_Stored]:
        return _CODEC


def _check_engine(engine: object) -> None:
    """Refuse a query engine that can't be given the nodes to answer from.

    Raises:
        ConfigurationError: It is none, or lacks one of the steps.
    """
    check_type("query_engine", engine, BaseQueryEngine, "a BaseQueryEngine", _NO_ENGINES)
    kind = type(engine)
    for step in ("retrieve", "synthesize"):
        if getattr(kind, step) is getattr(BaseQueryEngine, step):
            msg = (
                f"query_engine must retrieve and synthesize in two steps, as RetrieverQueryEngine "
                f"does, but {kind.__name__} has no {step}()"
            )
            raise ConfigurationError(msg)


def _shown(node: BaseNode) -> dict[str, Any]:
    """Return what a model may be shown of a node besides its text and metadata.

    That is the form in which it is shown, and images, sounds and fields of a class of one's own.
    """
    shown = {}
    for name, default in _fields_of(type(node)):
        value = getattr(node, name, None)
        empty = value is None or (isinstance(value, list) and not value)
        if not empty and not (isinstance(value, str) and value == default):
            shown[name] = _resource(value) if isinstance(value, MediaResource) else _short(value)
    return shown


@lru_cache(maxsize=256)
def _fields_of(kind: type[BaseNode]) -> list[tuple[str, Any]]:
    """Return the fields of a class of nodes that a model may be shown, with their defaults."""
    fields = kind.model_fields
    return [(name, fields[name].default) for name in fields if name not in _NOT_SHOWN]


def _resource(resource: MediaResource) -> dict[str, Any]:
    data = None if resource.data is None else blake2b(resource.data, digest_size=16).hexdigest()
    held = {"data": data, "text": _short(resource.text), "mimetype": resource.mimetype}
    places = {name: str(getattr(resource, name)) for name in ("path", "url")}
    return held | places


def _short(value: Any) -> Any:
    """Return a value for a key, which must not hold all of an image or of a text."""
    return content_id(value) if isinstance(value, str) and len(value) > _LONGEST else value


def _stored(response: RESPONSE_TYPE) -> _Stored:
    """Return what is kept of a response, whose stream has ended."""
    metadata = _metadata(response)
    if isinstance(response, StreamingResponse | AsyncStreamingResponse):
        return _Stored(Response(response.response_txt, metadata=metadata), streams=True)
    return _Stored(_copy(response, [], metadata))


def _copy(
    response: Response | PydanticResponse, nodes: Nodes, metadata: dict[str, Any]
) -> Response | PydanticResponse:
    """Copy a response with other nodes and metadata; what it holds may be changed afterwards."""
    answer: Any = deepcopy(response.response)
    return replace(response, response=answer, source_nodes=nodes, metadata=metadata)


def _metadata(response: RESPONSE_TYPE) -> dict[str, Any]:
    """Copy the metadata of a response, which its receiver may change."""
    return deepcopy(response.metadata or {})


def _served_metadata(response: RESPONSE_TYPE) -> dict[str, Any]:
    """Copy the metadata of a response for a hit, which used no tokens."""
    metadata = _metadata(response)
    forget_usage(metadata)
    return metadata


def _noted(response: RESPONSE_TYPE, trace: AnswerTrace) -> RESPONSE_TYPE:
    """Note in a response what happened to its question."""
    response.metadata = {**(response.metadata or {}), ANSWER_CACHE_METADATA: trace}
    return response


def _served(answer: _Stored, nodes: Nodes, trace: AnswerTrace) -> RESPONSE_TYPE:
    metadata = _served_metadata(answer.response)
    if answer.streams:
        return _noted(StreamingResponse(_pieces(answer), nodes, metadata), trace)
    return _noted(_copy(answer.response, nodes, metadata), trace)


def _aserved(answer: _Stored, nodes: Nodes, trace: AnswerTrace) -> RESPONSE_TYPE:
    if answer.streams:
        metadata = _served_metadata(answer.response)
        return _noted(AsyncStreamingResponse(_apieces(answer), nodes, metadata), trace)
    return _served(answer, nodes, trace)


def _pieces(answer: _Stored) -> Generator[str, None, None]:
    yield answer.text


async def _apieces(answer: _Stored) -> AsyncGenerator[str]:
    yield answer.text


def _encode(answer: _Stored) -> dict[str, Any]:
    """Return an answer as JSON can hold it.

    Raises:
        ConfigurationError: It holds an object of another class, or its metadata do.
    """
    response = answer.response
    if type(response) is not Response:
        msg = f"only a Response itself can be saved, not a {type(response).__name__}"
        raise ConfigurationError(msg)
    parts = {"response": response.response, "metadata": response.metadata}
    return {"parts": encode_value(parts, "a response"), "streams": answer.streams}


def _decode(saved: Any) -> _Stored:
    """Return the answer that :func:`_encode` wrote.

    Raises:
        ValueError: It wrote no such thing.
    """
    parts, streams = decode_value(saved["parts"]), saved["streams"]
    text, metadata = parts["response"], parts["metadata"]
    if not (isinstance(text, str | None) and isinstance(metadata, dict | None)):
        msg = "a saved response must have a text, and metadata as a dict"
        raise ValueError(msg)  # noqa: TRY004 - as for all that can't be read
    return _Stored(Response(text, metadata=metadata), check_flag("streams", streams))


_CODEC: AnswerCodec[_Stored] = AnswerCodec("llama_index", _encode, _decode)


def _same(same: Callable[[str, str], bool], answer: _Stored, other: _Stored) -> bool:
    return same(answer.text, other.text)


def _ask(
    judge: Callable[[dict[str, str]], object],
    question: Question,
    answer: _Stored,
    other_question: Question,
    other_answer: _Stored,
) -> bool:
    verdict = judge(
        {
            "question": question.whole,
            "answer": answer.text,
            "other_question": other_question.whole,
            "other_answer": other_answer.text,
        }
    )
    return says_same(str(verdict) if isinstance(verdict, CompletionResponse) else verdict)
