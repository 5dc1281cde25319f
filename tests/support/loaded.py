"""Loaded before the tests' engines and programs are forked: what these load."""

from __future__ import annotations

import os
from importlib import import_module

# As the embedding model does: its thread would keep forked children from exiting.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

for module in (
    "ragcache_integrations.engine.in_vllm.driver",
    "tests.support.worker_loaded",  # before the frameworks, whose many names it need not look at
    "ragcache_integrations.langchain",
    "ragcache_integrations.llama_index",
    "langchain_community.vectorstores",
    "llama_index.core",
    "onnxruntime",
    "faiss",
    "ipykernel.kernelapp",
):
    import_module(module)
