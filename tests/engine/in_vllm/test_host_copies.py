"""Where blocks lie in memory, and how they are moved."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from vllm import _custom_ops

from ragcache_integrations.engine.in_vllm import host_copies as module
from ragcache_integrations.engine.in_vllm.host_copies import (
    CPUCopies,
    CUDACopies,
    InFlight,
    PinnedRows,
    Run,
    addresses,
    block_runs,
    gather,
    grouped,
    host_copies,
    pairs,
    pieces,
    row_bytes,
)
from tests.engine.in_vllm.streams import Gpu

BLOCKS = 6
LAYERS, HEADS, TOKENS, CONTENT = 3, 2, 4, 8
AXES = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": CONTENT}
# The layouts that vLLM knows, in the order of memory.
ORDERS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
PARTS = {"LHBNC": LAYERS * HEADS, "BHLNC": 1, "BLHNC": 1, "BLNHC": 1}
"""Number of pieces that all layers' blocks have; else one per layer."""


def cache(order: str, dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    """Layers as ``[B, H, N, C]`` in one allocation, as vLLM 0.32 makes them."""
    values = torch.arange(LAYERS * BLOCKS * HEADS * TOKENS * CONTENT, dtype=torch.int32)
    memory = values.to(dtype).reshape([AXES[axis] for axis in order])
    whole = memory.permute([order.index(axis) for axis in "LBHNC"])
    return {f"layer{at}": whole[at] for at in range(LAYERS)}


def apart() -> dict[str, torch.Tensor]:
    """Layers in allocations of their own, keys and values before the blocks."""
    shape = (2, BLOCKS, TOKENS, HEADS, CONTENT)
    return {f"layer{at}": torch.rand(shape).to(torch.bfloat16) for at in range(LAYERS)}


def cut() -> dict[str, torch.Tensor]:
    """Blocks cut into two smaller ones each."""
    return {"layer": torch.rand(2 * BLOCKS, HEADS, TOKENS // 2, CONTENT)}


def shared() -> dict[str, torch.Tensor]:
    """The last layer uses the KV cache of the first one."""
    layers = apart()
    return layers | {"last": layers["layer0"]}


def padded() -> dict[str, torch.Tensor]:
    """Blocks with unused bytes after them, which are of an odd size besides."""
    memory = torch.arange(BLOCKS * 40, dtype=torch.int32).to(torch.uint8).reshape(BLOCKS, 40)
    return {"odd": memory[:, 3:34], "even": torch.rand(BLOCKS, 4)}


def strided(*shapes: tuple[int, int, int]) -> dict[str, torch.Tensor]:
    """Layers in one allocation of bytes, by offset, bytes from block to block, and bytes."""
    memory = torch.arange(800, dtype=torch.int32).to(torch.uint8)
    return {
        f"layer{at}": memory.as_strided((BLOCKS, size), (stride, 1), offset)
        for at, (offset, stride, size) in enumerate(shapes)
    }


def two_allocations() -> dict[str, torch.Tensor]:
    """Layers at different offsets in different allocations."""
    return strided((0, 16, 16)) | {"other": strided((104, 16, 16))["layer0"]}


KINDS: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
    **{order: partial(cache, order) for order in ORDERS},
    "apart": apart,
    "cut": cut,
    "shared": shared,
    "padded": padded,
    "uneven": partial(strided, (0, 16, 16), (104, 16, 16), (312, 16, 16), (416, 16, 16)),
    "unequal": partial(strided, (0, 16, 16), (160, 24, 16), (320, 24, 24), (480, 24, 24)),
    "backwards": partial(strided, (320, 16, 16), (160, 16, 16), (0, 16, 16)),
    "two allocations": two_allocations,
    "odd distance": partial(strided, (0, 16, 16), (100, 16, 16), (200, 16, 16)),
}
PAIRS = {"BHLNC": LAYERS, "apart": LAYERS, "shared": LAYERS, "padded": 2, "uneven": 2}
PAIRS |= {"unequal": 3, "backwards": 3, "two allocations": 2}
"""Number of operations that gather blocks; else one."""
IN_BYTES = {"padded", "odd distance"}
"""Where not everything is at whole words."""


def block(layers: dict[str, torch.Tensor], number: int) -> list[torch.Tensor]:
    """A block's content, layer by layer."""
    return [part.clone() for part in parts(layers, number)]


def parts(layers: dict[str, torch.Tensor], number: int) -> list[torch.Tensor]:
    """A block's part of each layer."""
    found = []
    for layer in layers.values():
        at = 1 if layer.shape[0] == 2 else 0
        smaller = layer.shape[at] // BLOCKS
        found.append(layer.narrow(at, number * smaller, smaller))
    return found


def same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_each_byte_of_a_block_is_in_one_piece(kind: str) -> None:
    layers = KINDS[kind]()
    every = pieces(layers.values(), BLOCKS)
    seen: list[int] = []
    for view in every:
        for number, byte in itertools.product(range(BLOCKS), range(view.shape[1])):
            seen.append(view.data_ptr() + number * view.stride(0) + byte)
    assert len(seen) == len(set(seen))
    expected: set[int] = set()
    for layer in layers.values():
        offsets = torch.zeros(layer.shape, dtype=torch.int64)
        for at, (size, stride) in enumerate(zip(layer.shape, layer.stride(), strict=True)):
            shape = [1] * layer.ndim
            shape[at] = size
            offsets += (torch.arange(size) * stride).reshape(shape)
        starts = layer.data_ptr() + offsets.flatten() * layer.element_size()
        expected.update(
            start + byte for start in starts.tolist() for byte in range(layer.element_size())
        )
    assert set(seen) == expected
    assert row_bytes(every) * BLOCKS == len(expected)


@pytest.mark.parametrize("order", ORDERS)
def test_neighbours_are_joined(order: str) -> None:
    layers = cache(order)
    assert len(pieces(layers.values(), BLOCKS)) == PARTS.get(order, LAYERS)


def test_runs_have_the_offsets_of_their_storage() -> None:
    layer = cache("LBNHC")["layer1"]
    size = HEADS * TOKENS * CONTENT * 2
    assert block_runs(layer, BLOCKS) == [Run(BLOCKS * size, size, size)]
    assert block_runs(apart()["layer0"], BLOCKS) == [
        Run(0, size, size),
        Run(BLOCKS * size, size, size),
    ]
    assert block_runs(cut()["layer"], BLOCKS) == [Run(0, 2 * size, 2 * size)]


def test_a_layout_that_is_not_known_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"found no dimension of 6 blocks .*\(4, 5, 3\)"):
        block_runs(torch.zeros(4, 5, 3), BLOCKS)
    with pytest.raises(RuntimeError, match="overlapping"):
        block_runs(torch.zeros(BLOCKS, 1).expand(BLOCKS, 4), BLOCKS)
    with pytest.raises(RuntimeError, match="does not work on meta"):
        host_copies({"layer": torch.zeros(BLOCKS, 4, device="meta")}, BLOCKS, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_return_as_they_left(kind: str) -> None:
    layers = KINDS[kind]()
    copies = host_copies(layers, BLOCKS, 8)
    assert isinstance(copies, CPUCopies)
    before = [block(layers, number) for number in range(BLOCKS)]
    copies.copy_out([4, 1, 2], [0, 7, 3])
    for layer in layers.values():
        layer.zero_()
    copies.read_back([7, 0], [5, 1])
    copies.wait()
    after = [block(layers, number) for number in range(BLOCKS)]
    assert same(after[5], before[1])
    assert same(after[1], before[4])
    for number in (0, 2, 3, 4):
        assert not any(part.any() for part in after[number])


def move(source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor) -> None:
    """What vLLM's operation does on a GPU."""
    for here, there, size in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(there, here, size)


@pytest.mark.parametrize("kind", KINDS)
def test_addresses_lead_from_a_block_to_its_slot_and_back(kind: str) -> None:
    layers = KINDS[kind]()
    group_of = {name: min(at, 1) for at, name in enumerate(layers)}
    groups = grouped(layers, group_of, BLOCKS)
    width = sum(row_bytes(views) for views in groups)
    assert width == row_bytes(pieces(layers.values(), BLOCKS)), "shared layers count once"
    # Out through a buffer of two rows, back from the slots directly.
    buffer = torch.zeros((3, width), dtype=torch.uint8)
    host = np.zeros((8, width), np.uint8)
    before = [block(layers, number) for number in range(BLOCKS)]
    gather(pairs(groups, buffer), torch.tensor([4, 1]))
    move(*addresses([buffer], range(2), host.ctypes.data, [6, 2], width))
    assert not buffer[2].any()
    for layer in layers.values():
        layer.zero_()
    address = host.ctypes.data
    for views in groups:
        there, here, sizes = addresses(views, [0, 3], address, [2, 6], width)
        move(here, there, sizes)
        address += row_bytes(views)
    after = [block(layers, number) for number in range(BLOCKS)]
    assert same(after[0], before[1])
    assert same(after[3], before[4])
    for number in (1, 2, 4, 5):
        assert not any(part.any() for part in after[number])


@pytest.mark.parametrize("kind", KINDS)
def test_evenly_spaced_parts_are_gathered_at_once(kind: str) -> None:
    layers = KINDS[kind]()
    groups = grouped(layers, {name: at for at, name in enumerate(layers)}, BLOCKS)
    rows = torch.zeros((2, sum(row_bytes(views) for views in groups)), dtype=torch.uint8)
    found = pairs(groups, rows)
    assert len(found) == PAIRS.get(kind, 1)
    word = torch.uint8 if kind in IN_BYTES else torch.int64
    assert {each.dtype for pair in found for each in pair} == {word}
    gather(found, torch.tensor([3]))
    expected = [view[3] for views in groups for view in views]
    assert torch.equal(rows[0], torch.cat(expected))
    assert not rows[1].any()


def test_random_exchanges_keep_every_block() -> None:
    for seed in range(20):
        dice = random.Random(seed)
        layers = KINDS[dice.choice(list(KINDS))]()
        slots = dice.randint(1, 5)
        copies = host_copies(layers, BLOCKS, slots)
        held: dict[int, list[torch.Tensor]] = {}
        for _ in range(10):
            count = dice.randint(1, min(slots, BLOCKS))
            chosen, into = dice.sample(range(BLOCKS), count), dice.sample(range(slots), count)
            for number, slot in zip(chosen, into, strict=True):
                held[slot] = block(layers, number)
            copies.copy_out(chosen, into)
            count = dice.randint(1, min(len(held), BLOCKS))
            back, chosen = dice.sample(list(held), count), dice.sample(range(BLOCKS), count)
            copies.read_back(back, chosen)
            for slot, number in zip(back, chosen, strict=True):
                assert same(block(layers, number), held[slot])


# A GPU's copies, on streams that do their work at random later


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    simulated = Gpu(random.Random(request.param))

    def later(pairs: Any, blocks: torch.Tensor) -> None:
        simulated.enqueue(lambda: gather(pairs, blocks))

    monkeypatch.setattr(module, "cuda", simulated)
    monkeypatch.setattr(module, "gather", later)
    monkeypatch.setattr(module, "register", lambda *_: True)
    monkeypatch.setattr(_custom_ops, "swap_blocks_batch", simulated.move)
    return simulated


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gpu", range(6), indirect=True)
def test_no_timing_of_the_streams_mixes_blocks_up(gpu: Gpu, kind: str) -> None:
    steps = Steps(gpu, KINDS[kind]())
    for _ in range(12):
        steps.step()
    gpu.finish()
    assert steps.checked == steps.passes * BLOCKS * len(steps.layers)


class Steps:
    """Enqueues random steps as the engine does. Each pass checks what it finds in every block."""

    def __init__(self, gpu: Gpu, layers: dict[str, torch.Tensor]) -> None:
        self.gpu, self.dice = gpu, gpu.dice
        self.layers = layers
        self.slots = self.dice.randint(2, 8)
        row = row_bytes(pieces(self.layers.values(), BLOCKS))
        buffer = 2 * row * self.dice.randint(1, 3)
        self.copies = CUDACopies(self.layers, BLOCKS, self.slots, buffer_bytes=buffer)
        self.content = [block(self.layers, number) for number in range(BLOCKS)]
        self.host: dict[int, list[torch.Tensor]] = {}
        self.checked = self.passes = 0

    def step(self) -> None:
        count = self.dice.randint(0, min(self.slots, BLOCKS))
        evicted = self.dice.sample(range(BLOCKS), count)
        into = self.dice.sample(range(self.slots), count)
        readable = [slot for slot in self.host if slot not in into]
        back = self.dice.sample(readable, min(len(readable), self.dice.randint(0, BLOCKS)))
        if evicted:
            self.copies.copy_out(evicted, into)
        self.gpu.work(9)
        for number, slot in zip(evicted, into, strict=True):
            self.host[slot] = self.content[number]
        if back:
            self._read_back(back)
        if self.dice.random() < 0.8:  # a step may have no pass
            self._compute()

    def _read_back(self, back: list[int]) -> None:
        targets = self.dice.sample(range(BLOCKS), len(back))
        self.copies.read_back(back, targets)
        self.gpu.work(9)
        for slot, number in zip(back, targets, strict=True):
            self.content[number] = self.host[slot]

    def _compute(self) -> None:
        self.passes += 1
        if self.dice.random() < 0.5:  # the whole pass is a graph
            self.copies.wait()
        for at, name in enumerate(self.layers):
            self.copies.wait(name)
            for number in range(BLOCKS):
                self.gpu.enqueue(partial(self._compare, at, number, self.content[number][at]))
            self.gpu.work(9)
        self.copies.wait()
        for number in self.dice.sample(range(BLOCKS), self.dice.randint(0, BLOCKS)):
            value = self.dice.randint(1, 99)
            self.content[number] = [torch.full_like(part, value) for part in self.content[number]]
            self.gpu.enqueue(partial(self._overwrite, number, self.content[number]))

    def _compare(self, at: int, number: int, expected: torch.Tensor) -> None:
        self.checked += 1
        assert torch.equal(parts(self.layers, number)[at], expected)

    def _overwrite(self, number: int, values: list[torch.Tensor]) -> None:
        for target, value in zip(parts(self.layers, number), values, strict=True):
            target.copy_(value)


class Event:
    """Stands in for CUDA's."""

    def __init__(self, *, ended: bool) -> None:
        self.ended = ended

    def query(self) -> bool:
        return self.ended


def test_a_stream_waits_for_copies_of_its_slots_that_have_not_ended() -> None:
    waited: list[Event] = []
    stream = SimpleNamespace(wait_event=waited.append)
    done, running, other = Event(ended=True), Event(ended=False), Event(ended=False)
    in_flight = InFlight()
    in_flight.add(done, [1, 2], object())
    in_flight.add(running, [2, 3], object())
    in_flight.add(other, [4], object())
    assert not in_flight.hold(stream, [1, 5])
    assert in_flight.hold(stream, [5, 3])
    assert waited == [running]
    running.ended = True
    assert not in_flight.hold(stream, [3])
    assert len(in_flight._copies) == 1, "what has ended is forgotten"


@pytest.fixture
def registrations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Addresses and sizes that were pinned."""
    pinned: list[tuple[int, int]] = []

    def register(address: int, size: int) -> bool:
        pinned.append((address, size))
        return True

    monkeypatch.setattr(module, "register", register)
    return pinned


@pytest.mark.parametrize("width", [48, 4096, 3 * mmap.PAGESIZE, 5000])
def test_pinned_memory_has_no_border_within_a_row(
    width: int, registrations: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGISTERED_BYTES", 1 << 20)
    rows = 3 * (1 << 20) // width + 7
    memory = PinnedRows(rows, width)
    assert memory.pinned
    assert sum(size for _, size in registrations) == rows * width == len(memory.content)
    end = memory.address
    for address, size in registrations:
        assert address == end
        assert address % mmap.PAGESIZE == 0
        assert (address - memory.address) % width == 0
        end = address + size
    assert len(registrations) > 1


def test_memory_that_cannot_be_pinned_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "register", lambda *_: False)
    memory = PinnedRows(3, 5000)
    assert not memory.pinned
    assert "could not be pinned" in caplog.text
    memory.content[:] = 7


def test_memory_that_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    available: Any = SimpleNamespace(available=10_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    with pytest.raises(MemoryError, match="15000 bytes are needed, and the host has 10000"):
        PinnedRows(3, 5000)
