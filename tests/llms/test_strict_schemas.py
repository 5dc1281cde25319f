"""Schemas that a server is sent for answers and tools: strict where they can be, and said so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest
from langchain_core.tools import tool
from llama_index.core import PromptTemplate
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from tests.support.strict_schemas import problems

from .doubles import Exchange, StubServer, answer

structured_agents = pytest.importorskip("langchain.agents.structured_output")


class Fee(BaseModel):
    """A fee."""

    fee: int


class Perhaps(BaseModel):
    """A fee that may be missing."""

    fee: int | None = None
    note: str = ""


class Tree(BaseModel):
    """A tree of fees."""

    fee: int
    parts: list[Tree] = Field(default_factory=list)


class Fees(BaseModel):
    """Fees by their names."""

    fees: dict[str, int]


class Short(BaseModel):
    note: str = Field(max_length=9)


class Total(TypedDict):
    """A fee."""

    fee: int


FEE: dict[str, Any] = {
    "type": "object",
    "properties": {"fee": {"type": "integer"}},
    "required": ["fee"],
}
FEES = Fees.model_json_schema()
NAMED = {**FEE, "properties": {**FEE["properties"], "name": {"type": "string"}}}
ANSWERS: list[tuple[type[BaseModel], dict[str, Any], bool]] = [
    (Fee, {"fee": 5}, True),
    (Perhaps, {"fee": None, "note": ""}, True),
    (Perhaps, {}, True),  # of a server that does not keep to it
    (Tree, {"fee": 5, "parts": [{"fee": 3, "parts": []}]}, True),
    (Fees, {"fees": {"basic": 5}}, False),
    (Short, {"note": "brief"}, False),
]


def keeping(value: object) -> Callable[[Exchange], None]:
    """Answer a value, but refuse as OpenAI's servers do what is no strict schema."""

    def reply(exchange: Exchange) -> None:
        body = exchange.body
        named = body["response_format"]["json_schema"] if "response_format" in body else {}
        tools = [tool["function"] for tool in body.get("tools", ())]
        held = [named["schema"]] if named.get("strict") else []
        held += [function["parameters"] for function in tools if function.get("strict")]
        wrong = [problem for schema in held for problem in problems(schema)]
        if wrong:
            exchange.send({"error": {"message": f"Invalid schema: {wrong}"}}, 400)
        else:
            answer(exchange, json.dumps(value))

    return reply


async def last(stream: AsyncIterator[Any]) -> Any:
    *_, end = [piece async for piece in stream]
    return end


def langchain_ways(stub: StubServer, kind: Any, **more: Any) -> list[Callable[[], Any]]:
    model = ChatRAGCache(base_url=stub.base_url, model="m", max_retries=0)
    chain = model.with_structured_output(kind, **more)
    return [
        lambda: chain.invoke("?"),
        lambda: list(chain.stream("?"))[-1],
        lambda: asyncio.run(chain.ainvoke("?")),
        lambda: asyncio.run(last(chain.astream("?"))),
    ]


def llama_index_ways(stub: StubServer, kind: Any) -> list[Callable[[], Any]]:
    llm = RAGCacheLLM(base_url=stub.base_url, model="m", max_retries=0)
    prompt = PromptTemplate("?")

    async def astream() -> Any:
        return await last(await llm.astream_structured_predict(kind, prompt))

    return [
        lambda: llm.structured_predict(kind, prompt),
        lambda: list(llm.stream_structured_predict(kind, prompt))[-1],
        lambda: asyncio.run(llm.astructured_predict(kind, prompt)),
        lambda: asyncio.run(astream()),
        lambda: llm.as_structured_llm(kind).complete("?").raw,
    ]


def sent(stub: StubServer) -> dict[str, Any]:
    named: dict[str, Any] = stub.seen[-1].body["response_format"]["json_schema"]
    return named


@pytest.mark.parametrize("ways", [langchain_ways, llama_index_ways])
@pytest.mark.parametrize(("kind", "value", "strict"), ANSWERS)
def test_every_class_in_every_way(
    stub: StubServer, ways: Any, kind: type[BaseModel], value: Any, strict: bool
) -> None:
    stub.reply = keeping(value)
    for way in ways(stub, kind):
        assert kind.model_validate(way().model_dump()) == kind.model_validate(value)
        assert sent(stub)["strict"] is strict
    if not strict:
        assert sent(stub)["schema"] == kind.model_json_schema(), "sent as it is"


@pytest.mark.parametrize("kind", [Fee, Perhaps, Tree, Fees, Short, FEE, FEES, Total])
def test_strict_is_false_if_that_is_asked(stub: StubServer, kind: Any) -> None:
    stub.reply = keeping({"fee": 5, "fees": {}, "note": ""})
    for way in langchain_ways(stub, kind, strict=False):
        way()
        assert sent(stub)["strict"] is False


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (FEE, True),
        (FEES, False),
        (NAMED, False),  # a model would have to make up a name
        (Total, True),
        ({"type": "object"}, False),
        ({"name": "fee", "description": "A fee.", "parameters": FEE}, True),
        ({"name": "fee", "description": "A fee.", "parameters": FEE, "strict": False}, False),
        ({"name": "fee", "schema": FEE, "strict": False}, False),
        ({"type": "json_schema", "json_schema": {"name": "fee", "schema": FEE}}, True),
        ({"type": "json_schema", "json_schema": {"schema": FEES, "strict": False}}, False),
    ],
)
def test_schemas_of_other_kinds(stub: StubServer, schema: Any, strict: bool) -> None:
    stub.reply = keeping({"fee": 5})
    for way in langchain_ways(stub, schema):
        assert way() == {"fee": 5}
        assert sent(stub)["strict"] is strict
        assert sent(stub)["schema"]["type"] == "object"


def test_strict_is_made_or_refused_if_that_is_asked(stub: StubServer) -> None:
    stub.reply = keeping({"fee": 5})
    for kind in (Fee, FEE, NAMED, Total, Perhaps):
        for way in langchain_ways(stub, kind, strict=True):
            way()
            assert sent(stub)["strict"] is True
    model = ChatRAGCache(base_url=stub.base_url, model="m")
    for schema in (Fees, FEES, {"type": "json_schema", "json_schema": {"schema": FEES}}):
        with pytest.raises(ConfigurationError, match=r"strict=True: .*it\.fees is an object whose"):
            model.with_structured_output(schema, strict=True)
    with pytest.raises(ConfigurationError, match="strict=True: "):
        model.with_structured_output({"name": "fees", "schema": FEES, "strict": True})
    llm = RAGCacheLLM(base_url=stub.base_url, model="m")
    with pytest.raises(ConfigurationError, match="strict=True: "):
        llm.complete("?", json_schema=FEES, strict=True)
    with pytest.raises(ConfigurationError, match="strict must be True, False or None"):
        model.invoke("?", json_schema=FEE, strict="yes")


# `response_format`, as frameworks pass it


FORMS: list[tuple[Any, dict[str, Any] | None, bool]] = [
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": FEE}}, FEE, True),
    ({"type": "json_schema", "json_schema": {"schema": FEE, "strict": False}}, FEE, False),
    ({"type": "json_object"}, {"type": "object"}, False),
    ({"type": "text"}, None, False),
    (None, None, False),
]


@pytest.mark.parametrize(("form", "schema", "strict"), FORMS)
def test_a_response_format(stub: StubServer, form: Any, schema: Any, strict: bool) -> None:
    stub.reply = keeping({"fee": 5})
    chat = ChatRAGCache(base_url=stub.base_url, model="m", max_retries=0)
    llm = RAGCacheLLM(base_url=stub.base_url, model="m", max_retries=0)
    chat.bind(response_format=form).invoke("?")
    llm.complete("?", response_format=form)
    for seen in stub.seen:
        if schema is None:
            assert "response_format" not in seen.body
        else:
            named = seen.body["response_format"]["json_schema"]
            assert (named["strict"], named["schema"]["type"]) == (strict, "object")
            assert named["schema"].get("properties") == schema.get("properties")


def test_a_class_as_response_format(stub: StubServer) -> None:
    stub.reply = keeping({"fee": 5})
    ChatRAGCache(base_url=stub.base_url, model="m").bind(response_format=Fee).invoke("?")
    assert sent(stub)["strict"] is True


@pytest.mark.parametrize(
    "call",
    [
        {"response_format": "json"},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "grammar"}},
        {"response_format": FORMS[0][0], "json_schema": FEE},
    ],
)
def test_what_is_no_response_format(call: dict[str, Any]) -> None:
    model = ChatRAGCache(base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(ConfigurationError, match="response_format"):
        model.invoke("?", **call)


@pytest.mark.parametrize("schema", [Fee, Tree, Fees, Total, FEE | {"title": "Fee"}])
def test_the_provider_strategy_of_agents(stub: StubServer, schema: Any) -> None:
    agents = pytest.importorskip("langchain.agents")
    stub.reply = keeping({"fee": 5, "parts": [], "fees": {"basic": 5}})
    model = ChatRAGCache(base_url=stub.base_url, model="m", max_retries=0)
    for strict in (None, False) if schema is Fees else (None, False, True):
        strategy = structured_agents.ProviderStrategy(schema, strict=strict)
        agent = agents.create_agent(model, [], response_format=strategy)
        for state in (
            agent.invoke({"messages": "?"}),
            asyncio.run(agent.ainvoke({"messages": "?"})),
        ):
            said = state["structured_response"]
            assert (said if isinstance(said, dict) else said.model_dump()).get("fee", 5) == 5


# Tools


@tool
def price(plan: str, currency: str = "euro") -> str:
    """Look up a price."""
    return f"5 {currency}"


@tool
def total(fees: dict[str, int]) -> int:
    """Add fees."""
    return sum(fees.values())


def test_tools_of_langchain(stub: StubServer) -> None:
    stub.reply = keeping("fine")
    model = ChatRAGCache(base_url=stub.base_url, model="m", max_retries=0)
    for strict in (None, False, True):
        model.bind_tools([price, Fee, Perhaps], strict=strict).invoke("?")
        functions = [tool["function"] for tool in stub.seen[-1].body["tools"]]
        assert [function.get("strict") for function in functions] == [strict] * 3
    model.bind_tools([total]).invoke("?")
    parameters = stub.seen[-1].body["tools"][0]["function"]["parameters"]
    assert parameters["properties"]["fees"]["additionalProperties"] == {"type": "integer"}
    with pytest.raises(ConfigurationError, match=r"strict=True of the tool total: .*it\.fees"):
        model.bind_tools([total], strict=True).invoke("?")
    definition = {"type": "function", "function": {"name": "f", "strict": False}}
    with pytest.raises(ConfigurationError, match="strict=True, but 'f' says strict=False"):
        model.bind_tools([definition], strict=True)


def test_tools_of_llama_index(stub: StubServer) -> None:
    stub.reply = keeping("fine")
    llm = RAGCacheLLM(base_url=stub.base_url, model="m", max_retries=0)
    function = {"name": "f", "parameters": Perhaps.model_json_schema(), "strict": True}
    llm.complete("?", tools=[{"type": "function", "function": function}])
    assert stub.seen[-1].body["tools"][0]["function"]["strict"] is True


class Digits(BaseModel):
    """Small numbers, which end under random weights, too."""

    digit: int = Field(1, ge=0, le=9)
    more: dict[str, Literal[1, 2]] = Field(max_length=2)


@pytest.mark.engine
@pytest.mark.parametrize("strict", [None, False, True])
def test_the_engines_grammar_takes_every_schema(
    engine: RAGCacheEngine, strict: bool | None
) -> None:
    model = ChatRAGCache(engine=engine, max_tokens=128)
    for kind in (Digits, Short):
        assert isinstance(model.with_structured_output(kind, strict=strict).invoke("?"), kind)
