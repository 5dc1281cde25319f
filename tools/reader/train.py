"""Trains the reader. ``python -m tools.reader.train --corpus corpus.json.gz --out FOLDER``.

Run again with the same arguments, it goes on where it was: a run takes its ``--minutes``, and what
is left is done by the next one. ``--size small`` is for two CPU cores, and not yet known to
suffice; ``--size check`` shows that all parts work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

from tools.reader.batches import LENGTHS, Batch, Plan, chunks, encode
from tools.reader.corpus import Asked, load
from tools.reader.examples import COUNTS, NOT_FOUND, Example, example_of
from tools.reader.model import Reader, Shape, write
from tools.reader.scores import f1, not_found
from tools.reader.tokenizer import build, save, twins

__all__ = ["SIZES", "Recipe", "Size", "answers", "quality", "train"]

END, PAD = 1, 2
LONGEST_ANSWER = 16


@dataclass(frozen=True)
class Recipe:
    """How it is trained.

    Attributes:
        rate: Highest learning rate.
        warm_up: Share of the run in which it rises.
        decay: Weight decay.
        every: Chunks between two checkpoints, with a look at the quality.
        looked_at: Questions that are asked then.
    """

    rate: float = 2e-3
    warm_up: float = 0.02
    decay: float = 0.1
    every: int = 40
    looked_at: int = 100


def train(
    plan: Plan,
    shape: Shape,
    recipe: Recipe,
    out: Path,
    *,
    minutes: float,
    device: str,
    processes: int,
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

    Returns:
        Whether the plan is done.
    """
    ends = time.monotonic() + 60 * minutes
    torch.set_float32_matmul_precision("high")
    tokenizer = tokenizers.Tokenizer.from_file(str(plan.tokenizer))
    reader = Reader(shape, twins(tokenizer), plan.seed).to(device)
    optimizers = _optimizers(reader, recipe)
    first = _resume(out / "checkpoint.pt", reader, optimizers, device)
    if device == "cuda":
        for layer in reader.model.layers:
            layer.compile()
    corpus = load(plan.corpus)
    told = corpus.validation[: recipe.looked_at]

    def look(done: int) -> None:
        scores = quality(reader, tokenizer, told, corpus.passages, device)
        print(json.dumps({"chunk": done} | scores), flush=True)

    seen, began = 0, time.monotonic()
    done = first
    for done, chunk in enumerate(chunks(plan, first, processes), first + 1):
        for group in itertools.chain(*(one.param_groups for one in optimizers)):
            group["lr"] = _rate(recipe, done / plan.chunks)
        total = 0.0
        for batch in chunk:
            total += _step(reader, optimizers, batch, device)
            seen += batch.tokens.size
        if done % 10 == 0 or done == plan.chunks:
            speed = seen / (time.monotonic() - began)
            print(f"chunk {done}: loss {total / len(chunk):.3f}, {speed:.0f} tokens/s", flush=True)
        if done % recipe.every == 0:
            _keep(out / "checkpoint.pt", reader, optimizers, done)
            look(done)
        if time.monotonic() > ends:
            break
    _keep(out / "checkpoint.pt", reader, optimizers, done)
    write(reader, out)
    save(tokenizer, out, shape.positions)
    look(done)
    return done >= plan.chunks


def quality(
    reader: Reader,
    tokenizer: tokenizers.Tokenizer,
    told: Sequence[tuple[Asked, str]],
    others: Sequence[str],
    device: str,
) -> dict[str, float]:
    """F1, and how often nothing is said to be found.

    Args:
        reader: Answers.
        tokenizer: Its tokenizer.
        told: Questions, and the passage that answers each. It stands among one and four others;
            for the last figure it is left out.
        others: Passages to put beside it.
        device: Where the reader is.
    """
    if not told:
        return {}
    dice = random.Random(0)

    def said(examples: Sequence[Example]) -> list[str]:
        prompts = []
        for example in examples:
            tokens, answered = encode(tokenizer, example)
            prompts.append(tokens[: answered.index(True)])
        return answers(reader, tokenizer, prompts, device)

    scores: dict[str, float] = {}
    for beside in (1, 4):
        examples = []
        for asked, passage in told:
            documents = dice.sample(others, beside)
            documents.insert(dice.randint(0, beside), passage)
            examples.append(example_of(asked, documents))
        pairs = zip(said(examples), told, strict=True)
        found = [f1(one, asked.answers) for one, (asked, _) in pairs]
        scores[f"f1_{beside}"] = round(sum(found) / len(found), 4)
    examples = [example_of(asked, dice.sample(others, 2), answer=NOT_FOUND) for asked, _ in told]
    scores["not_found"] = round(sum(map(not_found, said(examples))) / len(told), 4)
    return scores


@torch.no_grad()
def answers(
    reader: Reader,
    tokenizer: tokenizers.Tokenizer,
    prompts: Sequence[Sequence[int]],
    device: str,
    rows: int = 32,
) -> list[str]:
    """What it says, token by token the likeliest."""
    said: list[str] = []
    for begin in range(0, len(prompts), rows):
        group = prompts[begin : begin + rows]
        ends = torch.tensor([len(one) for one in group], device=device)
        length = int(ends.max()) + LONGEST_ANSWER
        tokens = torch.full((len(group), length), PAD, device=device)
        for row, prompt in enumerate(group):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        first = ends.clone()
        places = torch.arange(len(group), device=device)
        ended = torch.zeros(len(group), dtype=torch.bool, device=device)
        for _ in range(LONGEST_ANSWER):
            with torch.autocast(device, torch.bfloat16):
                hidden = _eager(reader, tokens)[places, ends - 1]
                likeliest = reader.logits(hidden).argmax(-1)
            tokens[places, ends] = likeliest
            ends = ends + 1
            ended |= likeliest == END
            if ended.all():
                break
        for row in range(len(group)):
            new = tokens[row, first[row] : ends[row]].tolist()
            new = new[: new.index(END)] if END in new else new
            said.append(tokenizer.decode(new).strip())
    return said


def _eager(reader: Reader, tokens: Tensor) -> Tensor:
    # Compiled anew for each length, a look at the quality would take minutes.
    with torch.compiler.set_stance("force_eager"):
        hidden: Tensor = reader(tokens)
    return hidden


def _step(reader: Reader, optimizers: Sequence[Optimizer], batch: Batch, device: str) -> float:
    tokens = torch.from_numpy(batch.tokens.astype("int64")).to(device, non_blocking=True)
    learnt = torch.from_numpy(batch.learnt).to(device, non_blocking=True)[:, 1:]
    with torch.autocast(device, torch.bfloat16):
        scores = reader.logits(reader(tokens)[:, :-1][learnt])
    loss = functional.cross_entropy(scores.float(), tokens[:, 1:][learnt])
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call] # torch's
    torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return float(loss.detach())


def _optimizers(reader: Reader, recipe: Recipe) -> list[Optimizer]:
    """Muon for the layers' matrices, which learns from fewer tokens; Adam for all else."""
    layers = [one for one in reader.model.layers.parameters() if one.dim() > 1]
    norms = [one for one in reader.parameters() if one.dim() == 1]
    embeddings = [reader.model.embed_tokens.weight]
    return [
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
        counts: How often there are one, two, three and more documents.
    """

    shape: Shape
    recipe: Recipe
    chunks: int
    examples: int
    tokens: int
    lengths: tuple[int, ...] = LENGTHS
    counts: tuple[int, ...] = COUNTS


SIZES = {
    "full": Size(Shape(), Recipe(), chunks=240, examples=8192, tokens=131_072),
    "small": Size(
        Shape(hidden=256, intermediate=704, layers=6, heads=4),
        Recipe(rate=4e-3, every=20),
        chunks=400,
        examples=512,
        tokens=8192,
        lengths=tuple(range(64, 1025, 64)),
        counts=(4, 6, 2, 1, 1),
    ),
    "check": Size(
        Shape(
            vocab_size=1024, hidden=64, intermediate=128, layers=2, heads=2, kv_heads=1, head_dim=32
        ),
        Recipe(looked_at=4),
        chunks=30,
        examples=32,
        tokens=8192,
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
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer_file = options.out / "tokenizer.json"
    size = SIZES[options.size]
    if not tokenizer_file.exists():
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
        size.counts,
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
    )


if __name__ == "__main__":
    main()
