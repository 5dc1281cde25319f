"""Models, engines and tools that answer by a script, and caches in front of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Iterator
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import AnswerCache, cached_tool
from tests.answers.traffic import llama_index_embeddings

QUESTION = "what is the fee"
GOOD = "The fee is 5 euro."
HALF = "The three steps are: first,"


class Script:
    """Gives one thing after the other, the last one for ever."""

    def __init__(self, *steps: Any) -> None:
        self.steps, self.count = steps, 0

    def next(self) -> Any:
        self.count += 1
        return self.steps[min(self.count, len(self.steps)) - 1]


SCRIPTS: list[Script] = []
"""Models take theirs from here: an attribute of their own that changes would end all answers."""


def cache_of(chain: Any, **settings: Any) -> AnswerCache:
    return AnswerCache(
        chain=chain,
        retriever=RunnableLambda(lambda _: [Document("The fee is 5 euro.", id="1")]),
        documents_key="context",
        tolerance=0,
        **settings,
    )


def joined(pieces: list[Any]) -> Any:
    whole = None
    for piece in pieces:
        whole = piece if whole is None else whole + piece
    return whole


def pieces_of(cached: Any, later: bool) -> list[Any]:
    async def collect() -> list[Any]:
        return [piece async for piece in cached.astream(QUESTION)]

    return asyncio.run(collect()) if later else list(cached.stream(QUESTION))


WAYS: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda cached: cached.invoke(QUESTION),
    "ainvoke": lambda cached: asyncio.run(cached.ainvoke(QUESTION)),
    "stream": lambda cached: joined(pieces_of(cached, later=False)),
    "astream": lambda cached: joined(pieces_of(cached, later=True)),
}


def text_of(answer: Any) -> Any:
    return answer.content if isinstance(answer, BaseMessage) else answer


def finished(reason: str, text: str = HALF, key: str = "finish_reason") -> AIMessage:
    return AIMessage(text, response_metadata={key: reason})


CALL = {"name": "f", "args": {}, "id": "1", "type": "tool_call"}


class Model(BaseChatModel):
    """Answers as its script has it; streams word by word, and says how it ended at the end."""

    number: int

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        message = SCRIPTS[self.number].next()
        info = dict(message.response_metadata)
        copy = message.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=copy, generation_info=info)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[Any]:
        message = SCRIPTS[self.number].next()
        for number, word in enumerate(str(message.content).split(" ")):
            piece = f" {word}" if number else word
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        calls = [
            tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=number
            )
            for number, call in enumerate(message.tool_calls)
        ]
        last = AIMessageChunk(
            content="",
            tool_call_chunks=calls,
            response_metadata=message.response_metadata,
            additional_kwargs=message.additional_kwargs,
        )
        yield ChatGenerationChunk(
            message=last, generation_info=dict(message.response_metadata) or None
        )


def model_of(*messages: Any) -> tuple[Model, Script]:
    SCRIPTS.append(Script(*messages))
    return Model(number=len(SCRIPTS) - 1), SCRIPTS[-1]


PROMPT = ChatPromptTemplate.from_template("{input}")


def failing_tool(*steps: Any, **settings: Any) -> tuple[Any, Script]:
    script = Script(*steps)

    def run(query: str) -> Any:
        step = script.next()
        if isinstance(step, Exception):
            raise step
        return step

    plain = StructuredTool.from_function(run, name="look_up", description="d", **settings)
    return cached_tool(plain), script


class Page(LlamaRetriever):
    def __init__(self, found: int = 1) -> None:
        super().__init__()
        self._found = found

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        page = TextNode(text="The fee is 5 euro.", id_="1")
        return [NodeWithScore(node=page, score=1.0)] * self._found


class Engine(RetrieverQueryEngine):
    """Synthesizes what its script has."""

    number: int

    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        step = SCRIPTS[self.number].next()
        if isinstance(step, Exception):
            raise step
        made = step() if callable(step) else step
        if isinstance(made, str) or made is None:
            return Response(made, source_nodes=nodes)
        return made

    async def asynthesize(
        self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
    ) -> Any:
        return self.synthesize(query_bundle, nodes)


class Unused(BaseSynthesizer):
    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def get_response(self, *_: Any, **__: Any) -> str:
        return ""

    async def aget_response(self, *_: Any, **__: Any) -> str:
        return ""


def llama_cached(engine: Any, **settings: Any) -> llama.AnswerCache:
    model = llama_index_embeddings()
    return llama.AnswerCache(engine, embed_model=model, tolerance=0, **settings)


def scripted(*steps: Any) -> tuple[llama.AnswerCache, Script]:
    from llama_index.core.llms import MockLLM  # noqa: PLC0415

    SCRIPTS.append(Script(*steps))
    engine = Engine(Page(), response_synthesizer=Unused(llm=MockLLM()))
    engine.number = len(SCRIPTS) - 1
    return llama_cached(engine), SCRIPTS[-1]


def whole(response: Any) -> str:
    if isinstance(response, StreamingResponse):
        return "".join(response.response_gen)
    return str(response)


def ask_llama(cached: llama.AnswerCache, later: bool) -> str:
    async def ask() -> str:
        response = await cached.aquery(QUESTION)
        if isinstance(response, AsyncStreamingResponse):
            return "".join([piece async for piece in response.async_response_gen()])
        return whole(response)

    return asyncio.run(ask()) if later else whole(cached.query(QUESTION))


def stream_of(*pieces: Any) -> Callable[[], StreamingResponse]:
    def generate() -> Generator[str, None, None]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return lambda: StreamingResponse(response_gen=generate())
