"""Numeric types that a CPU has no instructions for. Not for applications: it loads torch."""

from __future__ import annotations

import platform

import torch

__all__ = ["slow_on_cpu"]

_X86 = {"x86_64", "AMD64"}
# Private functions of torch, which vLLM calls, too. A missing one is taken as support.
_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def slow_on_cpu(dtype: torch.dtype) -> str | None:
    """The type's name if this CPU computes it in software; only known of bfloat16 on x86."""
    if dtype != torch.bfloat16 or platform.machine() not in _X86:
        return None
    if any(getattr(torch.cpu, name, lambda: True)() for name in _CHECKS):
        return None
    return "bfloat16"
