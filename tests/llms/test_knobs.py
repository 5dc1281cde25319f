"""The knobs that all LLM classes share: what is refused, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ragcache_integrations import __version__
from ragcache_integrations.core.generation import Generation
from ragcache_integrations.core.knobs import meanings
from ragcache_integrations.engine import Prompt, PromptDocument, SamplingOptions
from ragcache_integrations.engine.serving.wire import PROTOCOL
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    ModelNotFoundError,
    PromptTooLongError,
)
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.knobs import SAMPLING_KNOBS, LLMKnobs
from ragcache_integrations.llms.openai.server import OpenAIServer
from ragcache_integrations.prompts.recognition.requests import MIN_LENGTH

from .doubles import Recorder, StubServer, Tokenising


def answer(knobs: BaseRAGCacheLLM, prompt: Prompt, call: dict[str, Any]) -> Generation:
    ready, arguments = knobs._ready(prompt, None, call)
    return knobs._source.get().generate(ready, **arguments)


async def aanswer(knobs: BaseRAGCacheLLM, prompt: Prompt, call: dict[str, Any]) -> Generation:
    ready, arguments = knobs._ready(prompt, None, call)
    return await (await knobs._source.aget()).agenerate(ready, **arguments)


SERVER: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "model": "some-model"}


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"tempratur": 1.0}, r"unknown argument 'tempratur'.*did you mean 'temperature'"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": "hot"}, "temperature.*'hot'"),
        ({"temperature": True}, "temperature"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 3]}, "stop"),
        ({"namespace": 3}, "namespace"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"kv_cache_gib": 0.0}, "kv_cache_gib"),
        ({"dtype": "float7"}, "dtype"),
        ({"tokenizer": "x"}, "tokenizer is for base_url"),
        ({"base_url": "http://127.0.0.1:1/v1"}, "base_url needs model"),
        ({"base_url": "127.0.0.1", "model": "m"}, "base_url"),
        ({**SERVER, "kv_cache_gib": 1.0}, "base_url excludes kv_cache_gib"),
        ({**SERVER, "reuse": "everywhere"}, "reuse must be one of"),
        ({**SERVER, "disk_cache_gib": 1.0}, "base_url excludes disk_cache_gib"),
        ({**SERVER, "policy": "lru"}, "base_url excludes policy"),
        ({**SERVER, "tool_parser": "hermes"}, "base_url excludes tool_parser"),
        ({"engine": "modular", "tool_parser": "hermes"}, "excludes tool_parser"),
        ({**SERVER, "reorder_window": None}, "base_url excludes reorder_window"),
        ({"find_documents": "yes"}, "find_documents"),
        ({"knowledge_tree": False, "host_cache_gib": 1.0}, "needs the knowledge tree"),
        ({**SERVER, "dtype": "auto", "vllm_args": {}}, "base_url excludes dtype, vllm_args"),
        ({"engine": "tiny"}, "engine must be a RAGCacheEngine, got str"),
    ],
)
def test_bad_knobs(knobs: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as caught:
        BaseRAGCacheLLM(**knobs)
    assert isinstance(caught.value, ValueError)


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        BaseRAGCacheLLM(model=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "knobs",
    [{"base_url": "http://x/v1"}, {"model": "m"}, {"kv_cache_gib": 1.0}, {"tokenizer": "t"}],
)
def test_a_given_engine_excludes_what_would_make_one(knobs: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"engine excludes {next(iter(knobs))}"):
        BaseRAGCacheLLM(engine=OpenAIServer(**SERVER), **knobs)


@pytest.mark.parametrize("place", [SERVER, {"engine": OpenAIServer(**SERVER)}])
def test_a_default_that_is_said_aloud_excludes_nothing(place: dict[str, Any]) -> None:
    """LangChain's configurable fields say every knob again."""
    fields = BaseRAGCacheLLM(**place).__dict__
    assert BaseRAGCacheLLM(**fields).model_fields_set == set(BaseRAGCacheLLM.model_fields)


def test_the_shortest_document_is_told() -> None:
    assert f"at least {MIN_LENGTH} characters" in meanings(LLMKnobs)["find_documents"]


def test_defaults_are_those_of_the_sampling_options() -> None:
    defaults = SamplingOptions()
    knobs = BaseRAGCacheLLM()
    assert knobs._call(None, {}).options == defaults
    for name in set(SAMPLING_KNOBS) - {"stop"}:
        assert getattr(knobs, name) == getattr(defaults, name)


def test_every_sampling_option_can_be_given_at_a_call() -> None:
    given: dict[str, Any] = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.2,
        "stop": ["\n"],
        "seed": 3,
        "logprobs": 2,
        "json_schema": {"type": "object"},
        "ignore_eos": True,
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "strict": False,
    }
    options = BaseRAGCacheLLM()._call(None, given).options
    assert options == SamplingOptions(**given)
    choice = BaseRAGCacheLLM()._call(None, {"choice": ["yes", "no"]}).options
    assert choice.choice == ("yes", "no")
    names = {field.name for field in dataclasses.fields(SamplingOptions)}
    assert names == {*given, "choice"}


@pytest.mark.parametrize(
    ("call", "match"),
    [
        ({"functions": []}, "unknown argument 'functions': allowed are choice, documents, "),
        ({"tools": "add"}, "tools must be a list"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"model": "another"}, "unknown argument 'model'"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": None}, "temperature"),
        ({"namespace": None}, "namespace"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"documents": "one text"}, "documents"),
        ({"documents": [3]}, "documents"),
        ({"documents": 3}, "documents"),
    ],
)
def test_bad_calls(call: dict[str, Any], match: str) -> None:
    knobs = BaseRAGCacheLLM(temperature=0.5)
    with pytest.raises(ConfigurationError, match=match):
        answer(knobs, Prompt.raw("x"), call)
    assert knobs.temperature == 0.5


def test_what_a_call_says_wins() -> None:
    knobs = BaseRAGCacheLLM(stop=["knob"], namespace="knob", timeout=3, max_tokens=5)
    call = knobs._call(None, {})
    assert (call.options.stop, call.namespace, call.timeout) == (("knob",), "knob", 3)
    call = knobs._call(["call"], {"namespace": "call", "timeout": None})
    assert (call.options.stop, call.namespace, call.timeout) == (("call",), "call", None)
    assert knobs._call([], {}).options.stop == ()
    assert knobs._call(None, {"stop": "one"}).options.stop == ("one",)
    assert knobs._call(None, {}).options.max_tokens == 5


def test_documents_are_strings_or_prompt_documents() -> None:
    one = PromptDocument("Cats purr.", "1")
    call = BaseRAGCacheLLM()._call(None, {"documents": [one, "Dogs bark.", ""]})
    assert call.documents == (one, PromptDocument("Dogs bark."))


def test_the_key_is_never_shown() -> None:
    knobs = BaseRAGCacheLLM(**SERVER, api_key="sesame")
    assert knobs.api_key == SecretStr("sesame")
    for shown in (repr(knobs), str(knobs), knobs.model_dump_json(), str(knobs._identity())):
        assert "sesame" not in shown
    with pytest.raises(ConfigurationError) as caught:
        BaseRAGCacheLLM(**SERVER, api_key=b"sesame", temperature="x")
    assert "sesame" not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        BaseRAGCacheLLM(**SERVER, api_key="sesame", typo=1)
    assert "sesame" not in f"{caught.value} {caught.value.__cause__}"


def test_headers_are_sent_and_never_shown(stub: StubServer) -> None:
    with BaseRAGCacheLLM(
        base_url=stub.base_url, model="m", default_headers={"X-Gateway": "sesame"}
    ) as knobs:
        answer(knobs, Prompt.raw("x"), {})
        asyncio.run(aanswer(knobs, Prompt.raw("x"), {}))
        for shown in (repr(knobs), knobs.model_dump_json(), str(knobs._identity())):
            assert "sesame" not in shown
    assert [seen.headers["X-Gateway"] for seen in stub.seen] == ["sesame", "sesame"]


@pytest.mark.parametrize(
    "headers", [{"X": "sesame\r\nY: z"}, {"X Y": "sesame"}, {"X\n": "sesame"}, {"": "z"}, "sesame"]
)
def test_bad_headers(headers: Any) -> None:
    with pytest.raises(ConfigurationError, match="default_headers") as caught:
        BaseRAGCacheLLM(**SERVER, default_headers=headers)
    assert "sesame" not in str(caught.value)


def test_where_documents_are_reused_may_be_said_for_all_calls_or_for_one(stub: StubServer) -> None:
    facts = {"ragcache": __version__, "protocol": PROTOCOL, "tokenizer": "another's"}
    stub.introduce = lambda exchange: exchange.send(facts)
    prompt = Prompt.rag("Who purrs?", [PromptDocument("Cats purr.")])

    def fields(**call: Any) -> list[Any]:
        answer(knobs, prompt, call)
        return [stub.seen[-1].body.get(name) for name in ("reuse", "link_tokens")]

    with BaseRAGCacheLLM(base_url=stub.base_url, model="m") as knobs:
        assert fields() == [None, None]
        assert fields(reuse="anywhere", link_tokens=2) == ["anywhere", 2]
        exact = knobs._identity()
    with BaseRAGCacheLLM(
        base_url=stub.base_url, model="m", reuse="anywhere", link_tokens=0
    ) as knobs:
        assert fields() == ["anywhere", 0]
        assert fields(link_tokens=32) == ["anywhere", 32]
        assert fields(reuse="prefix") == ["prefix", None]
        assert knobs._identity() != exact, "a cache of answers must tell them apart"
        assert knobs._identity() != knobs.model_copy(update={"link_tokens": 8})._identity()
        with BaseRAGCacheLLM(base_url=stub.base_url, model="m", link_tokens=8) as others:
            assert others._identity() != exact, "they are sent, too"
        for wrong in ({"reuse": "everywhere"}, {"link_tokens": -1}, {"link_tokens": True}):
            with pytest.raises(ConfigurationError, match=next(iter(wrong))):
                fields(**wrong)


@pytest.mark.parametrize("engine", ["modular", Tokenising()])
def test_not_every_engine_reuses_documents_as_a_call_says(engine: Any) -> None:
    with (
        BaseRAGCacheLLM(engine=engine) as knobs,
        pytest.raises(ConfigurationError, match="link_tokens of a call"),
    ):
        knobs._ready(Prompt.raw("Who purrs?"), None, {"link_tokens": 0})


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"reuse": "prefix", "link_tokens": 8}, True),
        ({"reuse": "anywhere", "link_tokens": 16}, False),
        ({"reuse": "anywhere", "link_tokens": 0}, False),
        ({"reuse": "prefix", "exact_documents": 1}, True),
    ],
)
def test_a_cache_of_answers_tells_approximate_engines_apart(
    settings: dict[str, Any], same: bool
) -> None:
    seen = []
    for values in ({"reuse": "prefix", "link_tokens": 16}, settings, settings):
        engine = Tokenising()
        vars(engine).update(values)
        with BaseRAGCacheLLM(engine=engine) as knobs:
            seen.append(knobs._identity())
    exact, first, second = seen
    assert first == second
    assert (first == exact) == same


def test_a_cache_of_answers_tells_numbers_of_exact_documents_apart() -> None:
    knobs: dict[str, Any] = {"model": "m", "reuse": "anywhere"}
    none, one, again = (
        BaseRAGCacheLLM(exact_documents=count, **knobs)._identity() for count in (0, 1, 1)
    )
    assert none != one == again


def test_headers_need_a_server() -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        BaseRAGCacheLLM(default_headers={"X": "y"})


def test_the_model_name_is_known_before_anything_starts() -> None:
    assert BaseRAGCacheLLM().model_name == "ragcache-default"
    assert BaseRAGCacheLLM(model="org/model").model_name == "org/model"
    assert BaseRAGCacheLLM(**SERVER).model_name == "some-model"
    assert BaseRAGCacheLLM(engine=OpenAIServer(**SERVER)).model_name == "some-model"


def test_a_path_is_a_model_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert BaseRAGCacheLLM(model=tmp_path).model == str(tmp_path)


def test_copies_share_the_backend() -> None:
    knobs = BaseRAGCacheLLM(**SERVER)
    server = knobs._source.get()
    assert copy.copy(knobs)._source.get() is server
    assert copy.deepcopy(knobs)._source.get() is server
    warmer = knobs.model_copy(update={"temperature": 1.0}, deep=True)
    assert warmer._source.get() is server
    assert (warmer.temperature, knobs.temperature) == (1.0, 0.0)
    knobs.close()


def test_equal_objects_share_the_backend() -> None:
    one, two = (
        BaseRAGCacheLLM(**SERVER),
        BaseRAGCacheLLM(**SERVER, temperature=1.0, namespace="tenant"),
    )
    other = BaseRAGCacheLLM(**SERVER, api_key="sesame")
    assert one._source.get() is two._source.get()
    assert one._source.get() is not other._source.get()
    for knobs in (one, two, other):
        knobs.close()


def test_pickled_it_connects_anew(stub: StubServer) -> None:
    with BaseRAGCacheLLM(
        base_url=stub.base_url, model="m", temperature=0.5, api_key="sesame"
    ) as knobs:
        answer(knobs, Prompt.raw("x"), {})
        data = pickle.dumps(knobs)
    with pickle.loads(data) as again:
        assert again.temperature == 0.5
        assert answer(again, Prompt.raw("x"), {}).text == "Cats purr."
    assert stub.seen[-1].headers["Authorization"] == "Bearer sesame"


def test_an_engine_of_this_process_is_not_pickled() -> None:
    with pytest.raises(
        TypeError, match=r"cannot be pickled.*settings instead of engine=.*base_url"
    ):
        pickle.dumps(BaseRAGCacheLLM(engine=OpenAIServer(**SERVER)))


async def test_closed(stub: StubServer) -> None:
    async with BaseRAGCacheLLM(base_url=stub.base_url, model="m") as knobs:
        assert (await aanswer(knobs, Prompt.raw("x"), {})).text == "Cats purr."
    with pytest.raises(EngineClosedError):
        await aanswer(knobs, Prompt.raw("x"), {})
    with pytest.raises(EngineClosedError):
        answer(knobs, Prompt.raw("x"), {})


def test_a_given_backend_stays_open(stub: StubServer) -> None:
    server = OpenAIServer(stub.base_url, "m")
    with BaseRAGCacheLLM(engine=server) as knobs:
        answer(knobs, Prompt.raw("x"), {})
    assert server.generate(Prompt.raw("x")).text == "Cats purr."
    server.close()


@pytest.mark.engine
def test_documents_are_marked_for_the_engine(recorder: Recorder) -> None:
    knobs = BaseRAGCacheLLM(engine=recorder, max_tokens=2, namespace="tenant", timeout=60)
    document = PromptDocument("Cats purr.", "1")
    answer(knobs, Prompt.raw("Context: Cats purr. Who?"), {"documents": [document]})
    answer(knobs, Prompt.raw("Cats purr."), {"documents": ["Cats purr."]})
    first, second = recorder.prompts
    assert first.parts == ("Context: ", document, " Who?")
    assert second.documents == (PromptDocument("Cats purr."),)
    assert recorder.calls[0] == {
        "options": SamplingOptions(max_tokens=2),
        "namespace": "tenant",
        "timeout": 60,
    }


@pytest.mark.engine
def test_a_prompt_too_long_for_a_server_and_for_the_engine_is_the_same_error(
    recorder: Recorder, stub: StubServer
) -> None:
    said = "This model's maximum context length is 5 tokens. However, your prompt contains 9 tokens"
    stub.reply = lambda exchange: exchange.send({"error": {"message": said}}, 400)
    long_prompt = Prompt.raw("word " * recorder.max_model_len)
    with BaseRAGCacheLLM(base_url=stub.base_url, model="m") as server:
        for knobs in (server, BaseRAGCacheLLM(engine=recorder)):
            with pytest.raises(PromptTooLongError):
                answer(knobs, long_prompt, {})


@pytest.mark.parametrize("framework", ["langchain.models", "llama_index"])
def test_only_who_asks_for_modules_loads_their_room(framework: str) -> None:
    script = (
        "import sys\n"
        f"from ragcache_integrations.llms.{framework} import RAGCacheLLM\n"
        "loaded = lambda: any('ragcache_modular' in name for name in sys.modules)\n"
        "RAGCacheLLM(base_url='http://127.0.0.1:1/v1', model='m').close()\n"
        "before = loaded()\n"
        "RAGCacheLLM(engine='modular').close()\n"
        "print(before, loaded(), 'torch' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]
