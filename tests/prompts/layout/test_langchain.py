from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pydantic import ValidationError

from ragcache_integrations.engine import Prompt, RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import TreeStats
from ragcache_integrations.langchain import ChatRAGCache, RAGPromptTemplate
from ragcache_integrations.prompts.layout.layout import PromptPart
from ragcache_integrations.prompts.recognition.requests import REQUESTS
from ragcache_integrations.resources import load_passages

PASSAGES = [passage.text for passage in load_passages()[:40]]
DOCUMENTS = [Document(" ".join(PASSAGES[n : n + 8]), id=f"d{n}") for n in (0, 8)]
VALUES: dict[str, Any] = {"context": DOCUMENTS, "question": "What is Rome?"}


def template(**knobs: Any) -> RAGPromptTemplate:
    return RAGPromptTemplate(
        query="Question: {question}", documents="{context}", system="Answer briefly.", **knobs
    )


def test_it_takes_the_place_of_a_chat_prompt_template() -> None:
    ours = template()
    theirs = ChatPromptTemplate.from_messages(
        [("system", "Answer briefly."), ("human", "{context}\n\nQuestion: {question}")]
    )
    joined = "\n\n".join(document.page_content for document in DOCUMENTS)
    expected = theirs.invoke({**VALUES, "context": joined})
    assert sorted(ours.input_variables) == sorted(theirs.input_variables)
    for context in (DOCUMENTS, joined):
        value = ours.invoke({**VALUES, "context": context})
        assert isinstance(value, ChatPromptValue)
        assert value == expected
    assert ours.format(**VALUES) == theirs.format(question="What is Rome?", context=joined)
    assert asyncio.run(ours.ainvoke(VALUES)) == expected
    assert ours.batch([VALUES, VALUES]) == [expected, expected]


def test_in_a_chain_with_any_model() -> None:
    chain = (
        {"context": RunnableLambda(lambda _: DOCUMENTS), "question": RunnablePassthrough()}
        | template()
        | FakeListChatModel(responses=["an answer"])
        | StrOutputParser()
    )
    assert chain.invoke("What is Rome?") == "an answer"
    assert chain.get_input_jsonschema() is not None


def test_pairs_in_any_order() -> None:
    pairs = [("documents", "{context}"), ("query", "Question: {question}")]
    made = RAGPromptTemplate([*pairs, PromptPart("system", "Answer briefly.")])
    assert made.invoke(VALUES) == template().invoke(VALUES)
    assert made == template()


def written(value: Any) -> str:
    return str(value.to_string())


async def test_in_the_chain_that_langchain_makes_of_documents() -> None:
    chain = create_stuff_documents_chain(RunnableLambda(written), template())
    joined = "\n\n".join(document.page_content for document in DOCUMENTS)
    expected = f"System: Answer briefly.\nHuman: {joined}\n\nQuestion: What is Rome?"
    assert chain.invoke(VALUES) == await chain.ainvoke(VALUES) == expected


def test_partials() -> None:
    prompt = RAGPromptTemplate(
        system="You serve {company}.", documents="{context}", query="At {now}: {question}"
    )
    assert prompt.input_variables == ["company", "context", "now", "question"]
    bound = prompt.partial(company="ACME", now=lambda: "noon")
    assert bound.input_variables == ["context", "question"]
    messages = bound.invoke(VALUES).to_messages()
    assert messages[0].content == "You serve ACME."
    assert str(messages[1].content).endswith("At noon: What is Rome?")
    assert prompt.input_variables == ["company", "context", "now", "question"]  # as it was
    with pytest.raises(ConfigurationError, match="'company' is bound to a function"):
        prompt.partial(company=lambda: "ACME")
    with pytest.raises(KeyError, match="missing variables"):
        bound.invoke({"context": DOCUMENTS, "query": "misspelled"})


def test_a_history_stands_before_the_documents_and_may_be_left_out() -> None:
    prompt = template(history="{chat_history}")
    assert prompt.input_variables == ["context", "question"]
    assert prompt.optional_variables == ["chat_history"]
    turns = [HumanMessage("Hello"), AIMessage("Hi", tool_calls=[])]
    with_history = prompt.invoke({**VALUES, "chat_history": turns}).to_messages()
    assert [type(m) for m in with_history] == [
        *(SystemMessage, HumanMessage, AIMessage, HumanMessage)
    ]
    assert with_history[1:3] == turns
    assert (
        prompt.invoke({**VALUES, "chat_history": [("human", "Hello")]}).to_messages()[1] == turns[0]
    )
    assert prompt.invoke(VALUES) == template().invoke(VALUES)
    alone = template(history="{chat_history}", flow="single_turn")
    texts = [m.content for m in alone.invoke({**VALUES, "chat_history": turns}).to_messages()]
    assert texts[2:] == ["Hello", "Hi", "Question: What is Rome?"]


def test_documents_as_content_blocks() -> None:
    (_, message) = template(document_blocks=True).format_messages(**VALUES)
    text = "\n\n".join(document.page_content for document in DOCUMENTS)
    assert not REQUESTS.mark(Prompt.raw(text), None, "").documents  # nobody needs to look for them
    template().format_messages(**VALUES)
    assert len(REQUESTS.mark(Prompt.raw(text), None, "").documents) == 2
    content: Any = message.content
    assert [block["type"] for block in content] == [*("text-plain", "text", "text-plain", "text")]
    assert [b["id"] for b in content if b["type"] == "text-plain"] == ["d0", "d8"]
    assert "".join(b["text"] for b in content) == template().invoke(VALUES).to_messages()[1].content


def test_marks_for_anthropic() -> None:
    prompt = template(history="{chat_history}", cache_control="1h")
    mark = {"type": "ephemeral", "ttl": "1h"}
    history = [HumanMessage("Hello"), AIMessage("Hi")]
    messages = prompt.invoke({**VALUES, "chat_history": history}).to_messages()
    assert messages[0].content == [
        {"type": "text", "text": "Answer briefly.", "cache_control": mark}
    ]
    assert messages[1] == history[0]
    assert messages[2].content == [{"type": "text", "text": "Hi", "cache_control": mark}]
    assert isinstance(messages[3].content, str)
    assert history == [HumanMessage("Hello"), AIMessage("Hi")]  # as it was
    with pytest.raises(ConfigurationError, match="one of 5m, 1h or None, got '1d'"):
        template(cache_control="1d")
    with pytest.raises(ConfigurationError, match=r"take one, got .* cache_control='5m'"):
        template(cache_control="5m", document_blocks=True)


def test_the_key_for_openai() -> None:
    prompt = RAGPromptTemplate(system="You serve {company}.", query="{question}")
    bound = prompt.partial(company="ACME")
    assert bound.cache_key() == prompt.cache_key(company="ACME") != prompt.cache_key(company="B")
    assert bound.cache_key(tenant="x") != bound.cache_key()
    assert bound.cache_key() == bound.partial(question=lambda: "new").cache_key()
    with pytest.raises(ConfigurationError, match="no value for the variable 'company'"):
        prompt.cache_key()


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigurationError, match="exactly one query, got 0"):
        RAGPromptTemplate(system="Hello")
    with pytest.raises(ConfigurationError, match="exactly one query, got 2"):
        RAGPromptTemplate([("query", "{a}")], query="{b}")
    with pytest.raises(ConfigurationError, match="unknown part 'human'"):
        RAGPromptTemplate([("human", "{a}")])
    with pytest.raises(ValidationError, match="sistem"):
        RAGPromptTemplate(query="{a}", sistem="Hello")


def test_copies() -> None:
    prompt = template(history="{chat_history}").partial(question="What is Rome?")
    for copied in (copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt)), prompt.model_copy()):
        assert copied == prompt
        assert copied.invoke({"context": DOCUMENTS}) == prompt.invoke({"context": DOCUMENTS})


def test_how_it_is_shown() -> None:
    assert template().pretty_repr() == (
        "[system]\nAnswer briefly.\n\n[documents]\n{context}\n\n[query]\nQuestion: {question}"
    )


@pytest.mark.engine
@pytest.mark.parametrize("document_blocks", [False, True])
def test_documents_are_found_in_the_engines_cache(
    engine: RAGCacheEngine, document_blocks: bool
) -> None:
    assert engine.reset_cache()
    tree = engine.stats().tree or TreeStats()
    model = ChatRAGCache(engine=engine, max_tokens=1)
    chain = template(document_blocks=document_blocks) | model
    first = chain.invoke(VALUES)
    second = chain.invoke({**VALUES, "question": "And who was its first king?"})
    counted = engine.stats().tree or TreeStats()
    assert counted.documents - tree.documents == 4
    assert counted.documents_hit_gpu - tree.documents_hit_gpu == 2
    cached = []
    for answer in (first, second):
        assert isinstance(answer, AIMessage)
        assert answer.usage_metadata is not None
        cached.append(answer.usage_metadata["input_token_details"]["cache_read"])
    documents = sum(model.get_num_tokens(document.page_content) for document in DOCUMENTS)
    assert cached[0] == 0
    assert cached[1] > documents - 2 * 128  # whole blocks
