"""What the tests of found documents share."""

from __future__ import annotations

from ragcache_integrations.engine import Prompt, RAGCacheEngine
from ragcache_integrations.knowledge_tree import TreeStats
from ragcache_integrations.prompts.recognition.requests import REQUESTS
from ragcache_integrations.resources import load_passages

TOPICS = 16
_PASSAGES = [passage.text for passage in load_passages()]

TEXTS = [
    f"On topic {n}: {' '.join(_PASSAGES[4 * n : 4 * n + 4])}"[:1800].strip() for n in range(TOPICS)
]
"""Documents of several blocks each; they are found by the number of their topic."""


def embedding(text: str) -> list[float]:
    """One dimension for each topic, and one for the text, so that no two texts are the same."""
    words = text.replace(":", " ").split()
    topic = int(words[words.index("topic") + 1])
    return [*(float(n == topic) for n in range(TOPICS)), len(text) / 1e6]


def documents_in(text: str, namespace: str = "") -> list[str]:
    """Texts of the documents that a call in this context, and in no run, finds in a text."""
    found = REQUESTS.mark(Prompt.raw(text), None, namespace)
    return [document.text for document in found.documents]


class Counted:
    """What the tree has counted since."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine
        self._before = self._now()

    def _now(self) -> TreeStats:
        return self._engine.stats().tree or TreeStats()

    @property
    def documents(self) -> int:
        return self._now().documents - self._before.documents

    @property
    def hits(self) -> int:
        return self._now().documents_hit_gpu - self._before.documents_hit_gpu
