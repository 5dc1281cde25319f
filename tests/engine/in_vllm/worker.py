"""A stand-in for vLLM's worker that computes names in place of keys and values.

It keeps, for each token's place in the KV cache, a name for that token and all before it. So
whoever reads a place that holds something else is caught, in any order of preemption, abort,
eviction and swapping that a real model could meet, and thousands of steps take seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput

END = 2
"""The token that ends an answer."""
NOTHING = 0
"""What a place holds that was never written."""

Content = tuple[int, ...]
"""What a block holds, one name per token."""


def names(tokens: Sequence[int], salt: str) -> Iterator[int]:
    """A name for each token and all before it."""
    name = hash(salt)
    for token in tokens:
        name = hash((name, token))
        yield name


@dataclass
class Known:
    """What a worker knows of a request."""

    tokens: list[int]
    blocks: list[int]
    salt: str
    length: int
    """Of the prompt and the whole answer."""


class Worker:
    """Moves and computes as vLLM's worker does, and complains of what it reads.

    Args:
        block_size: Tokens per block.
        gpu_blocks: Size of the KV cache.
        dice: Draws the answers.
    """

    def __init__(self, block_size: int, gpu_blocks: int, dice: random.Random) -> None:
        self._size = block_size
        self._dice = dice
        self._requests: dict[str, Known] = {}
        self.gpu: list[Content] = [(NOTHING,) * block_size] * gpu_blocks
        self.host: dict[int, Content] = {}

    def execute(self, plan: Any, salts: Mapping[str, str]) -> ModelRunnerOutput:
        """Compute a step; ``plan`` is vLLM's ``SchedulerOutput``."""
        self._transfer(plan.kv_connector_metadata)
        for request_id in plan.finished_req_ids:
            self._requests.pop(request_id, None)
        self._take_in(plan, salts)
        chunks = list(self._chunks(plan))
        for request, start, stop in chunks:  # every layer writes all before it reads any
            self._write(request, start, stop)
        for request, start, _ in chunks:
            self._check(request, start)
        sampled = [
            self._sample(request) if stop == len(request.tokens) else []
            for request, _, stop in chunks
        ]
        ids = list(plan.num_scheduled_tokens)
        return ModelRunnerOutput(ids, {name: at for at, name in enumerate(ids)}, sampled)

    def _transfer(self, transfers: Any) -> None:
        if transfers is not None:
            for block, slot in transfers.out:
                self.host[slot] = self.gpu[block]
            for slot, block in transfers.back:
                self.gpu[block] = self.host[slot]

    def _take_in(self, plan: Any, salts: Mapping[str, str]) -> None:
        for new in plan.scheduled_new_reqs:
            tokens = list(new.prompt_token_ids)
            length = len(tokens) + self._dice.randint(1, 12)
            self._requests[new.req_id] = Known(
                tokens, list(new.block_ids[0]), salts[new.req_id], length
            )
        cached = plan.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            request = self._requests[request_id]
            if request_id in cached.resumed_req_ids:
                request.blocks = list(blocks[0])
            elif blocks is not None:
                request.blocks += blocks[0]
            if request_id in cached.all_token_ids:
                request.tokens = list(cached.all_token_ids[request_id])

    def _chunks(self, plan: Any) -> Iterator[tuple[Known, int, int]]:
        computed = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, tokens in plan.num_scheduled_tokens.items():
            request, start = self._requests[request_id], computed[request_id]
            assert start + tokens <= len(request.tokens), "asked for tokens that do not exist"
            yield request, start, start + tokens

    def _write(self, request: Known, start: int, stop: int) -> None:
        contents = list(names(request.tokens[:stop], request.salt))
        for place in range(start, stop):
            block, at = request.blocks[place // self._size], place % self._size
            content = self.gpu[block]
            self.gpu[block] = (*content[:at], contents[place], *content[at + 1 :])

    def _check(self, request: Known, start: int) -> None:
        for place, name in enumerate(names(request.tokens[:start], request.salt)):
            found = self.gpu[request.blocks[place // self._size]][place % self._size]
            assert found == name, f"the KV cache is wrong at token {place} of {start}"

    def _sample(self, request: Known) -> list[int]:
        token = END if len(request.tokens) + 1 >= request.length else self._dice.randint(10, 12)
        request.tokens.append(token)
        return [token]
