"""Who computes in a type that the CPU has no instructions for is told so."""

from __future__ import annotations

import logging
import platform

import pytest
import torch

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.in_vllm.driver import slow_on_cpu
from ragcache_integrations.engine.protocol import SLOW_DTYPE


def pretend(patch: pytest.MonkeyPatch, machine: str, *, avx512: bool, amx: bool) -> None:
    patch.setattr(platform, "machine", lambda: machine)
    patch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)


@pytest.mark.parametrize(
    ("machine", "avx512", "amx", "dtype", "slow"),
    [
        ("x86_64", False, False, torch.bfloat16, "bfloat16"),
        ("x86_64", False, False, torch.float32, None),
        ("x86_64", True, False, torch.bfloat16, None),
        ("x86_64", False, True, torch.bfloat16, None),
        ("aarch64", False, False, torch.bfloat16, None),
    ],
)
def test_instructions(
    machine: str,
    avx512: bool,
    amx: bool,
    dtype: torch.dtype,
    slow: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, machine, avx512=avx512, amx=amx)
    assert slow_on_cpu(dtype) == slow


def test_a_torch_that_does_not_tell_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "x86_64", avx512=False, amx=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert slow_on_cpu(torch.bfloat16) is None


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_engine_says_so_once(dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    with RAGCacheEngine(
        kv_cache_gib=0.125, max_model_len=512, dtype=dtype, vllm_args={"enforce_eager": True}
    ) as engine:
        options = SamplingOptions(max_tokens=2, ignore_eos=True)
        assert engine.generate(Prompt.rag("why?"), options).usage.completion_tokens == 2
    said = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and "instructions" in record.getMessage()
    ]
    slow = slow_on_cpu(getattr(torch, dtype))
    assert said == ([] if slow is None else [SLOW_DTYPE % (slow, 'dtype="float32"')])
