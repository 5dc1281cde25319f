"""vLLM's offloading to the host's memory, without ``/dev/shm``, which may be too small.

vLLM loads it by ``spec_name`` and ``spec_module_path``. All but the kind of memory is vLLM's:
pinned tensors of the process, as vLLM allocates them itself where several workers share nothing.
"""

from __future__ import annotations

from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

__all__ = ["PrivateOffloadingSpec"]


class PrivateOffloadingSpec(CPUOffloadingSpec):  # type: ignore[misc]  # vLLM is untyped here
    """Keeps the copies in pinned memory of the worker's process."""

    def _uses_shared_region(self) -> bool:
        return False
