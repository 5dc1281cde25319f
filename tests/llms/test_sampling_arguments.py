"""What a call may say besides its prompt: limits, penalties, headers, pins and priorities."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import closing
from typing import Any

import llama_index.core.instrumentation as instrument
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import NullSpanHandler
from llama_index.core.schema import TextNode
from pydantic import SecretStr

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.adaptive import EngineAsker
from ragcache_integrations.adaptive.asker import DEFAULT_ANSWER_TOKENS
from ragcache_integrations.chains.langchain import LangChainModel
from ragcache_integrations.chains.llama_index import LlamaIndexAsker
from ragcache_integrations.engine import RAGCacheEngine, SamplingOptions
from ragcache_integrations.errors import ConfigurationError, ServerUnreachableError
from ragcache_integrations.llms import llama_index as ours
from ragcache_integrations.llms.langchain.models import ChatRAGCache, RAGCacheLLM
from tests.llms.openai.calls import connect

from .doubles import StubServer, Tokenising

KINDS: dict[str, Callable[..., Any]] = {
    "chat": ChatRAGCache,
    "text": RAGCacheLLM,
    "llama_index": ours.RAGCacheLLM,
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def at(stub: StubServer, kind: Callable[..., Any], **knobs: Any) -> Any:
    return kind(base_url=stub.base_url, model="m", **{"max_retries": 0, **knobs})


def ask_in_every_way(llm: Any, **call: Any) -> None:
    """Ask whole and in pieces, in threads and in a loop."""

    async def in_loop() -> None:
        if isinstance(llm, ours.RAGCacheLLM):
            await llm.acomplete("why", **call)
            _ = [chunk async for chunk in await llm.astream_complete("why", **call)]
        else:
            await llm.ainvoke("why", **call)
            _ = [chunk async for chunk in llm.astream("why", **call)]

    if isinstance(llm, ours.RAGCacheLLM):
        llm.complete("why", **call)
        list(llm.stream_complete("why", **call))
    else:
        llm.invoke("why", **call)
        list(llm.stream("why", **call))
    asyncio.run(in_loop())


class TestNoLimit:
    @every_kind
    def test_it_is_a_knob_and_an_argument(self, stub: StubServer, kind: Callable[..., Any]) -> None:
        ask_in_every_way(at(stub, kind, max_tokens=None))
        ask_in_every_way(at(stub, kind), max_tokens=None)
        ask_in_every_way(at(stub, kind, max_tokens=None), max_tokens=3)
        said = None if kind is RAGCacheLLM else "left out"
        assert [seen.body.get("max_tokens", "left out") for seen in stub.seen] == [
            *[said] * 8,
            *[3] * 4,
        ]

    def test_frameworks_and_askers_leave_some_room(self, stub: StubServer) -> None:
        llama = at(stub, ours.RAGCacheLLM, max_tokens=None, max_model_len=2048)
        assert llama.metadata.num_output == -1
        chat = at(stub, ChatRAGCache, max_tokens=None, max_model_len=2048)
        assert "ls_max_tokens" not in chat._get_ls_params()
        for asker in (LangChainModel(chat), LlamaIndexAsker(llama)):
            limits = asker.limits()
            assert (limits.context_window, limits.answer_tokens) == (2048, DEFAULT_ANSWER_TOKENS)

    @pytest.mark.engine
    def test_on_the_engine(self, engine: RAGCacheEngine) -> None:
        assert EngineAsker(engine, SamplingOptions(max_tokens=None)).limits().answer_tokens == (
            DEFAULT_ANSWER_TOKENS
        )
        said = "an answer of more than three tokens, surely"
        for kind in KINDS.values():
            for many, given in ((3, False), (None, True)):
                llm = kind(engine=engine, max_tokens=many)
                ask = llm.complete if kind is ours.RAGCacheLLM else llm.invoke
                answer = ask("why", choice=(said,))
                text = answer if isinstance(answer, str) else answer.text
                assert (text == said) is given


class TestPenalties:
    @every_kind
    def test_they_are_knobs_and_arguments(self, stub: StubServer, kind: Callable[..., Any]) -> None:
        own = {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
        ask_in_every_way(at(stub, kind, **own), presence_penalty=-0.25)
        ask_in_every_way(at(stub, kind, **own), frequency_penalty=0.0, repetition_penalty=1.0)
        said = [
            {name: value for name, value in seen.body.items() if name.endswith("_penalty")}
            for seen in stub.seen
        ]
        assert said == [{**own, "presence_penalty": -0.25}] * 4 + [{}] * 4

    @every_kind
    def test_bad_ones_are_refused(self, stub: StubServer, kind: Callable[..., Any]) -> None:
        with pytest.raises(ConfigurationError, match=r"frequency_penalty must be .*at most 2"):
            at(stub, kind, frequency_penalty=2.5)
        with pytest.raises(ConfigurationError, match="repetition_penalty must be a number above 0"):
            ask_in_every_way(at(stub, kind), repetition_penalty=0)
        assert not stub.seen

    @pytest.mark.engine
    def test_on_the_engine(self, engine: RAGCacheEngine) -> None:
        for kind in KINDS.values():
            texts = []
            for penalty in (0.0, -2.0):
                llm = kind(engine=engine, max_tokens=40, frequency_penalty=penalty)
                ask = llm.complete if kind is ours.RAGCacheLLM else llm.invoke
                answer = ask("a a a a a a a", ignore_eos=True)
                texts.append(answer if isinstance(answer, str) else str(answer.text))
            many, few = (len(set(text.split())) for text in texts)
            assert few < many


SECRET = "Bearer open-sesame"


class TestHeaders:
    @every_kind
    @pytest.mark.parametrize("wrap", [str, SecretStr])
    def test_they_go_with_one_call_and_win(
        self, stub: StubServer, kind: Callable[..., Any], wrap: Callable[[str], Any]
    ) -> None:
        llm = at(stub, kind, default_headers={"X-Team": "all", "X-Kept": "yes"}, api_key="key")
        headers = {"x-team": wrap("ours"), "Authorization": wrap(SECRET)}
        ask_in_every_way(llm, extra_headers=headers)
        ask_in_every_way(llm)
        sent = [
            (seen.headers.get_all("X-Team"), seen.headers["Authorization"], seen.headers["X-Kept"])
            for seen in stub.seen
        ]
        assert sent == [(["ours"], SECRET, "yes")] * 4 + [(["all"], "Bearer key", "yes")] * 4
        assert SECRET not in str([seen.body for seen in stub.seen])

    def test_they_can_be_bound_and_batched(self, stub: StubServer) -> None:
        for kind in (ChatRAGCache, RAGCacheLLM):
            bound = at(stub, kind).bind(extra_headers={"X-Call": SecretStr(SECRET)})
            assert SECRET not in repr(bound)
            bound.invoke("why")
            bound.batch(["why", "how"])
            asyncio.run(bound.abatch(["why", "how"]))
        assert [seen.headers["X-Call"] for seen in stub.seen] == [SECRET] * 10

    def test_langchain_s_callbacks_and_caches_do_not_show_them(self, stub: StubServer) -> None:
        heard: list[str] = []

        class Handler(BaseCallbackHandler):
            def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
                heard.append(repr((args, kwargs)))

            def on_llm_start(self, *args: Any, **kwargs: Any) -> None:
                heard.append(repr((args, kwargs)))

        for kind in (ChatRAGCache, RAGCacheLLM):
            cache = InMemoryCache()
            llm = at(stub, kind, cache=cache, callbacks=[Handler()])
            stub.seen.clear()
            for value in (SECRET, SECRET, "another"):
                llm.invoke("why", extra_headers={"X-Tenant": value})
            # An answer is for the headers it was asked with.
            assert [seen.headers["X-Tenant"] for seen in stub.seen] == [SECRET, "another"]
            assert SECRET not in repr(cache._cache)
            ask_in_every_way(llm, extra_headers={"X-Tenant": SECRET})
        assert len(heard) > 8
        assert "open-sesame" not in "".join(heard)

    def test_llama_index_s_events_and_spans_do_not_show_them(self, stub: StubServer) -> None:
        heard: list[str] = []

        class Events(BaseEventHandler):
            def handle(self, event: Any, **kwargs: Any) -> None:
                heard.append(repr(event))

        class Spans(NullSpanHandler):
            def span_enter(self, *args: Any, **kwargs: Any) -> None:
                heard.append(repr((args, kwargs)))

        root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
        events, spans = Events(), Spans()
        root.add_event_handler(events)
        root.add_span_handler(spans)
        try:
            llm = at(stub, ours.RAGCacheLLM)
            ask_in_every_way(llm, extra_headers={"X-Tenant": SECRET})
            llm.chat([ChatMessage("why")], extra_headers={"X-Tenant": SECRET})
        finally:
            root.event_handlers.remove(events)
            root.span_handlers.remove(spans)
        assert [seen.headers["X-Tenant"] for seen in stub.seen] == [SECRET] * 5
        assert any("X-Tenant" in one for one in heard)
        assert "open-sesame" not in "".join(heard)

    @every_kind
    @pytest.mark.parametrize(
        ("headers", "said"),
        [
            ({"X-A": "open-sesame\r\nX-B: c"}, "the value of X-A .* printable ASCII"),
            ({"X-A": 7}, "the value of X-A"),
            ({"X-A": None}, "the value of X-A"),
            ({"X-A: open-sesame": "b"}, "no name of a header"),
            ("X-A: open-sesame", "extra_headers must be a mapping of names to texts, got str"),
        ],
    )
    def test_bad_ones_are_refused_and_not_shown(
        self, stub: StubServer, kind: Callable[..., Any], headers: Any, said: str
    ) -> None:
        llm = at(stub, kind)
        with pytest.raises(ConfigurationError, match=said) as raised:
            ask_in_every_way(llm, extra_headers=headers)
        assert "open-sesame" not in str(raised.value)
        assert not stub.seen

    def test_errors_do_not_show_them(self, refused_url: str) -> None:
        llm = ChatRAGCache(base_url=refused_url, model="m", max_retries=0)
        with pytest.raises(ServerUnreachableError) as raised:
            llm.invoke("why", extra_headers={"X-Tenant": SECRET})
        assert "open-sesame" not in "".join(traceback.format_exception(raised.value))

    @every_kind
    def test_a_local_engine_is_sent_none(self, kind: Callable[..., Any]) -> None:
        for llm in (kind(), kind(engine="modular"), kind(engine=Tokenising())):
            assert llm._call(None, {"extra_headers": {}}).headers == {}
            with pytest.raises(ConfigurationError, match="extra_headers are for base_url"):
                llm._call(None, {"extra_headers": {"X-A": "b"}})

    @every_kind
    def test_a_server_that_was_given_takes_them(
        self, stub: StubServer, kind: Callable[..., Any]
    ) -> None:
        with closing(connect(stub)) as server:
            ask_in_every_way(kind(engine=server), extra_headers={"X-Tenant": SECRET})
        assert [seen.headers["X-Tenant"] for seen in stub.seen] == [SECRET] * 4


TEXT = "The moon is 384,400 km away from the earth, and goes around it in 27 days. " * 3


@pytest.mark.engine
async def test_documents_of_the_frameworks_are_pinned(engine: RAGCacheEngine) -> None:
    chat = langchain.ChatRAGCache(engine=engine, namespace="pins", max_tokens=1)
    llm = llama_index.RAGCacheLLM(engine=engine, namespace="pins", max_tokens=1)
    for model, documents in ((chat, [Document(TEXT)]), (llm, [TextNode(text=TEXT)])):
        assert model.pin(documents, ttl=100).prompt_tokens > 32
        tree = await engine.atree()
        assert tree is not None
        assert {root.name for root in tree.roots if root.pinned} == {"pins"}
        assert not await model.aunpin(documents, namespace="another")
        assert await model.aunpin(documents)
        assert (await model.apin(documents)).cached_tokens > 0
        assert model.unpin(documents)
    assert chat.invoke("Hello", priority=-1).response_metadata["finish_reason"]
    with pytest.raises(ConfigurationError, match="priority must be"):
        chat.invoke("Hello", priority="high")


def test_a_server_is_sent_the_field() -> None:
    model = langchain.ChatRAGCache(base_url="http://127.0.0.1:9/v1", model="any")
    with pytest.raises(ConfigurationError, match="got OpenAIServer: send the field `pin`"):
        model.pin([Document(TEXT)])


def test_wrong_quotas() -> None:
    for kind in (langchain.ChatRAGCache, llama_index.RAGCacheLLM):
        with pytest.raises(ConfigurationError, match=r"at most 1 together, got 1\.5"):
            kind(quotas={"a": 0.75, "b": 0.75})
