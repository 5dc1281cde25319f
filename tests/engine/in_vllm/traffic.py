"""Random traffic that meets every state a request can be in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.knowledge_tree import POLICIES, TreeStats
from tests.engine.in_vllm.invariants import check, check_at_rest
from tests.engine.in_vllm.simulation import Case, Engine

STEPS = 120
KINDS: list[dict[str, Any]] = [{}, {"grammar": True}, {"prompt_logprobs": 1}]


@dataclass
class Texts:
    """A system prompt, documents and questions, in tokens; many end with a block."""

    system: list[int]
    documents: dict[str, list[int]]
    questions: tuple[int, ...]


def make_texts(dice: random.Random) -> Texts:
    aligned = dice.random() < 0.4
    lengths = [4, 8, 12] if aligned else [1, 3, 4, 7, 8, 12]
    documents = {
        f"d{number}": list(range(100 * number, 100 * number + dice.choice(lengths)))
        for number in range(1, 5 if aligned else 8)
    }
    system = [3] * dice.choice([0, 4] if aligned else [0, 1, 4, 6])
    return Texts(system, documents, (0, 0, 4) if aligned else (0, 1, 2, 4, 5))


def make_case(dice: random.Random, *, asynchronous: bool, drafts: int) -> Case:
    return Case(
        gpu_blocks=dice.choice([16, 20, 30, 60]),
        host_blocks=dice.choice([0, 3, 8, 20, 60]),
        max_num_seqs=dice.choice([1, 2, 4, 8]),
        max_num_batched_tokens=dice.choice([8, 16, 64]),
        asynchronous=asynchronous,
        drafts=drafts,
        cache=CacheSettings(
            policy=dice.choice(list(POLICIES)),
            reorder_window=dice.choice([None, 1, 2, 5, 32]),
            cache_depth=dice.choice([None, None, 1, 2]),
        ),
    )


Specs = tuple[Callable[..., Any], ...]


def sliding(tokens: int) -> Callable[..., Any]:
    """Layers that see the last tokens, that of now included."""
    return partial(SlidingWindowSpec, sliding_window=tokens)


SHAPES: tuple[Specs, ...] = (
    (FullAttentionSpec, sliding(8)),  # gpt-oss
    (FullAttentionSpec, sliding(9), sliding(9)),  # Gemma 3
    (sliding(14), FullAttentionSpec, sliding(5)),
    (sliding(8),),  # Mistral 7B v0.1
)
"""Models whose layers see different parts of a prompt."""


class Traffic:
    """Sends requests, gives some up, empties the cache now and then."""

    def __init__(
        self,
        seed: int,
        *,
        asynchronous: bool,
        drafts: int = 0,
        specs: Specs | None = None,
        drafting: int | None = None,
        steps: bool = False,
    ) -> None:
        self._dice = random.Random(seed)
        case = make_case(self._dice, asynchronous=asynchronous, drafts=drafts)
        if specs:
            gpu, host = case.gpu_blocks * len(specs), case.host_blocks * len(specs)
            case = replace(case, specs=specs, gpu_blocks=gpu, host_blocks=host, drafting=drafting)
        self.engine = Engine(case, seed)
        self._texts = make_texts(self._dice)
        self._has_steps = steps
        self.aborts = self.resets = 0

    def run(self) -> TreeStats:
        """Returns the statistics at the end."""
        deeds = {self._step: 55, self._ask: 30, self._compile: 7, self._abort: 6, self._reset: 2}
        for deed in self._dice.choices(list(deeds), list(deeds.values()), k=STEPS):
            deed()
            check(self.engine)
        for request in self.engine.requests.values():
            if request.structured_output_request:
                self.engine.grammar_ready(request)
        self.engine.run()
        check_at_rest(self.engine)
        stats: TreeStats = self.engine.documents.stats()
        return stats

    def _step(self) -> None:
        self.engine.step()

    def _ask(self) -> None:
        dice, texts, case = self._dice, self._texts, self.engine.case
        tokens, spans = list(texts.system), []
        known = sorted(texts.documents)
        chosen = dice.sample(known, dice.randint(0, 3))
        workflow: dict[str, Any] = {}
        if self._has_steps and dice.random() < 0.6:
            number = dice.randrange(3)
            chosen = known[number : number + dice.randint(0, 2)]
            others = dice.sample(["0", "1", "2", "unknown"], dice.randint(0, 3))
            coming = [(name, dice.randint(1, 3)) for name in others]
            workflow = {"step": str(number), "next_steps": coming}
        for name in chosen:
            text = texts.documents[name]
            spans.append((name, len(tokens), len(tokens) + len(text)))
            tokens += text
        tokens += [dice.randint(13, 14)] * dice.choice(texts.questions)
        if 0 < len(tokens) < (case.gpu_blocks - 2) * case.block_size - 14:
            (kind,) = dice.choices(KINDS, [70, 12, 18])
            self.engine.add(
                tokens,
                spans,
                salt=dice.choice(["", "", "", "tenant"]),
                max_tokens=dice.choice([1, 3, 20]),
                **kind,
                **workflow,
            )

    def _compile(self) -> None:
        for request in self.engine.requests.values():
            if request.structured_output_request and self._dice.random() < 0.5:
                self.engine.grammar_ready(request)

    def _abort(self) -> None:
        if self.engine.requests:
            self.engine.abort(self._dice.choice(list(self.engine.requests.values())))
            self.aborts += 1

    def _reset(self) -> None:
        case = self.engine.case
        # What is in flight may still write to the blocks: vLLM refuses.
        running = self._dice.random() < 0.3 and not (case.asynchronous and case.host_blocks)
        self.resets += self.engine.scheduler.reset_prefix_cache(reset_running_requests=running)
