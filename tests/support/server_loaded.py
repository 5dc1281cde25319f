"""Loaded before the tests' servers are forked: no more than a server loads."""

from __future__ import annotations

from importlib import import_module

for part in ("_vllm", "middleware"):
    import_module(f"ragcache_integrations.engine.serving.{part}")
