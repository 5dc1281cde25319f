"""LangChain's classes on the real engine, beyond what the standard suites ask."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from blockbuster import BlockBuster
from langchain_core.callbacks import BaseCallbackHandler, UsageMetadataCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages import ChatMessage as RoleMessage
from langchain_core.messages.content import create_plaintext_block
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import LLMResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableLambda,
    RunnablePassthrough,
)

from ragcache_integrations import errors
from ragcache_integrations.engine import PromptDocument, RAGCacheEngine
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from tests.llms.doubles import Recorder, StubServer

DOCUMENTS = [
    Document("Cats purr when they are content. " * 40, id="cats"),
    Document("Dogs bark at the moon. " * 40, id="dogs"),
]


def chat_on(backend: Recorder | RAGCacheEngine, **knobs: Any) -> ChatRAGCache:
    return ChatRAGCache(engine=backend, **{"max_tokens": 8, **knobs})


def chat_at(stub: StubServer, **knobs: Any) -> ChatRAGCache:
    return ChatRAGCache(base_url=stub.base_url, model="m", **{"max_retries": 0, **knobs})


def merged(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


# Construction


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_a_misspelled_knob_does_not_vanish(kind: type[ChatRAGCache | RAGCacheLLM]) -> None:
    with pytest.raises(errors.ConfigurationError, match="unknown argument 'tempratur'"):
        kind(tempratur=0.5)  # type: ignore[call-arg]  # what is tested, and mypy sees it too
    with pytest.raises(errors.ConfigurationError, match="base_url needs model"):
        kind(base_url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_what_traces_show(kind: type[ChatRAGCache | RAGCacheLLM]) -> None:
    llm = kind(base_url="http://127.0.0.1:1/v1", model="m", stop=["\n"], api_key="sesame")
    params = llm._get_ls_params()
    assert params["ls_provider"] == "ragcache"
    assert params["ls_model_name"] == "m"
    assert params["ls_stop"] == ["\n"]
    assert params["ls_max_tokens"] == 256
    assert "ragcache-integrations" in (llm.metadata or {})["lc_versions"]
    assert "langchain-core" in (llm.metadata or {})["lc_versions"]
    assert llm._identifying_params["model_name"] == "m"
    assert "sesame" not in f"{llm._serialized} {llm._identifying_params} {llm!r}"


# Messages


@pytest.mark.engine
def test_messages_keep_their_roles(recorder: Recorder) -> None:
    chat_on(recorder).invoke(
        [
            SystemMessage("Be brief."),
            HumanMessage(["Hello ", {"type": "text", "text": "there"}], name="someone"),
            AIMessage("Hi."),
            ToolMessage("42", tool_call_id="1"),
            RoleMessage(content="Why?", role="user"),
        ]
    )
    (prompt,) = recorder.prompts
    assert [(message.role, message.text) for message in prompt.messages] == [
        ("system", "Be brief."),
        ("user", "Hello there"),
        ("assistant", "Hi."),
        ("tool", "42"),
        ("user", "Why?"),
    ]
    assert not prompt.documents


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [HumanMessage("")],
        [HumanMessage([{"type": "image", "url": "https://example.org/cat.png"}])],
        [HumanMessage([{"type": "text-plain", "url": "https://example.org/cat.txt"}])],
        [HumanMessage([{"type": "text", "text": b"bytes"}])],
        [RoleMessage(content="x", role="critic")],
    ],
)
def test_messages_that_no_text_model_reads(messages: list[BaseMessage]) -> None:
    model = ChatRAGCache(base_url="http://127.0.0.1:1/v1", model="m", max_retries=0)
    with pytest.raises(errors.ConfigurationError):
        model.invoke(messages)


@pytest.mark.engine
def test_text_that_is_no_unicode(engine: RAGCacheEngine) -> None:
    for call in (chat_on(engine).invoke, RAGCacheLLM(engine=engine).invoke):
        with pytest.raises(errors.ConfigurationError, match="surrogate"):
            call("lone \ud800 surrogate")


# Documents


@pytest.mark.engine
def test_text_plain_blocks_are_documents(recorder: Recorder) -> None:
    own, made_up = (
        create_plaintext_block("Cats purr.", id="1"),
        create_plaintext_block("Dogs bark."),
    )
    assert str(made_up.get("id")).startswith("lc_")
    content: list[Any] = [own, "\n", made_up, {"type": "text", "text": "\nWhy?"}]
    chat_on(recorder).invoke([HumanMessage(content)])
    (message,) = recorder.prompts[0].messages
    assert message.parts == (
        PromptDocument("Cats purr.", "1"),
        "\n",
        PromptDocument("Dogs bark."),
        "\nWhy?",
    )


@pytest.mark.engine
@pytest.mark.parametrize("bound", [True, False])
def test_documents_at_the_call(recorder: Recorder, bound: bool) -> None:
    documents = [*DOCUMENTS, "a string", Document("", id="empty"), PromptDocument("own", "3")]
    text = f"{DOCUMENTS[1].page_content}\n\n{DOCUMENTS[0].page_content}\n\na string, own. Why?"
    model = chat_on(recorder)
    if bound:
        model.bind(documents=documents).invoke(text)
    else:
        model.invoke(text, documents=documents)
    (prompt,) = recorder.prompts
    assert prompt.messages[0].text == text
    assert [document.id for document in prompt.documents] == [
        "dogs",
        "cats",
        PromptDocument("a string").id,
        "3",
    ]


@pytest.mark.engine
def test_documents_of_a_completion(recorder: Recorder) -> None:
    llm = RAGCacheLLM(engine=recorder, max_tokens=2)
    llm.bind(documents=DOCUMENTS).invoke(f"{DOCUMENTS[0].page_content} Why?")
    assert [document.id for document in recorder.prompts[0].documents] == ["cats"]


@pytest.mark.parametrize("documents", ["a string", [3], 3, DOCUMENTS[0]])
def test_documents_that_are_none(documents: Any) -> None:
    model = ChatRAGCache(base_url="http://127.0.0.1:1/v1", model="m", max_retries=0)
    with pytest.raises(errors.ConfigurationError, match="documents must be a list"):
        model.invoke("x", documents=documents)


# Calls


@pytest.mark.parametrize("call", [{"functions": []}, {"model": "m2"}, {"max_token": 3}, {"n": 2}])
def test_unknown_arguments_of_a_call(call: dict[str, Any]) -> None:
    for kind in (ChatRAGCache, RAGCacheLLM):
        llm = kind(base_url="http://127.0.0.1:1/v1", model="m", max_retries=0)
        with pytest.raises(
            errors.ConfigurationError, match=f"unknown argument {next(iter(call))!r}"
        ):
            llm.invoke("x", **call)
        with pytest.raises(
            errors.ConfigurationError, match=f"unknown argument {next(iter(call))!r}"
        ):
            list(llm.stream("x", **call))


@pytest.mark.engine
async def test_every_way_gives_the_same_message(
    engine: RAGCacheEngine, no_blocking: BlockBuster
) -> None:
    model = chat_on(engine, logprobs=2)
    ask = [SystemMessage("Be brief."), HumanMessage("What do cats do when they are content?")]
    first = await asyncio.to_thread(model.invoke, ask)
    whole = [
        await asyncio.to_thread(model.invoke, ask),
        await model.ainvoke(ask),
        *(await model.abatch([ask, ask])),
    ]
    streamed = [
        merged(await asyncio.to_thread(lambda: list(model.stream(ask)))),
        merged([chunk async for chunk in model.astream(ask)]),
    ]
    for message in (*whole, *streamed):
        assert message.content == first.content
        assert message.usage_metadata is not None
        assert first.usage_metadata is not None
        assert message.usage_metadata["input_tokens"] == first.usage_metadata["input_tokens"]
        assert message.usage_metadata["output_tokens"] == 8
        assert message.response_metadata["model_name"] == engine.model
        assert message.response_metadata["finish_reason"] == "length"
        tokens = message.response_metadata["logprobs"]["content"]
        assert [len(token["top_logprobs"]) for token in tokens] == [2] * 8
        expected = first.response_metadata["logprobs"]["content"]
        for token, same in zip(tokens, expected, strict=True):
            assert token["token"] == same["token"]
            assert math.isclose(token["logprob"], same["logprob"], abs_tol=1e-3)


@pytest.mark.engine
def test_streams_come_in_pieces_and_end_once(engine: RAGCacheEngine) -> None:
    chunks = list(chat_on(engine).stream("What do cats do?"))
    assert len(chunks) == 8
    assert [chunk.chunk_position for chunk in chunks] == [None] * 7 + ["last"]
    assert [chunk.usage_metadata is None for chunk in chunks] == [True] * 7 + [False]
    assert ["model_name" in chunk.response_metadata for chunk in chunks] == [False] * 7 + [True]


@pytest.mark.engine
async def test_leaving_a_stream_aborts_the_request(engine: RAGCacheEngine) -> None:
    model = chat_on(engine, max_tokens=7000)

    async def read() -> None:
        async for _ in model.astream("Never end.", ignore_eos=True):
            reading.set()

    async def idle() -> None:
        while (await engine.aload()).running_requests:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)

    for _ in model.stream("Never end.", ignore_eos=True):
        break
    await asyncio.wait_for(idle(), 15)  # unaborted, it would take several times as long
    reading = asyncio.Event()
    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(idle(), 15)


@pytest.mark.engine
def test_cached_tokens_after_warm_up(engine: RAGCacheEngine) -> None:
    model = chat_on(engine, namespace="cached-tokens-langchain")
    text = f"{DOCUMENTS[0].page_content}\n\nWhat do cats do?"

    def cached(message: AIMessage) -> int:
        assert message.usage_metadata is not None
        return message.usage_metadata["input_token_details"]["cache_read"]

    assert cached(model.invoke(text, documents=DOCUMENTS)) == 0
    assert cached(model.invoke(text, documents=DOCUMENTS)) > 0
    assert cached(merged(list(model.stream(text, documents=DOCUMENTS)))) > 0
    # Another question behind the same document: its KV cache is used again.
    other = text.replace("What do cats do?", "Why?")
    assert cached(model.invoke(other, documents=DOCUMENTS)) > 0
    # Another tenant shares nothing.
    assert cached(model.invoke(text, documents=DOCUMENTS, namespace="another-langchain")) == 0


@pytest.mark.engine
def test_callbacks(engine: RAGCacheEngine) -> None:
    class Tokens(BaseCallbackHandler):
        def __init__(self) -> None:
            self.tokens: list[str] = []

        def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
            self.tokens.append(token)

    usage, tokens = UsageMetadataCallbackHandler(), Tokens()
    said = chat_on(engine).invoke("Hello", config={"callbacks": [usage, tokens]})
    assert usage.usage_metadata[engine.model]["output_tokens"] == 8
    assert tokens.tokens == []
    tokens = Tokens()
    chat_on(engine, streaming=True).invoke("Hello", config={"callbacks": [tokens]})
    assert "".join(tokens.tokens) == said.content
    tokens = Tokens()
    list(RAGCacheLLM(engine=engine, max_tokens=4).stream("Hello", config={"callbacks": [tokens]}))
    assert len(tokens.tokens) == 4


@pytest.mark.engine
def test_stop_strings(engine: RAGCacheEngine) -> None:
    model = chat_on(engine, max_tokens=16)
    whole = str(model.invoke("Tell me about cats.").content)
    stop = whole[len(whole) // 2 :][:2]
    cut = model.invoke("Tell me about cats.", stop=[stop])
    assert cut.content == whole[: whole.index(stop)]
    assert cut.response_metadata["finish_reason"] == "stop"
    knob = chat_on(engine, max_tokens=16, stop=[stop])
    assert knob.invoke("Tell me about cats.").content == cut.content


@pytest.mark.engine
async def test_completions(engine: RAGCacheEngine, no_blocking: BlockBuster) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=6, logprobs=1)
    prompts = ["Cats purr when", "Dogs bark at"]
    inputs: list[LanguageModelInput] = [*prompts]
    plain = [await asyncio.to_thread(llm.invoke, prompt) for prompt in prompts]
    assert await llm.abatch(inputs) == plain
    result: LLMResult = await llm.agenerate(prompts)
    assert [generations[0].text for generations in result.generations] == plain
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["completion_tokens"] == 12
    info = result.generations[0][0].generation_info or {}
    assert info["finish_reason"] == "length"
    assert info["usage"]["completion_tokens"] == 6
    assert len(info["logprobs"]["content"]) == 6
    assert await asyncio.to_thread(lambda: "".join(llm.stream(prompts[0]))) == plain[0]
    assert "".join([piece async for piece in llm.astream(prompts[0])]) == plain[0]


@pytest.mark.engine
def test_tokens_are_the_models_own(engine: RAGCacheEngine) -> None:
    for llm in (chat_on(engine), RAGCacheLLM(engine=engine)):
        assert llm.get_token_ids("Cats purr.") == engine.tokenize("Cats purr.")
        assert llm.get_num_tokens("Cats purr.") == engine.count_tokens("Cats purr.")
    custom = chat_on(engine, custom_get_token_ids=lambda text: [0] * len(text))
    assert (custom.get_num_tokens("abc"), custom.get_token_ids("abc")) == (3, [0, 0, 0])
    assert chat_on(engine).get_num_tokens_from_messages([HumanMessage("Cats purr.")]) > 0


# Chains


@pytest.mark.engine
async def test_a_chain(engine: RAGCacheEngine, no_blocking: BlockBuster) -> None:
    def context(question: str) -> str:
        return "\n\n".join(document.page_content for document in DOCUMENTS)

    template = ChatPromptTemplate.from_messages(
        [("system", "Answer from the context."), ("human", "{context}\n\n{question}")]
    )
    for model in (chat_on(engine), RAGCacheLLM(engine=engine, max_tokens=8)):
        answering: Runnable[Any, Any] = model.bind(documents=DOCUMENTS)
        chain = (
            {"context": RunnableLambda(context), "question": RunnablePassthrough[str]()}
            | template
            | answering
            | StrOutputParser()
        )
        said = await chain.ainvoke("What do cats do?")
        assert said
        assert await asyncio.to_thread(chain.invoke, "What do cats do?") == said
        assert "".join([piece async for piece in chain.astream("What do cats do?")]) == said


@pytest.mark.engine
def test_configurable_fields_do_not_start_another_engine(recorder: Recorder) -> None:
    field = ConfigurableField(id="tokens")
    model = chat_on(recorder).configurable_fields(max_tokens=field)
    said = model.with_config(configurable={"tokens": 3}).invoke("Hello")
    assert said.usage_metadata is not None
    assert said.usage_metadata["output_tokens"] == 3


def test_configurable_fields_share_a_lazy_backend(stub: StubServer) -> None:
    model = chat_at(stub)
    configurable = model.configurable_fields(max_tokens=ConfigurableField(id="tokens"))
    for tokens in (3, 5):
        configurable.with_config(configurable={"tokens": tokens}).invoke("Hello")
    assert [seen.body["max_tokens"] for seen in stub.seen] == [3, 5]
    assert len({seen.peer for seen in stub.seen}) == 1  # one client, one connection
    model.close()
