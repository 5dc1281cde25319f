"""A schema and the engines that the tests of ModularPrompt share."""

from __future__ import annotations

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_modular import ModularEngine
from ragcache_modular.backend import make_modular_engine

TRIP = """
<schema name="trip">
  <system>You are a travel agent who knows every coast of the world.</system>
  <module name="plan">
    The customer has <param name="duration" len="8"/> and wants to see the sea, eat well and sleep
    in a quiet place near the station.
  </module>
  <union>
    <module name="tokyo">Tokyo is the capital of Japan, large, and best seen in spring.</module>
    <module name="miami">Miami lies in Florida, has long beaches, and is hot in summer.</module>
  </union>
</schema>
"""

PML = """
<prompt schema="trip">
  <plan duration="3 days"/>
  <miami/>
  <user>Where to surf?</user>
</prompt>
"""

IMPORTS = {"plan": {"duration": "3 days"}, "tokyo": False, "miami": True}
QUESTION = "Where to surf?"


def made() -> ModularEngine:
    engine = make_modular_engine(
        None, dtype=None, device=None, kv_cache_gib=0.25, policy="pgdsf", chat_template=None
    )
    assert isinstance(engine, ModularEngine)
    return engine


def engine_anywhere() -> RAGCacheEngine:
    """A vLLM engine whose modules are reused as Prompt Cache reuses them."""
    return RAGCacheEngine(
        kv_cache_gib=0.05,
        dtype="float32",
        reuse="anywhere",
        link_tokens=0,
        vllm_args={"enforce_eager": True},
    )
