"""Threads ask while documents change: no answer comes from documents that were not just found.

``ANSWER_OPERATIONS=100000`` makes that many operations.
"""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from ragcache_integrations.langchain import AnswerCache
from tests.answers.traffic import langchain_embeddings
from tests.support.sizes import scaled

THREADS = 16
TOPICS = ("rome", "oslo", "kyiv", "bonn", "lima", "riga")
WORDS = ("nice", "pretty", "lovely", "fine")
YEARS = ("", "in 1950", "in 1951")


class Town:
    """A store whose documents change, and a chain that writes down what it answers from."""

    def __init__(self) -> None:
        self.versions = dict.fromkeys(TOPICS, 0)
        self.found = threading.local()

    def find(self, question: str) -> list[Document]:
        topic, *_ = question.split()
        documents = [
            Document(f"{topic} {self.versions[topic]}", id=topic),
            Document("all", id="all"),
        ]
        self.found.texts = sorted(document.page_content for document in documents)
        return documents

    def answer(self, inputs: dict[str, Any]) -> str:
        question = inputs["input"].split()
        texts = sorted(document.page_content for document in inputs["context"])
        return f"{question[0]} {' '.join(question[4:])}: {texts}"


def test_every_answer_is_that_of_the_documents_just_found() -> None:
    operations = int(os.environ.get("ANSWER_OPERATIONS", scaled(6_000)))
    town = Town()
    cached = AnswerCache(
        chain=RunnableLambda(town.answer),
        retriever=RunnableLambda(town.find),
        documents_key="context",
        embeddings=langchain_embeddings(),
        tolerance=1.0,
        capacity=15,
    )

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(operations // THREADS):
            topic, word, year = dice.choice(TOPICS), dice.choice(WORDS), dice.choice(YEARS)
            match dice.randrange(20):
                case 0:
                    town.versions[topic] = dice.randrange(50)
                case 1:
                    cached.forget(ids=[topic])
                case 2 if not dice.randrange(20):
                    cached.clear()
                case _:
                    answer = cached.invoke(f"{topic} is it {word} {year}".strip())
                    assert answer == f"{topic} {year}: {town.found.texts}"

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(work, number) for number in range(THREADS)]:
            future.result()
    stats = cached.stats()
    assert stats.hits > stats.lookups // 3
    assert stats.same_words < stats.hits
    assert stats.entries <= 15
    assert stats.evictions > 0
