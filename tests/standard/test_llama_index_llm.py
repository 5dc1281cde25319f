"""What LlamaIndex expects of an LLM, as a suite of our own: it ships none.

:class:`LLMContract` is run on the real engine and against vLLM's own server.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from llama_index.core import Document, SummaryIndex
from llama_index.core.base.response.schema import StreamingResponse
from llama_index.core.callbacks import (
    CallbackManager,
    CBEventType,
    LlamaDebugHandler,
    TokenCountingHandler,
)
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.llms import ChatMessage, ChatResponse, CompletionResponse, MessageRole
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index_instrumentation import get_dispatcher
from pydantic import BaseModel, Field

from ragcache_integrations import errors
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms.llama_index import RAGCacheLLM

Response = ChatResponse | CompletionResponse

QUESTION = "What do cats do when they are content?"
MESSAGES = [
    ChatMessage(role=MessageRole.SYSTEM, content="Be brief."),
    ChatMessage(role=MessageRole.USER, content=QUESTION),
]
LONG = "Cats purr when they are content. " * 60


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


JOKE = PromptTemplate("Tell me a joke about {topic}.")


def text_of(response: Response) -> str:
    if isinstance(response, ChatResponse):
        return response.message.content or ""
    return response.text


async def every_way(llm: RAGCacheLLM, *, chat: bool, **call: Any) -> list[list[Response]]:
    """The responses of the four methods, each as a list; only a stream's has several."""

    async def items(stream: AsyncGenerator[Any, None]) -> list[Response]:
        return [response async for response in stream]

    if chat:
        return [
            [await asyncio.to_thread(llm.chat, MESSAGES, **call)],
            [await llm.achat(MESSAGES, **call)],
            await asyncio.to_thread(lambda: list(llm.stream_chat(MESSAGES, **call))),
            await items(await llm.astream_chat(MESSAGES, **call)),
        ]
    return [
        [await asyncio.to_thread(llm.complete, QUESTION, **call)],
        [await llm.acomplete(QUESTION, **call)],
        await asyncio.to_thread(lambda: list(llm.stream_complete(QUESTION, **call))),
        await items(await llm.astream_complete(QUESTION, **call)),
    ]


class Events(BaseEventHandler):
    seen: list[BaseEvent] = Field(default_factory=list)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def events() -> Iterator[Events]:
    dispatcher = get_dispatcher()
    handler = Events()
    dispatcher.add_event_handler(handler)
    yield handler
    dispatcher.event_handlers.remove(handler)


class LLMContract:
    """Subclasses say what the LLM runs on."""

    context_window: int
    calls_tools: bool

    @pytest.fixture
    def params(self) -> dict[str, Any]:
        raise NotImplementedError

    @pytest.fixture
    def llm(self, params: dict[str, Any]) -> Iterator[RAGCacheLLM]:
        with RAGCacheLLM(**params, max_tokens=8) as made:
            yield made

    def test_metadata(self, llm: RAGCacheLLM) -> None:
        metadata = llm.metadata
        assert metadata.context_window == self.context_window
        assert metadata.num_output == 8
        assert metadata.is_chat_model
        assert metadata.is_function_calling_model is self.calls_tools
        assert metadata.model_name == llm.model_name
        assert RAGCacheLLM.class_name() == "RAGCacheLLM"

    @pytest.mark.parametrize("chat", [True, False])
    async def test_all_ways_agree(self, llm: RAGCacheLLM, chat: bool) -> None:
        ways = await every_way(llm, chat=chat)
        texts = [text_of(responses[-1]) for responses in ways]
        assert texts[0]
        assert set(texts) == {texts[0]}
        for responses in ways[2:]:
            assert len(responses) > 2
            cumulative = ""
            for response in responses:
                cumulative += response.delta or ""
                assert text_of(response) == cumulative
        if chat:
            assert all(
                isinstance(response, ChatResponse)
                and response.message.role is MessageRole.ASSISTANT
                for responses in ways
                for response in responses
            )

    async def test_nothing_blocks_the_loop(self, llm: RAGCacheLLM) -> None:
        await asyncio.to_thread(llm.complete, "Warm up, import what has to be imported.")
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            answers = await asyncio.gather(
                *(llm.acomplete(f"Question {n}") for n in range(10)),
                *(llm.achat([ChatMessage(content=f"Question {n}")]) for n in range(10)),
                self._read(llm, complete=True),
                self._read(llm, complete=False),
            )
        assert [str(a) for a in answers[:10]] == [text_of(a) for a in answers[:10]]
        # Asked as one user message or completed as one: the same for a chat model.
        assert [text_of(a) for a in answers[:10]] == [text_of(a) for a in answers[10:20]]

    async def test_first_use_blocks_nothing(self, params: dict[str, Any]) -> None:
        template = PromptTemplate("What do {animals} do?")
        first: list[Callable[[RAGCacheLLM], Awaitable[Any]]] = [
            lambda llm: llm.apredict(template, animals="cats"),
            lambda llm: llm.astream(template, animals="cats"),
            lambda llm: llm.astructured_predict(Joke, JOKE, topic="cats"),
            lambda llm: llm.astream_structured_predict(Joke, JOKE, topic="cats"),
            lambda llm: llm.acomplete(QUESTION),
            lambda llm: llm.astream_chat(MESSAGES),
        ]
        for number, ask in enumerate(first):
            # Each needs a connection of its own, or it would find everything at hand.
            fresh = {
                "max_retries": number,
                **{k: v for k, v in params.items() if k != "max_retries"},
            }
            llm = RAGCacheLLM(**fresh, max_tokens=200)
            with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
                said = await ask(llm)
                if isinstance(said, AsyncGenerator):
                    assert [piece async for piece in said]
                await llm.aclose()

    async def _read(self, llm: RAGCacheLLM, *, complete: bool) -> Response:
        last: Response | None = None
        if complete:
            async for completion in await llm.astream_complete(QUESTION):
                last = completion
        else:
            async for message in await llm.astream_chat(MESSAGES):
                last = message
        assert last is not None
        return last

    def test_formatted_prompts_go_to_the_model_as_they_are(self, llm: RAGCacheLLM) -> None:
        raw = llm.complete(QUESTION, formatted=True)
        asked = llm.complete(QUESTION)
        assert usage(raw)["prompt_tokens"] < usage(asked)["prompt_tokens"]

    @pytest.mark.parametrize("chat", [True, False])
    async def test_usage(self, llm: RAGCacheLLM, chat: bool) -> None:
        ways = await every_way(llm, chat=chat)
        for responses in ways:
            assert all(
                not response.raw or "usage" not in response.raw for response in responses[:-1]
            )
            took = usage(responses[-1])
            assert took["completion_tokens"] == 8
            assert took["total_tokens"] == took["prompt_tokens"] + 8
            assert took["prompt_tokens"] == usage(ways[0][-1])["prompt_tokens"]

    @pytest.mark.parametrize("chat", [True, False])
    async def test_token_counting_handler(self, llm: RAGCacheLLM, chat: bool) -> None:
        counter = TokenCountingHandler(tokenizer=lambda _: [0] * 1000)  # a guess would show
        llm.callback_manager = CallbackManager([counter])
        ways = await every_way(llm, chat=chat)
        prompt_tokens = usage(ways[0][-1])["prompt_tokens"]
        assert counter.prompt_llm_token_count == 4 * prompt_tokens
        assert counter.completion_llm_token_count == 4 * 8

    @pytest.mark.parametrize("chat", [True, False])
    async def test_callbacks_and_events(self, llm: RAGCacheLLM, chat: bool, events: Events) -> None:
        debug = LlamaDebugHandler(print_trace_on_end=False)
        llm.callback_manager = CallbackManager([debug])
        ways = await every_way(llm, chat=chat)
        pairs = debug.get_event_pairs(CBEventType.LLM)
        assert len(pairs) == 4
        kind = "Chat" if chat else "Completion"
        names = [type(event).__name__ for event in events.seen]
        assert names.count(f"LLM{kind}StartEvent") == 4
        assert names.count(f"LLM{kind}EndEvent") == 4
        assert names.count(f"LLM{kind}InProgressEvent") == sum(map(len, ways[2:]))

    @pytest.mark.parametrize("chat", [True, False])
    async def test_logprobs(self, llm: RAGCacheLLM, chat: bool) -> None:
        for responses in await every_way(llm, chat=chat, logprobs=2):
            tokens = [token for response in responses for token in response.logprobs or []]
            assert len(tokens) == 8
            for chosen, *alternatives in tokens:
                assert chosen.logprob <= 0
                assert 1 <= len(alternatives) <= 2
        for responses in await every_way(llm, chat=chat):
            assert all(response.logprobs is None for response in responses)

    @pytest.mark.parametrize("chat", [True, False])
    @pytest.mark.parametrize(
        "call", [{"functions": []}, {"temperature": -1}, {"documents": "text"}]
    )
    async def test_bad_arguments_of_a_call(
        self, llm: RAGCacheLLM, chat: bool, call: dict[str, Any]
    ) -> None:
        debug = LlamaDebugHandler(print_trace_on_end=False)
        llm.callback_manager = CallbackManager([debug])
        with pytest.raises(errors.ConfigurationError):
            await every_way(llm, chat=chat, **call)
        with pytest.raises(errors.ConfigurationError):
            await (llm.achat(MESSAGES, **call) if chat else llm.acomplete(QUESTION, **call))
        with pytest.raises(errors.ConfigurationError):
            list(llm.stream_chat(MESSAGES, **call) if chat else llm.stream_complete("x", **call))
        assert len(debug.get_event_pairs(CBEventType.LLM)) == 3

    @pytest.mark.parametrize("chat", [True, False])
    async def test_what_a_call_says_wins(self, llm: RAGCacheLLM, chat: bool) -> None:
        for responses in await every_way(llm, chat=chat, max_tokens=3):
            assert usage(responses[-1])["completion_tokens"] == 3

    async def test_prompt_too_long(self, llm: RAGCacheLLM) -> None:
        with pytest.raises(errors.PromptTooLongError):
            await llm.acomplete("word " * (self.context_window + 1))

    def test_cached_tokens_after_warm_up(self, llm: RAGCacheLLM) -> None:
        def cached(question: str, **call: Any) -> int:
            node = NodeWithScore(node=TextNode(text=LONG, id_="cats"))
            said = llm.complete(f"{LONG}\n\n{question}", documents=[node], **call)
            return int(usage(said)["prompt_tokens_details"]["cached_tokens"])

        tenant = f"llama-index-{type(self).__name__}"
        assert cached("What do cats do?", namespace=tenant) == 0
        assert cached("What do cats do?", namespace=tenant) > 0
        assert cached("Why?", namespace=tenant) > 0
        assert cached("Why?", namespace=f"{tenant}-2") == 0

    async def test_streams_can_be_left_early(self, llm: RAGCacheLLM) -> None:
        for response in llm.stream_complete(QUESTION, max_tokens=500):
            assert response.delta is not None
            break
        async for response in await llm.astream_complete(QUESTION, max_tokens=500):
            assert response.delta is not None
            break
        gc.collect()
        assert (await llm.acomplete(QUESTION)).text

    async def test_predict(self, llm: RAGCacheLLM) -> None:
        template = PromptTemplate("What do {animals} do?")
        said = await asyncio.to_thread(llm.predict, template, animals="cats")
        assert said
        assert await llm.apredict(template, animals="cats") == said
        assert "".join(llm.stream(template, animals="cats")) == said
        stream = await llm.astream(template, animals="cats")
        assert "".join([token async for token in stream]) == said

    async def test_structured_output(self, params: dict[str, Any]) -> None:
        with RAGCacheLLM(**params, max_tokens=200) as llm:
            joke = await asyncio.to_thread(llm.structured_predict, Joke, JOKE, topic="cats")
            assert isinstance(joke, Joke)
            assert await llm.astructured_predict(Joke, JOKE, topic="cats") == joke
            *_, last = llm.stream_structured_predict(Joke, JOKE, topic="cats")
            assert Joke.model_validate(last.model_dump()) == joke
            stream = await llm.astream_structured_predict(Joke, JOKE, topic="cats")
            *_, last = [partial async for partial in stream]
            assert Joke.model_validate(last.model_dump()) == joke
            said = llm.as_structured_llm(Joke).complete("Tell me a joke about cats.")
            assert set(json.loads(said.text)) == {"setup", "punchline"}

    @pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.TREE_SUMMARIZE])
    async def test_a_query_engine(self, llm: RAGCacheLLM, mode: ResponseMode) -> None:
        texts = ["Cats purr when they are content.", "Dogs bark at the moon."]
        index = SummaryIndex.from_documents([Document(text=text) for text in texts])
        asking = index.as_query_engine(llm=llm, response_mode=mode)
        said = await asyncio.to_thread(asking.query, QUESTION)
        assert str(said)
        assert [node.node.get_content() for node in said.source_nodes] == texts
        assert str(await asking.aquery(QUESTION)) == str(said)
        streaming = index.as_query_engine(llm=llm, response_mode=mode, streaming=True)
        streamed = await asyncio.to_thread(streaming.query, QUESTION)
        assert isinstance(streamed, StreamingResponse)
        assert "".join(streamed.response_gen) == str(said)


def usage(response: Response) -> dict[str, Any]:
    assert response.raw is not None
    took: dict[str, Any] = response.raw["usage"]
    return took


@pytest.mark.engine
class TestOnEngine(LLMContract):
    context_window = 8192
    calls_tools = True

    @pytest.fixture
    def params(self, engine: RAGCacheEngine) -> dict[str, Any]:
        return {"engine": engine}


@pytest.mark.engine
class TestOnServer(LLMContract):
    context_window = 2048
    calls_tools = True  # as far as is known

    @pytest.fixture
    def params(self, vllm_server: str) -> dict[str, Any]:
        return {"base_url": vllm_server, "model": "tiny", "max_retries": 0}


# Ours alone


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"tempratur": 0.5}, "unknown argument 'tempratur'"),
        ({"temperature": "hot"}, "temperature"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "base_url needs model"),
    ],
)
def test_bad_knobs(knobs: dict[str, Any], match: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=match):
        RAGCacheLLM(**knobs)


def test_traces_start_nothing_and_hold_no_key() -> None:
    llm = RAGCacheLLM(base_url="http://127.0.0.1:1/v1", model="m", api_key="sesame")
    payload = llm.to_payload()
    assert payload["class_name"] == "RAGCacheLLM"
    assert payload["model_name"] == "m"
    for shown in (payload, llm.to_dict(), repr(llm), llm.to_json()):
        assert "sesame" not in str(shown)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [ChatMessage(role=MessageRole.FUNCTION, content="x")],
        [ChatMessage(content=[{"block_type": "image", "url": "https://example.org/cat.png"}])],
    ],
)
def test_messages_that_no_text_model_reads(messages: Sequence[ChatMessage]) -> None:
    llm = RAGCacheLLM(base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(errors.ConfigurationError):
        llm.chat(messages)


@pytest.mark.engine
def test_a_model_told_to_be_no_chat_model(engine: RAGCacheEngine) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=4, is_chat_model=False)
    assert not llm.metadata.is_chat_model
    assert llm.complete(QUESTION).text == llm.complete(QUESTION, formatted=True).text
    shouting = RAGCacheLLM(
        engine=engine,
        max_tokens=4,
        is_chat_model=False,
        completion_to_prompt=str.upper,
    )
    expected = llm.complete(QUESTION.upper(), formatted=True).text
    assert shouting.complete(QUESTION).text == expected


@pytest.mark.engine
def test_closed(engine: RAGCacheEngine) -> None:
    with RAGCacheLLM(engine=engine, max_tokens=2) as llm:
        assert llm.complete("x").text is not None
    with pytest.raises(errors.EngineClosedError):
        llm.complete("x")
    assert not engine.closed
