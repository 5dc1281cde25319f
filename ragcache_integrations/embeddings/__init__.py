"""The bundled embedding model, which needs no network."""

from ragcache_integrations.embeddings.minilm import MiniLM

__all__ = ["MiniLM"]
