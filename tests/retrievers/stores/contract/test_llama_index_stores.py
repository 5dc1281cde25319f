"""What single stores of LlamaIndex's do otherwise than others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chromadb
import psycopg
import pytest
from lancedb.index import IvfFlat
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.lancedb import LanceDBVectorStore
from llama_index.vector_stores.milvus import MilvusVectorStore
from llama_index.vector_stores.postgres import PGVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient, QdrantClient, models
from sqlalchemy import NullPool

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from tests.retrievers.cached.llama_index.indexes import DIM, Words

from .counting import new_name
from .llama_index_suite import COUNT, K, check_same, index_over, node, own, texts, uuid_of, wrap


def check_unranked(index: VectorStoreIndex, reason: str, **arguments: Any) -> None:
    """Check that a store is asked as its own retriever asks it, and never re-ranked."""
    retriever = ApproximateCacheRetriever.from_index(
        index, k=K, search_kwargs=arguments, guard=False
    )
    expected = own(index, "text 7", **arguments)
    for _ in range(2):
        check_same(retriever.retrieve("text 7"), expected)
    assert retriever.stats().hits == 1
    assert reason in retriever.stats().unranked
    assert retriever.explain("text 7~1").tolerance == 0.05
    with pytest.raises(ConfigurationError, match=reason):
        wrap(index, search_kwargs=arguments)


def check_ranked_by_default(index: VectorStoreIndex) -> None:
    """Check that the default mode, which asks by vector alone, is re-ranked."""
    retriever = wrap(index)
    retriever.retrieve("question")
    check_same(retriever.retrieve("question~1"), own(index, "question~1"))
    assert retriever.stats().hits == 1


def check_whole(index: VectorStoreIndex, expected: VectorStoreIndex) -> None:
    """Check that a guarantee has everything searched, unlike the store's own search."""
    few = own(index, "question", COUNT)
    proven = wrap(index, k=COUNT, guarantee="exact", sole_writer=True, rerank_factor=1)
    found = proven.retrieve("question")
    assert [node.node_id for node in found] == [
        node.node_id for node in own(expected, "question", COUNT)
    ]
    assert texts(few) != texts(found)


def by_cosine(count: int = COUNT) -> VectorStoreIndex:
    return index_over(SimpleVectorStore(), Words(), count)


def test_searches_for_diversity_of_another_number() -> None:
    """The first nodes of a search for diversity are not what it finds for fewer."""
    index = index_over(chroma(), Words())
    arguments: dict[str, Any] = {"vector_store_query_mode": "mmr"}
    retriever = wrap(index, rerank_factor=None, search_kwargs=arguments)
    for k in (6, 3, 6, 3):
        retriever.similarity_top_k = k
        check_same(retriever.retrieve("question"), own(index, "question", k, **arguments))
    assert (retriever.stats().misses, retriever.stats().hits) == (2, 2)


def sparse(texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
    """Return one number for each word."""
    numbers = [sorted({sum(word.encode()) for word in text.split()}) for text in texts]
    return numbers, [[1.0] * len(row) for row in numbers]


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")
class TestQdrant:
    def test_hybrid_mode(self) -> None:
        client = QdrantClient(":memory:")
        store = QdrantVectorStore(
            "documents",
            client,
            enable_hybrid=True,
            sparse_doc_fn=sparse,
            sparse_query_fn=sparse,
        )
        index = index_over(store, Words())
        check_unranked(index, "'hybrid' does not rank", vector_store_query_mode="hybrid")
        check_ranked_by_default(index)
        client.close()

    @pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
    def test_a_guarantee_asks_for_a_search_of_all_points(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Points in this process are always all searched: here is what a server is asked."""
        client, asked = QdrantClient(":memory:"), []
        index = index_over(QdrantVectorStore("documents", client), Words())
        query = client.query_points

        def noted(**arguments: Any) -> Any:
            asked.append(arguments)
            return query(**arguments)

        monkeypatch.setattr(client, "query_points", noted)
        wrap(index).retrieve("question")
        proven = wrap(index, guarantee="exact", sole_writer=True)
        assert proven.retrieve("question")[0].node.embedding is None
        assert [arguments["search_params"] for arguments in asked] == [
            None,
            models.SearchParams(exact=True),
        ]
        client.close()

    @pytest.mark.filterwarnings("ignore:Local mode performs exact:UserWarning")
    def test_nothing_is_proven_of_a_collection_whose_replicas_may_be_late(self) -> None:
        client = QdrantClient(":memory:")
        store = QdrantVectorStore(
            "documents", client, replication_factor=2, write_consistency_factor=1
        )
        planned = VectorStoreIndex.from_vector_store(store, Words())
        with pytest.raises(ConfigurationError, match="write_consistency_factor"):
            wrap(planned, guarantee="exact", sole_writer=True)
        store = QdrantVectorStore(
            "documents", client, replication_factor=2, write_consistency_factor=2
        )
        planned = VectorStoreIndex.from_vector_store(store, Words())
        wrap(planned, guarantee="exact", sole_writer=True)
        client.close()

    async def test_an_asynchronous_client_alone(self) -> None:
        client = AsyncQdrantClient(":memory:")
        store = QdrantVectorStore("documents", aclient=client)
        index = index_over(store, Words(), 0)
        await index.ainsert_nodes([node(number) for number in range(COUNT)])
        retriever = ApproximateCacheRetriever.from_index(index, k=K)
        plain = index.as_retriever(similarity_top_k=K)
        for _ in range(2):
            check_same(await retriever.aretrieve("question"), await plain.aretrieve("question"))
        assert retriever.stats().hits == 1
        assert "asynchronous Qdrant client" in retriever.stats().unranked
        await index.adelete_nodes([(await plain.aretrieve("question"))[0].node_id])
        check_same(await retriever.aretrieve("question"), await plain.aretrieve("question"))
        await client.close()


class TestMilvus:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"index_config": {"index_type": "HNSW", "M": 8, "efConstruction": 64}}, "its HNSW"),
            ({"search_config": {"params": {"radius": 3.0}}}, "radius"),
        ],
    )
    def test_what_may_leave_nodes_out(
        self, tmp_path: Path, options: dict[str, Any], reason: str
    ) -> None:
        uri = str(tmp_path / "milvus.db")
        store = MilvusVectorStore(uri=uri, dim=DIM, similarity_metric="L2", **options)
        index = index_over(store, Words())
        with pytest.raises(ConfigurationError, match=reason):
            wrap(index, guarantee="exact", sole_writer=True)

    def test_another_object_over_the_same_collection(self, tmp_path: Path) -> None:
        """Its index says by what it ranks, not the arguments of the object."""

        def store(metric: str) -> MilvusVectorStore:
            uri = str(tmp_path / "milvus.db")
            return MilvusVectorStore(uri=uri, dim=DIM, similarity_metric=metric)

        index_over(store("COSINE"), Words())
        index = VectorStoreIndex.from_vector_store(store("L2"), embed_model=Words())
        retriever = wrap(index)
        retriever.retrieve("question")
        for number in range(5):
            check_same(retriever.retrieve(f"question~{number}"), own(index, f"question~{number}"))
        assert retriever.stats().hits == 5


@pytest.mark.filterwarnings("ignore:table_names:DeprecationWarning")
class TestLanceDB:
    def test_a_guarantee_bypasses_an_index(self, tmp_path: Path) -> None:
        store = LanceDBVectorStore(uri=str(tmp_path), nprobes=1)
        index = index_over(store, Words(), 300)
        assert store.table is not None
        store.table.create_index(
            "vector", config=IvfFlat(distance_type="cosine", num_partitions=10)
        )
        check_whole(index, by_cosine(300))

    def test_a_table_of_an_earlier_version(self, tmp_path: Path) -> None:
        index = index_over(LanceDBVectorStore(uri=str(tmp_path)), Words())
        index_over(LanceDBVectorStore(uri=str(tmp_path)), Words())
        with pytest.raises(ConfigurationError, match="checkout_latest"):
            wrap(index, guarantee="exact", sole_writer=True)
        store = index.vector_store
        assert isinstance(store, LanceDBVectorStore)
        assert store.table is not None
        store.table.checkout_latest()
        assert wrap(index, guarantee="exact", sole_writer=True).retrieve("question")

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_searches_by_text(self, tmp_path: Path) -> None:
        store = LanceDBVectorStore(uri=str(tmp_path), query_type="fts")
        check_unranked(index_over(store, Words()), "query_type='fts'")


class TestPGVectorStore:
    def store(self, postgres: str, **options: Any) -> PGVectorStore:
        return PGVectorStore(
            connection_string=postgres,
            async_connection_string=postgres,
            table_name=new_name(),
            schema_name="public",
            embed_dim=DIM,
            create_engine_kwargs={"poolclass": NullPool},
            **options,
        )

    def test_a_guarantee_uses_no_index(self, postgres: str) -> None:
        unscanned = postgres + "&options=-c%20enable_seqscan%3Doff"
        store = self.store(unscanned)
        index = index_over(store, Words())
        with psycopg.connect(postgres.replace("+psycopg", "")) as connection:
            table = f"data_{store.table_name}"
            statement = f"CREATE INDEX ON {table} USING hnsw (embedding vector_cosine_ops)"
            connection.execute(statement)
        check_whole(index, by_cosine())

    def test_a_query_of_the_user_s_own(self, postgres: str) -> None:
        store = self.store(postgres, customize_query_fn=lambda statement, table: statement)
        index = index_over(store, Words())
        check_ranked_by_default(index)
        with pytest.raises(ConfigurationError, match="customize_query_fn"):
            wrap(index, guarantee="exact", sole_writer=True)

    def test_vectors_of_half_precision(self, postgres: str) -> None:
        index = index_over(self.store(postgres, use_halfvec=True), Words())
        retriever = wrap(index)
        retriever.retrieve("question")
        assert texts(retriever.retrieve("question~1")) == texts(own(index, "question~1"))
        assert retriever.stats().hits == 1
        with pytest.raises(ConfigurationError, match="half precision"):
            wrap(index, guarantee="exact", sole_writer=True)

    def test_hybrid_searches(self, postgres: str) -> None:
        store = self.store(postgres, hybrid_search=True, text_search_config="english")
        arguments: dict[str, Any] = {"vector_store_query_mode": "hybrid", "sparse_top_k": 2}
        index = index_over(store, Words())
        check_unranked(index, "'hybrid' does not rank", **arguments)
        assert len(own(index, "text 7", **arguments)) > K
        check_ranked_by_default(index)

    async def test_changes_by_coroutines(self, postgres: str) -> None:
        index = index_over(self.store(postgres), Words(), 0)
        await index.ainsert_nodes([node(number) for number in range(COUNT)])
        retriever = wrap(index)
        plain = index.as_retriever(similarity_top_k=K)
        await retriever.aretrieve("question")
        await index.ainsert_nodes([node(100, "question")])
        found = await retriever.aretrieve("question~1")
        assert found[0].text == "question"
        check_same(found, await plain.aretrieve("question~1"))
        await index.adelete_nodes([uuid_of(100)])
        check_same(await retriever.aretrieve("question~2"), await plain.aretrieve("question~2"))


def chroma() -> BasePydanticVectorStore:
    collection = chromadb.EphemeralClient().create_collection(new_name())
    return ChromaVectorStore(chroma_collection=collection)


def deleted_documents(index: VectorStoreIndex) -> None:
    index.delete_ref_doc(uuid_of(500), delete_from_docstore=True)


def cleared(index: VectorStoreIndex) -> None:
    index.vector_store.clear()


@pytest.mark.parametrize("change", [deleted_documents, cleared])
def test_chroma_after_changes_of_many_nodes(change: Callable[[VectorStoreIndex], None]) -> None:
    index = index_over(chroma(), Words())
    parts = [node(200 + number, f"question~{number}") for number in range(3)]
    for part in parts:
        part.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=uuid_of(500))
    index.insert_nodes(parts)
    retriever = wrap(index)
    assert retriever.retrieve("question")[0].text.startswith("question")
    change(index)
    check_same(retriever.retrieve("question"), own(index, "question"))
