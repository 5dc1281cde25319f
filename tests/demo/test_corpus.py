from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.langchain import ApproximateCacheRetriever as LangChainRetriever
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaIndexRetriever
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_workbench.demo.apps import Corpus, passage_text
from ragcache_workbench.evaluation.systems import langchain, llama_index


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Stands in for the real model, which needs half a minute for all passages."""
    rows = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=384) for text in texts]
    return [(row / np.linalg.norm(row)).tolist() for row in rows]


def ids(corpus: Corpus) -> list[str]:
    return [document.id for document in corpus.documents]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGCACHE_HOME", str(tmp_path_factory.mktemp("home")))
        return Corpus(500, embed=embed)


def test_passages_come_first_and_distractors_after(corpus: Corpus) -> None:
    passages = {passage.id: passage for passage in load_passages()}
    answering = {question.passage_id for question in load_questions()}
    assert corpus.index.ntotal == len(ids(corpus)) + 500 == len(passages) + 500
    assert set(ids(corpus)[: len(answering)]) == answering
    assert set(ids(corpus)[: len(passages)]) == set(passages)
    assert corpus.passage(ids(corpus)[3]) is passages[ids(corpus)[3]]


def test_a_few_passages_are_those_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    answering = {question.passage_id for question in load_questions()}
    assert set(ids(Corpus(0, embed=embed, passages=350))) > answering
    assert set(ids(Corpus(0, embed=embed, passages=10))) < answering


def test_distractors_are_never_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no text that a chain could read."""
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    corpus = Corpus(5000, embed=embed, passages=10)
    found = corpus.nearest([question.text for question in load_questions()], 10)
    assert {name for row in found for name in row} == set(ids(corpus)[:10])


def test_a_passage_is_found_by_its_text(corpus: Corpus) -> None:
    for position in (0, 7, 1199):
        text = passage_text(corpus.passage(ids(corpus)[position]))
        query = np.array(embed([text]), np.float32)
        assert corpus.index.search(query, 1)[1][0][0] == position


def test_searches_are_counted(corpus: Corpus) -> None:
    before = corpus.index.searches
    query = np.array(embed(["anything"]), np.float32)
    corpus.index.search(query, 3)
    corpus.index.search(query, k=3)
    assert corpus.index.searches == before + 2


def test_recall(corpus: Corpus) -> None:
    before = corpus.index.searches
    questions = ["one", "two", "three"]
    found = corpus.index.search(np.array(embed(questions), np.float32), 5)[1]
    exact = [[ids(corpus)[position] for position in row] for row in found]
    assert corpus.recall(questions, exact, 5) == 1
    assert corpus.recall(questions, [row[::-1] for row in exact], 5) == 1
    assert corpus.recall(questions, [row[:4] for row in exact], 5) == pytest.approx(0.8)
    assert corpus.recall(questions, [[row[0]] * 5 for row in exact], 5) == pytest.approx(0.2)
    wrong = [[ids(corpus)[position] for position in range(5)]] * 3
    assert corpus.recall(questions, wrong, 5) < 0.2
    assert corpus.index.searches == before + 1


def test_embeddings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    first = Corpus(0, embed=embed)
    again = Corpus(0, embed=lambda _: pytest.fail("embedded twice"))
    vectors = [one.index.reconstruct_n(0, one.index.ntotal) for one in (first, again)]
    assert np.array_equal(*vectors)


def test_the_seed_decides_the_distractors(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    last = corpus.index.ntotal - 1
    same, other = Corpus(500, embed=embed), Corpus(500, embed=embed, seed=1)
    assert np.array_equal(same.index.reconstruct(last), corpus.index.reconstruct(last))
    assert not np.array_equal(other.index.reconstruct(last), corpus.index.reconstruct(last))


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
def test_distractors_do_not_keep_hits_from_being_ranked(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query cache reads the documents' vectors by the ids of all vectors of the index."""
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    corpus = Corpus(500, passages=20)
    retriever: Any
    if framework == "langchain":
        store = langchain.faiss_store(corpus.documents, corpus.index)
        retriever = LangChainRetriever.from_vectorstore(store, k=3)
        retriever.invoke("who won?")
    else:
        index = llama_index.faiss_store(corpus.documents, corpus.index)
        retriever = LlamaIndexRetriever.from_index(index, k=3)
        retriever.retrieve("who won?")
    assert retriever.stats().unranked == ""
    assert retriever.stats().cache.vectors == 12
