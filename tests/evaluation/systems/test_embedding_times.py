"""Retrieval latency is without the embedding, so each retriever has to say how long that took."""

from __future__ import annotations

import asyncio

import pytest

from ragcache_workbench.evaluation.datasets import load_dataset
from ragcache_workbench.evaluation.settings import EvalSettings
from ragcache_workbench.evaluation.systems import Builder


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
@pytest.mark.parametrize("kind", ["plain", "cache"])
def test_the_time_to_embed_a_question_is_known(framework: str, kind: str) -> None:
    settings = EvalSettings(dataset="nq").set(framework=framework, retriever=kind, k=1)
    retriever = Builder().retriever(settings, load_dataset("nq").documents[:3])
    retrieved = asyncio.run(retriever.retrieve("who is the owner of it"))
    assert len(retrieved.documents) == 1
    assert retrieved.noted.embedding_seconds is not None
    assert retrieved.noted.embedding_seconds > 0
