"""Run as a script: what vLLM's own KV cache manager finds cached, request by request.

Reads a file of JSON and prints JSON. In a process of its own, because importing vLLM gives
warnings, and lasts.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request


def cached_tokens(
    prompts: list[list[int]], answers: list[list[int]], gpu_blocks: int, block_size: int
) -> list[int]:
    """Run requests one after another; the tokens found cached for each."""
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.half)
    manager = KVCacheManager(
        KVCacheConfig(gpu_blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=1 << 16,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
    )
    hasher = get_request_block_hasher(block_size, sha256)
    numbers = itertools.count()
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        options = SamplingParams(max_tokens=len(answer))
        request = Request(str(next(numbers)), prompt, options, None, block_hasher=hasher)
        blocks, cached, _ = manager.get_computed_blocks(request)
        found.append(cached)
        got = manager.allocate_slots(request, len(prompt) - cached, cached, blocks)
        assert got is not None
        request.num_computed_tokens = len(prompt)
        for token in answer[:-1]:
            request.append_output_token_ids(token)
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens += 1
        request.append_output_token_ids(answer[-1])
        manager.free(request)
    return found


if __name__ == "__main__":
    init_none_hash(sha256)
    result = [cached_tokens(**case) for case in json.loads(Path(sys.argv[1]).read_text())]
    json.dump(result, sys.stdout)
