"""Facts about vector stores: metric, exactness, vectors, methods that change documents."""

from .changes import Change, StoreMethods, unwatch, watch
from .facts import MappedVectors, StoreFacts, brings, is_kind, tag_of
from .faiss_facts import faiss_facts
from .faiss_vectors import FaissVectors, extreme_lengths, faiss_score, is_faiss_index
from .faiss_view import FaissView

__all__ = [
    "Change",
    "FaissVectors",
    "FaissView",
    "MappedVectors",
    "StoreFacts",
    "StoreMethods",
    "brings",
    "extreme_lengths",
    "faiss_facts",
    "faiss_score",
    "is_faiss_index",
    "is_kind",
    "tag_of",
    "unwatch",
    "watch",
]
