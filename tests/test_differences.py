"""The pages of what differs from the frameworks' own classes say what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, FunctionMessage, HumanMessage
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import ImageBlock
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.core.schema import TextNode

from ragcache_integrations import langchain, llama_index
from ragcache_integrations.errors import ConfigurationError
from tests.support.doc_pages import ROOT
from tests.support.embeddings import LangChainEmbeddings, LlamaIndexEmbeddings

NOWHERE: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "a model"}
"""Nothing listens there: what is not refused at once raises another error."""

LANGCHAIN, LLAMA_INDEX = "langchain_differences", "llama_index_differences"
CLASSES: dict[str, Callable[..., Any]] = {
    LANGCHAIN: partial(langchain.ChatRAGCache, **NOWHERE),
    LLAMA_INDEX: partial(llama_index.RAGCacheLLM, **NOWHERE),
}
FIELDS = {
    LANGCHAIN: langchain.ChatRAGCache.model_fields,
    LLAMA_INDEX: llama_index.RAGCacheLLM.model_fields,
}


def embed(text: str) -> list[float]:
    return [1.0, float(len(text))]


def rows(page: str) -> Iterator[list[str]]:
    """The rows of the tables of a page, cell by cell."""
    text = (ROOT / f"docs/howto/{page}.md").read_text(encoding="utf-8")
    for line in re.findall(r"^\| (.+) \|$", text, re.MULTILINE):
        if not line.startswith(("---", "you use", "there")):
            yield line.split(" | ")


def other_names() -> Iterator[Any]:
    """Names of other classes' arguments, and ours."""
    for page in CLASSES:
        for row in rows(page):
            if len(row) == 2:
                yield pytest.param(page, *(cell.strip("`") for cell in row))


def refused_names() -> Iterator[Any]:
    """Arguments that a page says are refused."""
    for page in CLASSES:
        for row in rows(page):
            names = re.findall(r"`(\w+)`", row[0])
            if row[1:2] == ["`ConfigurationError`"] and row[0].startswith("`"):
                yield from (pytest.param(page, name) for name in names if name.islower())


@pytest.mark.parametrize(("page", "there", "here"), [*other_names()])
def test_an_argument_has_another_name(page: str, there: str, here: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown argument"):
        CLASSES[page](**{there: 1})
    assert here in FIELDS[page]


@pytest.mark.parametrize(("page", "name"), [*refused_names()])
def test_an_argument_is_refused_at_the_constructor_and_at_a_call(page: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown argument"):
        CLASSES[page](**{name: 1})
    model = CLASSES[page]()
    call = model.invoke if page == LANGCHAIN else model.complete
    with pytest.raises(ConfigurationError, match="unknown argument"):
        call("hello", **{name: 1})


def test_the_pages_name_arguments() -> None:
    assert len([*other_names()]) >= 8
    assert len([*refused_names()]) >= 10


@pytest.mark.parametrize("make", CLASSES.values(), ids=CLASSES)
def test_answers_are_greedy_and_short_by_default(make: Callable[..., Any]) -> None:
    assert (make().temperature, make().max_tokens) == (0.0, 256)


@pytest.mark.parametrize("make", CLASSES.values(), ids=CLASSES)
def test_settings_are_fixed_but_for_a_few(make: Callable[..., Any]) -> None:
    model = make()
    values = {"temperature": 0.5, "namespace": "a", "timeout": 1.0, "find_documents": False}
    for name, value in values.items():
        setattr(model, name, value)
        assert getattr(model, name) == value
    with pytest.raises(ConfigurationError, match="model_copy"):
        model.model = "another"


@pytest.mark.parametrize(
    "message",
    [
        FunctionMessage(content="a result", name="f"),
        HumanMessage([{"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}]),
        HumanMessage([{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}]),
    ],
    ids=["function", "image", "audio"],
)
def test_langchain_messages_that_are_refused(message: BaseMessage) -> None:
    with pytest.raises(ConfigurationError):
        CLASSES[LANGCHAIN]().invoke([message])


def test_tools_of_providers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a tool must be"):
        CLASSES[LANGCHAIN]().bind_tools([{"type": "web_search"}])


@pytest.mark.parametrize(
    "call",
    [
        lambda tool: langchain.ChatRAGCache(engine="modular").bind_tools([tool]),
        lambda tool: llama_index.RAGCacheLLM(engine="modular").chat(
            [ChatMessage("?")], tools=[tool]
        ),
    ],
    ids=CLASSES,
)
def test_modular_engines_call_no_tools(call: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(ConfigurationError, match="a modular engine calls no tools"):
        call({"type": "function", "function": {"name": "f"}})


def test_llama_index_messages_that_are_refused() -> None:
    llm = CLASSES[LLAMA_INDEX]()
    picture = ChatMessage(role="user", blocks=[ImageBlock(url="http://example.com/a.png")])
    for message in (ChatMessage(role=MessageRole.FUNCTION, content="a"), picture):
        with pytest.raises(ConfigurationError):
            llm.chat([message])


def test_the_langchain_retriever_leaves_the_store_to_you() -> None:
    store = InMemoryVectorStore(LangChainEmbeddings(embed))
    retriever = langchain.ApproximateCacheRetriever.from_vectorstore(store)
    assert hasattr(store.as_retriever(), "add_documents")
    assert not hasattr(retriever, "add_documents")
    with pytest.raises(ConfigurationError):
        retriever.search_kwargs = {}  # type: ignore[misc]
    with pytest.raises(ConfigurationError, match="singly"):
        retriever.invoke("a question", search_kwargs={"k": 1})
    assert retriever.model_copy(update={"k": 3}).k == 3


def test_the_llama_index_retriever_takes_other_arguments() -> None:
    index = VectorStoreIndex([TextNode(text="a node")], embed_model=LlamaIndexEmbeddings(embed))
    make: Any = llama_index.ApproximateCacheRetriever.from_index
    for arguments in (
        {"similarity_top_k": 4},
        {"filters": None},
        {"search_kwargs": {"node_ids": ["a"]}},
    ):
        with pytest.raises(ConfigurationError):
            make(index, **arguments)
    retriever = make(index, k=4)
    retriever.similarity_top_k = 2
    assert retriever.similarity_top_k == 2
    with pytest.raises(ConfigurationError):
        retriever.tolerance = 0.1
