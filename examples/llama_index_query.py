"""A LlamaIndex query engine with our retriever and LLM; `02_llama_index_retriever.ipynb` explains.

The model is the bundled one: pass yours as RAGCacheLLM(model=...).
"""

from llama_index.core import VectorStoreIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from ragcache_integrations.llama_index import (
    ApproximateCacheRetriever,
    MiniLMEmbeddings,
    RAGCacheLLM,
)
from ragcache_integrations.resources import load_passages

nodes = [TextNode(text=passage.text, id_=passage.id) for passage in load_passages()[:100]]
index = VectorStoreIndex(nodes, embed_model=MiniLMEmbeddings())
retriever = ApproximateCacheRetriever.from_index(index, tolerance=0.3)

with RAGCacheLLM(max_tokens=20) as llm:  # model="a path or a hub name"
    query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    for question in (
        "who got the first nobel prize in physics",
        "who was given the first nobel prize in physics",
    ):
        response = query_engine.query(question)
        stats = retriever.stats()
        print(f"{question}: {len(response.source_nodes)} nodes, {stats.hits} hits so far")
