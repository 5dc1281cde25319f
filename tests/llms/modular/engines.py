"""What the tests of the LLM classes on a modular engine share."""

from __future__ import annotations

from ragcache_modular import ModularEngine, Strategy
from ragcache_modular.backend import make_modular_engine
from tests.llms.retrieving import TEXTS

DOCUMENTS = [text[:500] for text in TEXTS[:3]]
CONTEXT = "\n\n".join(DOCUMENTS)
QUESTION = "What is said there?"

NAMES = ("prompt_cache", "epic", "cacheblend", "kvlink", "exact")


def made(strategy: str | Strategy = "epic") -> ModularEngine:
    """The engine that ``engine="modular"`` makes."""
    engine = make_modular_engine(
        None, dtype=None, device=None, kv_cache_gib=0.25, policy="pgdsf", chat_template=None
    )
    assert isinstance(engine, ModularEngine)
    return engine.with_strategy(strategy)
