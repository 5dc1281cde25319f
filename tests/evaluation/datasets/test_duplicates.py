"""Documents that are retrieved several times stay so in records, prompts and figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import evaluate, load_dataset
from ragcache_workbench.evaluation.datasets.base import EvalDocument
from ragcache_workbench.evaluation.datasets.metrics import k_recall
from ragcache_workbench.evaluation.datasets.published import passage_documents
from ragcache_workbench.evaluation.systems.corpus import document_embeddings, faiss_index
from ragcache_workbench.evaluation.systems.langchain import faiss_retriever
from tests.evaluation.world import Echo

IDS = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


@given(IDS, IDS, st.integers(1, 7))
def test_recall_counts_a_document_as_often_as_it_comes(
    returned: list[str], nearest: list[str], k: int
) -> None:
    recall = k_recall(returned, nearest, k)
    wanted = min(k, len(nearest))
    left, common = list(nearest), 0
    for one in returned[:k]:
        if one in left:
            left.remove(one)
            common += 1
    assert recall == common / wanted
    assert k_recall(nearest, nearest, len(nearest)) == 1


def test_records_and_prompts(tmp_path: Path) -> None:
    one, other = Document("Refunds take 14 days.", id="a"), Document("Shipping is free.")
    found = [one, other, one, Document("Refunds take 14 days.", id="b"), other]
    prompts: list[str] = []

    class Watched(Echo):
        def _words(self, messages: Any) -> Any:
            prompts.append(messages[-1].text)
            return super()._words(messages)

    for order in ("relevance", "reverse", "cached_first"):
        prompts.clear()
        run = evaluate(
            "nq",
            model=Watched(),
            retriever=RunnableLambda(lambda _: found),
            out=tmp_path / order,
            sample=3,
            k=5,
            order=order,
            random_weights=False,
        )
        ids = run.records[0].documents
        assert ids == ("a", ids[1], "a", "b", ids[1])
        assert all(record.documents == ids for record in run.records)
        assert run.figures["k_recall"] == 1
        assert len(prompts) >= 3
        for prompt in prompts:
            assert Counter(prompt.split("\n\n"))["Refunds take 14 days."] == 3
            assert Counter(prompt.split("\n\n"))["Shipping is free."] == 2


def test_a_corpus_that_has_a_passage_twice(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "title": "Rome", "text": "Rome is in Italy."},
        {"id": "b", "text": "Bern is in Switzerland."},
        {"id": "a", "title": "Rome", "text": "Rome is in Italy."},
        {"id": "c", "title": "Rome", "text": "Rome is in Italy."},
    ]
    path = tmp_path / "passages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [document.id for document in passage_documents(path)] == ["a", "b", "a", "c"]
    dataset = load_dataset("pubmedqa", documents=path)
    assert [one.id for one in dataset.documents] == ["a", "b", "a", "c"]
    path.write_text(path.read_text() + json.dumps({"id": "b", "text": "Bern is old."}) + "\n")
    with pytest.raises(ConfigurationError, match=r"documents of .* different ids, got 4 with 3"):
        load_dataset("pubmedqa", documents=path)


@pytest.mark.parametrize("cache", [None, {"tolerance": 0.0}])
async def test_the_default_retriever(cache: dict[str, Any] | None) -> None:
    documents = [
        EvalDocument(name, text)
        for name, text in (("a", "a red apple"), ("b", "a red apple"), ("c", "a blue sky"))
    ]
    documents.insert(2, documents[0])
    index = faiss_index(document_embeddings(documents))
    retriever = faiss_retriever(documents, index, k=4, cache=cache)
    for _ in range(2):
        found = await retriever.retrieve("a red apple")
        assert Counter(document.id for document in found.documents) == Counter("aabc")


def test_documents_that_were_embedded_among_others_are_not_embedded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    documents = [EvalDocument(name, f"a text on {name}") for name in "abca"]
    whole = document_embeddings(documents)
    part = document_embeddings(documents[2:0:-1], among=documents)
    assert part.tolist() == whole[2:0:-1].tolist()
    assert len(list((tmp_path / "embeddings").iterdir())) == 1
