"""Facts about vector stores: metric, exactness, vectors, methods that change documents."""

from .changes import Change, StoreMethods, unwatch, watch
from .embedded import ids_by_number
from .facts import (
    MappedVectors,
    SearchResults,
    StoreFacts,
    StoreKind,
    VectorSearch,
    brings,
    is_kind,
    tag_of,
)
from .faiss_vectors import (
    FaissVectors,
    FaissView,
    extreme_lengths,
    faiss_facts,
    faiss_score,
    is_faiss_index,
)
from .kinds import LANGCHAIN_KINDS, LLAMA_INDEX_KINDS, kind_of, register_store
from .live import LiveState

__all__ = [
    "LANGCHAIN_KINDS",
    "LLAMA_INDEX_KINDS",
    "Change",
    "FaissVectors",
    "FaissView",
    "LiveState",
    "MappedVectors",
    "SearchResults",
    "StoreFacts",
    "StoreKind",
    "StoreMethods",
    "VectorSearch",
    "brings",
    "extreme_lengths",
    "faiss_facts",
    "faiss_score",
    "ids_by_number",
    "is_faiss_index",
    "is_kind",
    "kind_of",
    "register_store",
    "tag_of",
    "unwatch",
    "watch",
]
