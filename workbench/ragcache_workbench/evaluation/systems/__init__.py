"""What is evaluated: pipelines of both frameworks, and stock ones."""

from .base import CACHE_FACTS, Noted, Retriever
from .building import Builder
from .corpus import cached_embeddings
from .models import Model

__all__ = [
    "CACHE_FACTS",
    "Builder",
    "Model",
    "Noted",
    "Retriever",
    "cached_embeddings",
]
