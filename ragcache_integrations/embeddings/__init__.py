"""The bundled embedding model, which needs no network."""

from .minilm import MiniLM

__all__ = ["MiniLM"]
