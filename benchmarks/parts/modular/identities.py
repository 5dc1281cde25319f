"""Identities of modular attention reuse that hold whatever the weights are, checked and counted.

The same are tests of the package; here they are counted on the models of this run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from parts.modular.models import architecture
from ragcache_integrations.prompts.pml import Assembly, Fresh, Module, Placed
from ragcache_modular import CacheBlend, Epic, Exact, KVLink, ModularModel

__all__ = ["ARCHITECTURES", "Identity", "check"]

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "bloom", "mpt", "gpt2", "opt")
TOLERANCE = 2e-3
"""Of logits, which spread over several units; float32."""


@dataclass(frozen=True)
class Identity:
    """One comparison.

    Attributes:
        name: What shall be equal.
        apart: Largest difference.
    """

    name: str
    apart: float

    @property
    def equal(self) -> bool:
        """Whether it is none but rounding."""
        return self.apart < TOLERANCE


def check(kind: str) -> Iterator[Identity]:
    """Compare, on a tiny model of an architecture."""
    stock, model = architecture(kind), ModularModel(architecture(kind))
    prompt = _prompt(model, (17, 23, 9))
    whole = _stock_logits(stock, prompt)
    for strategy in (Epic(10**6), CacheBlend(1.0), KVLink(10**6), Exact()):
        with model.prefill(prompt, strategy) as prefilled:
            yield Identity(f"{strategy.name}, all computed again", _apart(prefilled, whole))
    scaffold = Assembly((Placed(Module("all", _ids(49, 7), tuple(range(49)))), _fresh(49, 5)))
    with model.prefill(scaffold) as prefilled:
        yield Identity(
            "scaffold over all modules", _apart(prefilled, _stock_logits(stock, scaffold))
        )
    single = _prompt(model, (30,))
    with model.prefill(single) as prefilled:
        yield Identity("single leading module", _apart(prefilled, _stock_logits(stock, single)))
    if model.movable:
        there = Assembly((Placed(Module("m", _ids(20, 1), tuple(range(300, 320)))), _fresh(400, 4)))
        moved = Assembly((Placed(Module("m", _ids(20, 1), tuple(range(20))), 300), _fresh(400, 4)))
        with model.prefill(there) as one, model.prefill(moved) as other:
            yield Identity("moved module", _apart(other, one.logits()))
    for strategy in (Epic(4), CacheBlend(0.2)):
        with (
            model.prefill(prompt, strategy, masked=["d1"]) as one,
            model.prefill(prompt, strategy, dropped=["d1"]) as other,
        ):
            yield Identity(f"{strategy.name}, masked as dropped", _apart(other, one.logits()))
        prompts = [prompt, Assembly((*prompt.parts[:2], _fresh(40, 9)))]
        knobs: Any = {"max_tokens": 6, "ignore_eos": True, "logprobs": 0}
        single_ones = [model.generate(one, strategy, **knobs) for one in prompts]
        together = model.generate_batch(prompts, strategy, **knobs)
        pairs = [
            (logprob.logprob, other.logprob)
            if logprob.token_id == other.token_id
            else (0.0, np.inf)
            for first, second in zip(single_ones, together, strict=True)
            for logprob, other in zip(first.logprobs, second.logprobs, strict=True)
        ]
        apart = max(abs(one - other) for one, other in pairs)
        yield Identity(f"{strategy.name}, batched as single", float(apart))


def _ids(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, 97, count).tolist())


def _fresh(start: int, count: int) -> Fresh:
    return Fresh(_ids(count, 50 + count), tuple(range(start, start + count)))


def _prompt(model: ModularModel, lengths: tuple[int, ...]) -> Assembly:
    parts: list[Placed | Fresh] = []
    at = 0
    for number, length in enumerate(lengths):
        start = 0 if model.movable else at
        positions = tuple(range(start, start + length))
        parts.append(Placed(Module(f"d{number}", _ids(length, number), positions), at - start))
        at += length
    return Assembly((*parts, _fresh(at, 5)))


def _stock_logits(stock: Any, prompt: Assembly) -> Tensor:
    ids: list[int] = []
    for part in prompt.parts:
        ids += part.token_ids if isinstance(part, Fresh) else part.module.token_ids
    with torch.inference_mode():
        past = transformers.DynamicCache()
        logits: Tensor = stock(
            input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True
        ).logits[0, -1]
    return logits


def _apart(prefilled: Any, logits: Tensor) -> float:
    return float((prefilled.logits() - logits).abs().max())
