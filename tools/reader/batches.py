"""Examples as tensors: tokenised, sorted by length and padded, with the weight of each token.

They come in numbered chunks. A chunk is the same whoever makes it and whenever, so that training
goes on where it was, with as many processes as there are cores.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tools.reader.corpus import load
from tools.reader.examples import END, Example, Examples

__all__ = ["Batch", "Plan", "chunks", "encode"]

PAD = 2
LENGTHS = (256, 512, 1024, 2048, 4096)
"""To which examples are padded: few, since each is compiled for."""


@dataclass(frozen=True)
class Plan:
    """What a training run is fed.

    Attributes:
        corpus: File with the corpus.
        tokenizer: File with the tokenizer.
        seed: Draws everything.
        chunks: How many there are from beginning to end.
        examples: In a chunk.
        tokens: In a batch, padding included.
        early: Share of the run in which much is copied, and prompts are learnt, too.
    """

    corpus: Path
    tokenizer: Path
    seed: int
    chunks: int
    examples: int = 8192
    tokens: int = 131_072
    early: float = 0.15

    def copying(self, chunk: int) -> float:
        """Share of texts to repeat."""
        return 0.3 if chunk < self.early * self.chunks else 0.02

    def prompt_weight(self, chunk: int) -> float:
        """What a token of a prompt counts beside one of an answer."""
        return 0.2 if chunk < self.early * self.chunks else 0.0


@dataclass(frozen=True)
class Batch:
    """A batch.

    Attributes:
        tokens: Ids, of shape ``(batch, length)``.
        weights: What it counts that each was foretold, of the same shape.
    """

    tokens: NDArray[np.uint16]
    weights: NDArray[np.float16]


def encode(tokenizer: tokenizers.Tokenizer, example: Example) -> tuple[list[int], list[int]]:
    """The tokens of a prompt and those of its answer, its end included."""
    pieces = tokenizer.encode_batch(
        [*example.pieces, example.answer + END], add_special_tokens=False
    )
    prompt = list(itertools.chain.from_iterable(one.ids for one in pieces[:-1]))
    return prompt, list(pieces[-1].ids)


def chunks(plan: Plan, first: int, processes: int) -> Iterator[list[Batch]]:
    """The chunks in their order.

    Args:
        plan: What they are.
        first: Number of the first.
        processes: How many make them.
    """
    # Spawned: a fork of a process that holds a GPU is none that works.
    context = multiprocessing.get_context("spawn")
    numbers = iter(range(first, plan.chunks))
    with context.Pool(processes, _begin, (plan,)) as pool:
        coming: deque[AsyncResult[list[Batch]]] = deque()
        for number in itertools.islice(numbers, 2 * processes):
            coming.append(pool.apply_async(_chunk, (number,)))
        while coming:
            chunk = coming.popleft().get()
            for number in itertools.islice(numbers, 1):
                coming.append(pool.apply_async(_chunk, (number,)))
            yield chunk


_state: tuple[Plan, Examples, tokenizers.Tokenizer]


def _begin(plan: Plan) -> None:
    global _state  # noqa: PLW0603 - once in each process of the pool
    examples = Examples(load(plan.corpus))
    _state = plan, examples, tokenizers.Tokenizer.from_file(str(plan.tokenizer))


def _chunk(number: int) -> list[Batch]:
    plan, examples, tokenizer = _state
    drawn = itertools.islice(
        examples.draw(f"{plan.seed} {number}", plan.copying(number)), plan.examples
    )
    by_length: dict[int, list[tuple[list[int], list[int]]]] = {}
    for example in drawn:
        prompt, answer = encode(tokenizer, example)
        length = next((one for one in LENGTHS if len(prompt) + len(answer) <= one), None)
        if length is not None:
            by_length.setdefault(length, []).append((prompt, answer))
    weight = plan.prompt_weight(number)
    made = [
        _padded(group[begin : begin + rows], length, weight)
        for length, group in sorted(by_length.items())
        for rows in [max(1, plan.tokens // length)]
        for begin in range(0, len(group), rows)
    ]
    random.Random(number).shuffle(made)
    return made


def _padded(group: list[tuple[list[int], list[int]]], length: int, weight: float) -> Batch:
    tokens = np.full((len(group), length), PAD, np.uint16)
    weights = np.zeros((len(group), length), np.float16)
    for row, (prompt, answer) in enumerate(group):
        end = len(prompt) + len(answer)
        tokens[row, :end] = prompt + answer
        weights[row, : len(prompt)] = weight
        weights[row, len(prompt) : end] = 1.0
    return Batch(tokens, weights)
