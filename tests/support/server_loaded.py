"""Loaded before the tests' servers are forked: no more than a server and its engine load."""

from __future__ import annotations

from importlib import import_module

for part in ("_vllm", "middleware"):
    import_module(f"ragcache_integrations.engine.serving.{part}")
import_module("tests.support.worker_loaded")
