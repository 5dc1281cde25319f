"""What our query engines have in common, and calls of any of LlamaIndex's LLMs.

LlamaIndex's query engines and synthesizers are no pydantic models, so copies and pickles of them
are made here.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import llama_index.core.instrumentation as instrument
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LogProb,
)
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation.events.synthesis import (
    SynthesizeEndEvent,
    SynthesizeStartEvent,
)
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings
from llama_index.core.utils import get_tokenizer
from pydantic import BaseModel

from ragcache_integrations.adaptive import (
    EngineAsker,
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.asker import DEFAULT_ANSWER_TOKENS, count_texts
from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.flows import Call, Each, Flow, aoutputs, outputs
from ragcache_integrations.core.generation import TokenLogprob
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.handover import abackend_of, backend_of
from ragcache_integrations.prompts.rendering import completion_text

from .askers import limit_argument, own_arguments, usage_of

__all__ = [
    "Answer",
    "CopiedBySettings",
    "LlamaIndexAsker",
    "PendingResponse",
    "QueryEngine",
    "RetrieverEngine",
    "check_retriever",
    "deltas",
    "texts_before",
]


class CopiedBySettings:
    """Makes deep copies and pickles from an object's settings, without what it has learnt.

    A deep copy has the same callback manager; a pickle has none. Subclasses name the arguments of
    their constructors, which they keep under these names after an underscore. Arguments that are
    knobs are kept together.
    """

    callback_manager: Any
    _argument_names: ClassVar[tuple[str, ...]]
    _knobs: BaseModel | None = None

    def __copy__(self) -> Self:
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        manager = self.callback_manager
        memo[id(manager)] = manager
        arguments = copy.deepcopy(self._arguments(), memo)
        return type(self)(**arguments | {"callback_manager": manager})

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._arguments()), ()

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments for an equal object, except the callback manager."""
        kept = {name: getattr(self, f"_{name}") for name in self._argument_names}
        return {**kept, **dict(self._knobs or ())}


dispatcher = instrument.get_dispatcher(__name__)  # type: ignore[attr-defined]  # re-exported untyped


@dataclass
class PendingResponse:
    """Holds the response of an event, which ends with it."""

    response: RESPONSE_TYPE = field(default_factory=lambda: Response(None))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that may still be running.

    Attributes:
        texts: The flow of its texts.
        nodes: The nodes that it comes from.
        metadata: What the response says besides; complete when the texts have ended.
        parse: Makes the answer of the whole text, if it is not streamed.
    """

    texts: Flow
    nodes: list[NodeWithScore] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    parse: Callable[[str], str] = str


class QueryEngine(CopiedBySettings, BaseQueryEngine):
    """A query engine whose subclasses make the answer within the event of the query.

    Args:
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.
    """

    def __init__(self, *, streaming: bool, callback_manager: CallbackManager | None) -> None:
        self._streaming = streaming
        super().__init__(callback_manager or Settings.callback_manager)

    def _answer(self, query: QueryBundle) -> Flow:
        """Answer a query; the output is an :class:`Answer`."""
        raise NotImplementedError

    def _respond(self, query: QueryBundle) -> RESPONSE_TYPE:
        (answer,) = outputs(self._answer(query))
        with self._synthesis(query) as pending:
            pending.response = self._response(answer)
        return pending.response

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        (answer,) = [output async for output in aoutputs(self._answer(query))]
        with self._synthesis(query) as pending:
            pending.response = await self._aresponse(answer)
        return pending.response

    def _response(self, answer: Answer) -> RESPONSE_TYPE:
        texts = outputs(answer.texts)
        if self._streaming:
            return StreamingResponse(texts, answer.nodes, answer.metadata)
        return Response(answer.parse("".join(texts)), answer.nodes, answer.metadata)

    async def _aresponse(self, answer: Answer) -> RESPONSE_TYPE:
        texts = aoutputs(answer.texts)
        if self._streaming:
            return AsyncStreamingResponse(texts, answer.nodes, answer.metadata)
        async with aclosing(texts):
            text = "".join([part async for part in texts])
        return Response(answer.parse(text), answer.nodes, answer.metadata)

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with self._event(CBEventType.QUERY, query_bundle) as pending:
            pending.response = self._respond(query_bundle)
        return pending.response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        with self._event(CBEventType.QUERY, query_bundle) as pending:
            pending.response = await self._arespond(query_bundle)
        return pending.response

    @contextmanager
    def _event(self, kind: CBEventType, query: QueryBundle) -> Iterator[PendingResponse]:
        pending = PendingResponse()
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query.query_str}
        with self.callback_manager.event(kind, payload=payload) as event:
            yield pending
            event.on_end(payload={EventPayload.RESPONSE: pending.response})

    @contextmanager
    def _synthesis(self, query: QueryBundle) -> Iterator[PendingResponse]:
        """Report the events that a response synthesizer would report."""
        dispatcher.event(SynthesizeStartEvent(query=query))
        with self._event(CBEventType.SYNTHESIZE, query) as pending:
            yield pending
        dispatcher.event(SynthesizeEndEvent(query=query, response=pending.response))


class RetrieverEngine(QueryEngine):
    """A query engine over a retriever and postprocessors.

    Args:
        retriever: Finds the nodes.
        node_postprocessors: Applied to the nodes, in order.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.

    Raises:
        ConfigurationError: ``retriever`` is no retriever of LlamaIndex.
    """

    _argument_names: ClassVar[tuple[str, ...]] = ("retriever", "node_postprocessors", "streaming")

    def __init__(
        self,
        retriever: BaseRetriever,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None,
        *,
        streaming: bool,
        callback_manager: CallbackManager | None,
    ) -> None:
        check_retriever("retriever", retriever)
        self._retriever = retriever
        self._node_postprocessors = tuple(node_postprocessors or ())
        super().__init__(streaming=streaming, callback_manager=callback_manager)
        for postprocessor in self._node_postprocessors:
            postprocessor.callback_manager = self.callback_manager

    @classmethod
    def from_args(cls, retriever: BaseRetriever, llm: LLM | None = None, **arguments: Any) -> Self:
        """Make a query engine, like ``RetrieverQueryEngine.from_args``.

        Args:
            retriever: Finds the nodes.
            llm: Answers; ``None`` for LlamaIndex's ``Settings.llm``.
            **arguments: The other arguments of the class.
        """
        return cls(retriever, llm=llm, **arguments)  # type: ignore[call-arg] # of subclasses

    @property
    def retriever(self) -> BaseRetriever:
        """Finds the nodes."""
        return self._retriever

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the postprocessed nodes for a question."""
        return self._found(self._retriever, query_bundle)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Async version of :meth:`retrieve`."""
        return await self._afound(self._retriever, query_bundle)

    def _found(self, retriever: BaseRetriever, query: QueryBundle) -> list[NodeWithScore]:
        return self._postprocess(retriever.retrieve(query), query)

    async def _afound(self, retriever: BaseRetriever, query: QueryBundle) -> list[NodeWithScore]:
        return await self._apostprocess(await retriever.aretrieve(query), query)

    def _postprocess(self, nodes: list[NodeWithScore], query: QueryBundle) -> list[NodeWithScore]:
        for postprocessor in self._node_postprocessors:
            nodes = postprocessor.postprocess_nodes(nodes, query_bundle=query)
        return nodes

    async def _apostprocess(
        self, nodes: list[NodeWithScore], query: QueryBundle
    ) -> list[NodeWithScore]:
        for postprocessor in self._node_postprocessors:
            nodes = await postprocessor.apostprocess_nodes(nodes, query_bundle=query)
        return nodes


def check_retriever(name: str, retriever: object) -> None:
    """Check that an argument is a retriever of LlamaIndex.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(retriever, BaseRetriever):
        raise ConfigurationError(f"{name} must be a BaseRetriever, got {retriever!r:.100}")


def texts_before(
    stream: Generator[Any], astream: AsyncGenerator[Any], end: Callable[[Any], None]
) -> Flow:
    """The texts of a stream, and then its result.

    Args:
        stream: Texts, and last a result.
        astream: The same for event loops.
        end: Takes the result.
    """

    def text(piece: object) -> str | None:
        if isinstance(piece, str):
            return piece
        end(piece)
        return None

    yield Each(lambda: stream, lambda: astream, text)


def deltas(llm: Any, prompt: str | Sequence[ChatMessage], **call: Any) -> Each:
    """What an LLM answers, piece by piece.

    Args:
        llm: The LLM.
        prompt: Messages, or text in the model's own format.
        **call: Arguments of the call.
    """
    if isinstance(prompt, str):
        methods, call = (llm.stream_complete, llm.astream_complete), {**call, "formatted": True}
    else:
        methods = (llm.stream_chat, llm.astream_chat)
    blocking, awaited = (partial(method, prompt, **call) for method in methods)
    return Each(blocking, awaited, lambda response: response.delta or "")


class LlamaIndexAsker:
    """Calls an LLM.

    LLMs of this package get marked documents in their prompts; others get plain text.
    Log-probabilities are requested if the LLM's class has a field ``logprobs``, and are always read
    from answers that have them. The length of an answer is limited if the class has one of the
    usual fields for it.

    Args:
        llm: The LLM.
        call: Arguments of every call of it.
        support: Whether its answers have log-probabilities; shared by all askers of the same LLM.

    Attributes:
        logprob_support: As above.

    Raises:
        ConfigurationError: ``llm`` is no LLM of LlamaIndex.
    """

    def __init__(
        self,
        llm: LLM,
        call: Mapping[str, Any] | None = None,
        support: LogprobSupport | None = None,
    ) -> None:
        check_type("llm", llm, LLM, "one of LlamaIndex's LLMs")
        self._llm = llm
        self._call = dict(call or {})
        self._own = llm if isinstance(llm, BaseRAGCacheLLM) else None
        self._fields = frozenset(type(llm).model_fields)
        supported = self._own is not None or "logprobs" in self._fields
        self.logprob_support = support or LogprobSupport(available=supported)

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        arguments = self._arguments(request)
        if self._is_chat():
            return _answer(self._llm.chat(self._messages(request.prompt), **arguments))
        return _answer(self._llm.complete(self._text(request.prompt), **arguments))

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""
        arguments = self._arguments(request)
        if await self._ais_chat():
            return _answer(await self._llm.achat(self._messages(request.prompt), **arguments))
        return _answer(await self._llm.acomplete(self._text(request.prompt), **arguments))

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request in pieces; closing the generator aborts the request."""
        return outputs(self._streaming(request))

    def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Async version of :meth:`stream`."""
        return aoutputs(self._streaming(request))

    def _streaming(self, request: ModelRequest) -> Flow:
        arguments = self._arguments(request)
        llm = self._llm
        asked: Callable[[Prompt], Any] = self._text
        methods = "stream_complete", "astream_complete"
        if (yield Call(self._is_chat, self._ais_chat)):
            asked = self._messages
            methods = "stream_chat", "astream_chat"
        given = asked(request.prompt)
        stream, astream = (partial(getattr(llm, name), given, **arguments) for name in methods)
        last: Any = None

        def piece(response: Any) -> ModelAnswer:
            nonlocal last
            last = response
            return ModelAnswer(response.delta or "", _logprobs(response.logprobs))

        yield Each(stream, astream, piece)
        # The usage from the last piece: some LLMs repeat it on every piece.
        yield ModelAnswer("", usage=None if last is None else _usage(last))

    def limits(self) -> Limits:
        """The most tokens that the LLM reads and writes."""
        metadata = self._llm.metadata
        answer = metadata.num_output if metadata.num_output > 0 else DEFAULT_ANSWER_TOKENS
        return Limits(metadata.context_window, answer)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text; with LlamaIndex's tokenizer for other LLMs."""
        if self._own is not None:
            return backend_of(self._own).count_tokens(text)
        return len(get_tokenizer()(text))

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, including those of the chat template."""
        system = self._llm.system_prompt
        before = self.count_tokens(system) if system else 0
        if self._own is not None:
            return before + EngineAsker(backend_of(self._own)).count_prompt(prompt)
        return before + count_texts(prompt, self.count_tokens)

    def _is_chat(self) -> bool:
        return self._llm.metadata.is_chat_model

    async def _ais_chat(self) -> bool:
        if self._own is not None:
            await abackend_of(self._own)
            # In a thread, because it may ask a server for its context window.
            return (await asyncio.to_thread(lambda: self._llm.metadata)).is_chat_model
        return self._llm.metadata.is_chat_model

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        if self._own is not None:
            own = own_arguments(request, logprobs=self._own.logprobs)
            return {**self._call, **own, "documents": list(request.prompt.documents)}
        arguments = {**self._call, **limit_argument(request, self._fields)}
        if request.logprobs and "logprobs" in self._fields:
            arguments["logprobs"] = True
            if "top_logprobs" in self._fields:
                arguments["top_logprobs"] = 1  # without it, LlamaIndex drops those of the tokens
        return arguments

    def _text(self, prompt: Prompt) -> str:
        text = completion_text(prompt)
        return text if self._own is not None else str(text)

    def _messages(self, prompt: Prompt) -> list[ChatMessage]:
        messages = [
            ChatMessage(role=message.role, content=message.text) for message in prompt.messages
        ]
        system = self._llm.system_prompt
        return [ChatMessage(role="system", content=system), *messages] if system else messages


def _answer(response: ChatResponse | CompletionResponse) -> ModelAnswer:
    if isinstance(response, CompletionResponse):
        text = response.text
    else:
        text = response.message.content or ""
    return ModelAnswer(text, _logprobs(response.logprobs), _usage(response))


def _usage(response: ChatResponse | CompletionResponse) -> Any:
    raw = response.raw
    usage = raw.get("usage") if isinstance(raw, Mapping) else getattr(raw, "usage", None)
    return usage_of(usage) or usage_of(response.additional_kwargs)


def _logprobs(logprobs: list[list[LogProb]] | None) -> tuple[TokenLogprob, ...]:
    """Read log-probabilities: those of each token come first, then those of alternatives."""
    return tuple(
        TokenLogprob(
            token[0].token,
            -1,
            token[0].logprob,
            tuple(TokenLogprob(other.token, -1, other.logprob) for other in token[1:]),
        )
        for token in logprobs or ()
        if token
    )
