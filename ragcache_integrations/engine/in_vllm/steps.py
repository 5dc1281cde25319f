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
from functools import partial
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

__all__ = ["Ahead", "Steps", "is_plain"]

KNOWN = 64
"""Steps whose prompts are remembered. Of more the tenant with the most forgets the one that came
longest ago: what one tenant sends takes nothing from tenants with fewer steps."""
SECONDS = 60.0
"""For how long a step is expected after the last request that said so."""
AHEAD_TOKENS = 128
"""Tokens of a step of the model that computes ahead: who comes meanwhile waits for its end."""

Name = tuple[str, str]
"""A tenant and the name of a step."""


def is_plain(request: Request) -> bool:
    """Whether a request's keys and values follow from its tokens alone."""
    return not (
        request.prompt_token_ids is None
        or request.mm_features
        or request.lora_request
        or request.resumable
    )


@dataclass(eq=False)
class Ahead:
    """A request of our own that computes for later, while no other request waits.

    Attributes:
        scheduler: vLLM's scheduler.
        name: Of the latest such request; empty before the first.
        hasher: Names the blocks of requests, as vLLM gave it to the latest of its own.
    """

    scheduler: Any
    name: str = ""
    hasher: Callable[[Request], list[Any]] | None = None

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._stopped: Callable[[], object] = lambda: None

    def begin(
        self,
        token_ids: list[int],
        salt: str,
        extra_args: dict[str, Any],
        stopped: Callable[[], object],
    ) -> None:
        """Compute a prompt.

        Args:
            token_ids: The prompt.
            salt: The tenant.
            extra_args: Of the request.
            stopped: Called if it is stopped before its end.
        """
        sampling = SamplingParams(temperature=0.0, max_tokens=1)
        sampling.extra_args = extra_args
        self.name, self._stopped = f"ahead.{next(self._numbers)}", stopped
        self.scheduler.add_request(
            Request(
                request_id=self.name,
                prompt_token_ids=token_ids,
                sampling_params=sampling,
                pooling_params=None,
                cache_salt=salt or None,
                block_hasher=self.hasher,
            )
        )

    @property
    def runs(self) -> bool:
        """Whether it has begun and not ended."""
        return self.name in self.scheduler.requests

    @property
    def idles(self) -> bool:
        """Whether the scheduler has nothing else."""
        return bool(self.scheduler.requests.keys() == {self.name})

    def stop(self) -> None:
        """Stop it, to make way. What is computed of it stays cached."""
        name, runs, self.name = self.name, self.runs, ""
        if runs:
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self._stopped()


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
        ahead: Reads prompts back, and computes them, before they come; ``None`` if nothing does.
    """

    scheduler: Any
    tree: KnowledgeTree[Any]
    in_gpu: Callable[[Any], bool]
    ahead: Ahead | None

    def __post_init__(self) -> None:
        self._budget: int = self.scheduler.max_num_scheduled_tokens
        self._steps: dict[Name, _Step] = {}  # those that came latest last

    def enter(
        self, request: Request, spans: tuple[Span, ...], arguments: Mapping[str, Any]
    ) -> tuple[Span, ...]:
        """Take a new request in.

        Returns:
            Its documents. One without documents gets what its step begins with as one.
        """
        name = arguments.get(STEP)
        if not isinstance(name, str) or not 0 < len(name) <= STEP_CHARACTERS:
            return spans
        if not is_plain(request):
            return spans
        salt = request.cache_salt or ""
        step = self._learn(salt, name, request, spans)
        self.tree.end_hint((salt, name))
        self._expect(salt, arguments, request.priority)
        return spans or (step.spans if step.begins else ())

    def before_step(self) -> None:
        """Get the nearest step ready, and keep steps of the model short that nobody waits for."""
        self.tree.expire_hints()
        self.get_ready()
        if self.ahead and self._steps:
            idle = min(AHEAD_TOKENS, self._budget)
            self.scheduler.max_num_scheduled_tokens = idle if self.ahead.idles else self._budget

    def get_ready(self) -> None:
        """Begin to read back or compute what the nearest step begins with."""
        requests = self.scheduler.requests
        if self.ahead is None or self.ahead.runs or self.scheduler.waiting:
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
            stopped = partial(setattr, step, "ready", False)  # noqa: FBT003 - setattr's
            self.ahead.begin(step.tokens, name[0], extra_args_from_spans(step.spans), stopped)
            return

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
