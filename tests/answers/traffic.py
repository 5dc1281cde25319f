"""Embeddings of questions: their first word, the topic, counts most."""

from __future__ import annotations

import hashlib

import numpy as np

from tests.support.embeddings import LangChainEmbeddings, LlamaIndexEmbeddings

DIM = 64


def embed(text: str) -> list[float]:
    """A direction for the first word, and a little of one for all others."""
    first, *others = text.casefold().split() or [""]
    vector = _direction(first) + 0.1 * sum((_direction(word) for word in others), np.zeros(DIM))
    return list((vector / np.linalg.norm(vector)).tolist())


def _direction(word: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    vector = np.random.default_rng(seed).standard_normal(DIM)
    return np.asarray(vector / np.linalg.norm(vector))


def langchain_embeddings() -> LangChainEmbeddings:
    return LangChainEmbeddings(embed)


def llama_index_embeddings() -> LlamaIndexEmbeddings:
    return LlamaIndexEmbeddings(embed)


UNREAD = [
    ("入门版多少钱", "专业版多少钱"),  # the price of the starter or the professional edition
    ("환불이 가능합니까?", "환불이 불가능합니까?"),  # is a refund possible or impossible
    ("ร้านเปิดกี่โมง", "ร้านปิดกี่โมง"),  # when does the shop open or close
    ("как включить звук", "как выключить звук"),  # how to turn the sound on or off
]
"""Different questions that the bundled embedding model can hardly distinguish."""
