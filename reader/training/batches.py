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
from dataclasses import dataclass, replace
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from reader.training.corpus import load
from reader.training.examples import END, NOT_FOUND, TELLS, Example, Examples, Mix
from reader.training.tokenizer import twins

__all__ = ["LENGTHS", "PAD", "Batch", "Encoded", "Plan", "chunks", "encode"]

PAD = 2
LENGTHS = (256, 512, 1024, 2048, 4096)
"""To which examples are padded: few, since each is compiled for."""
FOUND = Mix(
    searched=0.2, elsewhere=0.06, near=0.65, titled=0.5, mapped=0.12, made=0.36, disguised=0.7
)
STAGES = (
    (0.015, Mix((5, 1), longest=2, copying=0.1)),
    (0.11, Mix((5, 1), longest=2)),
    (0.3, Mix((3, 5, 2, 1, 1), longest=3)),
    (0.4, Mix((2, 5, 2, 1, 3), searched=0.45)),
    (0.9, replace(FOUND, counts=(1, 3, 3, 3, 6), longest=3)),
    (1.0, replace(FOUND, counts=(1, 3, 3, 3, 6), longest=4)),
)
"""Until which share of a run examples are like what: from few and short documents to more, and from
any to those that a search finds together."""
QUESTIONS = (8, 16, 24)
"""To how many questions beside each other examples are padded, or cut."""
BLOCKS = (32, 64, 96)
"""To which each of them is padded, with its answer."""
USUAL = 0.8
"""Share of the questions that are to fit into their blocks."""
FULL = 0.75
"""Share of the blocks that have to be filled for there to be so many."""
POINTED = 6
"""Tokens of an answer that are pointed at."""
FORETOLD = 0.06
"""Share of a prompt's tokens that are foretold, too."""
UNPOINTED = ("yes", "no", *"ABCD")


class Room(NamedTuple):
    """What an example is padded to.

    Attributes:
        documents: Tokens of documents, or of a chat.
        questions: How many stand beside each other.
        block: Tokens of each.
    """

    documents: int
    questions: int
    block: int

    @property
    def length(self) -> int:
        """Tokens of all of it."""
        return self.documents + self.questions * self.block


@dataclass(frozen=True)
class Plan:
    """What a training run is fed.

    Attributes:
        corpus: File with the corpus.
        tokenizer: File with the tokenizer.
        seed: Draws everything.
        chunks: How many there are from beginning to end.
        examples: In a chunk.
        tokens: In a batch, padding included. Every shape is compiled for: examples that do not fill
            a batch are left out.
        lengths: To which documents and chats are padded; what is longer is left out.
        questions: To how many questions beside each other.
        blocks: To which each of them is padded.
        stages: Until which share of the run examples are like what.
    """

    corpus: Path
    tokenizer: Path
    seed: int
    chunks: int
    examples: int = 8192
    tokens: int = 131_072
    lengths: tuple[int, ...] = LENGTHS
    questions: tuple[int, ...] = QUESTIONS
    blocks: tuple[int, ...] = BLOCKS
    stages: tuple[tuple[float, Mix], ...] = STAGES

    def draw(self, examples: Examples, chunk: int) -> Iterator[Example]:
        """The examples of a chunk."""
        mix = next(mix for until, mix in self.stages if chunk < until * self.chunks)
        return itertools.islice(examples.draw(f"{self.seed} {chunk}", mix), self.examples)

    def room(self, encoded: Encoded) -> Room | None:
        """What an example is padded to; ``None`` where it is too long."""
        length = encoded.documents if encoded.beside else len(encoded.tokens)
        documents = next((one for one in self.lengths if length <= one), None)
        if documents is None:
            return None
        if not encoded.beside:
            return Room(documents, 0, 0)
        lengths = np.sort(np.bincount(encoded.turns)[1:])
        # A few long questions are left out, rather than all others padded to them.
        usual = lengths[int(USUAL * (len(lengths) - 1))]
        block = next((one for one in self.blocks if usual <= one), self.blocks[-1])
        count = np.count_nonzero(lengths <= block)
        fitting = [one for one in self.questions if count >= FULL * one]
        return Room(documents, max(fitting, default=min(self.questions)), block) if count else None


@dataclass(frozen=True)
class Batch:
    """A batch.

    Attributes:
        tokens: Ids, of shape ``(batch, length)``: documents, then questions in blocks.
        documents: How many are documents, padding included; all, where questions are turns of a
            chat.
        block: How many a question has, with its answer and padding; 0 where there are no blocks.
        turns: Which turn each belongs to, of the shape of the tokens: 0 for what all may look at,
            -1 for padding of documents.
        places: At which position each stands, of the same shape.
        said: Which belong to answers, of the same shape.
        foretold: Which of the others are to be foretold, too, of the same shape.
        pointers: Where answers stand in documents: rows of ``(number, row, from, to, step)``; from
            the token before each of an answer's to where that stands in a document. Those of one
            number point to several places; the step is how many of the answer stand before.
    """

    tokens: NDArray[np.uint16]
    documents: int
    block: int
    turns: NDArray[np.int16]
    places: NDArray[np.int16]
    said: NDArray[np.bool_]
    foretold: NDArray[np.bool_]
    pointers: NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """An example's tokens.

    Attributes:
        tokens: Ids.
        turns: Which turn each belongs to, 0 for what all may look at.
        places: At which position each stands.
        said: Which belong to answers, their ends included.
        documents: How many stand before the first turn.
        beside: Whether turns stand beside each other.
    """

    tokens: NDArray[np.int64]
    turns: NDArray[np.int64]
    places: NDArray[np.int64]
    said: NDArray[np.bool_]
    documents: int
    beside: bool

    def laid_out(self, documents: int, block: int, most: int) -> NDArray[np.int64]:
        """Where each token stands in a batch; -1 for those of questions that find no room.

        Args:
            documents: Room for documents; all tokens stand there unless turns are beside another.
            block: Room for each question.
            most: How many there may be.
        """
        at = np.arange(len(self.tokens))
        if not self.beside:
            return at
        room = 0
        for turn in range(1, int(self.turns.max()) + 1):
            mine = self.turns == turn
            fits = mine.sum() <= block and room < most
            at[mine] = documents + room * block + np.arange(mine.sum()) if fits else -1
            room += fits
        return at


def encode(tokenizer: tokenizers.Tokenizer, example: Example) -> Encoded:
    """The tokens of an example."""
    texts = list(example.documents)
    for turn in example.turns:
        texts += [turn.text, turn.answer + END]
    ids = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
    count = len(example.documents)
    # Documents, then by turns what is put and what is said.
    parts = [list(itertools.chain.from_iterable(ids[:count])), *ids[count:]]
    lengths = [len(one) for one in parts]
    numbers = np.array([0, *(place // 2 + 1 for place in range(len(parts) - 1))])
    turns = np.repeat(numbers, lengths)
    places = np.arange(len(turns))
    if example.beside:
        begins = np.cumsum([0, *(sum(lengths[at : at + 2]) for at in range(1, len(parts), 2))])
        places -= np.where(turns > 0, begins[np.maximum(turns - 1, 0)], 0)
    return Encoded(
        np.fromiter(itertools.chain.from_iterable(parts), np.int64, len(turns)),
        turns if example.beside else np.zeros_like(turns),
        places,
        np.repeat([place > 0 and place % 2 == 0 for place in range(len(parts))], lengths),
        lengths[0],
        example.beside,
    )


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


_state: tuple[Plan, Examples, tokenizers.Tokenizer, NDArray[np.int64], list[NDArray[np.int64]]]


def _begin(plan: Plan) -> None:
    global _state  # noqa: PLW0603 - once in each process of the pool
    examples = Examples(load(plan.corpus))
    tokenizer = tokenizers.Tokenizer.from_file(str(plan.tokenizer))
    same = np.arange(tokenizer.get_vocab_size())
    for bare, spaced in twins(tokenizer):
        same[spaced] = bare
    ids = [one.ids for one in tokenizer.encode_batch([NOT_FOUND, *UNPOINTED, TELLS])]
    _state = plan, examples, tokenizer, same, [same[one] for one in ids]


def _chunk(number: int) -> list[Batch]:
    plan, examples, tokenizer, same, special = _state
    by_room: dict[Room, list[Encoded]] = {}
    for example in plan.draw(examples, number):
        encoded = encode(tokenizer, example)
        room = plan.room(encoded)
        if room is not None:
            by_room.setdefault(room, []).append(encoded)
    dice = np.random.default_rng(number)
    made = [
        _padded(group[begin : begin + rows], room, dice, same, special)
        for room, group in sorted(by_room.items())
        for rows in [max(1, plan.tokens // room.length)]
        for begin in range(0, len(group) - rows + 1, rows)
    ]
    random.Random(number).shuffle(made)
    return made


def _padded(
    group: list[Encoded],
    room: Room,
    dice: np.random.Generator,
    same: NDArray[np.int64],
    special: list[NDArray[np.int64]],
) -> Batch:
    shape = len(group), room.length
    turns = np.full(shape, -1, np.int16)
    turns[:, room.documents :] = np.arange(1, room.questions + 1).repeat(room.block)
    batch = Batch(
        np.full(shape, PAD, np.uint16),
        room.documents,
        room.block,
        turns,
        np.zeros(shape, np.int16),
        np.zeros(shape, np.bool_),
        np.zeros(shape, np.bool_),
        np.zeros((0, 5), np.int64),
    )
    told: list[tuple[int, int, int, int, int]] = []
    number = 0
    for row, one in enumerate(group):
        at = one.laid_out(room.documents, room.block, room.questions)
        kept = at >= 0
        here = at[kept]
        batch.tokens[row, here], batch.places[row, here] = one.tokens[kept], one.places[kept]
        batch.turns[row, here[one.turns[kept] == 0]] = 0
        batch.said[row, here] = one.said[kept]
        # The token before has to be the one that stands before.
        follows = (np.diff(one.places, prepend=0) == 1) & (np.diff(at, prepend=0) == 1)
        drawn = dice.random(len(one.tokens)) < FORETOLD
        batch.foretold[row, here] = (drawn & follows & ~one.said)[kept]
        for begin, said, places in pointers(same[one.tokens], one, special):
            if at[begin] < 0:
                continue
            for step in range(min(said, POINTED)):
                origin = int(at[begin]) - 1 + step
                told += [(number, row, origin, place + step, step) for place in places]
                number += 1
    return replace(batch, pointers=np.array(told, np.int64).reshape(-1, 5))


def pointers(
    tokens: NDArray[np.int64], encoded: Encoded, special: list[NDArray[np.int64]]
) -> Iterator[tuple[int, int, list[int]]]:
    """Where answers begin, how long they are, and where they stand in the documents.

    Args:
        tokens: Of an example, without difference between twins.
        encoded: The example.
        special: The answer that points nowhere, which is to the first token; then those that are
            not taken from a document; at last what stands behind the answer in a summary.
    """
    edges = np.flatnonzero(np.diff(encoded.said.astype(np.int8), prepend=0, append=0))
    documents = tokens[: encoded.documents]
    for begin, end in edges.reshape(-1, 2):
        answer = tokens[begin : end - 1]
        if np.array_equal(answer, special[0]):
            yield begin, 1, [0]
            continue
        if any(np.array_equal(answer, one) for one in special[1:-1]):
            continue
        # Of a summary only what it begins with stands in a document.
        heads = np.flatnonzero(np.isin(answer, special[-1]))[::-1]
        for length in (len(answer), *heads.tolist()):
            places = _standing(documents, answer[:length])
            if places:
                yield begin, length, places
                break


def _standing(documents: NDArray[np.int64], answer: NDArray[np.int64]) -> list[int]:
    """Where an answer begins in documents."""
    if not 0 < len(answer) <= len(documents):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(documents, len(answer))
    places: list[int] = np.flatnonzero((windows == answer).all(1)).tolist()
    return places
