"""Pins, quotas and priorities by examples; ``test_tree_machine.py`` tries them in any order."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import POLICIES, KnowledgeTree
from ragcache_integrations.knowledge_tree.node import Node
from ragcache_integrations.knowledge_tree.promises import Hints
from ragcache_workbench.simulation.simulator import SimulationResult, simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest, zipf_ranks

from .library import Found, Library


class TestPins:
    def test_pinned_documents_stay_with_all_before_them(self) -> None:
        library = Library(20)
        request = library.begin("D1", "D2")
        library.tree.pin(request.path)
        library.driver.finish(request)
        for number in range(50):
            library.ask(f"other {number}")
        assert library.ask("D1", "D2") == Found(gpu=5, host=0)

    def test_what_is_computed_later_is_pinned_once_it_is(self) -> None:
        library = Library(20)
        request = library.arrive("D1")
        library.tree.pin(request.path)
        library.driver.abort(request)
        library.ask("D1")
        library.evict(library.tree.gpu.idle)
        assert library.in_gpu() == ["D1"]

    def test_their_time_ends(self) -> None:
        now = [100.0]
        library = Library(20, now=lambda: now[0])
        request = library.begin("D1")
        library.tree.pin(request.path, 60)
        library.driver.finish(request)
        (root,) = library.tree.snapshot().roots
        assert [(n.pinned, n.pinned_seconds) for n in (root, *root.children)] == [(True, 60)] * 2
        assert str(library.tree.snapshot()).endswith(", pinned")
        now[0] += 59
        library.tree.pin(library.arrive("D1").path, 2)  # again: the new time counts
        library.tree.expire_pins()
        assert library.tree.stats().pins == 1
        now[0] += 2
        library.tree.expire_pins()
        assert (library.tree.stats().pins, library.tree.stats().pinned_blocks) == (0, 0)
        assert library.tree.gpu.idle == 3
        assert not library.tree.snapshot().roots[0].pinned

    def test_unpinned_documents_are_evicted_as_others_are(self) -> None:
        library = Library(20)
        request = library.begin("D1")
        library.tree.pin(request.path)
        library.driver.finish(request)
        assert library.tree.gpu.idle == 0
        assert library.tree.unpin(library.arrive("D1").path)
        assert not library.tree.unpin(library.arrive("D1").path)
        library.evict(3)
        assert library.in_gpu() == []

    def test_two_pins_share_a_beginning(self) -> None:
        library = Library(20)
        paths = [library.arrive("D1", follower).path for follower in ("D2", "D3")]
        for path in paths:
            library.tree.pin(path)
        assert library.tree.stats().pinned_blocks == 7
        library.tree.unpin(paths[0])
        assert library.tree.stats().pinned_blocks == 5
        library.tree.unpin(paths[1])
        assert library.tree.stats().pinned_blocks == 0

    def test_the_longest_request_always_has_room(self) -> None:
        library = Library(20, block_size=1, longest_request=15)
        library.tree.pin(library.arrive("D1").path)
        with pytest.raises(
            ConfigurationError,
            match=r"4 blocks \(4 tokens\) cannot be pinned: 3 blocks \(3 tokens\) are pinned "
            r"already, and of 20 at most 5 may be, .* longest request of 15 blocks",
        ):
            library.tree.pin(library.arrive("D1", "D2", "D3").path)
        library.tree.pin(library.arrive("D2").path)
        assert library.tree.stats().pinned_blocks == 5

    def test_pins_count_against_their_tenant_s_quota(self) -> None:
        library = Library(20, quotas={"one": 0.2})
        library.tree.pin(library.arrive("D1", tenant="one").path)
        with pytest.raises(ConfigurationError, match=r"3 .* of this tenant .* quota of 0.2 is 4"):
            library.tree.pin(library.arrive("D1", "D2", tenant="one").path)
        library.tree.pin(library.arrive("D1", "D2").path)

    def test_pins_of_documents_shorter_than_a_block_are_bounded(self) -> None:
        library = Library(20, block_size=4, quotas={"one": 0.3}, lengths={"S": 4})
        for number in range(6):
            library.tree.pin(library.arrive(f"D{number}", tenant="one").path)
        one_more = library.arrive("D6", tenant="one").path
        with pytest.raises(ConfigurationError, match=r"6 pins already, .* blocks for this tenant"):
            library.tree.pin(one_more)
        library.tree.pin(library.arrive("D0", tenant="one").path)  # again
        library.tree.pin(library.arrive("D6").path)  # of all others
        assert (library.tree.stats().pins, library.tree.stats().pinned_blocks) == (7, 2)
        library.tree.unpin(library.arrive("D0", tenant="one").path)
        library.tree.pin(one_more)

    def test_they_end_when_everything_is_forgotten(self) -> None:
        library = Library(20)
        request = library.begin("D1")
        library.tree.pin(request.path)
        library.driver.finish(request)
        library.tree.clear()
        assert (library.tree.stats().pins, library.tree.stats().pinned_blocks) == (0, 0)


class TestHints:
    def test_what_comes_sooner_goes_later_and_all_of_it_after_the_rest(self) -> None:
        library = Library(20)
        for name, steps in (("D1", 2), ("D2", 1), ("D3", None)):
            request = library.begin(name)
            if steps is not None:
                assert library.tree.hint(name, request.path, steps, 60)
            library.driver.finish(request)
        library.ask("D3")  # asked for oftener, and last
        left = []
        while library.in_gpu():
            library.evict(1)
            if library.in_gpu() not in left:
                left.append(library.in_gpu())
        assert left[-3:] == [["D1", "D2"], ["D2"], []]

    def test_they_end_and_leave_nothing(self) -> None:
        now = [100.0]
        library = Library(20, now=lambda: now[0])
        request = library.arrive("D1")
        library.tree.hint("step", request.path, 1, 60)
        library.driver.abort(request)
        assert [node.hints for node in library.tree.nodes()] == [1, 1], "before it is computed"
        now[0] += 59
        library.tree.expire_hints()
        assert len(library.tree.hints) == 1
        now[0] += 1
        library.tree.expire_hints()
        assert list(library.tree.nodes()) == []

    def test_they_end_when_everything_is_forgotten(self) -> None:
        library = Library(20)
        waiting = library.arrive("D1")
        assert library.tree.hint("step", waiting.path, 1, 60)
        assert library.tree.stats().hints == 1
        library.driver.clear()
        assert (library.tree.stats().hints, library.tree.hints.steps("step")) == (0, math.inf)
        assert not library.tree.hint("step", waiting.path, 1, 60), "its path is void"
        library.tree.end_hint("step")
        assert library.ask("D1") == Found(gpu=0, host=0)
        assert [node.hints for node in library.tree.nodes()] == [0, 0]
        library.evict(3)
        assert library.in_gpu() == []

    def test_nearer_ones_displace_farther_ones_and_all_keep_a_part(self) -> None:
        library = Library(20)  # 15 blocks for hints
        accepted = []
        for number in range(1, 9):
            request = library.begin(f"D{number}")
            accepted.append(library.tree.hint(number, request.path, number, 60))
            library.driver.finish(request)
        kept = [number for number, was in enumerate(accepted, 1) if was]
        assert kept == list(range(1, len(kept) + 1))
        assert 1 < len(kept) < 8
        request = library.begin("D9")
        assert library.tree.hint(9, request.path, 0, 60)
        assert library.tree.hints.steps(kept[-1]) > 1e9, "the farthest made room"
        assert library.tree.hints.steps(1) == 1
        nodes = [node for node in library.tree.nodes() if node.hints]
        assert sum(len(node.keys) for node in nodes) <= 15

    def test_what_they_keep_and_what_is_nearest_is_known_at_any_time(self) -> None:
        dice = random.Random(5)
        library = Library(40)
        hints: dict[int, tuple[set[Node], int]] = {}
        refused = 0
        for _ in range(300):
            name, steps = dice.randrange(12), dice.randrange(1, 9)
            names = [f"D{dice.randrange(6)}" for _ in range(3)]
            path = library.arrive(*dict.fromkeys(names)).path
            if dice.random() < 0.3:
                library.tree.end_hint(name)
                hints.pop(name, None)
            elif library.tree.hint(name, path, steps, 60):
                hints[name] = set(path.nodes), steps
            else:
                hints.pop(name, None)
                refused += 1
            known = library.tree.hints.steps
            hints = {name: hint for name, hint in hints.items() if known(name) < math.inf}
            for node in library.tree.nodes():
                near = [1 / (1 + steps) for nodes, steps in hints.values() if node in nodes]
                assert (node.hints, node.nearness) == (len(near), max(near, default=0))
            kept = {node for nodes, _ in hints.values() for node in nodes}
            assert sum(len(node.keys) for node in kept) <= 30
            assert len(library.tree.hints) == len(hints)
        assert refused > 10

    def test_a_hint_costs_what_its_own_path_has(self) -> None:
        documents = 100
        sizes = 0

        def size(_: Node) -> int:
            nonlocal sizes
            sizes += 1
            return 1

        hints = Hints(lambda _: None, size, lambda: 0.0)
        for number in range(64):
            nodes = tuple(Node((str(at), (number, at)), None, None, ()) for at in range(documents))
            sizes = 0
            assert hints.add(number, nodes, 1, 60, 64 * documents)[0]
            assert sizes <= documents, "not what all hints have"
        sizes = 0
        hints.remove(0)
        assert sizes <= documents
        assert not hints.add(
            "more", (*nodes, Node(("", 0), None, None, ())), 1, 60, 63 * documents
        )[0]


class TestPriorities:
    def test_documents_of_less_urgent_requests_go_first(self) -> None:
        library = Library(policy="lru")
        for name, priority in (
            ("urgent", -1),
            ("usual", 0),
            ("batch", 1),
            ("both", 1),
            ("both", 0),
        ):
            request = library.arrive(name, priority=priority)
            assert library.driver.admit(request, request.prompt_tokens)
            library.driver.end_step()
            library.driver.finish(request)
        gone = []
        for _ in range(4):
            before = library.in_gpu()
            library.evict(2)
            gone += [name for name in before if name not in library.in_gpu()]
        assert gone == ["batch", "usual", "both", "urgent"]

    def test_even_if_requests_wait_for_them(self) -> None:
        library = Library()
        library.ask("usual")
        request = library.arrive("batch", priority=1)
        assert library.driver.admit(request, request.prompt_tokens)
        library.driver.end_step()
        library.driver.finish(request)
        library.arrive("batch", priority=1)
        library.evict(2)
        assert library.in_gpu() == ["usual"]


class TestQuotas:
    @pytest.mark.parametrize(
        ("quotas", "message"),
        [
            ({"one": 0.0}, "above 0 and at most 1, got 0.0 for 'one'"),
            ({"one": 0.6, "two": 0.5}, "at most 1 together, got 1.1"),
            ({"*": 0.5}, r"which '\*' is not"),
            ({1: 0.5}, "got 1"),
            ([0.5], "must map namespaces"),
        ],
    )
    def test_wrong_ones(self, quotas: dict[str, float], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            KnowledgeTree(block_size=1, gpu_blocks=10, quotas=quotas)

    def test_what_nobody_uses_is_borrowed_and_given_back(self) -> None:
        library = Library(20, quotas={"quiet": 0.5})
        for number in range(9):
            library.ask(f"D{number}", tenant="loud")
        assert library.tree.gpu.blocks(library.tree._shares["loud"]) > 10
        for _ in range(2):
            for number in range(3):
                library.ask(f"D{number}", tenant="quiet")
        assert library.ask("D0", tenant="quiet") == Found(gpu=3, host=0)
        for number in range(9):
            library.ask(f"D{number}", tenant="loud")
        assert library.ask("D1", tenant="quiet") == Found(gpu=3, host=0)
        quiet, rest = library.tree.stats().shares
        assert (quiet.namespace, quiet.quota, rest.namespace, rest.quota) == (
            "quiet",
            0.5,
            "*",
            0.5,
        )
        assert quiet.gpu_blocks + rest.gpu_blocks <= 20

    def test_requests_fit_what_others_leave(self) -> None:
        tree: KnowledgeTree[int] = KnowledgeTree(block_size=1, gpu_blocks=20, quotas={"one": 0.5})
        tree.charge("two", 8)
        assert tree.affords("two", 12)  # all of it: nobody else has anything
        tree.charge("one", 4)
        assert tree.affords("two", 8)
        assert not tree.affords("two", 9)
        tree.charge("two", -8)
        tree.charge("two", 14)
        assert (tree.payer("one"), tree.payer("two"), tree.payer("three")) == ("one", "*", "*")
        assert tree.affords("one", 6)  # what is its own, though it is lent
        assert not tree.affords("one", 7)

    @pytest.mark.parametrize("policy", ["lrfu", "pgdsf", "lru"])
    @pytest.mark.parametrize("host_blocks", [0, 80])
    def test_a_flood_leaves_a_tenant_what_it_has_alone(self, policy: str, host_blocks: int) -> None:
        """Within 5 % of the hits in a cache of its quota's size, however much comes for another."""
        assert policy in POLICIES
        quota, blocks = 0.25, 160
        quiet = _requests("quiet", 300, 60, seed=1)
        flood = _requests("loud", 300 * 12, 100, seed=2)
        mixed = [
            request
            for one, others in zip(quiet, zip(*[iter(flood)] * 12, strict=True), strict=True)
            for request in (one, *others)
        ]

        def run(requests: list[TraceRequest], share: float, **settings: object) -> SimulationResult:
            return simulate(
                Trace(tuple(requests), system_tokens=16),
                gpu_blocks=round(share * blocks),
                host_blocks=round(share * host_blocks),
                policy=policy,
                **settings,  # type: ignore[arg-type]
            )

        def found(result: SimulationResult, requests: list[TraceRequest]) -> int:
            return sum(
                cached
                for cached, request in zip(result.cached_tokens, requests, strict=True)
                if request.namespace == "quiet"
            )

        alone = found(run(quiet, quota), quiet)
        with_quota = found(run(mixed, 1, quotas={"quiet": quota}), mixed)
        without = found(run(mixed, 1), mixed)
        assert with_quota >= 0.95 * alone
        assert without < 0.8 * alone


def _requests(tenant: str, count: int, documents: int, seed: int) -> list[TraceRequest]:
    """Requests for two documents each, by Zipf's law."""
    pick = random.Random(seed)
    lengths = [pick.choice([24, 40, 72]) for _ in range(documents)]
    ranks = zipf_ranks(documents, count, 0.9, np.random.default_rng(seed))
    usual = TraceRequest((), question_tokens=8, namespace=tenant)
    return [
        replace(usual, documents=tuple((f"D{n}", lengths[n]) for n in (rank, rank // 2)))
        for rank in ranks
    ]
