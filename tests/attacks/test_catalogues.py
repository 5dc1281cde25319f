"""Catalogues of near-duplicates: the query cache must not lose the document that is asked for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from ragcache_integrations import langchain, llama_index
from tests.attacks.faces import LANGCHAIN_EMBEDDINGS, LLAMA_INDEX_EMBEDDINGS

pytestmark = pytest.mark.slow

ENTRIES = 200
K = 4
LOST_PER_THOUSAND = 2

# fmt: off
FIRST_NAMES = [
    "Anna", "Anja", "Anne", "Hannah", "Johanna", "Jan", "Jana", "Jens", "Jonas", "Johannes",
    "Maria", "Marie", "Mario", "Marius", "Martin", "Martina", "Lea", "Lena", "Leo", "Leon",
]
LAST_NAMES = [
    "Keller", "Kellner", "Kessler", "Meyer", "Meier",
    "Maier", "Schmid", "Schmidt", "Schmitt", "Schmitz",
]
# fmt: on


class Entry(NamedTuple):
    """A document, and questions that it answers."""

    text: str
    questions: tuple[str, ...]


def _models(draw: random.Random) -> Iterable[Entry]:
    sizes = ("small", "large", "average")
    for number in range(ENTRIES):
        name = f"VL-{2300 + number}"
        yield Entry(
            f"The water tank of the espresso machine {name} is {draw.choice(sizes)}, its power "
            f"is {draw.choice(sizes)}.",
            (
                f"how large is the water tank of the espresso machine {name}",
                f"What power does the espresso machine {name} have?",
            ),
        )


def _error_codes(draw: random.Random) -> Iterable[Entry]:
    parts = ("valve", "pump", "sensor", "door", "heater", "fan", "motor", "display")
    for number in range(ENTRIES):
        code = f"E{1100 + number}"
        yield Entry(
            f"Error {code} means that the {draw.choice(parts)} does not answer. "
            f"Clean the {draw.choice(parts)}, then restart the machine.",
            (f"what does error {code} mean", f"The machine shows {code}, what should I do?"),
        )


def _years(draw: random.Random) -> Iterable[Entry]:
    for number in range(ENTRIES):
        year = 1800 + number
        yield Entry(
            f"In {year}, {draw.randint(800, 9000)} people lived in Aldbury, and the harvest "
            f"was {draw.choice(('good', 'poor', 'average', 'lost to hail'))}.",
            (f"how many people lived in Aldbury in {year}", f"How was the harvest of {year}?"),
        )


def _people(draw: random.Random) -> Iterable[Entry]:
    for first in FIRST_NAMES:
        for last in LAST_NAMES:
            room = f"{draw.choice('ABCD')}{draw.randint(100, 499)}"
            yield Entry(
                f"{first} {last} works in room {room}, extension {draw.randint(1000, 9999)}.",
                (
                    f"What is the extension of {first} {last}?",
                    f"which room is {first} {last} in".lower(),
                ),
            )


def _invoices(draw: random.Random) -> Iterable[Entry]:
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
    for number in range(ENTRIES):
        name = f"2024-{317 + number:05}"
        yield Entry(
            f"Invoice {name} is due on a {draw.choice(days)} and has "
            f"{draw.choice(('been paid', 'not been paid'))}.",
            (f"when is invoice {name} due", f"Has invoice {name} been paid?"),
        )


def _articles(draw: random.Random) -> Iterable[Entry]:
    themes = ("moorings", "dues", "pilots", "fires", "cargo", "waste", "crews", "lights")
    for number in range(ENTRIES):
        name = f"article {101 + number}"
        yield Entry(
            f"{name.capitalize()} of the Harbour Act is about {draw.choice(themes)}. "
            f"Breaches are fined with {draw.randint(1, 90)}00 crowns.",
            (f"what does {name} of the Harbour Act say", f"What is the fine for breaking {name}?"),
        )


CATALOGUES: dict[str, Callable[[random.Random], Iterable[Entry]]] = {
    "model numbers": _models,
    "error codes": _error_codes,
    "years": _years,
    "people": _people,
    "invoices": _invoices,
    "articles of law": _articles,
}

Find = Callable[[str], set[str]]


class Cached(NamedTuple):
    """The ids that a cache finds for a question, and its hits."""

    find: Find
    hits: Callable[[], int]


class Store(NamedTuple):
    """The ids that a store finds for a question, and how to put a new cache in front of it."""

    find: Find
    cache: Callable[..., Cached]


def in_langchain(store: VectorStore, texts: list[str]) -> Store:
    """Put texts into a store of LangChain, under their numbers as ids."""
    store.add_documents([Document(text, id=str(number)) for number, text in enumerate(texts)])

    def ids(found: list[Document]) -> set[str]:
        return {str(document.id) for document in found}

    def cache(*, asynchronous: bool) -> Cached:
        cached = langchain.ApproximateCacheRetriever.from_vectorstore(store, k=K)

        def find(question: str) -> set[str]:
            if asynchronous:
                return ids(asyncio.run(cached.ainvoke(question)))
            return ids(cached.invoke(question))

        return Cached(find, lambda: cached.stats().hits)

    return Store(lambda question: ids(store.similarity_search(question, k=K)), cache)


def in_llama_index(store: BasePydanticVectorStore, texts: list[str]) -> Store:
    """Put texts into a store of LlamaIndex, under their numbers as ids."""
    index = VectorStoreIndex(
        [TextNode(text=text, id_=str(number)) for number, text in enumerate(texts)],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=LLAMA_INDEX_EMBEDDINGS,
    )
    plain = index.as_retriever(similarity_top_k=K)

    def ids(found: list[NodeWithScore]) -> set[str]:
        return {node.node.node_id for node in found}

    def cache(*, asynchronous: bool) -> Cached:
        cached = llama_index.ApproximateCacheRetriever.from_index(index, k=K)

        async def afind(question: str) -> set[str]:
            return ids(await cached.aretrieve(question))

        def find(question: str) -> set[str]:
            return asyncio.run(afind(question)) if asynchronous else ids(cached.retrieve(question))

        return Cached(find, lambda: cached.stats().hits)

    return Store(lambda question: ids(plain.retrieve(question)), cache)


STORES: dict[str, Callable[[list[str]], Store]] = {
    "InMemoryVectorStore": lambda texts: in_langchain(
        InMemoryVectorStore(LANGCHAIN_EMBEDDINGS), texts
    ),
    "SimpleVectorStore": lambda texts: in_llama_index(SimpleVectorStore(), texts),
}
"""Put texts into a new store; another kind of store is another line."""


class Outcome(NamedTuple):
    """Of how many questions the store found the right document, and how many of them were lost."""

    found: int
    lost: int
    hits: int


def _ask_half(entries: list[Entry], store: Store, *, seed: int, asynchronous: bool) -> Outcome:
    draw = random.Random(seed)
    cached = store.cache(asynchronous=asynchronous)
    found = lost = 0
    for number in draw.sample(range(len(entries)), len(entries) // 2):
        question = draw.choice(entries[number].questions)
        # What the store does not find is part of the stream all the same, and fills the cache.
        there, kept = (str(number) in find(question) for find in (store.find, cached.find))
        found += there
        lost += there and not kept
    return Outcome(found, lost, cached.hits())


def _outcomes(entries: list[Entry], store: str) -> list[Outcome]:
    """Return the outcomes of two draws, the second one async, each with a new cache."""
    filled = STORES[store]([entry.text for entry in entries])
    return [_ask_half(entries, filled, seed=seed, asynchronous=seed % 2 == 1) for seed in range(2)]


def _keeps_what_is_found(outcomes: list[Outcome]) -> bool:
    found = sum(outcome.found for outcome in outcomes)
    lost = sum(outcome.lost for outcome in outcomes)
    return lost * 1000 <= found * LOST_PER_THOUSAND


@pytest.mark.parametrize("kind", CATALOGUES)
def test_a_catalogue_of_one_kind(kind: str) -> None:
    store = "InMemoryVectorStore"
    entries = list(CATALOGUES[kind](random.Random(64)))
    assert len(set(entries)) == ENTRIES
    outcomes = _outcomes(entries, store)
    # Of what the store doesn't find, nothing could be lost.
    assert min(outcome.found for outcome in outcomes) >= 10, outcomes
    assert _keeps_what_is_found(outcomes), outcomes


def test_a_stream_of_all_six() -> None:
    draw = random.Random(64)
    entries = [entry for make in CATALOGUES.values() for entry in make(draw)]
    filled = STORES["SimpleVectorStore"]([entry.text for entry in entries])
    outcome = _ask_half(entries, filled, seed=0, asynchronous=True)
    assert outcome.found >= 200, outcome
    assert _keeps_what_is_found([outcome]), outcome


@pytest.mark.parametrize("store", STORES)
def test_a_question_that_comes_again_is_a_hit(store: str) -> None:
    entries = list(_models(random.Random(64)))[:40]
    cached = STORES[store]([entry.text for entry in entries]).cache(asynchronous=False)
    for _ in range(2):
        for entry in entries:
            cached.find(entry.questions[0])
    assert cached.hits() >= len(entries)
