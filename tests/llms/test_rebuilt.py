"""LLM objects that LangChain or a copy makes from another: they share what they may."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from langchain_core.runnables import ConfigurableField

from ragcache_integrations.engine import Generation, Usage
from ragcache_integrations.errors import ConfigurationError, EngineClosedError
from ragcache_integrations.langchain import ChatRAGCache
from ragcache_integrations.llama_index import RAGCacheLLM
from ragcache_integrations.llms import backend_kinds as module
from ragcache_integrations.llms.backend import CAPACITY

from .test_lazy_engine import ARGUMENTS, engine_of


class Double:
    """Stands for an engine, which takes seconds to start; refuses when it is closed."""

    made: list[Double]
    max_model_len = 2048
    has_chat_template = True
    supports_tools = False

    def __init__(self, model: str | None = None, **arguments: Any) -> None:
        self.model = model or "default"
        self.arguments = arguments
        self.calls: list[dict[str, Any]] = []
        self.closed = False
        Double.made.append(self)

    def generate(self, prompt: Any, **call: Any) -> Generation:
        if self.closed:
            msg = "it was closed in use"
            raise AssertionError(msg)
        self.calls.append(call)
        return Generation(self.model, (1,), "stop", Usage(1, 1, 0), ())

    async def agenerate(self, prompt: Any, **call: Any) -> Generation:
        await asyncio.sleep(0)
        return self.generate(prompt, **call)

    generate_batch = agenerate_batch = stream = astream = count_tokens = tokenize = generate

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Double]]:
    Double.made = []
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.setattr(module, "RAGCacheEngine", Double)
    yield Double.made
    gc.collect()
    assert all(double.closed for double in Double.made)


def with_model(name: str) -> dict[str, Any]:
    return {"configurable": {"model": name}}


def configurable(llm: ChatRAGCache) -> Any:
    names = ("model", "temperature", "namespace", "kv_cache_gib")
    return llm.configurable_fields(**{name: ConfigurableField(name) for name in names})


def test_an_engine_is_started_once_for_all_calls(made: list[Double]) -> None:
    llm = ChatRAGCache(model="a")
    chain = configurable(llm)
    for _ in range(3):
        assert chain.invoke("hi", with_model("b")).content == "b"
        assert chain.invoke("hi").content == "a"
        assert asyncio.run(chain.ainvoke("hi", with_model("c"))).content == "c"
        assert chain.with_config(configurable={"model": "b"}).invoke("hi").content == "b"
    assert [double.model for double in made] == ["b", "a", "c"]
    assert not any(double.closed for double in made)
    llm.close()
    assert all(double.closed for double in made)
    with pytest.raises(EngineClosedError):
        chain.invoke("hi", with_model("b"))
    assert len(made) == 3


def test_what_is_read_at_the_call_changes_no_engine(made: list[Double]) -> None:
    llm = ChatRAGCache()
    chain = configurable(llm)
    for number in range(20):
        chain.invoke(
            "hi", {"configurable": {"temperature": 0.1 * number, "namespace": f"t{number}"}}
        )
    chain.invoke("hi", {"configurable": {"kv_cache_gib": 2.0}})
    first, second = made
    assert len(first.calls) == 20
    assert {call["namespace"] for call in first.calls} == {f"t{number}" for number in range(20)}
    assert second.arguments["kv_cache_gib"] == 2.0
    with pytest.raises(ConfigurationError, match="temperature"):
        chain.invoke("hi", {"configurable": {"temperature": -1.0}})
    llm.close()


def test_alternatives(made: list[Double]) -> None:
    llm = ChatRAGCache(model="a").configurable_alternatives(
        ConfigurableField("llm"), b=ChatRAGCache(model="b")
    )
    for _ in range(3):
        assert llm.with_config(configurable={"llm": "b"}).invoke("hi").content == "b"
        assert llm.invoke("hi").content == "a"
    assert len(made) == 2


def test_collected_all_end(made: list[Double]) -> None:
    llm = ChatRAGCache(model="a")
    configurable(llm).invoke("hi", with_model("b"))
    copied = llm.model_copy(update={"model": "b"})
    del llm
    gc.collect()
    assert copied.invoke("hi").content == "b"
    assert [double.model for double in made] == ["b"]
    state = weakref.ref(copied.shared_state)
    del copied
    gc.collect()
    assert state() is None
    assert made[0].closed


def test_independent_objects_share_no_state(made: list[Double]) -> None:
    one, two = ChatRAGCache(), ChatRAGCache()
    assert one.shared_state is not two.shared_state
    for llm in (one, two):
        configurable(llm).invoke("hi", with_model("b"))
    assert len(made) == 1  # equal settings share an engine, as ever
    one.close()
    assert not made[0].closed
    assert configurable(two).invoke("hi", with_model("b")).content == "b"
    two.close()
    assert made[0].closed


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_copies(made: list[Double], kind: Any) -> None:
    llm = kind(model="a", stop=["x"], vllm_args={"enforce_eager": True})
    copies = [copy.copy(llm), copy.deepcopy(llm), llm.model_copy(), llm.model_copy(deep=True)]
    assert all(one == llm for one in copies)
    assert all(one._source.get() is llm._source.get() for one in copies)
    assert copies[0].vllm_args is llm.vllm_args
    assert copies[1].vllm_args is not llm.vllm_args
    warmer = llm.model_copy(update={"temperature": 1.0})
    assert warmer != llm
    assert warmer._source.get() is llm._source.get()
    other = llm.model_copy(update={"model": "b"})
    assert other._source.get().model == "b"
    assert other.model_fields_set - {"model"} == llm.model_fields_set - {"model"}
    for update in ({"modle": "b"}, {"temperature": "warm"}, {"base_url": "http://x/v1"}):
        with pytest.raises(ConfigurationError):
            llm.model_copy(update=update)
    other.close()
    assert made[1].closed
    assert not made[0].closed
    with pytest.raises(EngineClosedError):
        other._source.get()
    copies[0].close()
    assert not made[0].closed
    assert copies[1]._source.get() is made[0]
    llm.close()
    with pytest.raises(EngineClosedError):
        copies[1]._source.get()


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_assigning(kind: Any) -> None:
    llm = kind()
    llm.temperature, llm.namespace, llm.stop = 0.5, "tenant", ["x"]
    assert (llm.temperature, llm.namespace, llm.stop) == (0.5, "tenant", ["x"])
    for name, value in (("temperature", -1.0), ("namespace", 3), ("max_tokens", 0)):
        before = getattr(llm, name)
        with pytest.raises(ConfigurationError, match=name):
            setattr(llm, name, value)
        assert getattr(llm, name) == before
    for name in ("model", "engine", "base_url", "kv_cache_gib", "shared_state"):
        with pytest.raises(ConfigurationError, match=f"model_copy.*{name}"):
            setattr(llm, name, "x")


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_the_state_does_not_show(kind: Any) -> None:
    llm = kind(temperature=0.5)
    assert "shared_state" not in repr(llm)
    assert "shared_state" not in llm.model_dump()
    assert llm == kind(temperature=0.5) != kind()
    again = pickle.loads(pickle.dumps(llm))
    assert again == llm
    assert again.shared_state is not llm.shared_state
    llm.close()
    assert again._source.get().model == "default"
    again.close()
    with pytest.raises(ConfigurationError, match="shared_state is not to be given"):
        kind(shared_state="x")


def test_what_is_kept_is_bounded_and_never_closed_in_use(made: list[Double]) -> None:
    llm = ChatRAGCache()
    held = llm.model_copy(update={"model": "held"})
    assert held.invoke("hi").content == "held"
    for number in range(2 * CAPACITY):
        configurable(llm).invoke("hi", with_model(str(number)))
    gc.collect()
    assert held.invoke("hi").content == "held"
    assert sum(not double.closed for double in made) == CAPACITY + 1
    llm.close()


def test_many_threads_and_tasks_at_once(made: list[Double]) -> None:
    """Nothing is closed in use, whoever is closed or collected meanwhile."""
    llm = ChatRAGCache()
    begin = threading.Barrier(8)

    def work(worker: int) -> None:
        begin.wait()
        chain = configurable(llm)
        for number in range(30):
            name = str((worker + number) % 5)
            if worker % 2:
                assert chain.invoke("hi", with_model(name)).content == name
            else:
                assert asyncio.run(chain.ainvoke("hi", with_model(name))).content == name
            if number % 7 == 0:
                copied = llm.model_copy(update={"model": name})
                assert copied.invoke("hi").content == name
                copied.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    llm.close()
    assert all(double.closed for double in made)


@pytest.mark.engine
def test_the_real_engine_is_kept() -> None:
    llm = ChatRAGCache(**ARGUMENTS)
    chain = llm.configurable_fields(
        temperature=ConfigurableField("temperature"), max_model_len=ConfigurableField("length")
    )
    pids = set()
    for _ in range(2):
        assert chain.invoke("Hello", {"configurable": {"length": 256}}).content
        other = llm.model_copy(update={"max_model_len": 256, "temperature": 0.5, "seed": 1})
        pids.add(engine_of(other).pid)
        assert engine_of(other).max_model_len == 256
    (pid,) = pids
    process = psutil.Process(pid)
    llm.close()
    process.wait(30)
    assert not process.is_running()
