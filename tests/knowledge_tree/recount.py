"""The knowledge tree's books, counted again from scratch."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from ragcache_integrations.knowledge_tree import KnowledgeTree
from ragcache_integrations.knowledge_tree import tier as tier_module
from ragcache_integrations.knowledge_tree.node import Key, Node, Path, Shelf
from ragcache_integrations.knowledge_tree.popularity import FIRST, NEVER
from ragcache_integrations.knowledge_tree.shares import Share
from ragcache_integrations.knowledge_tree.tier import Tier

GetShelf = Callable[[Node], Shelf]


def gpu(node: Node) -> Shelf:
    return node.gpu


def host(node: Node) -> Shelf:
    return node.host


def by_parent(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    below: dict[Node, list[Node]] = {}
    for node in nodes:
        assert node.parent is not None
        below.setdefault(node.parent, []).append(node)
    return below


def leaves(tree: KnowledgeTree[int], shelf: GetShelf) -> list[Node]:
    """Nodes of which the tier holds idle blocks, with no such node anywhere below."""
    nodes = list(tree.nodes())
    covered: set[Node] = set()
    for node in nodes:
        if shelf(node).idle:
            above = node.parent
            while above is not None:
                covered.add(above)
                above = above.parent
    return [node for node in nodes if shelf(node).idle and node not in covered]


def check_structure(tree: KnowledgeTree[int], previous: Mapping[int, int | None]) -> None:
    nodes = list(tree.nodes())
    assert len(nodes) == len(set(nodes)) == tree.stats().nodes
    owners: dict[Hashable, Node] = {}
    for node in nodes:
        assert node.under is not None
        assert node.under.children[node.label] is node
        for key in node.keys:
            assert key not in owners
            owners[key] = node
            assert tree.owner(key) is node
    assert tree._owners == owners
    below = by_parent(nodes)
    for node in [tree.root, *nodes]:
        assert node.links == len(below.get(node, ()))
    for node in nodes:
        before = [previous[key] for key in node.keys]  # type: ignore[index]  # the tests' keys
        assert before[1:] == list(node.keys[:-1])
        if before and before[0] is not None:
            above = node.parent
            while above is not None and not above.keys:
                above = above.parent
            assert above is owners[before[0]]


def check_requests(
    tree: KnowledgeTree[int], paths: Iterable[Path], in_use: Callable[[Key], bool]
) -> None:
    paths = list(paths)
    requests = Counter(node for path in paths for node in path.nodes)
    running = Counter(node for path in paths if path.accessed for node in path.nodes)
    nodes = list(tree.nodes())
    assert set(requests) <= set(nodes)
    for node in nodes:
        assert node.requests == requests[node]
        assert node.running == running[node]
        holds = not (node.gpu.empty and node.host.empty) or any(map(in_use, node.keys))
        assert holds or node.requests or node.links or node.children or node.pins, "should be gone"


def check_pins(tree: KnowledgeTree[int]) -> None:
    """What is pinned is never idle in the GPU, and all that is before it is pinned, too."""
    pinned = 0
    for node in tree.nodes():
        assert node.pins >= 0
        if node.pins:
            pinned += len(node.keys)
            assert not node.gpu.idle
            assert node.parent is tree.root or (node.parent is not None and node.parent.pins)
        else:
            assert not node.gpu.busy
    assert pinned == tree.stats().pinned_blocks
    assert pinned + tree.longest_request <= tree.gpu_blocks or not pinned


def check_tier(
    tree: KnowledgeTree[int], tier: Tier[int], shelf: GetShelf, in_use: Callable[[Key], bool]
) -> None:
    """Second copies of blocks in use may go in any order: what stands behind them has the first."""
    nodes = list(tree.nodes())
    below = by_parent(nodes)

    def active(node: Node) -> bool:
        return bool(shelf(node).idle) or any(map(active, below.get(node, ())))

    held: list[Hashable] = []
    by_share: Counter[object] = Counter()
    for node in [tree.root, *nodes]:
        mine = shelf(node)
        assert not mine.idle.keys() & mine.busy
        assert mine.idle.keys() | mine.busy <= set(node.keys)
        held += [*mine.idle, *mine.busy]
        by_share[node.share] += len(mine.idle) + len(mine.busy)
        assert mine.idle_below == sum(map(active, below.get(node, ())))
        places = [node.keys.index(key) for key in mine.idle if not in_use(key)]
        assert places == sorted(places, reverse=True), "the last block must go first"
    assert len(held) == len(tier)
    assert set(held) == tier.slots.keys()
    assert tier.idle == sum(len(shelf(node).idle) for node in nodes)
    for share in tree._shares:
        own = [node for node in nodes if node.share is share]
        part = tier._parts[share]
        assert part.candidates == sum(bool(shelf(node).idle) for node in own)
        assert tier.blocks(share) == by_share[share]
        ranks = [rank(node, shelf) for node in leaves(tree, shelf) if node.share is share]
        found = tier._lowest(share)
        assert (None if found is None else rank(found, shelf)) == min(ranks, default=None)


def rank(node: Node, shelf: GetShelf) -> tuple[float, bool, float, float]:
    """What a leaf is evicted by, the lowest first.

    That is its urgency, whether requests need it, how soon a workflow does, and its priority.
    """
    return node.urgency, node.requests > 0, node.nearness, shelf(node).priority


def heap_bound(candidates: int) -> int:
    return 2 * candidates + tier_module.HEAP_SLACK + 1


@dataclass
class Account:
    times: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    frequency: int = 0

    @property
    def popularity(self) -> float:
        """The logarithm of the sum of what the accesses count, the first one a quarter."""
        if not self.counted:
            return NEVER
        last = self.counted[-1]
        terms = [2 ** (when - last) for when in self.counted]
        return last + math.log2(math.fsum(terms) - (1 - 2**FIRST) * terms[0])


class Ledger:
    """Frequencies, costs and priorities by the paper's formulas, from what the caller knows."""

    def __init__(
        self,
        policy: str,
        block_size: int,
        seconds: Callable[[int, int], float],
        window: float | None,
    ) -> None:
        self.policy = policy
        self.block_size = block_size
        self.seconds = seconds
        self.window = math.inf if window is None else window
        self.forget()

    def forget(self) -> None:
        self.accounts: dict[Hashable, Account] = {}
        self.priorities: dict[tuple[str, Node], float] = {}
        self.last: dict[Node, int] = {}
        self.accesses = 0
        self.half_lives: defaultdict[Share, float] = defaultdict(float)

    def account(self, node: Node) -> Account:
        """History belongs to the content: a node that comes back has it again."""
        name: Hashable = node.keys[-1] if node.keys else node
        return self.accounts.setdefault(name, Account())

    def access(
        self, tree: KnowledgeTree[int], path: Path, cached: int, prompt: int, now: float
    ) -> None:
        self.accesses += 1
        share = path.nodes[0].share
        assert share is not None
        blocks = max(1, round(share.quota * (tree.gpu_blocks + tree.host_blocks)))
        self.half_lives[share] += path.ends[-1] / blocks / share.popularity.half_life
        new = max(1, prompt - cached)
        for node, end in zip(path.nodes, path.ends, strict=True):
            account = self.account(node)
            account.times.append(now)
            account.counted.append(self.half_lives[share])
            account.frequency = sum(then >= now - self.window for then in account.times)
            if end * self.block_size > cached:
                account.costs.append(self.seconds(cached, new) / new)
            self.last[node] = self.accesses
            self.price("gpu", node, tree.gpu._parts[share].clock)
            self.price("host", node, tree.host._parts[share].clock)

    def price(self, tier: str, node: Node, clock: float) -> None:
        account = self.account(node)
        costs = account.costs
        average = sum(costs) / len(costs) if costs else 0.0
        cost = math.log2(average) if average else NEVER
        self.priorities[tier, node] = {
            "lrfu": max(NEVER, account.popularity + cost),
            "pgdsf": clock + account.frequency * average,
            "gdsf": clock + account.frequency,
            "lru": float(self.last.get(node, 0)),
            "lfu": float(account.frequency),
        }[self.policy]

    def check(self, tree: KnowledgeTree[int]) -> None:
        for node in tree.nodes():
            assert node.frequency == self.account(node).frequency
            if not node.gpu.empty:
                assert math.isclose(
                    node.gpu.priority, self.priorities.get(("gpu", node), NEVER), abs_tol=1e-9
                )
            if not node.host.empty:
                assert math.isclose(node.host.priority, self.priorities["host", node], abs_tol=1e-9)
