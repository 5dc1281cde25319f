"""A stand-in for vLLM's worker that computes names in place of keys and values.

It keeps, for each token's place in the KV cache, a name for that token and all before it. So
whoever reads a place that holds something else is caught, in any order of preemption, abort,
eviction and swapping that a real model could meet, and thousands of steps take seconds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from ragcache_integrations.engine.in_vllm.connector import Failures

END = 2
"""The token that ends an answer."""
NOTHING = 0
"""What a place holds that was never written."""
NULL = 0
"""vLLM's block for all places whose content nobody needs any more."""
WRONG = -1
"""What a place holds that was computed from what could not be read."""

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
    blocks: list[list[int]]
    """For each group of layers."""
    salt: str
    length: int
    """Of the prompt and the whole answer."""


class Worker:
    """Moves and computes as vLLM's worker does, and complains of what it reads.

    Args:
        block_size: Tokens per block.
        gpu_blocks: Size of the KV cache.
        dice: Draws the answers.
        windows: How many tokens each group of layers sees, that of now included; ``None`` for all.
    """

    def __init__(
        self,
        block_size: int,
        gpu_blocks: int,
        dice: random.Random,
        windows: Sequence[int | None] = (None,),
    ) -> None:
        self._size = block_size
        self._windows = windows
        self._dice = dice
        self._requests: dict[str, Known] = {}
        self.copies_fail = 0.0
        """The share of steps in which copying to the host fails, and reading from it."""
        self._bad: set[int] = set()
        self._unread: set[int] = set()
        self._failures = Failures()
        self._wrong: deque[set[int]] = deque()
        self.gpu: list[Content] = [(NOTHING,) * block_size] * gpu_blocks
        self.host: dict[int, Content] = {}

    def execute(self, plan: Any, salts: Mapping[str, str]) -> ModelRunnerOutput:
        """Compute a step; ``plan`` is vLLM's ``SchedulerOutput``."""
        self._wrong.append(set())
        self._transfer(plan)
        for request_id in plan.finished_req_ids:
            self._requests.pop(request_id, None)
        self._take_in(plan, salts)
        chunks = list(self._chunks(plan))
        misled = [self._write(request, start, stop) for request, start, stop in chunks]
        # Every layer writes all before it reads any.
        for (request, start, _), excused in zip(chunks, misled, strict=True):
            if not excused:
                self._check(request, start)
        sampled = [
            self._sample(request) if stop == len(request.tokens) else []
            for request, _, stop in chunks
        ]
        ids = list(plan.num_scheduled_tokens)
        told = KVConnectorOutput(
            invalid_block_ids=self._unread,
            kv_connector_worker_meta=self._failures if self._failures.blocks else None,
        )
        self._unread, self._failures = set(), Failures()
        return ModelRunnerOutput(
            ids,
            {name: at for at, name in enumerate(ids)},
            sampled,
            kv_connector_output=None if told.is_empty() else told,
        )

    def _transfer(self, plan: Any) -> None:
        transfers = plan.kv_connector_metadata
        if transfers is None:
            return
        # A GPU's worker reads back before the pass only then.
        assert not transfers.back or getattr(plan, "has_sync_kv_loads", True)
        # It does these before it copies out.
        assert not getattr(plan, "new_block_ids_to_zero", None)
        assert not getattr(plan, "kv_cache_block_copies", None)
        assert NULL not in {block for _, block in transfers.back}, "copied to nobody's block"
        slots = [slot for _, slot in transfers.out]
        fails = bool(self.copies_fail)  # no dice without
        if slots and fails and self._dice.random() < self.copies_fail:
            self._bad.update(slots)
            self._failures.add(slots, "out")
        else:
            self._bad.difference_update(slots)
            for block, slot in transfers.out:
                self.host[slot] = self.gpu[block]
        slots = [slot for slot, _ in transfers.back]
        lost = not self._bad.isdisjoint(slots)
        if slots and (lost or (fails and self._dice.random() < self.copies_fail)):
            self._bad.update(slots)
            self._failures.add(slots, "back")
            for _, block in transfers.back:
                self._unread.add(block)
                self._wrong[-1].add(block)
                self.gpu[block] = (WRONG,) * self._size
        else:
            for slot, block in transfers.back:
                self.gpu[block] = self.host[slot]

    @property
    def failed_slots(self) -> set[int]:
        """Host slots that hold nothing usable."""
        return self._bad

    @property
    def wrong_blocks(self) -> set[int]:
        """GPU blocks that hold something wrong, of which the scheduler does not know yet."""
        return set().union(*self._wrong)

    def taken_in(self) -> None:
        """The scheduler knows the output of the oldest step."""
        self._wrong.popleft()

    def _misled(self, request: Known, start: int) -> bool:
        """Whether it reads what could not be read back, which nobody could have known."""
        wrong = self.wrong_blocks
        places = (
            (numbers[at // self._size], at % self._size)
            for numbers, window in zip(request.blocks, self._windows, strict=True)
            for at in range(_first_seen(window, start), start)
        )
        return any(block in wrong and self.gpu[block][at] == WRONG for block, at in places)

    def _take_in(self, plan: Any, salts: Mapping[str, str]) -> None:
        for new in plan.scheduled_new_reqs:
            # On CUDA, what was preempted comes back as if it were new, with its output so far.
            tokens = list(getattr(new, "prefill_token_ids", None) or new.prompt_token_ids)
            known = self._requests.get(new.req_id)
            length = known.length if known else len(tokens) + self._dice.randint(1, 12)
            self._requests[new.req_id] = Known(
                tokens, list(map(list, new.block_ids)), salts[new.req_id], length
            )
        cached = plan.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            request = self._requests[request_id]
            if request_id in cached.resumed_req_ids:
                request.blocks = list(map(list, blocks))
            elif blocks is not None:
                for numbers, more in zip(request.blocks, blocks, strict=True):
                    numbers.extend(more)
            if request_id in cached.all_token_ids:
                request.tokens = list(cached.all_token_ids[request_id])

    def _chunks(self, plan: Any) -> Iterator[tuple[Known, int, int]]:
        computed = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, scheduled in plan.num_scheduled_tokens.items():
            request, start = self._requests[request_id], computed[request_id]
            drafts = plan.scheduled_spec_decode_tokens.get(request_id, ())
            tokens = scheduled - len(drafts)  # all of these are wrong
            assert start + tokens <= len(request.tokens), "asked for tokens that do not exist"
            yield request, start, start + tokens

    def _write(self, request: Known, start: int, stop: int) -> bool:
        """Returns whether it was wrong from the start, and all it writes is."""
        misled = self._misled(request, start)
        contents = list(names(request.tokens[:stop], request.salt))
        for place in range(start, stop):
            at = place % self._size
            name = WRONG if misled else contents[place]
            for numbers in request.blocks:
                block = numbers[place // self._size]
                content = self.gpu[block]
                self.gpu[block] = (*content[:at], name, *content[at + 1 :])
                if misled:
                    self._wrong[-1].add(block)
        return misled

    def _check(self, request: Known, start: int) -> None:
        before = list(names(request.tokens[:start], request.salt))
        for numbers, window in zip(request.blocks, self._windows, strict=True):
            for place in range(_first_seen(window, start), start):
                found = self.gpu[numbers[place // self._size]][place % self._size]
                wrong = f"the KV cache is wrong at token {place} of {start}"
                assert found == before[place], wrong

    def _sample(self, request: Known) -> list[int]:
        token = END if len(request.tokens) + 1 >= request.length else self._dice.randint(10, 12)
        request.tokens.append(token)
        return [token]


def _first_seen(window: int | None, place: int) -> int:
    """The first token that layers with a window see from a place."""
    return 0 if window is None else max(0, place + 1 - window)
