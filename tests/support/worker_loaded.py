"""Loaded before the tests' engines are forked: what vLLM loads only when an engine starts.

On a CPU it also looks at every name of every module for kernels of Triton, to replace them. Both
take three times as long as the rest of a tiny engine's start.
"""

from __future__ import annotations

import contextlib
import warnings
from importlib import import_module

from vllm.platforms import current_platform

for module in (
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.llama",
    "vllm.renderers.hf",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.worker.cpu_worker",
):
    with contextlib.suppress(ImportError):  # of an older vLLM, or one for GPUs
        import_module(module)

# Of its class: an object of an older vLLM gives None for names that it doesn't know.
if hasattr(type(current_platform), "register_triton_kernel_overrides"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of the names that it looks at are deprecated
        current_platform.register_triton_kernel_overrides()
    # A second time would replace the replacements.
    type(current_platform).register_triton_kernel_overrides = classmethod(lambda _: None)
