"""Teaches SmolLM2 on CPU cores, one process for each, or on a GPU, and goes on where it was.

``python -m reader.teaching.train --library FILE --base FOLDER --out FOLDER`` takes numbered
steps, each of which is learnt from the pages of that number: the same however often it was stopped.
The folder then has ``state.pt``, all that is needed to go on; ``delta.safetensors``, the mean
of the last weights, which is what is evaluated; ``losses.jsonl``, a line for each step. The rate is
constant until ``--ending`` says over how many steps it falls to nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, Dataset
from transformers import AutoTokenizer

from .layout import Layout
from .lessons import COUNTS, LINKS, Lessons
from .library import load
from .network import Delta, Network, Rows, Shape

__all__ = ["Accelerator", "Class", "Paths", "Recipe", "train"]

LINKS_MOST = len(COUNTS) * max(LINKS)
"""Tokens by which a page that is read block by block may be longer than one that is read whole."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How it is learnt.

    Attributes:
        rank: Of the delta.
        pages: In a step.
        rate: Of Adam.
        warm_up: Steps over which the rate rises to it.
        mean: How much of the mean of the last weights stays from step to step.
        clip: Largest norm of a step's gradient.
        seed: Draws everything.
    """

    rank: int = 32
    pages: int = 8
    rate: float = 5e-4
    warm_up: int = 30
    mean: float = 0.98
    clip: float = 1.0
    seed: int = 7


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are.

    Attributes:
        library: What is learnt from.
        base: The model to begin with.
        out: Folder for what comes out.
        pause: A file that makes it wait while it is there.
    """

    library: Path
    base: Path
    out: Path
    pause: Path | None


class Pupil:
    """One process's share: gradients of pages.

    Args:
        paths: Where things are.
        recipe: How it is learnt.
        weights: The delta's, as one tensor in memory that all processes share.
    """

    def __init__(self, paths: Paths, recipe: Recipe, weights: Tensor) -> None:
        torch.set_num_threads(1)
        self._delta = Delta(Shape.read(paths.base), recipe.rank, recipe.seed)
        self._network = Network(paths.base, self._delta)
        self._lessons = Lessons(load(paths.library))
        self._layout = Layout(AutoTokenizer.from_pretrained(paths.base))
        self._weights, self._seed = weights, recipe.seed
        self._pause = paths.pause

    def learn(self, step: int, slots: Iterator[int], gradient: Tensor) -> list[float]:
        """Add up the gradients of some of a step's pages.

        Args:
            step: Number of the step.
            slots: Which of its pages, for as long as there are.
            gradient: Where they are added.

        Returns:
            Sum of losses, answers, tokens foretold, those that were said right, and answers that
            were said right from beginning to end.
        """
        _view(self._delta, self._weights, gradient)
        totals = [0.0] * 5
        for slot in slots:
            while self._pause is not None and self._pause.exists():
                time.sleep(2)
            page = self._layout.packed(self._lessons.page(f"{self._seed} {step} {slot}"))
            if page is None:
                continue
            loss, right = self._network.loss(page)
            loss.backward()  # type: ignore[no-untyped-call] # torch's
            counts = _totals(loss, right, page.said)
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
        return totals


class Class:
    """Gradients of steps by CPU cores, which share a step's pages.

    Args:
        paths: Where things are.
        recipe: How it is learnt.
        processes: How many learn beside each other.
    """

    def __init__(self, paths: Paths, recipe: Recipe, processes: int) -> None:
        self.weights = _shared(_flat(Delta(Shape.read(paths.base), recipe.rank, recipe.seed)))
        self._gradients = [_shared(torch.zeros_like(self.weights)) for _ in range(processes)]
        self._pages = recipe.pages
        context = get_context("spawn")
        self._counter = context.Value("i", 0)
        self._pipes: list[Connection] = []
        for gradient in self._gradients[1:]:
            ours, theirs = context.Pipe()
            arguments = (paths, recipe, self.weights, gradient, self._counter, theirs)
            context.Process(target=_other, args=arguments, daemon=True).start()
            self._pipes.append(ours)
        self._pupil = Pupil(paths, recipe, self.weights)

    def steps(self, first: int, until: int) -> Iterator[tuple[Tensor, list[float]]]:
        """Sum of a step's gradients, and the totals of :meth:`Pupil.learn`, step by step."""
        for step in range(first, until):
            self._counter.value = 0
            for gradient in self._gradients:
                gradient.zero_()
            for pipe in self._pipes:
                pipe.send(step)
            rows = [self._pupil.learn(step, _taken(self._counter, self._pages), self._gradients[0])]
            rows += [pipe.recv() for pipe in self._pipes]
            totals = [sum(column) for column in zip(*rows, strict=True)]
            yield torch.stack(self._gradients).sum(0), totals

    def close(self) -> None:
        """End the other processes."""
        for pipe in self._pipes:
            pipe.send(None)


class Accelerator:
    """Gradients of steps by a GPU, for which CPU cores lay out pages.

    Args:
        paths: Where things are.
        recipe: How it is learnt.
        processes: How many lay out pages.
        device: The GPU, by torch's name.
    """

    def __init__(self, paths: Paths, recipe: Recipe, processes: int, device: str) -> None:
        delta = Delta(Shape.read(paths.base), recipe.rank, recipe.seed).to(device)
        self.weights = _flat(delta)
        self._gradient = torch.zeros_like(self.weights)
        _view(delta, self.weights, self._gradient)
        self._network = Network(paths.base, delta, device=device)
        self._paths, self._recipe, self._processes = paths, recipe, processes

    def steps(self, first: int, until: int) -> Iterator[tuple[Tensor, list[float]]]:
        """As :meth:`Class.steps`."""
        loader = DataLoader(
            _Steps(self._paths, self._recipe),
            batch_size=None,
            sampler=range(first, until),
            num_workers=self._processes,
            multiprocessing_context="spawn" if self._processes else None,
            prefetch_factor=4 if self._processes else None,
            pin_memory=self.weights.is_cuda,
        )
        for rows in loader:
            self._gradient.zero_()
            loss, right = self._network.loss(rows)
            loss.backward()  # type: ignore[no-untyped-call] # torch's
            yield self._gradient, _totals(loss, right, rows.said)

    def close(self) -> None:
        """Nothing is left."""


class _Steps(Dataset[Rows]):
    """The pages of each step, laid out in rows."""

    def __init__(self, paths: Paths, recipe: Recipe) -> None:
        self._paths, self._recipe = paths, recipe
        self._drawer: tuple[Lessons, Layout] | None = None

    def __getitem__(self, step: int) -> Rows:
        if self._drawer is None:  # Each process reads the library once.
            torch.set_num_threads(1)
            tokenizer = AutoTokenizer.from_pretrained(self._paths.base)
            self._drawer = Lessons(load(self._paths.library)), Layout(tokenizer)
        lessons, layout = self._drawer
        packed = [
            layout.packed(lessons.page(f"{self._recipe.seed} {step} {slot}"))
            for slot in range(self._recipe.pages)
        ]
        return Rows.of([page for page in packed if page is not None], layout.most + LINKS_MOST)


def train(
    teacher: Class | Accelerator,
    paths: Paths,
    recipe: Recipe,
    *,
    until: int,
    ending: int,
    keep: float,
    seconds: float,
) -> None:
    """Learn, from where it was.

    Args:
        teacher: What computes gradients.
        paths: Where things are.
        recipe: How.
        until: The step before which it ends.
        ending: Steps before that over which the rate falls to nothing; 0 for a constant rate.
        keep: Seconds after which the state is written to disk again.
        seconds: Time after which it stops, to go on another time.
    """
    paths.out.mkdir(parents=True, exist_ok=True)
    delta = Delta(Shape.read(paths.base), recipe.rank, recipe.seed)
    weights = teacher.weights
    state = {
        "mean": weights.clone(),
        "first": torch.zeros_like(weights),
        "second": torch.zeros_like(weights),
    }
    step = _resume(paths.out / "state.pt", weights, state)
    began = kept = time.monotonic()
    stopped, end = Event(), began + seconds
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    for gradient, totals in teacher.steps(step, until):
        loss, answers, tokens, right, whole = totals
        total = gradient / max(1.0, answers)
        norm = float(total.norm())
        rate = recipe.rate * min(1.0, (step + 1) / recipe.warm_up)
        if ending:
            rate *= min(1.0, max(0.02, (until - step) / ending))
        _adam(weights, total * min(1.0, recipe.clip / max(norm, 1e-9)), state, step, rate)
        state["mean"].lerp_(weights, 1 - min(recipe.mean, (step + 1) / (step + 10)))
        line = {
            "step": step,
            "loss": round(loss / max(1.0, answers), 4),
            "right": round(right / max(1.0, tokens), 4),
            "whole": round(whole / max(1.0, answers), 4),
            "answers": int(answers),
            "norm": round(norm, 3),
            "rate": rate,
            "seconds": round(time.monotonic() - began, 1),
        }
        with (paths.out / "losses.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        step += 1
        began = time.monotonic()
        last = step == until or stopped.is_set() or began > end
        if last or began - kept > keep:
            _keep(paths.out, delta, weights, state, step, recipe)
            kept = began
        if last:
            break
    teacher.close()


def _other(
    paths: Paths,
    recipe: Recipe,
    weights: Tensor,
    gradient: Tensor,
    counter: object,
    pipe: Connection,
) -> None:
    """What the other processes do: their share of each step that they are told of."""
    pupil = Pupil(paths, recipe, weights)
    while (step := pipe.recv()) is not None:
        pipe.send(pupil.learn(step, _taken(counter, recipe.pages), gradient))


def _view(delta: Delta, weights: Tensor, gradient: Tensor) -> None:
    """Let a delta's matrices be parts of two long tensors."""
    begin = 0
    for parameter in delta.parameters():
        end = begin + parameter.numel()
        parameter.data = weights[begin:end].view_as(parameter)
        parameter.grad = gradient[begin:end].view_as(parameter)
        begin = end


def _flat(delta: Delta) -> Tensor:
    return torch.cat([matrix.detach().flatten() for matrix in delta.parameters()])


def _totals(loss: Tensor, right: Tensor, said: Sequence[int]) -> list[float]:
    """Loss, answers, tokens, those that are right, and answers that are right as a whole."""
    whole = [bool(part.all()) for part in torch.split(right.cpu(), list(said))]
    return [float(loss.detach()), len(said), len(right), int(right.sum()), sum(whole)]


def _shared(tensor: Tensor) -> Tensor:
    """The tensor in memory that all processes share."""
    shared: Tensor = tensor.share_memory_()  # type: ignore[no-untyped-call] # torch's
    return shared


def _taken(counter: object, most: int) -> Iterator[int]:
    """Numbers below ``most`` that no other process has taken."""
    while True:
        with counter.get_lock():  # type: ignore[attr-defined]
            slot = counter.value  # type: ignore[attr-defined]
            counter.value += 1  # type: ignore[attr-defined]
        if slot >= most:
            return
        yield slot


def _adam(
    weights: Tensor, gradient: Tensor, state: dict[str, Tensor], step: int, rate: float
) -> None:
    """A step of Adam, with the decays 0.9 and 0.99."""
    state["first"].lerp_(gradient, 1 - 0.9)
    state["second"].lerp_(gradient.square(), 1 - 0.99)
    first = state["first"] / (1 - 0.9 ** (step + 1))
    second = state["second"] / (1 - 0.99 ** (step + 1))
    weights -= rate * first / (second.sqrt() + 1e-8)


def _keep(
    folder: Path, delta: Delta, weights: Tensor, state: dict[str, Tensor], step: int, recipe: Recipe
) -> None:
    new = folder / "state.new"
    torch.save({"weights": weights, "state": state, "step": step, "recipe": asdict(recipe)}, new)
    new.replace(folder / "state.pt")
    torch.nn.utils.vector_to_parameters(state["mean"].cpu(), delta.parameters())
    new = folder / "delta.new"
    tensors = {name: matrix.contiguous() for name, matrix in delta.tensors().items()}
    save_file(tensors, new, metadata={"step": str(step)})
    new.replace(folder / "delta.safetensors")


def _resume(path: Path, weights: Tensor, state: dict[str, Tensor]) -> int:
    if not path.exists():
        return 0
    kept = torch.load(path, map_location=weights.device, weights_only=True)
    weights.copy_(kept["weights"])
    for name, tensor in state.items():
        tensor.copy_(kept["state"][name])
    return int(kept["step"])


def main() -> None:
    """Train it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pause", type=Path, help="a file that makes it wait while it is there")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU such as cuda")
    parser.add_argument(
        "--until", type=int, default=1_000_000, help="the step before which it ends"
    )
    parser.add_argument("--ending", type=int, default=0, help="steps over which the rate falls")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time of this run")
    parser.add_argument("--keep", type=float, default=300.0, help="seconds between states on disk")
    for name, default in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args())
    recipe = Recipe(**{name: options[name] for name in asdict(Recipe())})
    paths = Paths(options["library"], options["base"], options["out"], options["pause"])
    if options["device"] == "cpu":
        teacher: Class | Accelerator = Class(paths, recipe, options["processes"])
    else:
        teacher = Accelerator(paths, recipe, options["processes"], options["device"])
    train(
        teacher,
        paths,
        recipe,
        until=options["until"],
        ending=options["ending"],
        keep=options["keep"],
        seconds=options["seconds"],
    )


if __name__ == "__main__":
    main()
