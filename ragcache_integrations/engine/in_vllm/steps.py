"""Steps of workflows: what their prompts begin with, and getting that ready before they come.

A request may name its step and say which steps come next, and how soon (KVFlow,
https://arxiv.org/abs/2507.07400). What a step's prompt begins with is learned: the blocks that its
latest two prompts have in common. These stay longer, in order of the steps before them. What of
them is on the host is read back while other requests run. What is missing is computed while there
is nothing else to do; a request that comes meanwhile ends that.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.prompt import (
    MOST_NEXT_STEPS,
    NEXT_STEPS,
    STEP,
    STEP_CHARACTERS,
    STEPS_BEFORE,
    Span,
    extra_args_from_spans,
)
from ragcache_integrations.knowledge_tree import KnowledgeTree

from .anywhere.requests import is_plain

__all__ = ["Steps"]

KNOWN = 64
"""Steps whose prompts are remembered. Of more the tenant with the most forgets the one that came
longest ago: what one tenant sends takes nothing from tenants with fewer steps."""
SECONDS = 60.0
"""For how long a step is expected after the last request that said so."""
AHEAD_TOKENS = 128
"""Tokens of a step of the model that computes ahead: who comes meanwhile waits for its end."""

Name = tuple[str, str]
"""A tenant and the name of a step."""


@dataclass(slots=True)
class _Step:
    """What is known of a step.

    Attributes:
        latest: The request with its latest prompt.
        keys: Blocks of that prompt.
        begins: How many of them the prompt before had, too.
        tokens: Of these, and one more.
        spans: Documents within these; all of them as one document if there are none.
        named: Whether there are, with ids of their own.
        ready: Whether there is nothing to get ready any more.
    """

    latest: str
    keys: list[Any]
    begins: int
    tokens: list[int]
    spans: tuple[Span, ...]
    named: bool
    ready: bool = False


@dataclass(eq=False)
class Steps:
    """The steps of all workflows.

    Attributes:
        scheduler: vLLM's scheduler.
        tree: The knowledge tree.
        in_gpu: Looks a block up in the GPU.
        ahead: Whether prompts are read back and computed before they come.
    """

    scheduler: Any
    tree: KnowledgeTree[Any]
    in_gpu: Callable[[Any], bool]
    ahead: bool

    def __post_init__(self) -> None:
        self._budget: int = self.scheduler.max_num_scheduled_tokens
        self._steps: dict[Name, _Step] = {}  # those that came latest last
        self._current: tuple[str, Name] | None = None  # the request that computes ahead, and what
        self._hasher: Any = None
        self._numbers = itertools.count()

    def enter(
        self, request: Request, spans: tuple[Span, ...], arguments: Mapping[str, Any]
    ) -> tuple[Span, ...]:
        """Take a new request in.

        Returns:
            Its documents. One without documents gets what its step begins with as one.
        """
        if self._current is not None and self._current[0] == request.request_id:
            return spans
        self.make_way()
        name = arguments.get(STEP)
        if not isinstance(name, str) or not 0 < len(name) <= STEP_CHARACTERS:
            return spans
        if not is_plain(request):
            return spans
        salt = request.cache_salt or ""
        self._hasher = request._block_hasher  # noqa: SLF001 - internal requests need one, too
        step = self._learn(salt, name, request, spans)
        self.tree.end_hint((salt, name))
        self._expect(salt, arguments, request.priority)
        return spans or (step.spans if step.begins else ())

    def is_ahead(self, request_id: str) -> bool:
        """Whether a request computes for later."""
        return self._current is not None and self._current[0] == request_id

    @property
    def idles(self) -> bool:
        """Whether the scheduler has nothing but what is computed for later."""
        return self._current is not None and self.scheduler.requests.keys() == {self._current[0]}

    def before_step(self) -> None:
        """Get the nearest step ready, and keep steps of the model short that nobody waits for."""
        self.tree.expire_hints()
        self.get_ready()
        if self.ahead and self._steps:
            idle = min(AHEAD_TOKENS, self._budget)
            self.scheduler.max_num_scheduled_tokens = idle if self.idles else self._budget

    def get_ready(self) -> None:
        """Begin to read back or compute what the nearest step begins with."""
        requests = self.scheduler.requests
        if self._current is not None and self._current[0] in requests:
            return
        self._current = None
        if not self.ahead or self.scheduler.waiting:
            return
        for name in sorted(self._steps, key=self.tree.hints.steps):
            step = self._steps[name]
            if self.tree.hints.steps(name) == float("inf"):
                return
            if step.ready:
                continue
            keys = step.keys[: step.begins]
            there = next((at for at, key in enumerate(keys) if not self.in_gpu(key)), len(keys))
            step.ready = there == len(keys)
            missing = len(keys) - there - self.tree.on_host(keys, there)
            if step.ready or (missing and requests):
                continue  # it is there, or it would be computed beside what somebody waits for
            if not self.tree.affords(name[0], len(keys) - there):
                continue
            step.ready = True
            self._begin(name, step)
            return

    def make_way(self) -> None:
        """Stop what is computed for later. What is computed of it stays cached."""
        current, self._current = self._current, None
        if current is not None and current[0] in self.scheduler.requests:
            self.scheduler.finish_requests(current[0], RequestStatus.FINISHED_ABORTED)
            if current[1] in self._steps:
                self._steps[current[1]].ready = False

    def _begin(self, name: Name, step: _Step) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=1)
        sampling.extra_args = extra_args_from_spans(step.spans)
        self._current = f"ahead.{next(self._numbers)}", name
        self.scheduler.add_request(
            Request(
                request_id=self._current[0],
                prompt_token_ids=step.tokens,
                sampling_params=sampling,
                pooling_params=None,
                cache_salt=name[0] or None,
                block_hasher=self._hasher,
            )
        )

    def _learn(self, salt: str, name: str, request: Request, spans: Sequence[Span]) -> _Step:
        """Learn what a step's prompts begin with."""
        size = self.tree.block_size
        known = self._steps.pop((salt, name), None)
        if known is not None and known.latest == request.request_id:
            # It enters again after the cache was emptied, and would be compared with itself.
            self._steps[salt, name] = known
            return known
        most = (request.num_prompt_tokens - 1) // size
        keys = request.block_hashes[:most]
        pairs = zip(keys, () if known is None else known.keys, strict=False)
        begins = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        end = begins * size
        documents = tuple(span for span in spans if span[2] <= end)
        within = documents or ((name, 0, max(1, end)),)
        tokens = list(request.prompt_token_ids or ())[: end + 1]
        step = self._steps[salt, name] = _Step(
            request.request_id, keys, begins, tokens, within, named=bool(documents)
        )
        while len(self._steps) > KNOWN:
            self._forget()
        return step

    def _forget(self) -> None:
        """Forget a step of the tenant with the most, the one that came longest ago."""
        count = Counter(salt for salt, _ in self._steps)
        most = max(count.values())
        forgotten = next(name for name in self._steps if count[name[0]] == most)
        del self._steps[forgotten]
        self.tree.end_hint(forgotten)

    def _expect(self, salt: str, arguments: Mapping[str, Any], priority: int) -> None:
        """Note which steps come next."""
        names, befores = (arguments.get(name) for name in (NEXT_STEPS, STEPS_BEFORE))
        if not isinstance(names, list | tuple) or not isinstance(befores, list | tuple):
            return
        pairs = zip(befores, names, strict=False)
        coming = sorted(pair for pair in pairs if is_whole(pair[0]) and isinstance(pair[1], str))
        for steps, name in coming[:MOST_NEXT_STEPS]:
            step = self._steps.get((salt, name))
            if step is None or not step.begins:
                continue
            path = self.tree.enter(
                salt, step.spans, step.keys[: step.begins], priority, named=step.named
            )
            self.tree.hint((salt, name), path, max(0, steps), SECONDS)
            self.tree.leave(path)
            step.ready = False
