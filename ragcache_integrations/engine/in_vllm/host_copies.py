"""Copies blocks between vLLM's KV cache and a pool of slots in the host's memory.

A slot holds all layers of a block in a row, so that a block is one piece of memory on the host,
however vLLM lays it out. On a GPU the copies run on streams of their own, and the CPU never waits:

- Blocks on their way out are gathered into a small buffer by the compute stream, in order with the
  passes that computed them and will overwrite them, and leave the buffer while the pass runs.
- Blocks on their way back are read as soon as all earlier passes have ended. The pass that needs
  them waits, for each layer as it comes to it if it can and otherwise for all.
- A slot that is still being written is read only afterwards, and the other way round.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import mmap
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch
from vllm import _custom_ops

__all__ = [
    "CPUCopies",
    "CUDACopies",
    "HostCopies",
    "Run",
    "addresses",
    "block_runs",
    "host_copies",
    "pieces",
]

logger = logging.getLogger(__name__)
cuda: Any = torch.cuda  # partly typed

BUFFER_BYTES = 256 << 20
"""Size of the buffer in the GPU's memory that blocks leave through."""
LAYER_GROUPS = 4
"""Number of groups of layers that are read back, and waited for, one after the other."""
WORD = 8
TOUCHED_BYTES = 256 << 20
"""Bytes that a thread has the system provide at a time."""
REGISTERED_BYTES = 64 << 30
"""Most bytes that are pinned in one call; drivers have limits."""


@dataclass(frozen=True)
class Run:
    """A part of every block that is contiguous in memory.

    Attributes:
        start: Offset of the first block's part in its storage, in bytes.
        stride: Bytes from one block to the next.
        size: Bytes of the part.
    """

    start: int
    stride: int
    size: int

    def view(self, layer: torch.Tensor, blocks: int) -> torch.Tensor:
        """This part of all blocks as a matrix of bytes with one row per block.

        Args:
            layer: Any tensor in the storage.
            blocks: Number of blocks.
        """
        return torch.empty(0, dtype=torch.uint8, device=layer.device).set_(
            layer.untyped_storage(), self.start, (blocks, self.size), (self.stride, 1)
        )


def block_runs(layer: torch.Tensor, blocks: int) -> list[Run]:
    """Where the bytes of a layer's blocks are.

    Args:
        layer: The layer's KV cache. Blocks are counted by its first dimension or, if keys and
            values come before it, by its second; backends may cut blocks into several smaller ones.
        blocks: Number of blocks.

    Raises:
        RuntimeError: No dimension counts the blocks, or parts of a block share memory.
    """
    for dimension in (0, 1):
        if layer.ndim > dimension and layer.shape[dimension] % blocks == 0:
            break
    else:
        msg = f"found no dimension of {blocks} blocks in a KV cache of shape {tuple(layer.shape)}"
        raise RuntimeError(msg)
    smaller = layer.shape[dimension] // blocks
    inside = [(smaller, layer.stride(dimension))] + [
        (size, stride)
        for at, (size, stride) in enumerate(zip(layer.shape, layer.stride(), strict=True))
        if at != dimension
    ]
    length, outside = 1, []
    for size, stride in sorted(inside, key=lambda each: each[1]):
        if size == 1:
            continue
        if stride == length:
            length *= size
        elif stride > length:
            outside.append([at * stride for at in range(size)])
        else:
            raise RuntimeError(f"a KV cache of strides {layer.stride()} has overlapping parts")
    width = layer.element_size()
    return [
        Run(
            (int(layer.storage_offset()) + sum(offsets)) * width,
            layer.stride(dimension) * smaller * width,
            length * width,
        )
        for offsets in sorted(itertools.product(*outside), key=sum)
    ]


def pieces(layers: Iterable[torch.Tensor], blocks: int) -> list[torch.Tensor]:
    """All bytes of some layers' blocks, as few matrices of bytes with one row per block.

    Layers that share a KV cache count once, and neighbours in memory are joined.
    """
    layer_of: dict[tuple[int, Run], torch.Tensor] = {}
    for layer in layers:
        for run in block_runs(layer, blocks):
            layer_of[layer.untyped_storage().data_ptr(), run] = layer
    joined: list[tuple[int, Run, torch.Tensor]] = []
    for (storage, run), layer in sorted(
        layer_of.items(), key=lambda each: (each[0][0], each[0][1].start)
    ):
        if joined:
            last_storage, last, _ = joined[-1]
            if (last_storage, last.stride, last.start + last.size) == (
                storage,
                run.stride,
                run.start,
            ):
                joined[-1] = (storage, Run(last.start, last.stride, last.size + run.size), layer)
                continue
        joined.append((storage, run, layer))
    return [run.view(layer, blocks) for _, run, layer in joined]


def row_bytes(views: Iterable[torch.Tensor]) -> int:
    """Bytes of a block in all these matrices together."""
    return sum(view.shape[1] for view in views)


def in_words(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of bytes as tensors of words of eight bytes, which take less time, if possible."""
    whole = all(
        number % WORD == 0
        for tensor in tensors
        for number in (tensor.storage_offset(), *tensor.stride()[:-1], tensor.shape[-1])
    )
    return tuple(tensor.view(torch.int64) for tensor in tensors) if whole else tensors


def addresses(
    views: Sequence[torch.Tensor], blocks: Sequence[int], row: int, slots: Sequence[int], width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Addresses of blocks and of their parts in rows elsewhere, and the parts' sizes in bytes.

    Args:
        views: The blocks' parts, as :func:`pieces` has them.
        blocks: Rows of ``views``.
        row: Address of the first row elsewhere, where the parts lie one after the other.
        slots: Rows elsewhere, one per block.
        width: Bytes from one row elsewhere to the next.
    """
    shapes = [(view.data_ptr(), view.stride(0), view.shape[1]) for view in views]
    starts, strides, sizes = np.array(shapes, np.int64).reshape(-1, 3).T
    here = starts + np.array(blocks, np.int64)[:, None] * strides
    there = row + np.array(slots, np.int64)[:, None] * width + (np.cumsum(sizes) - sizes)
    return (
        torch.from_numpy(here.ravel()),
        torch.from_numpy(there.ravel()),
        torch.from_numpy(np.tile(sizes, len(blocks))),
    )


def grouped(
    layers: Mapping[str, torch.Tensor], group_of: Mapping[str, int], blocks: int
) -> list[list[torch.Tensor]]:
    """The blocks' parts, as :func:`pieces` has them, of each group of layers.

    A layer that shares the KV cache of another one counts in the first one's group. As groups are
    read back in this order, it is there when the second one's group is.
    """
    members: list[list[torch.Tensor]] = [[] for _ in range(max(group_of.values()) + 1)]
    known: set[int] = set()
    for name, layer in layers.items():
        if layer.data_ptr() not in known:
            known.add(layer.data_ptr())
            members[group_of[name]].append(layer)
    return [pieces(group, blocks) for group in members]


def stacked(parts: torch.Tensor, view: torch.Tensor) -> torch.Tensor | None:
    """Parts of blocks, ``[parts, blocks, bytes]``, and one more that follows at the same distance.

    Returns:
        All of them, or ``None`` where no tensor can have them all.
    """
    count = len(parts)
    distance = view.storage_offset() - parts.storage_offset()
    alike = (
        view.untyped_storage().data_ptr() == parts.untyped_storage().data_ptr()
        and view.shape == parts.shape[1:]
        and view.stride() == parts.stride()[1:]
    )
    if not alike or distance <= 0 or (count > 1 and distance != count * parts.stride(0)):
        return None
    return parts.as_strided((count + 1, *view.shape), (distance // count, *view.stride()))


def pairs(
    groups: Iterable[Sequence[torch.Tensor]], rows: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Where blocks are, and where rows hold them with their parts one after the other.

    Parts that are evenly spaced in memory, as vLLM's layers mostly are, share a pair.

    Args:
        groups: The blocks' parts.
        rows: Matrix of bytes.

    Returns:
        Pairs of tensors whose last dimension but one counts blocks and rows.
    """
    sources: list[torch.Tensor] = []
    for view in itertools.chain.from_iterable(groups):
        longer = stacked(sources[-1], view) if sources else None
        if longer is None:
            sources.append(view[None])
        else:
            sources[-1] = longer
    sizes = [len(source) * source.shape[-1] for source in sources]
    targets = [
        columns.view(len(rows), len(source), -1).transpose(0, 1)
        for columns, source in zip(rows.split_with_sizes(sizes, 1), sources, strict=True)
    ]
    words = (in_words(*pair) for pair in zip(sources, targets, strict=True))
    return [(source.squeeze(0), target.squeeze(0)) for source, target in words]


def gather(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], blocks: torch.Tensor) -> None:
    """Copy blocks to the first rows.

    Args:
        pairs: Where blocks are, and where rows hold them.
        blocks: Numbers of the blocks, no more than there are rows.
    """
    for source, target in pairs:
        torch.index_select(source, -2, blocks, out=target.narrow(-2, 0, len(blocks)))


class CPUCopies:
    """Copies where the "GPU" is the CPU.

    NumPy copies: torch would wake all its threads for every layer, and take many times as long.

    Args:
        layers: The layers' KV caches by name.
        blocks: Number of blocks in them.
        slots: Number of blocks on the host.
    """

    def __init__(self, layers: Mapping[str, torch.Tensor], blocks: int, slots: int) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        for view in pieces(layers.values(), blocks):
            there, here = in_words(view, torch.empty((slots, view.shape[1]), dtype=torch.uint8))
            self._parts.append((there.numpy(), here.numpy()))

    def copy_out(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy blocks to slots."""
        for there, here in self._parts:
            here[list(slots)] = there[list(blocks)]

    def read_back(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots to blocks."""
        for there, here in self._parts:
            there[list(blocks)] = here[list(slots)]

    def wait(self, layer: str | None = None) -> None:
        """Nothing to wait for: every copy has ended."""

    def close(self) -> None:
        """Free the host's memory."""
        self._parts = []


@dataclass(frozen=True)
class Half:
    """A half of the buffer that blocks leave through.

    Attributes:
        rows: Bytes of a block per row.
        pairs: Where blocks are, and where the rows hold them.
        emptied: The event after which the rows can be filled again.
    """

    rows: torch.Tensor
    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    emptied: Any


class CUDACopies:
    """Copies of a GPU's blocks, enqueued on streams of their own.

    vLLM's operation moves the bytes: one call of the driver for any number of pieces. What it is
    given must live until the copies have ended, so :class:`InFlight` keeps it.

    Args:
        layers: The layers' KV caches by name, in the order in which they are computed.
        blocks: Number of blocks in them.
        slots: Number of blocks on the host.
        buffer_bytes: Greatest size of the buffer on the GPU; it holds at least two blocks.
    """

    def __init__(
        self,
        layers: Mapping[str, torch.Tensor],
        blocks: int,
        slots: int,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._move: Any = _custom_ops.swap_blocks_batch
        self._device = next(iter(layers.values())).device
        size = math.ceil(len(layers) / LAYER_GROUPS)
        self._group_of = {name: at // size for at, name in enumerate(layers)}
        self._groups = grouped(layers, self._group_of, blocks)
        self._row = sum(row_bytes(views) for views in self._groups)
        # Two halves, so that one is filled while the other leaves.
        self._staged = max(1, min(buffer_bytes // (2 * self._row), blocks))
        self._halves = deque(self._half() for _ in range(2))
        self._pool = PinnedRows(slots, self._row)
        self._out_stream = cuda.Stream(self._device)
        self._back_stream = cuda.Stream(self._device)
        self._out = InFlight()
        self._back = InFlight()
        self._arriving: list[Any] = []

    @property
    def pinned(self) -> bool:
        """Whether the host's memory could be pinned."""
        return self._pool.pinned

    def _half(self) -> Half:
        rows = torch.empty((self._staged, self._row), dtype=torch.uint8, device=self._device)
        return Half(rows, pairs(self._groups, rows), cuda.Event())

    def copy_out(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Enqueue copying blocks to slots; what is enqueued afterwards may overwrite the blocks."""
        self.wait()
        for start in range(0, len(blocks), self._staged):
            part = slice(start, start + self._staged)
            self._copy_part(blocks[part], slots[part])

    def _copy_part(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Enqueue copying as many blocks as a half of the buffer holds."""
        self._halves.rotate()
        half = self._halves[0]
        compute, stream = cuda.current_stream(self._device), self._out_stream
        compute.wait_event(half.emptied)
        self._fill(half, blocks)
        # By now the compute stream waits for everything that was read back, so that these copies
        # come after those that read the same slots before.
        stream.wait_stream(compute)
        pieces = addresses([half.rows], range(len(blocks)), self._pool.address, slots, self._row)
        with cuda.stream(stream):
            self._move(*pieces)
            half.emptied.record(stream)
        self._out.add(stream.record_event(), slots, pieces)

    def _fill(self, half: Half, blocks: Sequence[int]) -> None:
        """Copy blocks to the first rows of a half of the buffer, on the current stream."""
        pinned = torch.tensor(blocks, pin_memory=self._device.type == "cuda")
        gather(half.pairs, pinned.to(self._device, non_blocking=True))

    def read_back(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Enqueue copying slots to blocks, by groups of layers; ``wait`` before reading."""
        self.wait()
        compute, stream = cuda.current_stream(self._device), self._back_stream
        stream.wait_stream(compute)  # for the former users of the blocks
        # Out of the stream's order, the driver may read a slot before it has been written.
        any_order = not self._out.hold(stream, slots)
        address, kept = self._pool.address, []
        try:
            for views in self._groups:
                there, here, sizes = addresses(views, blocks, address, slots, self._row)
                kept.append((there, here, sizes))
                with cuda.stream(stream):
                    self._move(here, there, sizes, is_src_access_order_any=any_order)
                self._arriving.append(stream.record_event())
                address += row_bytes(views)
        except Exception:
            # vLLM is about to give the blocks to others, and some copies may be on their way.
            compute.wait_stream(stream)
            self._arriving = []
            raise
        finally:
            self._back.add(stream.record_event(), (), kept)

    def wait(self, layer: str | None = None) -> None:
        """Make the current stream wait for blocks that are read back.

        Args:
            layer: The layer whose blocks are needed; ``None`` for all layers.
        """
        if not self._arriving:
            return
        compute = cuda.current_stream(self._device)
        group = self._group_of.get(layer) if layer is not None else None
        if group is not None:
            compute.wait_event(self._arriving[group])
        else:
            compute.wait_event(self._arriving[-1])
            self._arriving = []

    def close(self) -> None:
        """Wait for all copies and free the host's memory."""
        with contextlib.suppress(RuntimeError):  # an error of the GPU's, raised elsewhere before
            self._out_stream.synchronize()
            self._back_stream.synchronize()
        self._pool.close()


HostCopies = CPUCopies | CUDACopies
"""Moves blocks between the KV cache and the host's slots."""


def host_copies(layers: Mapping[str, torch.Tensor], blocks: int, slots: int) -> HostCopies:
    """What moves the blocks of these layers.

    Args:
        layers: The layers' KV caches by name.
        blocks: Number of blocks in them.
        slots: Number of blocks on the host.

    Raises:
        RuntimeError: There is not enough memory, the layout is not known, or the device.
        MemoryError: There is not enough memory.
    """
    device = next(iter(layers.values())).device
    if device.type == "cpu":
        return CPUCopies(layers, blocks, slots)
    if device.type == "cuda":
        return CUDACopies(layers, blocks, slots)
    raise RuntimeError(f"the host tier does not work on {device.type}")


class InFlight:
    """Copies of one direction that may not have ended."""

    def __init__(self) -> None:
        self._copies: deque[tuple[Any, frozenset[int], object]] = deque()

    def add(self, ended: Any, slots: Iterable[int], kept: object) -> None:
        """Remember a copy.

        Args:
            ended: The event after it.
            slots: The slots that it reads or writes.
            kept: What must live until it has ended.
        """
        self._forget()
        self._copies.append((ended, frozenset(slots), kept))

    def hold(self, stream: Any, slots: Sequence[int]) -> bool:
        """Make a stream wait for the copies of these slots.

        Returns:
            Whether there are any that have not ended.
        """
        self._forget()
        events = [ended for ended, used, _ in self._copies if not used.isdisjoint(slots)]
        for ended in events:
            stream.wait_event(ended)
        return bool(events)

    def _forget(self) -> None:
        while self._copies and self._copies[0][0].query():
            self._copies.popleft()


class PinnedRows:
    """Pinned memory on the host, no larger than it has to be.

    torch's own allocator of pinned memory rounds up to powers of two.

    Args:
        rows: Number of rows.
        width: Bytes per row.

    Raises:
        MemoryError: The host does not have so much memory.
    """

    def __init__(self, rows: int, width: int) -> None:
        size = rows * width
        available = psutil.virtual_memory().available
        if size > available:
            raise MemoryError(f"{size} bytes are needed, and the host has {available}")
        begun = time.monotonic()
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)  # a copy of a pinned page would go unnoticed
        with contextlib.suppress(OSError):  # kernels without them
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.content: np.ndarray = np.frombuffer(self._memory, np.uint8)
        self.address: int = self.content.ctypes.data
        touch(self.content)
        # No copy may cross a border between two registrations, and these begin at pages.
        least = mmap.PAGESIZE // math.gcd(width, mmap.PAGESIZE)
        step = max(1, REGISTERED_BYTES // (width * least)) * width * least
        self._registered: list[int] = []
        for start in range(0, size, step):
            if not register(self.address + start, min(step, size - start)):
                logger.warning("the host tier's memory could not be pinned: copies are slower")
                self.close()
                break
            self._registered.append(self.address + start)
        seconds = time.monotonic() - begun
        logger.info("the host tier has %.1f GiB, made in %.1f s", size / (1 << 30), seconds)

    @property
    def pinned(self) -> bool:
        """Whether the memory could be pinned."""
        return bool(self._registered)

    def close(self) -> None:
        """Let the memory be paged again."""
        for address in self._registered:
            cuda.cudart().cudaHostUnregister(address)
        self._registered = []


def touch(memory: np.ndarray) -> None:
    """Have the system provide memory, with several threads because that takes long."""

    def fill(start: int) -> None:
        memory[start : start + TOUCHED_BYTES : mmap.PAGESIZE] = 0

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        list(threads.map(fill, range(0, len(memory), TOUCHED_BYTES)))


def register(address: int, size: int) -> bool:
    """Pin memory on the host; whether that worked."""
    try:
        from vllm.v1.kv_offload.cpu.host_register import host_register  # noqa: PLC0415 - not in older ones
    except ImportError:  # older versions
        if cuda.cudart().cudaHostRegister(address, size, 0).value == 0:
            return True
        with contextlib.suppress(RuntimeError):  # or the next kernel would raise the error
            torch.zeros(1, device="cuda")
        return False
    return bool(host_register(address, size))
