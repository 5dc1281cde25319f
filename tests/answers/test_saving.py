"""Answer caches of both frameworks that are saved and loaded in another process."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableLambda
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from pydantic import BaseModel

from ragcache_integrations.answers.langchain.values import CODEC
from ragcache_integrations.errors import CacheFileError, ConfigurationError
from ragcache_integrations.langchain import AnswerCache
from ragcache_integrations.llama_index import AnswerCache as AnswerCacheEngine
from tests.answers.test_llama_index import TEXTS, Model, engine_of
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings

TAG = "a chain"


class Fact(BaseModel):
    text: str


ANSWERS = [
    "a text",
    "",
    {"answer": "a text", "context": [Document("rome", id="1", metadata={"page": 3})]},
    {"day": dt.date(2024, 2, 29), "numbers": (1, 2.5), "bytes": b"\x00"},
    AIMessage("a text", id="run-1", response_metadata={"model": "a"}, name="bot"),
    AIMessage(
        [{"type": "text", "text": "a"}],
        tool_calls=[{"name": "search", "args": {"q": "a"}, "id": "1", "type": "tool_call"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    [HumanMessage("a question"), AIMessage("an answer"), ToolMessage("found", tool_call_id="1")],
    None,
    3,
]


KEPT = [answer for answer in ANSWERS if answer not in (None, "")]


def same_but_new(served: Any, answer: Any) -> bool:
    """Whether a served answer is another's, as a new message: its ids and usage are its own."""
    own = ("id", "usage_metadata", "tool_calls")
    if not isinstance(answer, AIMessage):
        return bool(served == answer)
    calls = [[{**call, "id": ""} for call in each.tool_calls] for each in (served, answer)]
    other = served.model_copy(update={name: getattr(answer, name) for name in own})
    return other == answer and calls[0] == calls[1] and (not answer.id or served.id != answer.id)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.npz"


def cache_of(answer: Any, text: str = "the city of rome", **settings: Any) -> AnswerCache:
    """A cache in a process of its own, as it were; its chain gives an answer, or raises it."""

    def give(_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    find: Runnable[str, list[Document]] = RunnableLambda(
        lambda _: [Document(text, id="1", metadata={"page": 3})]
    )
    settings = {"tolerance": 0.6, "embeddings": langchain_embeddings()} | settings
    return AnswerCache(
        chain=RunnableLambda(give), retriever=find, documents_key="context", **settings
    )


NEVER = RuntimeError("the chain was called")


@pytest.mark.parametrize("answer", KEPT)
def test_what_a_chain_answered_is_served_by_another_process(answer: Any, path: Path) -> None:
    first = cache_of(answer)
    first.invoke("rome is it nice")
    assert first.save(path, tag=TAG) == 1
    second = cache_of(NEVER)
    assert second.load(path, tag=TAG) == 1
    served = second.invoke("rome is it pretty")
    assert same_but_new(served, answer)
    assert type(served) is type(answer)
    assert second.stats().hits == 1


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_come_back_as_they_are(answer: Any) -> None:
    again = CODEC.decode(CODEC.encode(answer))
    assert again == answer
    assert type(again) is type(answer)


@pytest.mark.parametrize("answer", [Fact(text="rome"), {"fact": Fact(text="rome")}, RuntimeError])
def test_objects_of_other_classes_are_refused(answer: Any) -> None:
    with pytest.raises(ConfigurationError, match="would not come back as it is"):
        CODEC.encode(answer)


@pytest.mark.parametrize(
    "saved",
    [
        *(
            None,
            "a text",
            [],
            ["list"],
            ["list", {}],
            ["value"],
            ["AIMessage", {}],
            ["Document", {}],
        ),
        *(["Popen", {"args": "true"}], ["Document", {"page_content": 3, "metadata": {}}]),
        *(["value", ["numpy", "|O", None, ""]], ["AIMessage", {"content": 3, "type": "human"}]),
    ],
)
def test_what_is_no_answer_is_refused(saved: Any) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        CODEC.decode(saved)


def test_answers_nested_for_ever_are_refused() -> None:
    saved: Any = ["value", "a text"]
    for _ in range(100):
        saved = ["list", [saved]]
    with pytest.raises(ValueError, match="must be one that was written"):
        CODEC.decode(saved)


def test_the_documents_must_still_be_found(path: Path) -> None:
    first = cache_of("old")
    first.invoke("rome is it nice")
    first.save(path, tag=TAG)
    second = cache_of("new", text="rome has changed")
    second.load(path, tag=TAG)
    assert second.invoke("rome is it nice") == "new"


def test_tenants_and_other_inputs_stay_apart(path: Path) -> None:
    first = cache_of("old", input_key="question")
    first.invoke({"question": "rome is it nice", "language": "it"}, namespace="a")
    first.save(path, tag=TAG)
    second = cache_of("new", input_key="question")
    second.load(path, tag=TAG)
    for language, tenant in (("it", "b"), ("de", "a"), ("it", "")):
        question = {"question": "rome is it nice", "language": language}
        assert second.invoke(question, namespace=tenant) == "new"
    asked = {"question": "rome is it nice", "language": "it"}
    assert second.invoke(asked, namespace="a") == "old"


def test_a_refused_file_changes_nothing(path: Path) -> None:
    first = cache_of("old")
    first.invoke("rome is it nice")
    first.save(path, tag=TAG)
    second = cache_of("new")
    second.invoke("rome is it pretty")
    with pytest.raises(CacheFileError, match="its tag must be 'another'"):
        second.load(path, tag="another")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CacheFileError, match="truncated"):
        second.load(path, tag=TAG)
    with pytest.raises(FileNotFoundError):
        second.load(path.with_name("nowhere"), tag=TAG)
    assert second.invoke("rome is it nice") == "new"
    assert second.stats().entries == 1


def test_what_cannot_be_saved_is_left_out_and_said(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cached = cache_of(Fact(text="rome"))
    cached.invoke("rome is it nice")
    with caplog.at_level(logging.WARNING):
        assert cached.save(path, tag=TAG) == 0
    assert "1 of 1 answers are not saved, the first because" in caplog.text
    assert cache_of(NEVER).load(path, tag=TAG) == 0


async def test_coroutines_save_and_load(path: Path) -> None:
    first = cache_of("old")
    await first.ainvoke("rome is it nice")
    assert await first.asave(path, tag=TAG) == 1
    second = cache_of(NEVER)
    assert await second.aload(path, tag=TAG) == 1
    assert await second.ainvoke("rome is it nice") == "old"


class TestLlamaIndex:
    @pytest.fixture
    def index(self) -> VectorStoreIndex:
        nodes = [TextNode(text=text, id_=text.split()[0]) for text in TEXTS]
        return VectorStoreIndex(nodes, embed_model=llama_index_embeddings())

    @pytest.mark.parametrize("streaming", [False, True])
    def test_an_answer_is_served_by_another_process(
        self, index: VectorStoreIndex, path: Path, streaming: bool
    ) -> None:
        first = AnswerCacheEngine(engine_of(index, Model(), streaming=streaming), tolerance=0.6)
        answer = str(first.query("rome is it nice"))
        assert answer == "answer 1"
        assert first.save(path, tag=TAG) == 1
        model = Model()
        second = AnswerCacheEngine(engine_of(index, model, streaming=streaming), tolerance=0.6)
        assert second.load(path, tag=TAG) == 1
        response = second.query("rome is it pretty")
        assert str(response) == answer
        assert response.source_nodes[0].node_id == "rome"
        assert model.count == 0
        assert second.stats().hits == 1

    async def test_coroutines_save_and_load(self, index: VectorStoreIndex, path: Path) -> None:
        first = AnswerCacheEngine(engine_of(index, Model()), tolerance=0.6)
        await first.aquery("rome is it nice")
        assert await first.asave(path, tag=TAG) == 1
        model = Model()
        second = AnswerCacheEngine(engine_of(index, model), tolerance=0.6)
        assert await second.aload(path, tag=TAG) == 1
        assert str(await second.aquery("rome is it nice")) == "answer 1"
        assert model.count == 0

    def test_the_frameworks_files_are_not_exchanged(
        self, index: VectorStoreIndex, path: Path
    ) -> None:
        first = cache_of("old")
        first.invoke("rome is it nice")
        first.save(path, tag=TAG)
        second = AnswerCacheEngine(engine_of(index, Model()), tolerance=0.6)
        with pytest.raises(CacheFileError, match="kind must be 'llama_index', got 'langchain'"):
            second.load(path, tag=TAG)
