"""Trains the reader. ``python -m reader.training.train --corpus corpus.json.gz --out FOLDER``.

Run again with the same arguments, it goes on where it was: a run takes its ``--minutes``, and what
is left is done by the next one. ``--size small`` is for two CPU cores, and takes about three hours;
``--size check`` shows that all parts work. ``--begin-with FOLDER`` trains on a reader that exists,
and ``--first N`` takes so many chunks of the plan as done.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from transformers import LlamaForCausalLM

from reader.training.batches import LENGTHS, PAD, Batch, Plan, chunks, encode
from reader.training.beginning import begin
from reader.training.corpus import Asked, load
from reader.training.examples import NOT_FOUND, Example, example_of
from reader.training.model import Beside, Looks, Reader, Shape, read, write
from reader.training.scores import f1, not_found
from reader.training.tokenizer import build, save, twins
from reader.training.words import rarity, vectors

__all__ = ["SIZES", "Recipe", "Size", "answers", "quality", "train"]

LONGEST_ANSWER = 16
SHAPES = 128
"""Of batches, at most: more are not compiled for."""
LOSSES = "answers", "pointing", "prompts"
ASKING = ("who", "whom", "whose", "when", "where", "which", "what", "how", "why")
NEAR = 8, 16
"""Tokens before and behind an answer's first that are near it."""
FOLLOWING_WEIGHT = 0.3
"""What pointing at an answer's next tokens counts for, beside its first."""
PROMPT_WEIGHT = 0.15
"""What foretelling prompts counts for, beside answers and pointing."""


@dataclass(frozen=True)
class Recipe:
    """How it is trained.

    Attributes:
        rate: Highest learning rate.
        warm_up: Share of the run in which it rises.
        decay: Weight decay.
        embedding_rate: Share of the learning rate for embeddings.
        every: Chunks between two checkpoints, with a look at the quality.
        looked_at: Questions that are asked then.
        compiled: Whether layers are compiled, for each length of examples.
    """

    rate: float = 2e-3
    warm_up: float = 0.02
    decay: float = 0.1
    embedding_rate: float = 0.25
    every: int = 40
    looked_at: int = 100
    compiled: bool = True


def train(
    plan: Plan,
    shape: Shape,
    recipe: Recipe,
    out: Path,
    *,
    minutes: float,
    device: str,
    processes: int,
    begin_with: Path | None = None,
    first: int = 0,
) -> bool:
    """Train until the time or the plan is over.

    Args:
        plan: What is learnt from.
        shape: Sizes of the network.
        recipe: How it is learnt.
        out: Folder of the model; holds the checkpoint, too.
        minutes: After how long to stop.
        device: ``cuda`` or ``cpu``.
        processes: How many make examples.
        begin_with: Folder of a reader whose weights are trained on; ``None`` begins anew.
        first: How many of the plan's chunks to take as done; what a checkpoint says goes before.

    Returns:
        Whether the plan is done.
    """
    ends = time.monotonic() + 60 * minutes
    torch.set_float32_matmul_precision("high")
    tokenizer = tokenizers.Tokenizer.from_file(str(plan.tokenizer))
    corpus = load(plan.corpus)
    reader = Reader(shape, seed=plan.seed) if begin_with is None else read(begin_with)
    if begin_with is None and not (out / "checkpoint.pt").exists():
        rare = rarity(tokenizer, corpus.passages)
        asking = [one for word in ASKING for one in _single(tokenizer, word)]
        used = vectors(tokenizer, shape.hidden // 4)
        begin(reader, twins(tokenizer), used, rare, asking, plan.seed)
    reader.to(device)
    optimizers = _optimizers(reader, recipe)
    first = _resume(out / "checkpoint.pt", reader, optimizers, device) or first
    # Each shape by itself: of one for all, Inductor (torch 2.13) gets the strides wrong.
    torch.compiler.config.recompile_limit = SHAPES
    for layer in reader.model.layers if recipe.compiled else ():
        layer.compile(dynamic=False)
    told = corpus.validation[: recipe.looked_at]

    def look(done: int) -> None:
        _keep(out / "checkpoint.pt", reader, optimizers, done)
        write(reader, out)
        save(tokenizer, out, shape.positions)
        scores = quality(out, told, corpus.passages, device)
        print(json.dumps({"chunk": done} | scores), flush=True)

    seen, began = 0, time.monotonic()
    done = first
    for done, chunk in enumerate(chunks(plan, first, processes), first + 1):
        for group in itertools.chain(*(one.param_groups for one in optimizers)):
            group["lr"] = group["share"] * _rate(recipe, done / plan.chunks)
        losses = np.zeros(3)
        for batch in chunk:
            losses += _step(reader, optimizers, batch, device) / len(chunk)
            seen += batch.tokens.size
        speed = seen / (time.monotonic() - began)
        words = ", ".join(f"{name} {one:.3f}" for name, one in zip(LOSSES, losses, strict=True))
        print(f"chunk {done}: {words}, {speed:.0f} tokens/s", flush=True)
        if done == plan.chunks or time.monotonic() > ends:
            break
        if done % recipe.every == 0:
            look(done)
    look(done)
    return done >= plan.chunks


def quality(
    folder: Path, told: Sequence[tuple[Asked, str]], others: Sequence[str], device: str
) -> dict[str, float]:
    """F1, and how often nothing is said to be found.

    Args:
        folder: Of the reader.
        told: Questions, and the passage that answers each. It stands among one and four others;
            for the last figure it is left out.
        others: Passages to put beside it.
        device: Where it is computed.
    """
    if not told:
        return {}
    dice = random.Random(0)
    scores: dict[str, float] = {}
    for beside in (1, 4):
        examples = []
        for asked, passage in told:
            documents = dice.sample(others, beside)
            documents.insert(dice.randint(0, beside), passage)
            examples.append(example_of(asked, documents))
        pairs = zip(answers(folder, examples, device), told, strict=True)
        found = [f1(one, asked.answers) for one, (asked, _) in pairs]
        scores[f"f1_{beside}"] = round(sum(found) / len(found), 4)
    examples = [example_of(asked, dice.sample(others, 2), answer=NOT_FOUND) for asked, _ in told]
    said = answers(folder, examples, device)
    scores["not_found"] = round(sum(map(not_found, said)) / len(told), 4)
    return scores


def answers(
    folder: Path, examples: Sequence[Example], device: str, together: int = 16
) -> list[str]:
    """What a reader says to each example's first question, token by token the likeliest.

    Args:
        folder: Of the reader.
        examples: What is asked.
        device: Where it is computed.
        together: How many are answered at once.
    """
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Its methods have types that mypy does not follow.
    reader: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    reader.to(device)
    said: list[str] = []
    for first in range(0, len(examples), together):
        encoded = [encode(tokenizer, one) for one in examples[first : first + together]]
        prompts = [torch.from_numpy(one.tokens[: one.said.argmax()]) for one in encoded]
        tokens = pad_sequence(prompts, batch_first=True, padding_value=PAD, padding_side="left").to(
            device
        )
        found = reader.generate(
            tokens,
            attention_mask=(tokens != PAD).long(),
            max_new_tokens=LONGEST_ANSWER,
            pad_token_id=PAD,
        )
        new = found[:, tokens.shape[1] :].tolist()
        said += [one.strip() for one in tokenizer.decode_batch(new)]
    return said


def _step(
    reader: Reader, optimizers: Sequence[Optimizer], batch: Batch, device: str
) -> NDArray[np.float64]:
    """Losses of answers, of pointing, and of what else is foretold."""

    def there(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    tokens, turns = there(batch.tokens.astype("int64")), there(batch.turns)
    said, foretold = there(batch.said)[:, 1:], there(batch.foretold)[:, 1:]
    beside = None
    if batch.block:
        padding = turns[:, : batch.documents] != 0
        beside = Beside(batch.documents, batch.block, padding)
    with torch.autocast(device, torch.bfloat16):
        hidden, looks = reader.read(tokens, there(batch.places.astype("int64")), beside)
        learnt = said | foretold
        scores = reader.logits(hidden[:, :-1][learnt])
    losses = functional.cross_entropy(scores.float(), tokens[:, 1:][learnt], reduction="none")
    answered = said[learnt]
    told, other = losses[answered].mean(), losses[~answered].mean()
    pointed = _pointed(looks, there(batch.pointers), turns)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    total = told + pointed + PROMPT_WEIGHT * other
    total.backward()  # type: ignore[no-untyped-call] # torch's
    torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return np.array([float(one.detach()) for one in (told, pointed, other)])


def _pointed(looks: Sequence[Looks], pointers: Tensor, turns: Tensor) -> Tensor:
    """How little heads look at where an answer stands, before each of its tokens: a cross entropy.

    What answers say teaches where to look only slowly (Liu et al. 2016, "Neural Machine Translation
    with Supervised Attention").
    """
    total = torch.zeros((), device=pointers.device)
    if not len(pointers):
        return total
    number, row, at, to, step = pointers.T
    first = torch.ones_like(number, dtype=torch.bool)
    first[1:] = number[1:] != number[:-1]  # an answer may stand at several places
    right = first.cumsum(0) - 1
    row, at, begins = row[first], at[first], step[first] == 0
    there = torch.arange(turns.shape[1], device=turns.device)
    unseen = (turns[row] != 0) & (turns[row] != turns[row, at][:, None]) | (there > at[:, None])
    near = torch.arange(-NEAR[0], NEAR[1] + 1, device=to.device)
    in_rows = torch.bincount(row, minlength=len(turns)).tolist()
    for layer, (queries, keys) in enumerate(looks):
        asked = torch.split(queries[row, at].float(), in_rows)
        scores = torch.cat([one @ other.float().T for one, other in zip(asked, keys, strict=True)])
        scores = (scores / keys.shape[-1] ** 0.5).masked_fill(unseen, -torch.inf).log_softmax(-1)
        wrong = torch.ones_like(unseen)
        if layer:
            wrong[right, to] = False
        else:  # near it suffices; to the first token points what stands nowhere
            around = (to[:, None] + near * (to > 0)[:, None]).clamp(0, wrong.shape[1] - 1)
            wrong[right[:, None], around] = False
            wrong |= unseen
        missed = -scores.masked_fill(wrong, -torch.inf).logsumexp(-1)
        total = total + missed[begins].mean()
        if layer and not begins.all():
            total = total + FOLLOWING_WEIGHT * missed[~begins].mean()
    return total / max(1, len(looks))


def _single(tokenizer: tokenizers.Tokenizer, word: str) -> list[int]:
    """A word's token, by itself and behind a space, where it is one."""
    every = [tokenizer.encode(text, add_special_tokens=False).ids for text in (word, f" {word}")]
    return [one[0] for one in every if len(one) == 1]


def _optimizers(reader: Reader, recipe: Recipe) -> list[Optimizer]:
    """Muon for the layers' matrices, which learns from fewer tokens; Adam for all else."""
    layers = [one for one in reader.model.layers.parameters() if one.dim() > 1]
    norms = [one for one in reader.parameters() if one.dim() == 1]
    embeddings = [reader.model.embed_tokens.weight]
    made: list[Optimizer] = [
        torch.optim.Muon(
            layers,
            lr=recipe.rate,
            weight_decay=recipe.decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [
                {"params": embeddings, "weight_decay": recipe.decay},
                {"params": norms, "weight_decay": 0.0},
            ],
            lr=recipe.rate,
            betas=(0.9, 0.95),
        ),
    ]
    for group in itertools.chain(*(one.param_groups for one in made)):
        group["share"] = 1.0
    made[1].param_groups[0]["share"] = recipe.embedding_rate
    return made


def _rate(recipe: Recipe, share: float) -> float:
    if share < recipe.warm_up:
        return recipe.rate * share / recipe.warm_up
    along = (share - recipe.warm_up) / (1 - recipe.warm_up)
    return recipe.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))


def _keep(path: Path, reader: Reader, optimizers: Sequence[Optimizer], done: int) -> None:
    new = path.with_suffix(".new")
    state = {
        "reader": reader.state_dict(),
        "optimizers": [one.state_dict() for one in optimizers],
        "done": done,
    }
    torch.save(state, new)
    new.replace(path)


def _resume(path: Path, reader: Reader, optimizers: Sequence[Optimizer], device: str) -> int:
    if not path.exists():
        return 0
    kept = torch.load(path, map_location=device, weights_only=True)
    reader.load_state_dict(kept["reader"])
    for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return int(kept["done"])


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Attributes:
        shape: Of the network.
        recipe: How it is learnt.
        chunks: How many there are.
        examples: In a chunk.
        tokens: In a batch.
        lengths: To which examples are padded.
    """

    shape: Shape
    recipe: Recipe
    chunks: int
    examples: int
    tokens: int
    lengths: tuple[int, ...] = LENGTHS


SIZES = {
    "full": Size(Shape(), Recipe(), chunks=240, examples=8192, tokens=131_072),
    "small": Size(
        Shape(vocab_size=16_384, hidden=256, intermediate=512, layers=6, heads=4),
        Recipe(rate=2e-3, every=20),
        chunks=160,
        examples=256,
        tokens=4096,
        lengths=(192, 320, 448, 576, 768, 1024),
    ),
    "check": Size(
        Shape(
            vocab_size=1024, hidden=64, intermediate=128, layers=2, heads=2, kv_heads=1, head_dim=32
        ),
        Recipe(looked_at=4),
        chunks=30,
        examples=32,
        tokens=4096,
    ),
}


def main() -> None:
    """Train it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--chunks", type=int, help="another number of them")
    parser.add_argument("--begin-with", type=Path, help="folder of a reader to train on")
    parser.add_argument("--first", type=int, default=0, help="chunks to take as done")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer_file = options.out / "tokenizer.json"
    size = SIZES[options.size]
    if options.begin_with is not None:
        shutil.copyfile(options.begin_with / tokenizer_file.name, tokenizer_file)
    elif not tokenizer_file.exists():
        corpus = load(options.corpus)
        texts = [*corpus.passages, *(one.text for one in corpus.asked)]
        build(texts, size.shape.vocab_size).save(str(tokenizer_file))
    plan = Plan(
        options.corpus,
        tokenizer_file,
        options.seed,
        options.chunks or size.chunks,
        size.examples,
        size.tokens,
        size.lengths,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    processes = max(1, (os.cpu_count() or 2) - 2)
    print(
        f"{Reader(size.shape).parameter_count / 1e6:.2f} million parameters on {device}", flush=True
    )
    train(
        plan,
        size.shape,
        size.recipe,
        options.out,
        minutes=options.minutes,
        device=device,
        processes=processes,
        begin_with=options.begin_with,
        first=options.first,
    )


if __name__ == "__main__":
    main()
