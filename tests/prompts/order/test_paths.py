from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ragcache_integrations.knowledge_tree.snapshot import NodeSnapshot, Place, TreeSnapshot
from ragcache_integrations.prompts.order.paths import (
    IN_FLIGHT,
    MAX_VISITS,
    CachedDocument,
    PathModel,
    _Node,
    cached_documents,
)
from tests.support.sizes import examples

NAMES = "abcdef"
LENGTHS = {name: 10 + number for number, name in enumerate(NAMES)}
REQUESTS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("".join)


def enter(model: PathModel, documents: str, namespace: str = "") -> None:
    model.enter(
        namespace, documents, [LENGTHS[document] for document in documents], range(len(documents))
    )


def in_order(documents: str, order: Sequence[int]) -> bool:
    """Whether equal documents keep their order."""
    return all(
        documents[one] != documents[other] or one < other for one, other in combinations(order, 2)
    )


def longest(model: PathModel, documents: str, namespace: str = "", **knobs: int) -> str:
    path, _ = model.longest_path(namespace, documents, **knobs)
    return "".join(documents[place] for place in path)


def paths(model: PathModel) -> set[str]:
    """All cached paths, as the model's nodes tell."""
    found = set()
    for node in model._used:
        path, one = "", node
        while one.parent is not None:
            path, one = f"{one.document}{path}", one.parent
        found.add(path)
    return found - {""}


Tree = dict[str, "Tree"]


def cached(tree: Tree) -> dict[Hashable, CachedDocument]:
    return {name: CachedDocument(LENGTHS[name], cached(below)) for name, below in tree.items()}


@given(st.lists(REQUESTS, max_size=12), REQUESTS)
def test_the_longest_path_is_the_one_that_trying_all_orders_finds(
    sent: list[str], wanted: str
) -> None:
    model = PathModel()
    for documents in sent:
        enter(model, documents)
    beginnings = {one[: end + 1] for one in sent for end in range(len(one))} | {""}
    best = max(
        sum(LENGTHS[name] for name in order[:end])
        for order in permutations(wanted)
        for end in range(len(order) + 1)
        if "".join(order[:end]) in beginnings
    )
    path, tokens = model.longest_path("", wanted)
    assert in_order(wanted, path)
    assert tokens == best == sum(LENGTHS[wanted[place]] for place in path)
    assert "".join(wanted[place] for place in path) in beginnings


@given(
    st.lists(REQUESTS, max_size=12),
    REQUESTS,
    st.integers(min_value=0, max_value=3),
    st.integers(min_value=0, max_value=3),
)
def test_pins_and_limits_hold_on_the_path(
    sent: list[str], wanted: str, pinned: int, limit: int
) -> None:
    model = PathModel()
    for documents in sent:
        enter(model, documents)
    path, _ = model.longest_path("", wanted, pinned, limit)
    assert in_order(wanted, path)
    assert path[:pinned] == tuple(range(min(pinned, len(wanted))))
    assert all(abs(place - number) <= limit for place, number in enumerate(path))


def test_a_longer_text_counts_for_more_than_more_documents() -> None:
    model = PathModel()
    model.enter("", "abc", [10, 10, 10], (0, 1, 2))
    model.enter("", "d", [31], (0,))
    assert longest(model, "abcd") == "d"


def test_namespaces_share_nothing() -> None:
    model = PathModel()
    enter(model, "ab", "one")
    assert longest(model, "ba", "two") == ""
    assert longest(model, "ba", "one") == "ab"


def test_pinned_documents_that_are_not_cached_still_come_first() -> None:
    model = PathModel()
    enter(model, "ab")
    assert longest(model, "cba", pinned=1) == "c"
    assert longest(model, "abc", pinned=1) == "ab"


def test_the_least_recently_used_leaf_goes_first() -> None:
    model = PathModel(cache_tokens=50)
    enter(model, "ab")
    enter(model, "ac")
    enter(model, "ab")
    enter(model, "d")
    enter(model, "e")
    assert paths(model) == {"a", "ab", "d", "e"}
    assert model.evicted == 1


def test_a_request_larger_than_the_cache_leaves_its_beginning() -> None:
    model = PathModel(cache_tokens=25)
    enter(model, "de")
    enter(model, "abc")
    assert paths(model) == {"a", "ab"}


def test_memory_is_bounded() -> None:
    model = PathModel(max_nodes=100)
    for number in range(1000):
        model.enter(f"tenant {number % 7}", [number, number + 1], None, (0, 1))
    assert len(model) <= 100
    assert model.evicted == 0  # the cache has them all the same


class Counting(int):
    """A document that counts how often it, or one like it, is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        Counting.lookups += 1
        return super().__hash__()


def test_the_search_is_bounded_where_all_orders_are_cached() -> None:
    model = PathModel()
    many = [Counting(number) for number in range(8)]
    for order in permutations(range(7)):
        model.enter("", many, None, order)
    Counting.lookups = 0
    path, tokens = model.longest_path("", many)
    assert tokens == len(path) == 7
    # Each visit looks each document up twice: on its path, and among the places.
    assert 2 * MAX_VISITS < Counting.lookups <= 2 * (MAX_VISITS + 1) * len(many)


def test_the_search_ends_where_all_documents_are_on_the_path() -> None:
    model = PathModel()
    four = [Counting(number) for number in range(4)]
    for order in permutations(range(4)):
        model.enter("", four, None, order)
    Counting.lookups = 0
    path, tokens = model.longest_path("", four)
    assert len(path) == tokens == 4
    assert Counting.lookups <= 60


def test_a_disproved_expectation_takes_what_is_older_along() -> None:
    model = PathModel()
    for documents in ("ab", "cd", "ef"):
        enter(model, documents)
    for _ in range(IN_FLIGHT):
        enter(model, "ef")
    enter(model, "cd")
    model.disprove("", "cd", 1)  # d was not there any more
    assert paths(model) == {"ef", "e", "c", "cd"}
    assert model.evicted


@pytest.mark.parametrize(("documents", "found"), [("ab", 2), ("ab", 1), ("xy", 0)])
def test_what_was_found_or_never_expected_or_in_flight_disproves_nothing(
    documents: str, found: int
) -> None:
    model = PathModel()
    enter(model, "cd")
    enter(model, "ab")
    enter(model, "ab")
    before = paths(model)
    model.disprove("", documents, found)
    assert paths(model) == before
    assert not model.evicted


def test_merging_takes_over_the_truth_and_keeps_what_is_on_its_way() -> None:
    model = PathModel()
    enter(model, "ab")
    enter(model, "cd")
    since = model.clock
    enter(model, "cf")
    model.merge({"": CachedDocument(0, cached({"a": {"e": {}}}))}, since)
    assert paths(model) == {"a", "ae", "c", "cf"}
    assert model.tokens == sum(LENGTHS[path[-1]] for path in paths(model))


def test_merging_forgets_a_namespace_that_is_gone() -> None:
    model = PathModel()
    enter(model, "ab", "gone")
    model.merge({}, model.clock)
    assert len(model) == model.tokens == 0


def snapshot(name: str, place: Place = "gpu", *children: NodeSnapshot) -> NodeSnapshot:
    return NodeSnapshot(name, 10, place, 1, 1, 0, 1, 0.0, 0.0, 0.0, children=children)


def test_a_snapshot_is_read_by_namespace_and_what_is_nowhere_is_left_out() -> None:
    tree = TreeSnapshot(
        "pgdsf",
        16,
        0.0,
        0.0,
        (
            snapshot("", "gpu", snapshot("a", "gpu", snapshot("b", "none", snapshot("c")))),
            snapshot("", "gpu", snapshot("a", "host", snapshot("d", "shared"))),
            snapshot("tenant", "gpu", snapshot("e", "in use")),
        ),
    )
    found = cached_documents(tree)
    assert set(found) == {"", "tenant"}
    assert set(found[""].children) == {"a"}
    assert set(found[""].children["a"].children) == {"d"}
    assert set(found["tenant"].children) == {"e"}


TREES: st.SearchStrategy[Tree] = st.recursive(
    st.just({}),
    lambda below: st.dictionaries(st.sampled_from(NAMES), below, max_size=3),
    max_leaves=6,
)


class Consistency(RuleBasedStateMachine):
    """Whatever happens, the model's books agree with its tree."""

    def __init__(self) -> None:
        super().__init__()
        self.model = PathModel(cache_tokens=80, max_nodes=12)

    @rule(documents=REQUESTS, namespace=st.sampled_from(["", "other"]))
    def enter(self, documents: str, namespace: str) -> None:
        enter(self.model, documents, namespace)

    @rule(documents=REQUESTS, found=st.integers(min_value=0, max_value=4))
    def disprove(self, documents: str, found: int) -> None:
        self.model.clock += IN_FLIGHT  # so that it proves something
        self.model.disprove("", documents, min(found, len(documents)))

    @rule(tree=TREES, age=st.integers(min_value=0, max_value=5))
    def merge(self, tree: Tree, age: int) -> None:
        self.model.merge({"": CachedDocument(0, cached(tree))}, self.model.clock - age)

    @rule()
    def clear(self) -> None:
        self.model.clear()

    @invariant()
    def agree(self) -> None:
        nodes: list[_Node] = list(self.model._root.children.values())
        for node in nodes:
            nodes += node.children.values()
        assert set(nodes) == set(self.model._used)
        assert self.model.tokens == sum(node.tokens for node in nodes)
        assert len(self.model) <= 12
        turn = {node: number for number, node in enumerate(self.model._used)}
        for node in nodes:
            for child in node.children.values():
                assert child.parent is node
                assert turn[child] < turn[node]  # so that the first one is a leaf
                assert child.last <= node.last


TestConsistency = Consistency.TestCase
TestConsistency.settings = examples(60)
