"""Answers that processes share: hits for all, and never across tenants, documents or settings."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.schema import TextNode

from ragcache_integrations.answers import Question, flow
from ragcache_integrations.answers.entries import document_identity
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import AnswerCache, ApproximateCacheRetriever, cached_tool
from ragcache_integrations.llama_index import AnswerCache as AnswerCacheEngine
from ragcache_integrations.query_cache.redis import RedisServer
from tests.answers.test_llama_index import TEXTS, Model, engine_of
from tests.answers.test_saving import KEPT, NEVER, Fact, cache_of, same_but_new
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings
from tests.query_cache.redis.fake_server import fake_redis
from tests.query_cache.redis.servers import PASSWORD, RealRedis, patient, redis_server
from tests.support.waiting import wait_until

from .caches import DOCUMENTS, WORDS, Process, ask, new_tag, vector


@pytest.fixture(scope="module")
def server() -> Iterator[RealRedis]:
    with redis_server() as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[RealRedis]:
    """One that a test may kill."""
    with redis_server() as running:
        yield running


@pytest.fixture
def both(server: RealRedis) -> tuple[Process, Process]:
    tag = new_tag()
    return Process(server, tag), Process(server, tag)


Both = tuple[Process, Process]


async def test_an_answer_is_copied_where_no_other_task_changes_it(
    server: RealRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the thread that waits for Redis."""
    threads: list[threading.Thread] = []

    def copied(answer: str) -> str:
        threads.append(threading.current_thread())
        return answer

    monkeypatch.setattr(flow, "copy_answer", copied)
    process = Process(server, new_tag())
    await process.flow.akeep(process.look_up(ask(WORDS[0])), "yes")
    assert threads == [threading.current_thread()]
    assert process.served(ask(WORDS[0])) == "yes"


def test_what_one_process_answered_another_serves(both: Both) -> None:
    one, other = both
    one.answer(ask(WORDS[0]), "yes")
    assert other.served(ask("rome  is it nice?")) == "yes"
    near = other.look_up(ask(WORDS[1]))
    assert near.trace.hit
    assert near.trace.question == WORDS[0]
    assert one.served(ask(WORDS[0])) == "yes"
    stats = other.stats()
    assert (stats.lookups, stats.hits, stats.same_words) == (2, 2, 1)
    assert (one.stats().insertions, one.stats().hits, one.stats().entries) == (1, 1, 0)


@pytest.mark.parametrize(
    "other",
    [
        ask(WORDS[0], tenant="another"),
        ask(WORDS[0], documents=frozenset({("1", ("another text", frozenset()))})),
        ask(WORDS[0], documents=DOCUMENTS | {("2", "more")}),
        ask(WORDS[0], documents=frozenset()),
        ask(WORDS[0], language="it"),
        ask("rome in 1951 is it nice"),
    ],
)
def test_nothing_is_served_for_another_key(both: Both, other: Question, server: RealRedis) -> None:
    one, two = both
    one.answer(ask(WORDS[0]), "yes")
    assert two.served(other) is None
    assert one.served(other) is None
    lax = Process(server, new_tag(), tolerance=2)
    lax.answer(ask(WORDS[0]), "yes")
    assert lax.served(other) is None


def test_a_number_that_is_none_is_shared_as_others_are(both: Both) -> None:
    one, other = both

    def question() -> Question:
        identity = document_identity("1", "a text", {"year": float("nan")})
        return ask(WORDS[0], documents=frozenset({identity}))

    one.answer(question(), "yes")
    assert other.served(question()) == "yes"
    assert other.stats().corrupt == 0


def test_other_tags_and_other_settings_share_nothing(both: Both, server: RealRedis) -> None:
    one, other = both
    one.answer(ask(WORDS[0]), "yes")
    assert Process(server, "another tag").served(ask(WORDS[0])) is None
    assert Process(server, new_tag()).served(ask(WORDS[0])) is None
    # A process whose chain has changed is alone, with what it has said since.
    changed = ask(WORDS[0], version=1)
    assert other.served(changed) is None
    other.answer(ask(WORDS[1], version=1), "no")
    assert other.served(changed) == "no"
    assert one.served(changed) is None
    assert one.served(ask(WORDS[1])) == "yes"


def test_a_forked_child_whose_settings_change_is_alone(both: Both) -> None:
    one, _ = both
    shared, changed = one.flow._shared, ask(WORDS[0], version=1)
    assert shared is not None
    places = shared._place(ask(WORDS[0])), shared._place(changed)
    shared._after_fork()
    assert shared._place(ask(WORDS[0])) == places[0]
    assert shared._place(changed) not in {*places, None}


def test_within_a_cluster() -> None:
    with redis_server("--cluster-enabled", "yes") as server:
        server.run("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
        wait_until(lambda: b"cluster_state:ok" in server.run("CLUSTER", "INFO"))
        tag, cluster = new_tag(), patient(server.url, cluster=True)
        one, other = Process(cluster, tag), Process(cluster, tag)
        questions = [ask(text, tenant) for text in WORDS for tenant in "abcdefgh"]
        for question in questions:
            if one.served(question) is None:
                one.answer(question, "yes")
        assert all(other.served(question) == "yes" for question in questions)
        other.flow.forget(None, "a")
        assert [one.served(ask(WORDS[0], tenant)) for tenant in "ab"] == [None, "yes"]
        other.flow.clear()
        assert not any(map(one.served, questions))
        for process in (one, other):
            stats = process.stats()
            assert stats.failed == stats.skipped == stats.lost == stats.owed == 0


def test_a_wrong_answer_is_wrong_for_all(server: RealRedis) -> None:
    tag = new_tag()
    auto: dict[str, Any] = {"tolerance": "auto", "start_tolerance": 0.5}
    one, other = Process(server, tag, **auto), Process(server, tag, **auto)
    one.answer(ask(WORDS[0]), "yes")
    lookup = other.look_up(ask(WORDS[1]))
    assert lookup.trace.hit
    other.flow.check(lookup, lambda: "no")
    wait_until(lambda: other.stats().wrong == 1)
    third = Process(server, tag)
    wait_until(lambda: third.served(ask(WORDS[1])) is None)
    assert one.served(ask(WORDS[1])) is None
    assert "an answer of that entry" in third.flow.explain(ask(WORDS[1]), vector(WORDS[1])).reason
    assert third.served(ask(WORDS[0])) == "yes"
    # Nor does a farther one raise the cap again, nor another answer to the same words.
    lookup = third.look_up(ask(WORDS[0]))
    entry = lookup.entry
    assert entry is not None
    cap, entry.cap = entry.cap, 1.5
    assert third.flow._shared is not None
    third.flow._shared.lower(entry)
    third.flow.keep(replace(lookup, embedding=vector(WORDS[0])), "yes, very")
    fetched = one.look_up(ask(WORDS[0])).entry
    assert fetched is not None
    assert (fetched.answer, fetched.cap) == ("yes, very", cap)


def test_a_process_remembers_what_was_wrong_if_redis_does_not(
    both: Both, server: RealRedis
) -> None:
    one, other = both
    one.answer(ask(WORDS[0]), "yes")
    near = one.look_up(ask(WORDS[1])).near
    assert near is not None
    one.flow._learn(near, wrong=True)
    assert other.served(ask(WORDS[1])) is None
    with server.client() as client:
        for name in client.scan_iter():
            for field in client.hkeys(name):
                if field[:1] == b"c":
                    client.hdel(name, field)
    assert one.served(ask(WORDS[1])) is None
    assert one.served(ask(WORDS[0])) == "yes"
    assert other.served(ask(WORDS[1])) == "yes"


def test_what_is_forgotten_is_forgotten_by_all(both: Both, server: RealRedis) -> None:
    one, other = both
    for tenant in ("", "a", "b"):
        one.answer(ask(WORDS[0], tenant), f"of {tenant}")
        one.answer(ask(WORDS[3], tenant), f"of {tenant}")
    other.flow.forget(None, "a")
    assert one.served(ask(WORDS[0], "a")) is None
    assert one.served(ask(WORDS[0], "b")) == "of b"
    one.answer(ask(WORDS[0], "a"), "new")
    assert other.served(ask(WORDS[0], "a")) == "new"
    other.flow.forget(["1"], "b")
    assert one.served(ask(WORDS[0], "b")) is None
    assert one.served(ask(WORDS[3], "")) == "of "
    strict = Process(server, one.flow.core.knobs.tag, tolerance=0)
    assert strict.served(ask(WORDS[3], "")) == "of "
    other.flow.clear()
    assert [one.served(ask(WORDS[3], tenant)) for tenant in ("", "a", "b")] == [None] * 3
    assert strict.served(ask(WORDS[3], "")) is None
    one.answer(ask(WORDS[3], "b"), "again")
    assert other.served(ask(WORDS[3], "b")) == "again"


@pytest.mark.parametrize("tenant", [None, "", "another"])
def test_an_answer_that_is_forgotten_before_it_is_there_is_not_put_in(
    both: Both, tenant: str | None
) -> None:
    one, other = both
    before = one.look_up(ask(WORDS[0]))
    other.flow.clear() if tenant is None else other.flow.forget(None, tenant)
    one.flow.keep(before, "old")
    kept = tenant == "another"
    assert other.served(ask(WORDS[0])) == ("old" if kept else None)
    assert (one.stats().insertions, one.stats().lost) == (int(kept), int(not kept))
    one.flow.keep(one.look_up(ask(WORDS[3])), "new")
    assert other.served(ask(WORDS[3])) == "new"


def test_what_redis_did_not_say_is_not_put_in_afterwards(own_server: RealRedis) -> None:
    one = Process(RedisServer(own_server.url, timeout=0.2, failures=9), new_tag())
    one.served(ask(WORDS[3]))  # connects
    own_server.run("CLIENT", "PAUSE", "1000", "ALL")
    before = one.look_up(ask(WORDS[0]))  # perhaps it was forgotten meanwhile
    own_server.run("PING")
    one.flow.keep(before, "old")
    assert (one.stats().failed, one.stats().lost, one.stats().insertions) == (1, 1, 0)


def age_all(server: RealRedis, seconds: int) -> None:
    """Let everything that Redis keeps be older."""
    with server.client() as client:
        for name in client.scan_iter():
            for field, value in client.hgetall(name).items():
                if field[:1] == b"e":
                    stamp = int(value[:16]) - seconds * 10**6
                    client.hset(name, field, b"%016d" % stamp + value[16:])


def test_answers_end_by_the_servers_clock(own_server: RealRedis) -> None:
    tag = new_tag()
    one, other = Process(own_server, tag, ttl=100), Process(own_server, tag, ttl=100)
    one.answer(ask(WORDS[0]), "yes")
    age_all(own_server, 60)
    one.answer(ask(WORDS[2], "a"), "another")
    lookup = other.look_up(ask(WORDS[0]))
    assert lookup.trace.age == pytest.approx(60, abs=30)
    age_all(own_server, 60)
    assert other.served(ask(WORDS[1])) is None
    assert other.served(ask(WORDS[0])) is None
    assert other.served(ask(WORDS[2], "a")) == "another"
    assert other.stats().expired == 1
    assert Process(own_server, tag).served(ask(WORDS[0])) is None  # it was deleted
    age_all(own_server, -10_000)  # the server's clock went back
    assert other.served(ask(WORDS[2], "a")) is None


def test_the_least_recently_used_makes_room_within_a_key(server: RealRedis) -> None:
    tag = new_tag()
    one, other = (Process(server, tag, capacity=2, tolerance=0) for _ in range(2))
    asked = [ask(f"rome is it {word}") for word in ("nice", "pretty", "lovely")]
    one.answer(asked[0], "0")
    one.answer(asked[1], "1")
    assert [other.served(asked[place]) for place in (1, 0)] == ["1", "0"]
    one.answer(asked[2], "2")
    assert [other.served(question) for question in asked] == ["0", None, "2"]
    assert one.stats().evictions == 1


def test_answers_that_cannot_be_shared_are_left_out(
    both: Both, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = both
    for answer, message in (
        ("x" * 200_000, "takes more than 131072 bytes"),
        (object(), "an answer can't be saved"),
    ):
        one.answer(ask(WORDS[0]), answer)  # type: ignore[arg-type] # the point
        assert message in caplog.text
    one.answer(ask(WORDS[0], local=type("Local", (), {})), "yes")
    assert other.served(ask(WORDS[0])) is None
    assert (one.stats().unkept, one.stats().insertions) == (3, 0)


def test_the_log_says_once_what_is_left_out_and_no_answer(
    server: RealRedis, caplog: pytest.LogCaptureFixture
) -> None:
    one = Process(server, new_tag())
    for number, words in enumerate(WORDS):
        one.answer(ask(words), ("secret", float("nan"), number))  # type: ignore[arg-type] # the point
    assert one.stats().unkept == len(WORDS)
    assert len(caplog.records) == 1
    assert "would not come back as it is" in caplog.text
    assert "secret" not in caplog.text


class TestWithoutRedis:
    def test_the_chain_answers_and_nobody_waits_for_long(self, own_server: RealRedis) -> None:
        tag = new_tag()
        one, other = (
            Process(patient(own_server.url, failures=2, retry_after=0.05), tag) for _ in range(2)
        )
        one.answer(ask(WORDS[0]), "yes")
        assert other.served(ask(WORDS[0])) == "yes"
        own_server.kill()
        for _ in range(6):
            lookup = other.look_up(ask(WORDS[0]))
            assert lookup.entry is None
            assert lookup.trace.reason == "Redis does not say what was answered before"
            other.flow.keep(lookup, "from the chain")
        stats = other.stats()
        assert stats.failed + stats.skipped == 6
        assert stats.skipped > 0
        assert stats.lost == 6
        assert stats.insertions == 0
        assert not other.flow.explain(ask(WORDS[0]), None).hit
        own_server.start()
        # What came before is not there, as it may lack what was forgotten since.
        wait_until(lambda: other.look_up(ask(WORDS[3])).trace.reason.startswith("no such"))
        assert other.served(ask(WORDS[0])) is None
        other.answer(ask(WORDS[0]), "again")
        wait_until(lambda: one.served(ask(WORDS[0])) == "again")

    def test_what_a_server_reads_from_its_files_is_not_served(self) -> None:
        with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
            one = Process(server, new_tag())
            one.answer(ask(WORDS[0]), "yes")
            server.kill()
            server.start()
            wait_until(lambda: server.run("DBSIZE") > 0)
            wait_until(lambda: one.look_up(ask(WORDS[0])).trace.reason.startswith("no such"))
            assert one.stats().corrupt == 0

    def test_a_server_that_says_nothing_costs_no_more_than_its_time(self) -> None:
        with fake_redis(lambda _: None) as url:
            one = Process(RedisServer(url, timeout=0.01, failures=1, retry_after=60), new_tag())
            assert one.served(ask(WORDS[0])) is None
            assert one.served(ask(WORDS[0])) is None
            assert (one.stats().failed, one.stats().skipped) == (1, 1)

    def test_what_was_forgotten_meanwhile_is_never_served(self, own_server: RealRedis) -> None:
        tag = new_tag()
        server = patient(own_server.url, change_timeout=0.2, failures=1, retry_after=0.05)
        one = Process(server, tag)
        one.answer(ask(WORDS[0]), "yes")
        with own_server.client() as client:
            client.execute_command("CLIENT", "PAUSE", "1000", "ALL")
        one.flow.clear()
        assert one.stats().owed == 1
        assert one.served(ask(WORDS[0])) is None
        wait_until(lambda: one.stats().owed == 0)
        wait_until(lambda: one.look_up(ask(WORDS[3])).trace.reason.startswith("no such"))
        assert one.served(ask(WORDS[0])) is None
        assert Process(own_server, tag).served(ask(WORDS[0])) is None


class TestAdapters:
    @pytest.mark.parametrize("answer", KEPT)
    def test_langchain(self, server: RealRedis, answer: Any) -> None:
        shared: dict[str, Any] = {"cache": patient(server.url), "tag": new_tag()}
        one, other = cache_of(answer, **shared), cache_of(NEVER, **shared)
        assert one.invoke("rome is it nice") == answer
        for question in ("rome is it nice", "rome is it pretty"):
            served = other.invoke(question)
            assert same_but_new(served, answer)
            assert type(served) is type(answer)
        other.close()  # and connected again when needed
        assert other.explain("rome is it pretty").hit
        with pytest.raises(RuntimeError, match="the chain was called"):
            other.invoke("rome is it nice", namespace="another")

    def test_a_chain_whose_prompt_changes_is_alone(self, server: RealRedis) -> None:
        shared: dict[str, Any] = {"cache": patient(server.url), "tag": new_tag(), "tolerance": 0}
        answers = iter(["one", "two", "three"])
        model: Runnable[Any, str] = RunnableLambda(lambda _: next(answers))
        caches = []
        for _ in range(2):
            store = InMemoryVectorStore.from_texts(["rome"], langchain_embeddings(), ids=["1"])
            retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1)
            prompt = ChatPromptTemplate.from_messages(
                [("system", "Be brief."), ("human", "{question}")]
            )
            chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | model
            caches.append((prompt, AnswerCache(chain=chain, retriever=retriever, **shared)))
        (_, one), (prompt, other) = caches
        assert one.invoke("rome is it nice") == "one"
        assert other.invoke("rome is it nice") == "one"
        prompt.messages[0] = prompt.messages[1]
        assert other.invoke("rome is it nice") == "two"
        assert other.invoke("rome is it nice") == "two"
        assert one.invoke("rome is it nice") == "one"
        # A copy knows of the change, too, and has what Redis has of the changed chain for itself.
        copied = other.model_copy(update={"ttl": 1e6})
        assert copied.invoke("rome is it nice") == "three"
        assert one.invoke("rome is it nice") == "one"

    def test_objects_of_other_classes_are_answered_each_time(self, server: RealRedis) -> None:
        cached = cache_of(Fact(text="rome"), cache=patient(server.url), tag=new_tag())
        for _ in range(2):
            assert cached.invoke("rome is it nice") == Fact(text="rome")
        assert (cached.stats().hits, cached.stats().unkept) == (0, 2)

    async def test_langchain_with_coroutines(self, server: RealRedis) -> None:
        shared: dict[str, Any] = {"cache": patient(server.url), "tag": new_tag()}
        one, other = cache_of("old", **shared), cache_of(NEVER, **shared)
        assert await one.ainvoke("rome is it nice") == "old"
        assert await other.ainvoke("rome is it nice") == "old"
        assert [piece async for piece in other.astream("rome is it pretty")] == ["old"]
        assert (await other.aexplain("rome is it nice")).hit
        await one.aforget(namespace="another")
        assert await other.ainvoke("rome is it nice") == "old"
        await one.aclear()
        await other.aclose()
        with pytest.raises(RuntimeError, match="the chain was called"):
            await other.ainvoke("rome is it nice")
        assert other.stats().misses == 1
        streamed = cache_of("new", **shared)
        assert [piece async for piece in streamed.astream("rome is it nice")] == ["new"]
        assert await other.ainvoke("rome is it nice") == "new"

    @pytest.mark.parametrize("streaming", [False, True])
    async def test_llama_index(self, server: RealRedis, streaming: bool) -> None:
        nodes = [TextNode(text=text, id_=text.split()[0]) for text in TEXTS]
        index = VectorStoreIndex(nodes, embed_model=llama_index_embeddings())
        models, tag = [Model(), Model()], new_tag()
        one, other = (
            AnswerCacheEngine(
                engine_of(index, model, streaming=streaming),
                tolerance=0.6,
                cache=patient(server.url),
                tag=tag,
            )
            for model in models
        )
        assert str(one.query("rome is it nice")) == "answer 1"
        assert str(other.query("rome is it pretty")) == "answer 1"
        response: Any = await other.aquery("oslo is it nice")
        assert str(await response.get_response() if streaming else response) == "answer 1"
        assert str(one.query("oslo is it nice")) == "answer 1"
        assert [model.count for model in models] == [1, 1]
        assert (await one.aexplain("oslo is it pretty")).hit
        await one.aclear()
        assert str(other.query("rome is it nice")) == "answer 2"

    def test_engines_of_llama_index_that_stream_share_nothing_with_others(
        self, server: RealRedis
    ) -> None:
        tag, nodes = new_tag(), [TextNode(text="rome", id_="1")]
        index = VectorStoreIndex(nodes, embed_model=llama_index_embeddings())
        one, other = (
            AnswerCacheEngine(
                engine_of(index, Model(), streaming=streaming), cache=patient(server.url), tag=tag
            )
            for streaming in (True, False)
        )
        for _ in range(2):
            assert str(one.query("rome is it nice")) == "answer 1"
            response = other.query("rome is it nice")
            assert isinstance(response, Response)
            assert response.response == "answer 1"


class TestArguments:
    @pytest.mark.parametrize("tag", [{}, {"tag": ""}])
    def test_a_tag_is_needed(self, tag: dict[str, str]) -> None:
        with pytest.raises(ConfigurationError, match="tag must name the chain, its prompt"):
            cache_of("a", cache="redis://localhost", **tag)

    def test_what_is_no_server_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="cache must be a Redis URL or a RedisServer"):
            cache_of("a", cache=3, tag="a chain")
        with pytest.raises(
            ConfigurationError, match="RedisServer: url must begin with scheme of redis"
        ):
            cache_of("a", cache="http://localhost", tag="a chain")

    def test_files_are_for_answers_in_memory(self) -> None:
        cached = cache_of("a", cache="redis://localhost", tag="a chain")
        for act in (cached.save, cached.load):
            with pytest.raises(ConfigurationError, match="is for answers in memory"):
                act("nowhere", tag="a chain")

    def test_tools_do_without(self) -> None:
        @tool
        def search(query: str) -> str:
            """Search."""
            return query

        with pytest.raises(ConfigurationError, match="cache must be None for tools"):
            cached_tool(search, cache="redis://localhost", tag="a tool")

    def test_no_password_is_shown(self) -> None:
        cached = cache_of(
            "a", cache=f"redis://me:{PASSWORD.replace('/', '%2F')}@localhost", tag="a"
        )
        assert "s3cret" not in repr(cached)


def test_nothing_comes_back_that_was_forgotten(both: Both) -> None:
    writer, reader = both
    forgotten, wrong = [-1], list[str]()

    def read() -> None:
        while forgotten[-1] < 60:
            last = forgotten[-1]
            for question in (ask(WORDS[0]), ask(WORDS[1])):
                served = reader.served(question)
                if served is not None and int(served) <= last:
                    wrong.append(f"{served} after {last} was forgotten")

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(61):
        writer.flow.keep(writer.look_up(ask(WORDS[0])), str(number))
        writer.flow.clear()
        forgotten.append(number)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert reader.stats().failed == 0


def test_threads_of_several_processes_ask_while_all_changes(own_server: RealRedis) -> None:
    tag = new_tag()
    processes = [
        Process(patient(own_server.url, failures=2, retry_after=0.01), tag, tolerance=1.0, ttl=1e6)
        for _ in range(3)
    ]
    wrong: list[str] = []
    ended = threading.Event()

    def work(number: int) -> None:
        process = processes[number % 3]
        for step in range(150):
            version, tenant = (step // 10) % 3, "ab"[(step + number) % 2]
            documents = frozenset({("1", f"version {version}")})
            question = ask(WORDS[(step * 7 + number) % 3], tenant, documents)
            answer = f"{tenant} {version}"
            if step % 50 == 20:
                process.flow.forget(None, tenant)
            lookup = process.look_up(question)
            if lookup.entry is None:
                process.flow.keep(lookup, answer)
            elif lookup.entry.answer != answer:
                wrong.append(f"{lookup.entry.answer} instead of {answer}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        ended.wait(0.3)
        own_server.kill()
        own_server.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(process.stats().hits for process in processes) > 100
    assert all(process.stats().corrupt == 0 for process in processes)
