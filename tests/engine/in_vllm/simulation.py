"""vLLM's real scheduler, with a stand-in for the worker.

It also runs the asynchronous scheduler, which vLLM does not offer on a CPU.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import torch
from vllm import EngineArgs, SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from ragcache_integrations.core.prompt import extra_args_from_spans, extra_args_from_steps
from ragcache_integrations.engine.in_vllm.driver import connector_config
from ragcache_integrations.engine.in_vllm.kv_cache import block_bytes
from ragcache_integrations.engine.in_vllm.scheduler import scheduler_class
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.engine.tiny_model import default_model_path
from tests.engine.in_vllm.worker import END, Content, Worker, names

GIB = 1 << 30
IN_FLIGHT = 2
"""Steps that vLLM plans ahead when it schedules asynchronously."""

init_none_hash(sha256)


@dataclass(frozen=True)
class Case:
    """How an engine is set up. Memory is counted in blocks.

    Attributes:
        cache: ``None`` for stock vLLM.
        specs: Kinds of KV cache, as vLLM describes them.
        drafts: Tokens that vLLM drafts in each step with EAGLE; every draft is wrong.
        drafting: Which of the specs is of the draft model's layers; ``None`` if vLLM does not say.
    """

    block_size: int = 4
    gpu_blocks: int = 24
    host_blocks: int = 0
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    asynchronous: bool = False
    cache: CacheSettings | None = field(default_factory=CacheSettings)
    specs: tuple[Callable[..., Any], ...] = (FullAttentionSpec,)
    prefix_caching: bool = True
    drafts: int = 0
    drafting: int | None = None

    def memory(self) -> KVCacheConfig:
        """What vLLM says of the KV cache."""
        size = {"block_size": self.block_size, "num_kv_heads": 1, "head_size": 8}
        specs = [spec(**size, dtype=torch.float16) for spec in self.specs]
        groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]
        for at, group in enumerate(groups):
            group.is_eagle_group = at == self.drafting
        memory = KVCacheConfig(self.gpu_blocks, [], groups)
        # vLLM's default, in versions that have it: of windowed layers, ends of prompts are kept.
        memory.prefix_cache_retention_interval = 0
        return memory

    def config(self) -> Any:
        """vLLM's configuration."""
        config = copy.deepcopy(_base_config(self.drafts))
        schedule = config.scheduler_config
        schedule.max_num_seqs = self.max_num_seqs
        schedule.max_num_batched_tokens = self.max_num_batched_tokens
        schedule.async_scheduling = self.asynchronous
        if self.cache is not None:
            schedule.scheduler_cls = scheduler_class(self.cache, asynchronous=self.asynchronous)
        config.cache_config.num_gpu_blocks = self.gpu_blocks
        config.cache_config.block_size = self.block_size
        config.cache_config.enable_prefix_caching = self.prefix_caching
        if self.host_blocks:
            gib = self.host_blocks * block_bytes(self.memory()) / GIB
            config.kv_transfer_config = connector_config(CacheSettings(host_cache_gib=gib))
        return config


@cache
def _base_config(drafts: int) -> Any:
    # Without a draft model, which takes long to inspect and which the scheduler does not ask for.
    ngram = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 2}
    config = EngineArgs(
        model=str(default_model_path()),
        enforce_eager=True,
        max_model_len=4096,
        speculative_config=ngram if drafts else None,
    ).create_engine_config()
    if drafts:
        config.speculative_config.method = "eagle"
    return config


def make_scheduler(case: Case) -> Any:
    """A scheduler as vLLM's engine core makes it."""
    config = case.config()
    kind: Any = config.scheduler_config.scheduler_cls
    if kind is None:
        kind = AsyncScheduler if case.asynchronous else Scheduler
    return kind(
        vllm_config=config,
        kv_cache_config=case.memory(),
        structured_output_manager=StructuredOutputManager(config),
        block_size=case.block_size,
    )


class AnyGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM is untyped here
    """Allows everything."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, num_tokens: int) -> None: ...

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None: ...

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None: ...


class Engine:
    """Plans steps, computes them and takes their outputs in, as vLLM's engine core does.

    Args:
        case: The set-up.
        seed: Of the answers.
    """

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.scheduler = make_scheduler(case)
        specs = [group.kv_cache_spec for group in case.memory().kv_cache_groups]
        windows = [getattr(spec, "sliding_window", None) for spec in specs]
        dice = random.Random(seed)
        self.worker = Worker(case.block_size, case.gpu_blocks, dice, windows)
        self.requests: dict[str, Request] = {}
        """Those that have not ended."""
        self.ended: list[Request] = []
        """Those that have."""
        self.ahead: set[str] = set()
        """Those that computed for later, which nobody has submitted."""
        self.content: dict[bytes, Content] = {}
        """What a block with this hash holds, if all is well."""
        self.before: dict[bytes, bytes | None] = {}
        """The hash of the block before it."""
        self._salts: dict[str, str] = {}
        self._numbers = count()
        self._computed: deque[tuple[Any, ModelRunnerOutput]] = deque()
        # As of vLLM 0.33, hashes cover tokens behind the block where the draft model needs them.
        ahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)
        covered = (ahead,) if ahead else ()
        self._hasher = get_request_block_hasher(case.block_size, sha256, *covered)

    @property
    def documents(self) -> Any:
        """The knowledge tree's hold on the scheduler; ``None`` without."""
        return getattr(self.scheduler, "documents", None)

    @property
    def pool(self) -> Any:
        """vLLM's blocks."""
        return self.scheduler.kv_cache_manager.block_pool

    def request(
        self,
        tokens: Sequence[int],
        documents: Sequence[tuple[str, int, int]] = (),
        *,
        salt: str = "",
        max_tokens: int = 20,
        grammar: bool = False,
        step: str = "",
        next_steps: Sequence[tuple[str, int]] = (),
        **options: Any,
    ) -> Request:
        """Make a request. One with a grammar has to wait for :meth:`grammar_ready`."""
        if grammar:
            options["structured_outputs"] = StructuredOutputsParams(regex=".*")
        arguments = extra_args_from_spans(documents)
        arguments |= extra_args_from_steps(step, tuple(next_steps))
        sampling = SamplingParams(max_tokens=max_tokens, extra_args=arguments or None, **options)
        sampling.update_from_generation_config({}, END)
        request = Request(
            str(next(self._numbers)),
            list(tokens),
            sampling,
            None,
            cache_salt=salt or None,
            block_hasher=self._hasher,
        )
        self._salts[request.request_id] = salt
        return request

    def add(self, *prompt: Any, **options: Any) -> Request:
        """Submit what :meth:`request` makes."""
        request = self.request(*prompt, **options)
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)
        return request

    @staticmethod
    def grammar_ready(request: Request) -> None:
        """Its grammar was compiled."""
        structured: Any = request.structured_output_request
        structured.grammar = AnyGrammar()

    def abort(self, request: Request) -> None:
        """Give a request up."""
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._computed or self.scheduler.has_requests())

    def step(self) -> None:
        """Plan and compute a step; take in the output of the oldest that is still out."""
        in_flight = IN_FLIGHT if self.case.asynchronous else 1
        if self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            for request_id in self.scheduler.requests.keys() - self.requests.keys():
                self.ahead.add(request_id)
                self._salts[request_id] = self.scheduler.requests[request_id].cache_salt or ""
            self._note_contents()
            self._computed.append((plan, self.worker.execute(plan, self._salts)))
            if len(self._computed) < in_flight and plan.total_num_scheduled_tokens:
                return
        if self._computed:
            self.scheduler.update_from_output(*self._computed.popleft())
            self.worker.taken_in()
            self._note_contents()
        for request_id, request in list(self.requests.items()):
            if request.is_finished():
                self.ended.append(self.requests.pop(request_id))

    def run(self) -> None:
        """Step until nothing is left to do."""
        for _ in range(10_000):
            if not self.busy:
                return
            self.step()
        raise AssertionError("it goes on for ever")

    def ask(self, *prompt: Any, **options: Any) -> Request:
        """Answer one request."""
        request = self.add(*prompt, **options)
        self.run()
        return request

    def _note_contents(self) -> None:
        size = self.case.block_size
        for request_id, request in self.requests.items():
            contents = list(names(request.all_token_ids, self._salts[request_id]))
            for number, key in enumerate(request.block_hashes):
                self.content[key] = tuple(contents[number * size : (number + 1) * size])
                self.before[key] = request.block_hashes[number - 1] if number else None
