"""LlamaIndex: a prompt is searched for the documents of its own request, and no others."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step

from ragcache_integrations.engine import Prompt, RAGCacheEngine
from ragcache_integrations.llama_index import (
    ApproximateCacheRetriever,
    RAGCacheLLM,
    RAGPromptTemplate,
)
from ragcache_integrations.prompts.recognition.segmentation import SEGMENTATIONS
from tests.llms.doubles import Tokenising
from tests.llms.retrieving import TEXTS, documents_in
from tests.support.sizes import examples

from .test_retrievals import llm_on


class Named(BaseRetriever):
    """Finds the text whose number stands first in the question."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        names = {str(number): text for number, text in enumerate(TEXTS)}
        (name, *_) = [word for word in query_bundle.query_str.split() if word in names]
        return [NodeWithScore(node=TextNode(text=names[name], id_=f"t{name}"))]


class Finds(BaseRetriever):
    """Finds one text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=self.text, id_="secret"))]


@pytest.fixture(scope="module")
def tokenising() -> Tokenising:
    return Tokenising()


def rag(llm: RAGCacheLLM, retriever: BaseRetriever | None = None, **knobs: Any) -> Any:
    return RetrieverQueryEngine.from_args(retriever or Named(), llm=llm, **knobs)


def found(engine: Tokenising) -> list[str]:
    return [document.id for document in engine.prompts[-1].documents]


# What an attacker can find out


def ours(namespace: str, text: str, llm: RAGCacheLLM) -> None:
    """The victim asks through a retriever of this package."""
    index = VectorStoreIndex([TextNode(text=text)], embed_model=MockEmbedding(2))
    retriever = ApproximateCacheRetriever.from_index(index, k=1, namespace=namespace)
    rag(llm, retriever).query("Why?")


def theirs(namespace: str, text: str, llm: RAGCacheLLM) -> None:
    """The victim asks through another retriever, and reads its answer as a stream."""
    assert str(rag(llm, Finds(text), streaming=True).query("Why?"))


def script(namespace: str, text: str, llm: RAGCacheLLM) -> None:
    """The victim calls one after the other, and has a context like every task has."""

    def run() -> None:
        (found,) = Finds(text).retrieve("Why?")
        llm.complete(f"{found.get_content()}\n\nWhy?")
        Finds(text).retrieve("And why not?")
        template = RAGPromptTemplate(documents="{context_str}", query="{query_str}")
        template.format_messages(context_str=[found], query_str="?")

    contextvars.Context().run(run)


def task(namespace: str, text: str, llm: RAGCacheLLM) -> None:
    """The victim has a task, in another thread's event loop."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:  # asyncio.run() here would lose a loop of LlamaIndex's
        pool.submit(context.run, asyncio.run, Finds(text).aretrieve("Why?")).result()


def alone(guess: str, llm: RAGCacheLLM) -> Any:
    return llm.complete(guess)


def streamed(guess: str, llm: RAGCacheLLM) -> Any:
    return list(llm.stream_complete(guess))[-1]


def conversing(guess: str, llm: RAGCacheLLM) -> Any:
    turns = [("user", guess), ("assistant", "Yes."), ("user", "And?")]
    return llm.chat([ChatMessage(role=role, content=text) for role, text in turns])


GLUE = ["", "a", "re", "1", " ", "\n", ".", "'s", "th", "<|user|>"]


@examples(40)
@given(
    victim=st.sampled_from([ours, theirs, script, task]),
    attack=st.sampled_from([alone, streamed, conversing]),
    namespaces=st.tuples(st.sampled_from(["", "victim"]), st.sampled_from(["", "attacker"])),
    secret=st.one_of(
        st.sampled_from(TEXTS[:3]),
        st.text("abc \n.é", min_size=64, max_size=200),
        st.sampled_from(TEXTS[:3]).map(lambda text: text[:99] + "<|end|>\n<|system|>" + text[99:]),
    ),
    glue=st.tuples(st.sampled_from(GLUE), st.sampled_from(GLUE)),
)
def test_nobody_finds_out_what_others_retrieved(
    tokenising: Tokenising,
    victim: Callable[[str, str, RAGCacheLLM], None],
    attack: Callable[[str, RAGCacheLLM], Any],
    namespaces: tuple[str, str],
    secret: str,
    glue: tuple[str, str],
) -> None:
    """Neither by the number of tokens nor by how the prompt is split, right guess or wrong."""
    SEGMENTATIONS.clear()
    own, other = namespaces
    guess = f"{glue[0]}{secret}{glue[1]}"

    def probe() -> tuple[Prompt, int]:
        answer = attack(guess, llm_on(tokenising, namespace=other))
        return tokenising.prompts[-1], answer.raw["usage"]["prompt_tokens"]

    before = contextvars.copy_context().run(probe)
    SEGMENTATIONS.clear()  # as if it were the first to guess
    victim(own, secret, llm_on(tokenising, namespace=own))
    assert probe() == before


def test_not_even_a_reused_thread_crosses_namespaces(tokenising: Tokenising) -> None:
    """The one thing that a context links: a retrieval that no answer followed."""
    RAGCacheLLM(engine=tokenising)
    index = VectorStoreIndex([TextNode(text=TEXTS[3])], embed_model=MockEmbedding(2))
    retriever = ApproximateCacheRetriever.from_index(index, k=1, namespace="victim")
    retriever.retrieve("Why?")
    assert documents_in(TEXTS[3], "attacker") == documents_in(TEXTS[3]) == []
    assert documents_in(TEXTS[3], "victim") == [TEXTS[3]]
    asyncio.run(retriever.aretrieve("Why?"))
    assert documents_in(TEXTS[3], "attacker") == []


# What a request finds


def test_a_script_that_calls_one_after_the_other(tokenising: Tokenising) -> None:
    llm = llm_on(tokenising)
    for number in (3, 5):
        (node,) = Named().retrieve(f"What of {number} ?")
        llm.complete(f"{node.get_content()}\n?")
        assert found(tokenising) == [f"t{number}"]
        assert list(llm.stream_complete(f"{node.get_content()}\nWhy?"))
        assert found(tokenising) == [f"t{number}"]

    async def main() -> None:
        (node,) = await Named().aretrieve("What of 7 ?")
        await llm.acomplete(f"{node.get_content()}\n?")
        assert found(tokenising) == ["t7"]
        assert [one async for one in await llm.astream_complete(f"{node.get_content()} So?")]
        assert found(tokenising) == ["t7"]

    asyncio.run(main())


def test_streams_that_are_read_after_the_query(tokenising: Tokenising) -> None:
    llm = llm_on(tokenising)
    response = rag(llm, streaming=True).query("What of 3 ?")
    rag(llm).query("What of 4 ?")
    assert str(response)
    assert found(tokenising) == ["t3"]

    async def main() -> None:
        response = await rag(llm, streaming=True).aquery("What of 5 ?")
        await rag(llm).aquery("What of 6 ?")
        assert [text async for text in response.response_gen]
        assert found(tokenising) == ["t5"]

    asyncio.run(main())


class Retrieved(Event):
    """What was found."""

    text: str


class RAG(Workflow):
    """Retrieves in one step, twice at once, and answers in another."""

    def __init__(self, llm: RAGCacheLLM) -> None:
        super().__init__(timeout=60)
        self.llm = llm

    @step
    async def retrieve(self, ctx: Context, event: StartEvent) -> Retrieved:
        nodes, others = await asyncio.gather(
            Named().aretrieve(event.question), asyncio.to_thread(Named().retrieve, "What of 9 ?")
        )
        return Retrieved(text="\n".join(one.get_content() for one in [*nodes, *others]))

    @step
    async def answer(self, event: Retrieved) -> StopEvent:
        return StopEvent(result=await self.llm.acomplete(f"{event.text}\n?"))


def test_workflows(tokenising: Tokenising) -> None:
    llm = llm_on(tokenising)

    async def main() -> None:
        before = len(tokenising.prompts)
        await asyncio.gather(*(RAG(llm).run(question=f"What of {n} ?") for n in (3, 5)))
        named = [{d.id for d in prompt.documents} for prompt in tokenising.prompts[before:]]
        assert sorted(named, key=sorted) == [{"t3", "t9"}, {"t5", "t9"}]

    asyncio.run(main())


@pytest.mark.parametrize("use_async", [False, True])
def test_retrievers_in_retrievers_and_threads(tokenising: Tokenising, use_async: bool) -> None:
    llm = llm_on(tokenising)
    fusion = QueryFusionRetriever(
        [Named(), Finds(TEXTS[9])], llm=llm, num_queries=1, use_async=use_async
    )
    rag(llm, fusion).query("What of 4 ?")
    assert set(found(tokenising)) == {"t4", "secret"}


def test_requests_in_threads_and_tasks_at_once(tokenising: Tokenising) -> None:
    """Every prompt holds all texts; each request finds its own in it."""
    template = RAGPromptTemplate(
        system="\n".join(TEXTS), documents="{context_str}", query="{query_str}"
    )
    query_engine = rag(llm_on(tokenising), text_qa_template=template)
    before = len(tokenising.prompts)

    async def main(questions: list[str]) -> None:
        await asyncio.gather(*(query_engine.aquery(question) for question in questions))

    def serve(worker: int) -> None:
        questions = [f"Number {worker} " + "x" * n for n in range(6)]
        if worker % 2:
            for question in questions:
                query_engine.query(question)
        else:
            asyncio.run(main(questions))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(serve, range(8)))
    assert len(tokenising.prompts) == before + 48
    for prompt in tokenising.prompts[before:]:
        worker = prompt.messages[-1].text.rpartition("Number ")[2].split()[0]
        assert {document.id for document in prompt.documents} == {f"t{worker}"}


@pytest.mark.engine
def test_earlier_turns_are_served_from_the_cache(engine: RAGCacheEngine) -> None:
    """The usual chat engine: its documents stand in the system message, the history behind it."""
    assert engine.reset_cache()
    llm = llm_on(engine)
    turns = [("user", f"x{TEXTS[3]}y Who?")]  # glued, so that splitting matters
    messages = [ChatMessage(role=role, content=text) for role, text in turns]
    Named().retrieve("What of 3 ?")
    first: Any = llm.chat(messages)
    Named().retrieve("What of 5 ?")
    later: Any = llm.chat(
        [
            *messages,
            first.message,
            ChatMessage(role="user", content=f"And what of {TEXTS[5]} then?"),
        ]
    )
    cached = later.raw["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first.raw["usage"]["prompt_tokens"] - 32
    memory = ChatMemoryBuffer.from_defaults(token_limit=2000)
    chat = ContextChatEngine.from_defaults(retriever=Named(), llm=llm, memory=memory)
    assert chat.chat("What of 3 ?").response
    assert "".join(chat.stream_chat("What of 3 again?").response_gen)
