"""Numeric types that a CPU has no instructions for."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["SLOW_DTYPE", "slow_on_cpu"]

SLOW_DTYPE = (
    "the model is computed in %s, which this CPU has no instructions for: %s takes twice the "
    "memory and reads prompts several times sooner"
)
"""What to tell the user: the type, and how to choose another."""

_X86 = {"x86_64", "AMD64"}
# Private to torch; vLLM itself asks them. One that is gone says nothing.
_ASKED = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def slow_on_cpu(dtype: torch.dtype) -> str | None:
    """The type's name if this CPU computes it in software; only known of bfloat16 on x86."""
    import torch  # noqa: PLC0415 - whoever has a type has loaded it; applications have not

    if dtype != torch.bfloat16 or platform.machine() not in _X86:
        return None
    if any(getattr(torch.cpu, name, lambda: True)() for name in _ASKED):
        return None
    return "bfloat16"
