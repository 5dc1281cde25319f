"""Examples as tensors: tokenised, sorted by length and padded, and which tokens are learnt.

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
from tools.reader.examples import COUNTS, END, Example, Examples

__all__ = ["LENGTHS", "Batch", "Plan", "chunks", "encode"]

PAD = 2
LENGTHS = (256, 512, 1024, 2048, 4096)
"""To which examples are padded: few, since each is compiled for."""
EARLY_COUNTS = (3, 1)


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
        lengths: To which examples are padded; what is longer is left out.
        counts: How often there are one, two, three and more documents, in proportion.
        early: Share of the run in which much is copied, and documents are few.
    """

    corpus: Path
    tokenizer: Path
    seed: int
    chunks: int
    examples: int = 8192
    tokens: int = 131_072
    lengths: tuple[int, ...] = LENGTHS
    counts: tuple[int, ...] = COUNTS
    early: float = 0.15

    def draw(self, examples: Examples, chunk: int) -> Iterator[Example]:
        """The examples of a chunk."""
        early = chunk < self.early * self.chunks
        drawn = examples.draw(
            f"{self.seed} {chunk}", 0.3 if early else 0.02, EARLY_COUNTS if early else self.counts
        )
        return itertools.islice(drawn, self.examples)

    def prompt_share(self, chunk: int) -> float:
        """Share of a prompt's tokens that are learnt, too."""
        return 0.15 if chunk < self.early * self.chunks else 0.05


@dataclass(frozen=True)
class Batch:
    """A batch.

    Attributes:
        tokens: Ids, of shape ``(batch, length)``.
        learnt: Which are to be foretold, of the same shape: answers, and some of the prompts.
    """

    tokens: NDArray[np.uint16]
    learnt: NDArray[np.bool_]


def encode(tokenizer: tokenizers.Tokenizer, example: Example) -> tuple[list[int], list[bool]]:
    """The tokens of a chat, and which are those of answers, their ends included."""
    texts: list[str] = []
    said: list[bool] = []
    for turn in example.turns:
        texts += [*turn.pieces, turn.answer + END]
        said += [False] * len(turn.pieces) + [True]
    pieces = tokenizer.encode_batch(texts, add_special_tokens=False)
    tokens = list(itertools.chain.from_iterable(one.ids for one in pieces))
    answers = [one for piece, one in zip(pieces, said, strict=True) for _ in piece.ids]
    return tokens, answers


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
    by_length: dict[int, list[tuple[list[int], list[bool]]]] = {}
    for example in plan.draw(examples, number):
        tokens, said = encode(tokenizer, example)
        length = next((one for one in plan.lengths if len(tokens) <= one), None)
        if length is not None:
            by_length.setdefault(length, []).append((tokens, said))
    dice = np.random.default_rng(number)
    made = [
        _padded(group[begin : begin + rows], length, plan.prompt_share(number), dice)
        for length, group in sorted(by_length.items())
        for rows in [max(1, plan.tokens // length)]
        for begin in range(0, len(group), rows)
    ]
    random.Random(number).shuffle(made)
    return made


def _padded(
    group: list[tuple[list[int], list[bool]]],
    length: int,
    prompt_share: float,
    dice: np.random.Generator,
) -> Batch:
    tokens = np.full((len(group), length), PAD, np.uint16)
    learnt = np.zeros((len(group), length), np.bool_)
    for row, (ids, said) in enumerate(group):
        tokens[row, : len(ids)] = ids
        learnt[row, : len(ids)] = said | (dice.random(len(ids)) < prompt_share)
    return Batch(tokens, learnt)
