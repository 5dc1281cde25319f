"""What is evaluated: pipelines of both frameworks, and stock ones."""

from .base import CACHE_FACTS, Model, Noted, Retriever
from .building import Builder

__all__ = [
    "CACHE_FACTS",
    "Builder",
    "Model",
    "Noted",
    "Retriever",
]
