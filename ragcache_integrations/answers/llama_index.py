"""Cached answers as a LlamaIndex query engine, and cached results of LlamaIndex tools."""

from __future__ import annotations

import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
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
from typing import TYPE_CHECKING, Any, Unpack

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
from llama_index.core.tools import (
    AsyncBaseTool,
    BaseTool,
    ToolMetadata,
    ToolOutput,
    adapt_to_async_tool,
)
from llama_index.core.tools.function_tool import FunctionTool
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
from .changes import ChangeWatch
from .controls import AnswerControls
from .core import AnswerCore
from .entries import AnswerCodec, Question, Vector, document_identity
from .finish import (
    EMPTY,
    WORDS,
    attributes_of,
    forget_usage,
    is_blank,
    is_something,
    unfinished,
    why_unkept,
)
from .flow import AWAITING, BLOCKING, AnswerFlow, Lookup, Way, finished, same_text, says_same
from .knobs import AnswerKnobs, check_embedded
from .tools import Framework, KeptResults, Results, ToolCalls, check_tool
from .types import AnswerExplanation, AnswerTrace, unkept_explanation

if TYPE_CHECKING:
    from ragcache_integrations._arguments import AnswerArguments

__all__ = ["ANSWER_CACHE_METADATA", "AnswerCache", "CachedTool", "cached_tool", "why_none"]

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

    def __deepcopy__(self, memo: dict[int, Any]) -> _Stored:
        return replace(self, response=_copy(self.response, []))  # which can't be copied itself

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
        # Without the metadata of its nodes.
        told = {k: part for k, part in (value.metadata or {}).items() if not isinstance(part, dict)}
        reason = EMPTY if empty else unfinished(told) or why_none(said)
    elif isinstance(value, ToolOutput):
        reason = "a tool failed" if value.is_error else why_none(value.raw_output)
    elif not isinstance(value, BaseNode | NodeWithScore):
        return None
    return reason or ""


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
        **knobs: Unpack[AnswerArguments],
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
        watch = ChangeWatch(query_engine, ("llama_index",))
        asked = None if judge is None else partial(_ask, judge)
        self._flow = AnswerFlow[_Stored](AnswerCore(checked), same, asked, _CODEC, watch)
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
        return finished(self._serve(BLOCKING, query))

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        return await self._serve(AWAITING, query)

    async def _serve(self, way: Way, query: QueryBundle) -> RESPONSE_TYPE:
        engine, flow = self._query_engine, self._flow
        around = flow.watch.surroundings()
        nodes = await way(self.retrieve, self.aretrieve, query)
        question = self._question(query, nodes, around)
        if question is None:
            response = await way(engine.synthesize, engine.asynthesize, query, nodes)
            flow.leave_out()
            return _noted(response, AnswerTrace(hit=False, reason=around.alone or _INCOMPARABLE))
        embed = self._embedder(way, query)
        lookup = await way(flow.look_up, flow.alook_up, question, embed, around)
        if lookup.entry is not None:
            flow.check(lookup, *way.again(partial(self._answer_again, query=query, nodes=nodes)))
            return _served(way, lookup.entry.answer, nodes, lookup.trace)
        heard = HeardModels()
        with heard.listening(), around.watched():
            response = await way(engine.synthesize, engine.asynthesize, query, nodes)
        if isinstance(response, AsyncStreamingResponse):
            apieces = around.aeach(response.response_gen, heard.listening)
            response.response_gen = self._aheard(lookup, apieces, response.metadata, heard)
        elif isinstance(response, StreamingResponse):
            # The model answers when it is asked for the next piece.
            pieces = around.each(response.response_gen, heard.listening)
            response.response_gen = self._heard(lookup, pieces, response.metadata, heard)
        else:
            await self._put(way, lookup, _stored(response), heard)
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

    def _embedder(self, way: Way, query: QueryBundle) -> Callable[[], Any] | None:
        """Return a function that embeds a query, in a way; ``None``: nothing does."""
        model = self._model
        own: Any = self._retriever if self._embed_model is None else None
        is_own = isinstance(own, ApproximateCacheRetriever)
        # LlamaIndex's retrievers note the embedding in the query.
        noted = query.embedding if self._embed_model is None else None
        if noted is None and not is_own and model is None:
            return None

        async def embed() -> Vector | None:
            strings = query.embedding_strs
            embedding: Any = noted
            if embedding is None and is_own:
                embedding = await way(own.embed_question, own.aembed_question, query)
            elif embedding is None:
                assert model is not None  # noqa: S101 - checked above
                call = model.get_agg_embedding_from_queries
                acall = model.aget_agg_embedding_from_queries
                embedding = await way(call, acall, strings)
            if any(map(self._is_cut, strings)):
                return None  # the model has not read all of the question
            vector: Vector = np.asarray(embedding, np.float32)
            return vector

        return way.function(embed)

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

    async def _answer_again(self, way: Way, query: QueryBundle, nodes: Nodes) -> _Stored:
        engine, heard = self._query_engine, HeardModels()
        with heard.listening():
            response = await way(engine.synthesize, engine.asynthesize, query, nodes)
            if isinstance(response, AsyncStreamingResponse):
                response = await response.get_response()
            elif isinstance(response, StreamingResponse):
                response.get_response()
        answer = _stored(response)
        reason = self._why_none(answer, heard)
        if reason is not None:
            raise RAGCacheError(f"the answer can't be compared: {reason}")
        return answer

    def _heard(
        self, lookup: Lookup[_Stored], stream: Iterable[str], metadata: Any, heard: HeardModels
    ) -> Generator[str, None, None]:
        """Pass a stream on, and keep it once it has ended."""
        pieces: list[str] = []
        for piece in stream:
            pieces.append(piece)
            yield piece
        finished(self._put(BLOCKING, lookup, _whole(pieces, metadata), heard))

    async def _aheard(
        self,
        lookup: Lookup[_Stored],
        stream: AsyncIterable[str],
        metadata: Any,
        heard: HeardModels,
    ) -> AsyncGenerator[str]:
        """Async version of :meth:`_heard`."""
        pieces: list[str] = []
        async for piece in stream:
            pieces.append(piece)
            yield piece
        await self._put(AWAITING, lookup, _whole(pieces, metadata), heard)

    async def _put(
        self, way: Way, lookup: Lookup[_Stored], answer: _Stored | None, heard: HeardModels
    ) -> None:
        """Keep an answer, unless it is none."""
        reason = _UNADDED if answer is None else self._why_none(answer, heard)
        if answer is None or reason is not None:
            self._flow.leave_out(reason)
        else:
            await way(self._flow.keep, self._flow.akeep, lookup, answer)

    def _why_none(self, answer: _Stored, heard: HeardModels) -> str | None:
        """Return why this is no answer; ``None``: it is one."""
        if self._keep is not None:
            keep = self._keep
            return why_unkept(lambda response: keep(_copy(response, [])), answer.response)
        return heard.reason or why_none(answer.response)

    # Explanations and statistics

    def explain(self, query: QueryType) -> AnswerExplanation:
        """Explain why a question would be served an earlier answer, or not. Nothing is answered.

        Raises:
            Exception: Any error of the retriever or the embedding model.
        """
        return finished(self._explain(BLOCKING, query))

    async def aexplain(self, query: QueryType) -> AnswerExplanation:
        """Async version of :meth:`explain`."""
        return await self._explain(AWAITING, query)

    async def _explain(self, way: Way, query: QueryType) -> AnswerExplanation:
        bundle = QueryBundle(query) if isinstance(query, str) else query
        flow, around = self._flow, self._flow.watch.surroundings()
        nodes = await way(self.retrieve, self.aretrieve, bundle)
        question = self._question(bundle, nodes, around)
        if question is None:
            return unkept_explanation(around.alone or _INCOMPARABLE)
        embed = self._embedder(way, bundle)
        embedding = None if embed is None else await way(embed, embed)
        return await way(flow.explain, flow.aexplain, question, embedding)


def _check_engine(engine: object) -> None:
    """Refuse a query engine that can't be given the nodes to answer from.

    Raises:
        ConfigurationError: It is none, or lacks one of the steps.
    """
    check_type("query_engine", engine, BaseQueryEngine, "a BaseQueryEngine", _NO_ENGINES)
    kind = type(engine)
    for step in ("retrieve", "synthesize"):
        if getattr(kind, step) is getattr(BaseQueryEngine, step):
            raise ConfigurationError(
                f"query_engine must retrieve and synthesize in two steps, as RetrieverQueryEngine "
                f"does, but {kind.__name__} has no {step}()"
            )


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
    return [(name, fields[name].default) for name in fields if name not in WORDS["not_shown"]]


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
    if isinstance(response, StreamingResponse | AsyncStreamingResponse):
        text, metadata = response.response_txt, response.metadata or {}
        return _Stored(Response(text, metadata=metadata), streams=True)
    return _Stored(replace(response, source_nodes=[], metadata=response.metadata or {}))


def _whole(pieces: list[str], metadata: Any) -> _Stored | None:
    """Return the answer of a stream; ``None`` where its pieces are no texts."""
    if not all(isinstance(piece, str) for piece in pieces):
        return None
    return _Stored(Response("".join(pieces), metadata=metadata or {}), streams=True)


def _noted(response: RESPONSE_TYPE, trace: AnswerTrace) -> RESPONSE_TYPE:
    """Note in a response what happened to its question."""
    response.metadata = {**(response.metadata or {}), ANSWER_CACHE_METADATA: trace}
    return response


def _copy(response: Response | PydanticResponse, nodes: Nodes) -> Response | PydanticResponse:
    """Copy a response with other nodes; what it holds may be changed afterwards."""
    said: Any
    said, metadata = deepcopy((response.response, response.metadata or {}))
    return replace(response, response=said, source_nodes=nodes, metadata=metadata)


def _served(way: Way, answer: _Stored, nodes: Nodes, trace: AnswerTrace) -> RESPONSE_TYPE:
    response = _copy(answer.response, nodes)
    metadata = response.metadata or {}
    forget_usage(metadata)
    if not answer.streams:
        return _noted(response, trace)
    if way.awaits:
        return _noted(AsyncStreamingResponse(_apieces(answer), nodes, metadata), trace)
    return _noted(StreamingResponse((text for text in [answer.text]), nodes, metadata), trace)


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


class CachedTool(KeptResults, AsyncBaseTool):
    """A tool whose results are served again; made by :func:`cached_tool`."""

    def __init__(self, tool: AsyncBaseTool, calls: ToolCalls[ToolOutput]) -> None:
        self._tool, self._calls = tool, calls

    @property
    @override
    def metadata(self) -> ToolMetadata:
        return self._tool.metadata

    @override
    def call(self, *args: Any, **kwargs: Any) -> ToolOutput:
        return finished(self._serve(BLOCKING, args, kwargs))

    @override
    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        return await self._serve(AWAITING, args, kwargs)

    async def _serve(self, way: Way, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolOutput:
        around = self._calls.flow.watch.surroundings()
        heard = HeardModels()

        async def call(way: Way, *, again: bool = False) -> ToolOutput:
            with contextlib.nullcontext() if again else heard.listening():
                return await way(self._tool.call, self._tool.acall, *args, **kwargs)

        results = Results(
            lambda content: heard.reason or why_none(content),
            renewed,
            lambda output: output.raw_output,
            lambda output: output.is_error,
        )
        schema = self.metadata.fn_schema
        names = () if schema is None else tuple(schema.model_fields)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        question = self._calls.question(arguments, around, {"more": args[len(names) :]})
        output: ToolOutput = await self._calls.serve(way, question, around, call, results)
        return output


def cached_tool(
    tool: BaseTool,
    *,
    query_argument: str | None = None,
    embed_model: BaseEmbedding | None = None,
    keep: Callable[[Any], bool] | None = None,
    **knobs: Unpack[AnswerArguments],
) -> CachedTool:
    """Return a tool that serves the results of earlier calls, for any agent.

    ::

        search = cached_tool(search, query_argument="query", ttl=600)

    Results are those of calls with equal arguments; of the query, case and white space don't count.
    With ``embed_model``, a query in other words gets an earlier result up to a tolerance that is
    learnt, as :class:`~ragcache_integrations.llama_index.AnswerCache` does, but only if results of
    near queries turn out to be equal. Arguments that can't be compared are never cached, nor are
    errors. The application's context variables and instrumentation tags count. A result of a tool
    that used the workflow's context is not kept.

    Args:
        tool: The tool: one that only reads, and whose results may be as old as ``ttl``.
        query_argument: Name of the argument that is a text; ``None``: all arguments must be equal.
        embed_model: Embeds queries; ``None``: only the same words count.
        keep: Returns whether a raw result is to be kept; ``None``: each that is not empty, nor of a
            model whose answer was cut off or filtered.
        **knobs: See :class:`~ragcache_integrations.answers.AnswerKnobs`.

    Raises:
        ConfigurationError: A knob is unknown or out of range, the tool is none, has no such
            argument, or needs the workflow's context.
    """
    check_tool(tool, BaseTool)
    if isinstance(tool, FunctionTool) and tool.requires_context:
        msg = f"{tool.metadata.name} gets the workflow's context, so its results depend on more"
        raise ConfigurationError(msg)
    schema = tool.metadata.fn_schema
    names = [] if schema is None else list(schema.model_fields)
    calls = ToolCalls(
        _LLAMA_INDEX,
        tool,
        f"an argument of {tool.metadata.name}",
        names,
        query_argument,
        embed_model,
        keep,
        knobs,
    )
    return CachedTool(adapt_to_async_tool(tool), calls)


def _same_output(one: ToolOutput, other: ToolOutput) -> bool:
    return bool(one.raw_output == other.raw_output)


_LLAMA_INDEX: Framework[ToolOutput] = Framework(
    ("llama_index",), BaseEmbedding, "embed_model", "get_query_embedding", _same_output
)
