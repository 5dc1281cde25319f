"""Checks and times the host tier's copies between a GPU and pinned memory, without an engine.

The KV cache has the shape of an 8 B Llama: 32 layers, 8 heads of 128, blocks of 16 tokens in
bfloat16, 2 MiB per block. The check copies random blocks out and back many times, overwrites them
right after each copy is enqueued, and compares every byte. It must also notice that nothing waits
for what is read back. The times are for 8, 64 and 512 blocks, against one contiguous copy of as
many bytes in pinned memory, which is the most that the link can do, and against gathering layer by
layer into memory that is not pinned.

``--cpu`` checks the CPU's copies with a small cache and times nothing. The last line is a JSON
object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
import torch

from ragcache_integrations.engine.in_vllm import host_copies as module
from ragcache_integrations.engine.in_vllm.host_copies import CUDACopies, PinnedRows, host_copies

LAYERS, HEADS, TOKENS, CONTENT = 32, 8, 16, 256
"""Keys and values of 128 numbers each are one content."""
COUNTS = (8, 64, 512)
FULL_ROUNDS = 100
CONTROL = "values that would be wrong without waiting"
CONTROL_ROUNDS = 10
"""Rounds of large copies, which take much longer than enqueueing them and what follows."""
GIB = 1 << 30
LAYOUTS = {
    "layer by layer": (0, 1, 3, 2, 4),
    "block by block": (1, 0, 3, 2, 4),
}
"""Orders in memory of layers, blocks, heads, tokens and content (vLLM's LBNHC and BLNHC)."""

cuda: Any = torch.cuda  # partly typed
Layers = dict[str, torch.Tensor]


def kv_cache(blocks: int, order: Sequence[int], device: str, layers: int) -> Layers:
    """Views ``[blocks, heads, tokens, content]`` of one allocation, as vLLM makes them."""
    shape = (layers, blocks, HEADS, TOKENS, CONTENT)
    memory = torch.zeros([shape[axis] for axis in order], dtype=torch.bfloat16, device=device)
    whole = memory.permute([list(order).index(axis) for axis in range(len(shape))])
    return {f"layer{at}": whole[at] for at in range(layers)}


def sent(numbers: Sequence[int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Numbers on the device, without waiting for it."""
    pinned = device.type == "cuda"
    return torch.tensor(numbers, dtype=dtype, pin_memory=pinned).to(device, non_blocking=True)


def fill(layers: Layers, blocks: Sequence[int], values: Sequence[int]) -> None:
    """Write a value, different for each layer, to all of each block; enqueued, not awaited."""
    device = next(iter(layers.values())).device
    rows, numbers = sent(blocks, device, torch.int64), sent(values, device, torch.int16)
    for at, layer in enumerate(layers.values()):
        bits = layer.view(torch.int16)
        filled = (numbers + at)[:, None, None, None].expand(-1, *bits.shape[1:])
        bits.index_copy_(0, rows, filled)


def wrong(layers: Layers, blocks: Sequence[int], values: Sequence[int]) -> torch.Tensor:
    """Number of wrong values in these blocks, on the device."""
    device = next(iter(layers.values())).device
    rows, numbers = sent(blocks, device, torch.int64), sent(values, device, torch.int16)
    count = torch.zeros((), dtype=torch.int64, device=device)
    for at, layer in enumerate(layers.values()):
        expected = (numbers + at)[:, None, None, None]
        count += (layer.view(torch.int16)[rows] != expected).sum()
    return count


def check(
    copies: Any, layers: Layers, blocks: int, slots: int, rounds: int, seed: int, least: int = 1
) -> int:
    """Exchange random blocks as steps of an engine would.

    In each round some blocks are copied out, and written as soon as that is enqueued. Others are
    read back from any slot filled in an earlier round, and compared as soon as they may be: layer
    by layer in every other round. Nothing waits for the GPU between rounds.

    Args:
        copies: What moves them.
        layers: The layers' KV caches by name.
        blocks: Number of blocks in them.
        slots: Number of blocks on the host.
        rounds: Number of rounds.
        seed: What is random depends on it.
        least: Fewest blocks of a copy, at most a quarter of the blocks and half of the slots. The
            first rounds have fewer to read back.

    Returns:
        Number of wrong values.
    """
    dice = random.Random(seed)  # noqa: S311 - nothing secret
    value = 0
    content = [0] * blocks
    fill(layers, range(blocks), content)
    host: dict[int, int] = {}
    faults = []
    most = min(blocks // 4, slots // 2)
    for number in range(rounds):
        count = dice.randint(least, most)
        chosen, into = dice.sample(range(blocks), count), dice.sample(range(slots), count)
        readable = [slot for slot in host if slot not in set(into)]
        copies.copy_out(chosen, into)
        moved = [content[block] for block in chosen]
        fresh = [(value + 37 * at) % 32000 for at in range(count)]
        value = (value + 37 * count + 1) % 32000
        back = dice.sample(readable, min(len(readable), dice.randint(least - 1, most)))
        targets = dice.sample([b for b in range(blocks) if b not in set(chosen)], len(back))
        if back:
            copies.read_back(back, targets)
        fill(layers, chosen, fresh)
        for block, new in zip(chosen, fresh, strict=True):
            content[block] = new
        for slot, block in zip(back, targets, strict=True):
            content[block] = host[slot]
        host.update(zip(into, moved, strict=True))
        expected = [content[block] for block in targets]
        if number % 2:
            for at, (name, layer) in enumerate(layers.items()):
                copies.wait(name)
                if back:
                    faults.append(wrong({name: layer}, targets, [each + at for each in expected]))
            copies.wait()
        else:
            copies.wait()
            if back:
                faults.append(wrong(layers, targets, expected))
    faults.append(wrong(layers, range(blocks), content))
    return int(sum(fault.item() for fault in faults))


def gigabytes_per_second(run: Callable[[], object], size: int, repeats: int) -> float:
    """Median throughput of something that is enqueued, from its start to its end."""
    seconds = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return round(size / statistics.median(seconds[1:]) / 1e9, 2)


def enqueueing_ms(run: Callable[[], object], repeats: int) -> float:
    """Median time in which the CPU has enqueued something, in milliseconds."""
    seconds = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return round(statistics.median(seconds[1:]) * 1e3, 3)


def blocked_ms(run: Callable[[], object], repeats: int) -> float:
    """Median time for which something keeps the current stream from going on, in milliseconds."""
    spent: list[float] = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        spent.append(start.elapsed_time(end))
    return round(statistics.median(spent[1:]), 3)


def pinning(*, quick: bool) -> dict[str, Any]:
    """How long it takes to get pinned memory, up to a quarter of what the host has."""
    size = min(4 if quick else 16, psutil.virtual_memory().available // GIB // 4)
    start = time.perf_counter()
    memory = PinnedRows(size * GIB >> 21, 2 << 20)
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"GiB": size, "pinned": memory.pinned, "s": round(seconds, 2)}
    memory.close()
    print(f"pinned memory: {json.dumps(found)}", flush=True)
    return found


class Hasty(CUDACopies):
    """Does not wait for what is read back: shows that the check would notice."""

    def wait(self, layer: str | None = None) -> None:
        """Wait for nothing."""
        del layer
        self._arriving = []


class Former:
    """The way it was done before: layer by layer, through memory that is not pinned."""

    def __init__(self, layers: Layers, slots: int) -> None:
        self._pairs = [
            (layer, torch.empty((slots, *layer.shape[1:]), dtype=layer.dtype))
            for layer in layers.values()
        ]

    def copy_out(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots."""
        for layer, host in self._pairs:
            taken = layer.index_select(0, torch.tensor(blocks, device=layer.device))
            host.index_copy_(0, torch.tensor(slots), taken.cpu())

    def read_back(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots to blocks."""
        for layer, host in self._pairs:
            kept = host.index_select(0, torch.tensor(slots)).to(layer.device)
            layer.index_copy_(0, torch.tensor(blocks, device=layer.device), kept)

    def wait(self) -> None:
        """Nothing to wait for."""


def ceiling(size: int, repeats: int) -> dict[str, float]:
    """Throughput of one contiguous copy in pinned memory, in GB/s."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    gpu = torch.empty(size, dtype=torch.uint8, device="cuda")
    return {
        "out": gigabytes_per_second(lambda: host.copy_(gpu, non_blocking=True), size, repeats),
        "back": gigabytes_per_second(lambda: gpu.copy_(host, non_blocking=True), size, repeats),
    }


def both_ways(copies: Any, blocks: int, slots: int, repeats: int) -> dict[str, Any]:
    """What an exchange of random blocks costs, by number of blocks."""
    dice = random.Random(0)  # noqa: S311 - nothing secret
    found: dict[str, Any] = {}
    for count in COUNTS:
        chosen, into = dice.sample(range(blocks), count), dice.sample(range(slots), count)
        size = count * LAYERS * HEADS * TOKENS * CONTENT * 2

        def out(chosen: list[int] = chosen, into: list[int] = into) -> None:
            copies.copy_out(chosen, into)

        def back(chosen: list[int] = chosen, into: list[int] = into) -> None:
            copies.read_back(into, chosen)
            copies.wait()

        found[str(count)] = {
            name: {
                "GB/s": gigabytes_per_second(run, size, repeats),
                "enqueued in ms": enqueueing_ms(run, repeats),
                "current stream blocked for ms": blocked_ms(run, repeats),
            }
            for name, run in (("out", out), ("back", back))
        }
        print(f"  {count} blocks: {json.dumps(found[str(count)])}", flush=True)
    return found


def right(result: Mapping[str, Any]) -> bool:
    """Whether a layout's values are right, and its control, on a GPU, has found wrong ones."""
    faults = [count for name, count in result.items() if name.startswith("wrong")]
    return not any(faults) and result.get(CONTROL) != 0


def on_gpu(blocks: int, slots: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Everything, on a GPU."""
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "layouts": {}}
    block = LAYERS * HEADS * TOKENS * CONTENT * 2
    found["pinned memory"] = pinning(quick=rounds < FULL_ROUNDS)
    found["ceiling"] = {str(count): ceiling(count * block, repeats) for count in COUNTS}
    print(f"ceiling: {json.dumps(found['ceiling'])}", flush=True)
    for name, order in LAYOUTS.items():
        layers = kv_cache(blocks, order, "cuda", LAYERS)
        start = time.perf_counter()
        copies = CUDACopies(layers, blocks, slots)
        seconds = time.perf_counter() - start
        result: dict[str, Any] = {
            "pinned GiB": slots * block / GIB,
            "pinned": copies.pinned,
            "made in s": round(seconds, 2),
        }
        found["layouts"][name] = result
        print(f"{name}: {json.dumps(result)}", flush=True)
        result["ours"] = both_ways(copies, blocks, slots, repeats)
        result["wrong values"] = check(copies, layers, blocks, slots, rounds, seed=1)
        small = CUDACopies(layers, blocks, 64, buffer_bytes=4 * block)
        result["wrong values, small buffer"] = check(small, layers, blocks, 64, rounds, seed=2)
        print(f"{name}: {json.dumps(result)}", flush=True)
        small.close()
        hasty = Hasty(layers, blocks, slots)
        result[CONTROL] = check(
            hasty, layers, blocks, slots, CONTROL_ROUNDS, seed=3, least=blocks // 4
        )
        print(f"{name}: {json.dumps(result)}", flush=True)
        hasty.close()
        copies.close()
        if name == next(iter(LAYOUTS)):
            print("former way", flush=True)
            former = Former(layers, slots)
            found["former"] = both_ways(former, blocks, slots, max(1, repeats // 3))
        del layers, copies, small, hasty
        torch.cuda.empty_cache()
    return found


def on_cpu(rounds: int) -> dict[str, Any]:
    """The check alone, with few blocks and layers."""
    found: dict[str, Any] = {"device": "CPU", "layouts": {}}
    for name, order in LAYOUTS.items():
        layers = kv_cache(16, order, "cpu", 4)
        copies = host_copies(layers, 16, 12)
        found["layouts"][name] = {"wrong values": check(copies, layers, 16, 12, rounds, seed=1)}
    return found


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--cpu", action="store_true", help="only check the CPU's copies")
    chosen = parser.parse_args()
    if chosen.cpu:
        found = on_cpu(40)
    else:
        rounds, repeats = (40, 3) if chosen.quick else (FULL_ROUNDS, 10)
        found = on_gpu(2048, 2048, rounds, repeats)
    found["buffer MiB"] = module.BUFFER_BYTES >> 20
    found["right"] = all(map(right, found["layouts"].values()))
    print(json.dumps(found))
    if not found["right"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
