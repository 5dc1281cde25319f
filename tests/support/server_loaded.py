"""Loaded before the tests' servers are forked: all that a server loads.

vLLM starts its own processes anew on CPUs, which loads everything twice more. Here they are forks,
too, as they are on GPUs.
"""

from __future__ import annotations

from importlib import import_module
from multiprocessing import context

for part in ("_vllm", "middleware"):
    import_module(f"ragcache_integrations.engine.serving.{part}")

# Private; vLLM names the way itself, so that choosing one in public changes nothing.
ways = vars(context)["_concrete_contexts"]
ways["spawn"] = ways["fork"]
