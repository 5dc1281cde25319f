"""Reuse anywhere as transformers computes it: one document's stored KV cache after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from ragcache_integrations.engine.in_vllm.anywhere.codecs import RAW, Codec

__all__ = ["Reference"]


class Reference:
    """A model in transformers, in float32.

    Args:
        folder: The model.
        codec: How documents are kept.
    """

    def __init__(self, folder: Path, codec: Codec = RAW) -> None:
        self._codec = codec
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def answer(
        self,
        prompt: Sequence[int],
        spans: Sequence[tuple[int, int]],
        links: int,
        tokens: int,
        exact_until: int = 0,
    ) -> tuple[list[int], Tensor]:
        """Greedy tokens and the log-probabilities of the first one.

        Args:
            prompt: The prompt.
            spans: Its documents, each of which is encoded alone, at its place.
            links: First tokens of each that are computed behind what stands before it.
            tokens: How many tokens to answer.
            exact_until: Tokens of the prompt's beginning that are computed in their place.
        """
        cache, at = DynamicCache(), 0
        for begin, end in spans:
            own: Any = self._run(prompt[begin:end], begin, DynamicCache())[1]
            first = min(max(begin + links, exact_until), end)
            if at < first:
                self._run(prompt[at:first], at, cache)
            for number, layer in enumerate(own.layers):
                kept = slice(first - begin, None)
                keys, values = self._stored(layer.keys, layer.values, begin)
                cache.update(keys[:, :, kept], values[:, :, kept], number)
            at = end
        logits, _ = self._run(prompt[at:], at, cache)
        scores, answer = logits.log_softmax(-1), []
        for place in range(len(prompt), len(prompt) + tokens):
            answer.append(int(logits.argmax()))
            logits, _ = self._run(answer[-1:], place, cache)
        return answer, scores

    def _stored(self, keys: Tensor, values: Tensor, begin: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, of shape ``(1, heads, tokens, size)``, as they are read."""
        if self._codec is RAW:
            return keys, values
        places = torch.arange(begin, begin + keys.shape[2])[None]
        cosine, sine = self._model.model.rotary_emb(keys, places)
        before = keys * cosine - rotate_half(keys) * sine
        parts = self._codec.encode(before.transpose(1, 2), values.transpose(1, 2))
        layer = {name: part[0] for name, part in parts.items()}
        read_keys, read_values = (torch.empty(keys[0].transpose(0, 1).shape) for _ in range(2))
        self._codec.decode_keys(layer, read_keys)
        self._codec.decode_values(layer, read_values)
        keys, values = (each.transpose(0, 1)[None] for each in (read_keys, read_values))
        return keys * cosine + rotate_half(keys) * sine, values

    def _run(
        self, tokens: Sequence[int], begin: int, cache: DynamicCache
    ) -> tuple[Tensor, DynamicCache]:
        places = torch.arange(begin, begin + len(tokens))[None]
        output = self._model(
            torch.tensor([list(tokens)]),
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[0, -1]
        return logits, cache


def rotate_half(numbers: Tensor) -> Tensor:
    """A quarter turn of each pair of numbers."""
    first, second = numbers.chunk(2, -1)
    return torch.cat([-second, first], -1)
