"""A contract suite for LlamaIndex embedding models, which LlamaIndex itself does not have."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import TextNode
from pydantic import ValidationError

from ragcache_integrations.embeddings.llama_index import MiniLMEmbeddings

SHARED = MiniLMEmbeddings()


@pytest.fixture(params=["ours", "LlamaIndex's own mock"])
def model(request: pytest.FixtureRequest) -> BaseEmbedding:
    return SHARED if request.param == "ours" else MockEmbedding(embed_dim=8)


def close(one: Embedding, other: Embedding) -> bool:
    return one == pytest.approx(other, abs=1e-5)


def test_queries_and_texts_are_lists_of_floats(model: BaseEmbedding) -> None:
    for embedding in (model.get_query_embedding("foo"), model.get_text_embedding("bar")):
        assert isinstance(embedding, list)
        assert all(isinstance(one, float) for one in embedding)
    assert len(model.get_query_embedding("foo")) == len(model.get_text_embedding("bar"))


def test_a_batch_is_its_texts(model: BaseEmbedding) -> None:
    texts = [f"text {number}" for number in range(7)]
    batch = model.get_text_embedding_batch(texts)
    assert len(batch) == 7
    assert all(close(model.get_text_embedding(t), e) for t, e in zip(texts, batch, strict=True))
    assert model.get_text_embedding_batch([]) == []


async def test_async_gives_the_same(model: BaseEmbedding) -> None:
    assert close(await model.aget_query_embedding("foo"), model.get_query_embedding("foo"))
    assert close(await model.aget_text_embedding("foo"), model.get_text_embedding("foo"))
    batch = await model.aget_text_embedding_batch(["foo", "bar"])
    blocking = model.get_text_embedding_batch(["foo", "bar"])
    assert all(close(one, other) for one, other in zip(batch, blocking, strict=True))
    many = await asyncio.gather(*[model.aget_query_embedding("foo") for _ in range(8)])
    assert all(close(one, many[0]) for one in many)


def test_several_queries_are_averaged(model: BaseEmbedding) -> None:
    one, other = model.get_query_embedding("foo"), model.get_query_embedding("bar")
    mean = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
    assert close(model.get_agg_embedding_from_queries(["foo", "bar"]), mean)


def test_nodes_are_embedded_in_a_pipeline(model: BaseEmbedding) -> None:
    (node,) = model([TextNode(text="foo")])
    assert node.embedding is not None
    assert close(node.embedding, model.get_text_embedding("foo"))


def test_callbacks_see_it(model: BaseEmbedding) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    seen = model.model_copy(update={"callback_manager": CallbackManager([debug])})
    seen.get_query_embedding("foo")
    seen.get_text_embedding_batch(["foo"])
    assert len(debug.get_event_pairs(CBEventType.EMBEDDING)) == 2


def test_it_can_be_written_copied_and_sent(model: BaseEmbedding) -> None:
    assert model.to_dict()["model_name"] == model.model_name
    for other in (type(model).from_dict(model.to_dict()), copy.deepcopy(model)):
        assert close(other.get_query_embedding("foo"), model.get_query_embedding("foo"))
    sent = pickle.loads(pickle.dumps(model))
    assert close(sent.get_query_embedding("foo"), model.get_query_embedding("foo"))


def test_ours_refuses_unknown_arguments() -> None:
    with pytest.raises(ValidationError, match="modelname"):
        MiniLMEmbeddings(modelname="other")  # type: ignore[call-arg]  # the point
    with pytest.raises(ValueError, match=r"greater than 0|at least 1"):
        MiniLMEmbeddings(embed_batch_size=0)
