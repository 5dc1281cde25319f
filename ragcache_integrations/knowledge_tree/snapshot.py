"""The knowledge tree to look at: plain data, text, and rich's colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ragcache_integrations.core.extras import require

from .node import Node
from .shares import ShareStats

if TYPE_CHECKING:
    from rich.tree import Tree

__all__ = ["NodeSnapshot", "TreeSnapshot", "snapshot_children"]

Place = Literal["in use", "gpu", "host", "none", "shared"]

SHOWN_CHILDREN = 12
"""How many of a node's children are drawn, the most asked for first."""
SHOWN_DEPTH = 100
"""Documents on a path that a snapshot holds: it travels, and is read, level within level."""

_STYLES: dict[Place, str] = {
    "in use": "bold green",
    "gpu": "green",
    "host": "yellow",
    "none": "dim",
    "shared": "dim",
}


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One document after one path.

    Attributes:
        name: The document's id; the namespace for the text before the first document.
        tokens: Length of the document and of the text between it and the one before.
        place: Where its KV cache is: ``in use`` by a request (in the GPU), in the ``gpu``, on the
            ``host`` or nowhere (``none``); ``shared`` where it is shorter than a block, and lies in
            one with what comes after it. If its layers see different parts of the prompt, it is in
            the GPU only while all of its blocks are.
        blocks: Blocks that belong to it, of all layers that have blocks of their own.
        gpu_blocks: Those of them that are in the GPU and that no request uses now.
        host_blocks: Those of them of which the host has a copy.
        frequency: Times it was asked for.
        average_cost: Prefill seconds per computed token, over the requests that missed it.
        gpu_priority, host_priority: The lowest leaf goes first.
        pinned: Whether it stays in the GPU under any load.
        pinned_seconds: For how long; ``None`` without an end, or if it is not pinned.
        children: Nodes of what came after it.
        deeper: How many nodes are below it that the snapshot leaves out: those after the hundredth
            document of a path.
    """

    name: str
    tokens: int
    place: Place
    blocks: int
    gpu_blocks: int
    host_blocks: int
    frequency: int
    average_cost: float
    gpu_priority: float
    host_priority: float
    pinned: bool = False
    pinned_seconds: float | None = None
    children: tuple[NodeSnapshot, ...] = ()
    deeper: int = 0

    def line(self, *, root: bool = False) -> str:
        """The node in one line."""
        name = (f"[{self.name}]" if self.name else "beginning") if root else self.name
        return (
            f"{name}: {self.place}, {self.tokens} tokens, asked for {self.frequency} times, "
            f"priority {self.gpu_priority:.4g}{', pinned' if self.pinned else ''}"
        )


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The whole tree at one moment. ``print`` it, or ``rich.print`` it.

    Attributes:
        policy: The replacement policy.
        block_size: Tokens per block.
        gpu_clock, host_clock: The tiers' logical clocks.
        roots: The texts before the first document, one for each tenant and beginning.
        shares: Of tenants with quotas, and of all others together; empty without quotas.
    """

    policy: str
    block_size: int
    gpu_clock: float
    host_clock: float
    roots: tuple[NodeSnapshot, ...] = field(default=())
    shares: tuple[ShareStats, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON takes it."""
        return asdict(self)

    def nodes(self) -> Iterator[NodeSnapshot]:
        """Every node of the snapshot, parents first."""
        waiting = list(self.roots)
        while waiting:
            node = waiting.pop(0)
            yield node
            waiting += node.children

    @property
    def title(self) -> str:
        """One line about the whole."""
        count = sum(1 + node.deeper for node in self.nodes())
        return (
            f"knowledge tree: {self.policy}, {count} nodes, "
            f"clocks {self.gpu_clock:.4g} (GPU) and {self.host_clock:.4g} (host)"
        )

    def __str__(self) -> str:
        lines = [self.title]

        def draw(children: tuple[NodeSnapshot, ...], indent: str, deeper: int = 0) -> None:
            drawn = _drawn(children, deeper, root=not indent)
            for number, (text, child) in enumerate(drawn):
                last = number == len(drawn) - 1
                lines.append(f"{indent}{'└── ' if last else '├── '}{text}")
                if child is not None:
                    draw(child.children, indent + ("    " if last else "│   "), child.deeper)

        draw(self.roots, "")
        return "\n".join(lines)

    def __rich__(self) -> Tree:
        require("rich", feature="Drawing the tree in colours", package="rich")
        from rich.text import Text  # noqa: PLC0415 - an extra
        from rich.tree import Tree  # noqa: PLC0415 - an extra

        def draw(onto: Tree, drawn: Sequence[_Drawn]) -> None:
            for text, child in drawn:
                if child is None:
                    onto.add(Text(text, style="dim"))
                else:
                    branch = onto.add(Text(text, style=_STYLES[child.place]))
                    draw(branch, _drawn(child.children, child.deeper))

        tree = Tree(Text(self.title, style="bold"))
        draw(tree, _drawn(self.roots, root=True))
        return tree


def snapshot_children(
    node: Node,
    size: Callable[[int], int],
    pinned: Mapping[Node, float],
    depth: int = SHOWN_DEPTH,
) -> tuple[NodeSnapshot, ...]:
    """What is below a node, down to a number of levels.

    Args:
        node: The node.
        size: Blocks of all groups that are kept of a document with a number of keys.
        pinned: Seconds for which pinned nodes stay so.
        depth: How many levels.
    """
    return tuple(_snapshot(child, size, pinned, depth) for child in node.children.values())


def _snapshot(
    node: Node, size: Callable[[int], int], pinned: Mapping[Node, float], depth: int
) -> NodeSnapshot:
    blocks = size(len(node.keys))
    return NodeSnapshot(
        name=node.name,
        tokens=node.tokens,
        place=_place(node, blocks),
        blocks=blocks,
        gpu_blocks=len(node.gpu.idle) + len(node.gpu.busy),
        host_blocks=len(node.host.idle) + len(node.host.busy),
        frequency=node.frequency,
        average_cost=node.average_cost,
        gpu_priority=node.gpu.priority,
        host_priority=node.host.priority,
        pinned=node.pins > 0,
        pinned_seconds=left if (left := pinned.get(node, math.inf)) < math.inf else None,
        children=snapshot_children(node, size, pinned, depth - 1) if depth else (),
        deeper=0 if depth else _nodes_below(node),
    )


def _nodes_below(node: Node) -> int:
    count, waiting = 0, [node]
    while waiting:
        children = waiting.pop().children.values()
        count += len(children)
        waiting += children
    return count


def _place(node: Node, blocks: int) -> Place:
    if not node.keys:
        return "shared"
    if node.running:
        return "in use"
    # A prefix of blocks is of use, but not without what all layers need at its end.
    least = 1 if blocks == len(node.keys) else blocks
    if len(node.gpu.idle) + len(node.gpu.busy) >= least:
        return "gpu"
    return "none" if node.host.empty else "host"


_Drawn = tuple[str, NodeSnapshot | None]


def _drawn(
    children: tuple[NodeSnapshot, ...], deeper: int = 0, *, root: bool = False
) -> list[_Drawn]:
    """The lines below a node: the children most asked for, and how many nodes are left out."""
    ranked = sorted(children, key=lambda child: child.frequency, reverse=True)
    drawn: list[_Drawn] = [(child.line(root=root), child) for child in ranked[:SHOWN_CHILDREN]]
    if deeper:
        drawn.append((f"and {deeper} more below", None))
    if len(ranked) > SHOWN_CHILDREN:
        drawn.append((f"and {len(ranked) - SHOWN_CHILDREN} more", None))
    return drawn
