"""Trains the reader. ``python -m tools.reader.train --corpus corpus.json.gz --out FOLDER``.

Run again with the same arguments, it goes on where it was: a run takes its ``--minutes``, and what
is left is done by the next one. ``--check`` is a small cut that shows that all parts work.
"""

from __future__ import annotations

import argparse
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

from tools.reader.batches import Batch, Plan, chunks, encode
from tools.reader.corpus import Asked, load
from tools.reader.examples import NOT_FOUND, Example, example_of
from tools.reader.model import Reader, Shape, write
from tools.reader.scores import f1, not_found
from tools.reader.tokenizer import build, save, twins

__all__ = ["Recipe", "answers", "quality", "train"]

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
    optimizer = _optimizer(reader, recipe)
    first = _resume(out / "checkpoint.pt", reader, optimizer, device)
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
        for group in optimizer.param_groups:
            group["lr"] = _rate(recipe, done / plan.chunks)
        total = 0.0
        for batch in chunk:
            total += _step(reader, optimizer, batch, device)
            seen += batch.tokens.size
        if done % 10 == 0 or done == plan.chunks:
            speed = seen / (time.monotonic() - began)
            print(f"chunk {done}: loss {total / len(chunk):.3f}, {speed:.0f} tokens/s", flush=True)
        if done % recipe.every == 0:
            _keep(out / "checkpoint.pt", reader, optimizer, done)
            look(done)
        if time.monotonic() > ends:
            break
    _keep(out / "checkpoint.pt", reader, optimizer, done)
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
        return answers(reader, tokenizer, [encode(tokenizer, one)[0] for one in examples], device)

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
        for _ in range(LONGEST_ANSWER):
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                hidden = _eager(reader, tokens)[places, ends - 1]
                likeliest = reader.logits(hidden).argmax(-1)
            tokens[places, ends] = likeliest
            ends = ends + 1
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


def _step(reader: Reader, optimizer: torch.optim.Optimizer, batch: Batch, device: str) -> float:
    tokens = torch.from_numpy(batch.tokens.astype("int64")).to(device, non_blocking=True)
    weights = torch.from_numpy(batch.weights.astype("float32")).to(device, non_blocking=True)[:, 1:]
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        hidden = reader(tokens)[:, :-1]
        counted = weights > 0
        scores = reader.logits(hidden[counted])
    losses = functional.cross_entropy(scores.float(), tokens[:, 1:][counted], reduction="none")
    mine = weights[counted]
    loss = (losses * mine).sum() / mine.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call] # torch's
    torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _optimizer(reader: Reader, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [one for one in reader.parameters() if one.dim() > 1]
    others = [one for one in reader.parameters() if one.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95))


def _rate(recipe: Recipe, share: float) -> float:
    if share < recipe.warm_up:
        return recipe.rate * share / recipe.warm_up
    along = (share - recipe.warm_up) / (1 - recipe.warm_up)
    return recipe.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))


def _keep(path: Path, reader: Reader, optimizer: torch.optim.Optimizer, done: int) -> None:
    new = path.with_suffix(".new")
    torch.save(
        {"reader": reader.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, new
    )
    new.replace(path)


def _resume(path: Path, reader: Reader, optimizer: torch.optim.Optimizer, device: str) -> int:
    if not path.exists():
        return 0
    kept = torch.load(path, map_location=device, weights_only=True)
    reader.load_state_dict(kept["reader"])
    optimizer.load_state_dict(kept["optimizer"])
    return int(kept["done"])


def main() -> None:
    """Train it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--chunks", type=int, default=240, help="of 8,192 examples (default: 240)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--rate", type=float, default=Recipe.rate)
    parser.add_argument("--check", action="store_true", help="a small network and few examples")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer_file = options.out / "tokenizer.json"
    shape, recipe = Shape(), Recipe(rate=options.rate)
    if options.check:
        shape = Shape(
            vocab_size=1024, hidden=64, intermediate=128, layers=2, heads=2, kv_heads=1, head_dim=32
        )
        recipe = Recipe(looked_at=4)
    if not tokenizer_file.exists():
        corpus = load(options.corpus)
        texts = [*corpus.passages, *(one.text for one in corpus.asked)]
        build(texts, shape.vocab_size).save(str(tokenizer_file))
    plan = Plan(options.corpus, tokenizer_file, options.seed, options.chunks)
    if options.check:
        plan = Plan(options.corpus, tokenizer_file, options.seed, options.chunks, 32, 8192)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    processes = max(1, (os.cpu_count() or 2) - 2)
    print(f"{Reader(shape).parameter_count / 1e6:.2f} million parameters on {device}", flush=True)
    train(
        plan,
        shape,
        recipe,
        options.out,
        minutes=options.minutes,
        device=device,
        processes=processes,
    )


if __name__ == "__main__":
    main()
