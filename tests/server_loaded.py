"""Loaded before the tests' servers are forked: all that a server loads.

vLLM starts its own processes anew on CPUs, which loads everything twice more. Here they are forks,
too, as they are on GPUs.
"""

from __future__ import annotations

from multiprocessing import context

import ragcache_integrations.engine.serving._vllm
import ragcache_integrations.engine.serving.middleware  # noqa: F401 - see above

context._concrete_contexts["spawn"] = context._concrete_contexts["fork"]  # type: ignore[attr-defined]
