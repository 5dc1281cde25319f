"""What is evaluated: pipelines of both frameworks, and stock ones."""

from .base import CACHE_FACTS, CURRENT, Model, Noted, Retriever
from .building import Builder
from .corpus import cached_embeddings

__all__ = [
    "CACHE_FACTS",
    "CURRENT",
    "Builder",
    "Model",
    "Noted",
    "Retriever",
    "cached_embeddings",
]
