"""Modular attention reuse: time to first token with every document encoded already.

- ``ttft_ratio``: full prefill by stock transformers over Prompt Cache here, at each prompt length;
  documents of 500 tokens behind a system text, all encoded before and in the host's memory, each
  moved to its place, and a question of 32 tokens computed. Prompt after prompt the same work is
  asked of both, in turns; medians, and intervals by paired bootstrap.
- ``prefix_best``, ``prefix_worst``: the same over prefix caching, with which all documents are
  reused when they stand in the order of an earlier prompt (best), and the system text alone when
  the first document is another (worst). It is stock transformers whose cache holds exactly the
  common prefix.
- ``strategies``: every strategy at the longest length, and the share of encoded tokens it computes
  again.
- ``memory``: bytes of keys and values per token.
- ``identities``: what must be equal whatever the weights are, counted on every architecture.

Random weights: no answer quality is reported. On an accelerator (``--device``) the modules come
from the host's memory and, in a second column, from the device's. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers
from parts.modular.identities import ARCHITECTURES, check
from parts.modular.models import SIZES, VOCABULARY, llama, parameters
from parts.stats.intervals import median_ratio
from parts.stats.tables import Cell, print_table

from ragcache_integrations.prompts.pml import Assembly, Fresh, Module, Placed
from ragcache_modular import STRATEGIES, ModularModel

SYSTEM, QUESTION, DOCUMENT = 64, 32, 500
STORE = 8 * 2**30
QUICK_SIZE = "4 x 256"


class Prompts:
    """Prompts of one length: the same documents in orders of their own, and another question each.

    Args:
        length: Tokens.
        seed: Decides what they say.
    """

    def __init__(self, length: int, seed: int) -> None:
        self._rng = np.random.default_rng([length, seed])
        rest = length - SYSTEM - QUESTION
        count = max(1, round(rest / DOCUMENT))
        sizes = [rest // count + (number < rest % count) for number in range(count)]
        self._system = self._module("system", SYSTEM)
        self._documents = [self._module(f"d{number}", size) for number, size in enumerate(sizes)]

    def __iter__(self) -> Iterator[Assembly]:
        while True:
            order = self._rng.permutation(len(self._documents)).tolist()
            parts: list[Placed | Fresh] = [Placed(self._system)]
            at = SYSTEM
            for number in order:
                parts.append(Placed(self._documents[number], at))
                at += len(self._documents[number].token_ids)
            positions = tuple(range(at, at + QUESTION))
            yield Assembly((*parts, Fresh(self._ids(QUESTION), positions)))

    @property
    def modules(self) -> list[Module]:
        """All there are."""
        return [self._system, *self._documents]

    def _module(self, name: str, size: int) -> Module:
        return Module(name, self._ids(size), tuple(range(size)))

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.integers(0, VOCABULARY, count).tolist())


def ids_of(prompt: Assembly) -> list[int]:
    """The tokens of a prompt whose parts stand behind each other."""
    ids: list[int] = []
    for part in prompt.parts:
        ids += part.token_ids if isinstance(part, Fresh) else part.module.token_ids
    return ids


@dataclass
class Times:
    """Seconds to the first token, prompt after prompt."""

    full: list[float] = field(default_factory=list)
    modular: list[float] = field(default_factory=list)
    near: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    worst: list[float] = field(default_factory=list)


class Bench:
    """Two models with the same weights: one as transformers runs it, one served in modules.

    Args:
        size: One of the sizes.
        device: Where both compute.
    """

    def __init__(self, size: str, device: str) -> None:
        self.size = size
        self.device = device
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self.stock = llama(size, dtype=dtype, device=device)
        self.modular = ModularModel(llama(size, dtype=dtype, device=device), store_bytes=STORE)
        self.near: ModularModel | None = None
        if device != "cpu":
            self.near = ModularModel(
                llama(size, dtype=dtype, device=device),
                store_bytes=STORE,
                device_store_bytes=STORE,
            )

    def measure(self, length: int, seeds: int, repeats: int, *, worst: bool) -> Times:
        """Times at a length, everything warmed up before.

        Args:
            length: Tokens of a prompt.
            seeds: How often documents are drawn anew.
            repeats: Prompts a seed.
            worst: Whether prefix caching is measured in its worst order, too, which takes almost as
                long as full prefill.
        """
        times = Times()
        for seed in range(seeds):
            prompts = Prompts(length, seed)
            stream = iter(prompts)
            for model in self._served():
                model.encode(prompts.modules)
                self._prefill(model, next(stream))
            if seed == 0:
                self._round(next(stream), Times(), worst=worst)
            for _ in range(repeats):
                self._round(next(stream), times, worst=worst)
        return times

    def strategies(self, length: int, repeats: int) -> dict[str, dict[str, float]]:
        """Each strategy's median time in milliseconds, and its share computed again.

        Called behind :meth:`measure`, which has warmed everything up.
        """
        prompts = Prompts(length, 0)
        stream = iter(prompts)
        self.modular.encode(prompts.modules)
        times: dict[str, list[float]] = {name: [] for name in STRATEGIES}
        shares: dict[str, list[float]] = {name: [] for name in STRATEGIES}
        for _ in range(repeats):
            prompt = next(stream)
            for name in STRATEGIES:
                seconds, share = self._prefill(self.modular, prompt, name)
                times[name].append(seconds)
                shares[name].append(share)
        return {
            name: {
                "ttft_ms": round(1e3 * statistics.median(times[name]), 2),
                "recomputed_share": round(statistics.fmean(shares[name]), 4),
            }
            for name in STRATEGIES
        }

    def _served(self) -> list[ModularModel]:
        return [self.modular, *([] if self.near is None else [self.near])]

    def _round(self, prompt: Assembly, times: Times, *, worst: bool) -> None:
        """All ways on one prompt; who comes first takes turns."""

        def modular() -> None:
            times.modular.append(self._prefill(self.modular, prompt)[0])
            if self.near is not None:
                times.near.append(self._prefill(self.near, prompt)[0])

        def stock() -> None:
            self._stock(ids_of(prompt), times, worst=worst)

        ways: list[Callable[[], None]] = [modular, stock]
        for way in ways if len(times.full) % 2 else reversed(ways):
            way()

    def _prefill(
        self, model: ModularModel, prompt: Assembly, strategy: str = "prompt_cache"
    ) -> tuple[float, float]:
        self._wait()
        began = time.perf_counter()
        with model.prefill(prompt, strategy) as prefilled:
            _first(prefilled.logits())
            return time.perf_counter() - began, prefilled.about.recomputed_share

    def _stock(self, ids: Sequence[int], times: Times, *, worst: bool) -> None:
        """Prefill by transformers: all of it, then behind the common prefixes of either order."""
        tokens = torch.tensor([ids], device=self.device)
        past: Any = transformers.DynamicCache(config=self.stock.config)
        ways = [(times.full, 0), (times.best, len(ids) - QUESTION)]
        if worst:
            ways.append((times.worst, SYSTEM))
        with torch.inference_mode():
            for into, common in ways:
                if common:  # keep what the prefix left of the prefill before
                    past.crop(common - len(ids))
                self._wait()
                began = time.perf_counter()
                out = self.stock(tokens[:, common:], past_key_values=past, logits_to_keep=1)
                _first(out.logits)
                into.append(time.perf_counter() - began)

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.accelerator.synchronize()


def lengths_of(bench: Bench, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Times at every length, printed as they come."""
    found: dict[str, dict[str, Any]] = {}
    rows: list[list[Cell]] = []
    for length in options.lengths:
        times = bench.measure(length, options.seeds, options.repeats, worst=not options.quick)
        ratio = median_ratio(times.full, times.modular)
        best = median_ratio(times.best, times.modular)
        worst = median_ratio(times.worst, times.modular) if times.worst else None
        in_ms = {name: _ms(some) for name, some in vars(times).items() if some}
        found[str(length)] = {
            "ratio": ratio.as_list(4),
            "prefix_best": best.as_list(4),
            "prefix_worst": None if worst is None else worst.as_list(4),
            "ms": in_ms,
        }
        rows.append(
            [
                length,
                *(in_ms.get(name) for name in ("full", "worst", "best", "modular", "near")),
                str(ratio),
                None if worst is None else str(worst),
                str(best),
            ]
        )
    head = [
        *("tokens", "full ms", "prefix, worst", "prefix, best", "modular", "from device"),
        *("full / modular", "worst / modular", "best / modular"),
    ]
    print_table(f"time to first token, {describe(bench)}", head, rows)
    return found


def describe(bench: Bench) -> str:
    """A model in words."""
    count = parameters(bench.stock) / 1e6
    return f"{bench.size} ({count:.0f} million parameters) on {bench.device}"


def identities() -> dict[str, int]:
    """Check all; say which do not hold."""
    checked = equal = 0
    for kind in ARCHITECTURES:
        for identity in check(kind):
            checked += 1
            equal += identity.equal
            if not identity.equal:
                print(f"{kind}: {identity.name} differ by {identity.apart:.2g}", flush=True)
    print(f"\nidentities: {equal} of {checked} hold", flush=True)
    return {"checked": checked, "equal": equal}


def _first(logits: torch.Tensor) -> int:
    """The first token, which waits for an accelerator."""
    return int(logits.argmax())


def _ms(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 3)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--quick", action="store_true", help="one small model, few repeats, no worst order"
    )
    parser.add_argument("--device", default="cpu", help="where models compute (default: cpu)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=None)
    parser.add_argument("--lengths", nargs="+", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=None, help="documents drawn anew")
    parser.add_argument("--repeats", type=int, default=None, help="prompts a seed")
    options = parser.parse_args()
    options.sizes = options.sizes or ([QUICK_SIZE] if options.quick else list(SIZES))
    options.lengths = options.lengths or ([1024, 5120] if options.quick else LENGTHS)
    options.seeds = options.seeds or (2 if options.quick else 3)
    options.repeats = options.repeats or (2 if options.quick else 5)
    return options


LENGTHS = [512, 1024, 2048, 5120, 8192]


def main() -> None:
    """Measure what the options say."""
    options = parse()
    result: dict[str, Any] = {"ttft_ratio": {}, "sizes": {}, "memory": {}}
    for size in options.sizes:
        bench = Bench(size, options.device)
        found = lengths_of(bench, options)
        strategies = bench.strategies(max(options.lengths), options.repeats)
        rows: list[list[Cell]] = [
            [name, strategy["ttft_ms"], strategy["recomputed_share"]]
            for name, strategy in strategies.items()
        ]
        title = f"strategies at {max(options.lengths)} tokens, {describe(bench)}"
        print_table(title, ["strategy", "ms to first token", "share computed again"], rows)
        per_token = bench.modular.bytes_per_token
        print(f"\n{per_token} bytes of keys and values a token", flush=True)
        result["memory"][size] = {"bytes_per_token": per_token}
        result["sizes"][size] = {"lengths": found, "strategies": strategies}
        if size == options.sizes[0]:
            result["ttft_ratio"] = {length: one["ratio"][0] for length, one in found.items()}
            result["ttft_ratio_interval"] = {
                length: one["ratio"][1:] for length, one in found.items()
            }
            result["strategies"] = strategies
    result["identities"] = identities()
    result["model"] = options.sizes[0]
    result["note"] = "random weights: no answer quality"
    print(json.dumps(result))


if __name__ == "__main__":
    main()
