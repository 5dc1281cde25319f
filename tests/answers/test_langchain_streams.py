"""Streams of LangChain chains: passed on as they come, and kept as the answer that they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.runnables import (
    AddableDict,
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
)

from ragcache_integrations.langchain import AnswerCache


class Pieces:
    """Streams an answer in pieces."""

    def __init__(self, *pieces: Any) -> None:
        self.runs = 0
        self._pieces = pieces

    def runnable(self) -> Runnable[Any, Any]:
        def run(inputs: Iterator[Any]) -> Iterator[Any]:
            list(inputs)
            self.runs += 1
            yield from self._pieces

        async def arun(inputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for _ in inputs:
                pass
            self.runs += 1
            for piece in self._pieces:
                yield piece

        return RunnableGenerator(run, arun)


def streaming(pieces: Pieces) -> AnswerCache:
    find: Runnable[str, list[Document]] = RunnableLambda(
        lambda question: [Document(question, id="1")]
    )
    return AnswerCache(chain=pieces.runnable(), retriever=find, documents_key="context")


def test_a_stream_is_kept_when_it_has_ended() -> None:
    pieces = Pieces("one ", "two ", "three")
    cached = streaming(pieces)
    stream: Any = cached.stream("rome")  # a generator
    assert next(stream) == "one "
    stream.close()
    assert cached.stats().entries == 0
    assert list(cached.stream("rome")) == ["one ", "two ", "three"]
    assert list(cached.stream("rome")) == ["one two three"]
    assert cached.invoke("rome") == "one two three"
    assert pieces.runs == 2


async def test_messages_stream_as_chunks_and_are_kept_as_messages() -> None:
    chunks = [AIMessageChunk(content="one ", id="7"), AIMessageChunk(content="two", id="7")]
    cached = streaming(Pieces(*chunks))
    assert [piece.content for piece in cached.stream("rome")] == ["one ", "two"]
    [piece] = cached.stream("rome")
    assert isinstance(piece, AIMessageChunk)
    assert piece.content == "one two"
    [again] = [piece async for piece in cached.astream("rome")]
    assert again.content == piece.content
    message = cached.invoke("rome")
    assert type(message) is AIMessage
    assert message.content == "one two"
    assert len({"7", piece.id, again.id, message.id}) == 4


def test_pieces_that_cannot_be_added_are_passed_on_and_not_kept() -> None:
    cached = streaming(Pieces("one", 2))
    assert list(cached.stream("rome")) == ["one", 2]
    assert (cached.stats().entries, cached.stats().unkept) == (0, 1)


@pytest.mark.parametrize(
    ("text", "answer"), [("[1, 2]", [1, 2]), ("12", 12), ('"abc"', "abc"), ('{"a": 1}', {"a": 1})]
)
def test_answers_that_a_parser_streams_as_they_grow(text: str, answer: Any) -> None:
    parsed = Pieces(*text).runnable() | JsonOutputParser()
    for chain in (parsed, RunnableParallel(answer=parsed)):
        find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("rome")])
        cached = AnswerCache(chain=chain, retriever=find, documents_key="context")
        expected = answer if chain is parsed else {"answer": answer}
        assert list(cached.stream("rome"))[-1] == expected
        assert cached.invoke("rome") == expected


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "John Smith", "age": 3}, {"name": "Anna"}]',
        '["John Smith", "Anna Ray"]',
        '[["a", "bc de"], ["c d e"]]',
        "[1, 23, 456]",
        '{"names": ["John Smith"]}',
        '"John Smith is here"',
        "true",
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_a_parser_streams_again_and_again_is_never_served(
    text: str, asynchronous: bool
) -> None:
    parsed = Pieces(*text.split(" ")).runnable() | JsonOutputParser()
    counted = parsed | RunnableLambda(lambda found: f"{found}")
    for chain in (parsed, RunnableParallel(answer=parsed), counted):
        find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("rome")])
        cached = AnswerCache(chain=chain, retriever=find, documents_key="context")
        if asynchronous:
            _ = [piece async for piece in cached.astream("rome")]
        else:
            list(cached.stream("rome"))
        right = chain.invoke({"input": "rome"})
        assert cached.invoke("rome") == right
        assert cached.invoke("rome") == right
        assert (cached.stats().unkept, cached.stats().hits) == (1, 1)
        assert list(cached.stream("rome")) == [right]


@pytest.mark.parametrize(
    "pieces",
    [([1], [1, 2]), ({"a": 1}, {"a": 1, "b": 2}), ("ab", "abc"), (1, 2), (AddableDict(a=[1]),) * 2],
)
def test_pieces_whose_sum_is_not_known_are_not_kept(pieces: tuple[Any, ...]) -> None:
    cached = streaming(Pieces(*pieces))
    assert list(cached.stream("rome")) == list(pieces)
    assert (cached.stats().entries, cached.stats().unkept) == (0, 1)


def test_a_text_that_a_parser_passes_on_is_kept() -> None:
    chain = Pieces("one ", "two").runnable() | StrOutputParser()
    find: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("rome")])
    cached = AnswerCache(chain=chain, retriever=find, documents_key="context")
    assert list(cached.stream("rome")) == ["one ", "two"]
    assert cached.invoke("rome") == "one two"
    assert cached.stats().hits == 1


def test_a_stream_of_dicts_is_kept_as_invoke_returns_it() -> None:
    pieces = [
        AddableDict(sources=[1]),
        AddableDict(answer=AIMessageChunk(content="one "), sources=None),
        AddableDict(answer=AIMessageChunk(content="two")),
    ]
    cached = streaming(Pieces(*pieces))
    list(cached.stream("rome"))
    answer = cached.invoke("rome")
    assert cached.stats().hits == 1
    assert type(answer["answer"]) is AIMessage
    assert (answer["answer"].content, answer["sources"]) == ("one two", [1])
