"""Draws the rooms of the packages from their imports, and lists what each is for.

Writes ``docs/map.svg`` and the list in ``docs/contributing.md``. With ``--check`` it only says
whether they are up to date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import mean

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ragcache_integrations"
OTHERS = {
    path.name: path
    for path in (ROOT / "modular" / "ragcache_modular", ROOT / "workbench" / "ragcache_workbench")
}
"""Other distributions: each is one room of the drawing."""
DRAWING = ROOT / "docs" / "map.svg"
PAGE = ROOT / "docs" / "contributing.md"
BEGIN, END = "<!-- from here: tools/map.py -->", "<!-- to here: tools/map.py -->"

BOX_HEIGHT, ROW_HEIGHT, GAP, LETTER = 30, 62, 22, 8.2  # pixels; a letter is that wide
SWEEPS = 8  # of ordering each row by its neighbours, down and up

STYLE = """
rect { fill: #f3f5f9; stroke: #7285a5; }
text { fill: #1c2430; font: 14px ui-monospace, Menlo, Consolas, monospace; text-anchor: middle; }
path { fill: none; stroke: #7285a5; stroke-width: 1.3; marker-end: url(#tip); }
marker path { fill: #7285a5; stroke: none; marker-end: none; }
@media (prefers-color-scheme: dark) {
  rect { fill: #242b36; stroke: #8b9dbd; }
  text { fill: #e8ecf2; }
  path { stroke: #8b9dbd; }
  marker path { fill: #8b9dbd; }
}
"""

SVG = """<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>Which room of ragcache_integrations imports which</title>
<style>{style}</style>
<defs>
<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">
<path d="M0,0 L8,4 L0,8 z"/>
</marker>
</defs>
{shapes}
</svg>
"""

Edges = Mapping[str, AbstractSet[str]]
Node = tuple[str, int]
"""A room in its row, or an arrow (named ``upper>lower``) that passes through a row."""


def room_imports() -> dict[str, set[str]]:
    """For each room, the rooms that it imports."""
    graph = grimp.build_graph(PACKAGE.name, *OTHERS, cache_dir=None)
    rooms: dict[str, set[str]] = {}
    for module in graph.modules - {PACKAGE.name}:
        room = room_of(module)
        targets = graph.find_modules_directly_imported_by(module) - {PACKAGE.name}
        imported = set(map(room_of, targets)) - {room}
        if room not in OTHERS and imported & OTHERS.keys():
            continue  # a module's earlier name
        rooms.setdefault(room, set()).update(imported)
    public = {room for room in rooms if not room.startswith("_")}
    return {room: rooms[room] & public for room in public}


def room_of(module: str) -> str:
    """The room that a module belongs to."""
    package, *inner = module.split(".")
    return package if package in OTHERS else inner[0]


def without_detours(edges: Edges) -> dict[str, set[str]]:
    """The transitive reduction: no arrow where a longer way already leads."""

    @cache
    def below(room: str) -> frozenset[str]:
        return frozenset(edges[room]).union(*(below(target) for target in edges[room]))

    return {
        room: {
            target
            for target in targets
            if not any(target in below(other) for other in targets if other != target)
        }
        for room, targets in edges.items()
    }


def ranks(edges: Edges) -> dict[str, int]:
    """Each room's row from the bottom: one above the highest room that it imports."""

    @cache
    def rank(room: str) -> int:
        return 1 + max(map(rank, edges[room]), default=-1)

    return {room: rank(room) for room in edges}


def links(edges: Edges, rank: Mapping[str, int]) -> Iterator[list[Node]]:
    """The ways of the arrows: the room above, the rows that it passes, the room below."""
    for room in sorted(edges):
        for target in sorted(edges[room]):
            passed = range(rank[room] - 1, rank[target], -1)
            yield [
                (room, rank[room]),
                *((f"{room}>{target}", row) for row in passed),
                (target, rank[target]),
            ]


def width(node: Node) -> float:
    """Pixels that a box takes, or an arrow that passes."""
    name = node[0]
    return 6 if ">" in name else LETTER * len(name) + 24


def place(ways: list[list[Node]], rank: Mapping[str, int]) -> dict[Node, float]:
    """The middle of each node, such that arrows cross little: rows are sorted by neighbours."""
    nodes = {*rank.items(), *(node for way in ways for node in way)}
    neighbours: dict[Node, dict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))
    for way in ways:
        for upper, lower in pairwise(way):
            neighbours[upper][-1].append(lower)
            neighbours[lower][1].append(upper)
    rows = [sorted(n for n in nodes if n[1] == row) for row in range(max(rank.values()) + 1)]
    middles: dict[Node, float] = {}
    for row in rows:
        spread(row, middles)
    for sweep in range(SWEEPS):
        for row in rows[::-1] if sweep % 2 == 0 else rows:
            side = 1 if sweep % 2 == 0 else -1
            row.sort(key=lambda node: (wish(neighbours[node][side], middles, node), node))
            spread(row, middles)
    return middles


def wish(near: list[Node], middles: Mapping[Node, float], node: Node) -> float:
    """Where a node would like to be: in the middle of its neighbours (the barycentre)."""
    return mean(middles[other] for other in near) if near else middles[node]


def spread(row: list[Node], middles: dict[Node, float]) -> None:
    """Put the nodes of a row side by side, centred at 0."""
    left = -(sum(map(width, row)) + GAP * (len(row) - 1)) / 2
    for node in row:
        middles[node] = left + width(node) / 2
        left += width(node) + GAP


def draw(edges: Edges) -> str:
    """The drawing as SVG; it follows the reader's light or dark scheme."""
    rank = ranks(edges)
    ways = list(links(without_detours(edges), rank))
    middles = place(ways, rank)
    half = max(abs(middle) + width(node) / 2 for node, middle in middles.items()) + 4
    top = max(rank.values())

    def y(row: int) -> float:
        return 4 + (top - row) * ROW_HEIGHT

    shapes = [curve([(half + middles[node], y(node[1])) for node in way]) for way in ways]
    shapes += [box(room, half + middles[room, row], y(row)) for room, row in sorted(rank.items())]
    size = f'viewBox="0 0 {2 * half:.0f} {y(0) + BOX_HEIGHT + 4}" width="{2 * half:.0f}"'
    return SVG.format(size=size, style=STYLE, shapes="\n".join(shapes))


def box(room: str, x: float, top: float) -> str:
    """A room as a rectangle with its name; ``x`` is its middle."""
    wide = width((room, 0))
    return (
        f'<rect x="{x - wide / 2:.0f}" y="{top}" width="{wide:.0f}" height="{BOX_HEIGHT}" rx="6"/>'
        f'<text x="{x:.0f}" y="{top + 20}">{escape(room)}</text>'
    )


def curve(points: list[tuple[float, float]]) -> str:
    """An arrow from the bottom of the first box through the rows that it passes."""
    (x, y), *rest = points
    y += BOX_HEIGHT
    steps = [f"M{x:.0f},{y:.0f}"]
    for number, (next_x, next_y) in enumerate(rest, 1):
        bend = (next_y - y) / 2
        steps.append(
            f"C{x:.0f},{y + bend:.0f} {next_x:.0f},{next_y - bend:.0f} {next_x:.0f},{next_y:.0f}"
        )
        x, y = next_x, next_y
        if number < len(rest):  # straight through the row
            y += BOX_HEIGHT
            steps.append(f"L{x:.0f},{y:.0f}")
    return f'<path d="{" ".join(steps)}"/>'


def purpose(path: Path) -> str:
    """The first sentence of a module's docstring, as plain text."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.sub(r":\w+:|`+", "", re.split(r"(?<=\.)\s", first)[0])


def listing(rank: Mapping[str, int]) -> str:
    """The rooms from the top down, each with its sub-rooms, and what each is for."""
    lines = ["```text"]
    for room in sorted(rank, key=lambda room: (-rank[room], room)):
        folder = OTHERS.get(room, PACKAGE / room)
        if not folder.is_dir():
            lines.append(entry(room + ".py", purpose(folder.with_suffix(".py")), 0))
            continue
        lines.append(entry(room + "/", purpose(folder / "__init__.py"), 0))
        inner = sorted(path.parent for path in folder.rglob("__init__.py"))
        lines += [
            entry(
                f"{path.name}/", purpose(path / "__init__.py"), len(path.relative_to(folder).parts)
            )
            for path in inner
            if path != folder
        ]
    return "\n".join([*lines, "```"])


def entry(name: str, meaning: str, depth: int) -> str:
    """One line of the list."""
    return f"{'  ' * depth + name:<22}{meaning}".rstrip()


def page(listed: str) -> str:
    """``docs/contributing.md`` with the list between its two marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{listed}\n{END}{after}"


def texts() -> dict[Path, str]:
    """What the two files hold when they are up to date."""
    edges = room_imports()
    return {DRAWING: draw(edges), PAGE: page(listing(ranks(edges)))}


def main() -> int:
    """Write both files, or check them; the exit status."""
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in texts().items() if path.read_text("utf-8") != text]
        for path in stale:
            print(f"{path.name} is not up to date: python tools/map.py")
        return 1 if stale else 0
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
