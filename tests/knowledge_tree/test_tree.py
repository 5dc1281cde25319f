"""The knowledge tree by examples (RAGCache §5.1)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import KnowledgeTree, PrefillCostModel, tier
from ragcache_integrations.knowledge_tree.tier import Windows

from .library import Found, Library

EXACT = 1e-12


def seconds(cached: int, new: int) -> float:
    """Some T(alpha, beta)."""
    return 3.0 + 0.7 * new + 0.01 * new * (2 * cached + new)


class TestTree:
    def test_a_path_needs_a_document(self) -> None:
        with pytest.raises(ValueError, match="at least one document, got no spans"):
            Library().tree.enter("", [], [])

    def test_a_document_behind_another_is_another_node(self) -> None:
        """[D1, D3] and [D2, D3]: D3's KV caches differ (§5.1)."""
        library = Library()
        library.ask("D1", "D3")
        assert library.ask("D2", "D3") == Found(gpu=1, host=0)  # the system prompt alone
        assert library.node("D1", "D3") is not library.node("D2", "D3")
        assert library.ask("D1", "D3") == Found(gpu=5, host=0)
        assert library.tree.stats().nodes == 5

    def test_the_system_prompt_is_the_root(self) -> None:
        library = Library()
        library.ask("D1")
        assert library.ask("D1", system="another") == Found(gpu=0, host=0)
        assert library.ask("D1") == Found(gpu=3, host=0)

    def test_a_node_knows_its_document(self) -> None:
        library = Library(lengths={"D1": 5})
        library.ask("D1")
        node = library.node("D1")
        assert (node.name, node.tokens, len(node.keys)) == ("D1", 5, 5)
        assert repr(node) == "Node('D1', tokens=5, blocks=5)"
        assert node.parent is library.node()

    def test_a_block_belongs_to_the_document_in_which_it_ends(self) -> None:
        library = Library(block_size=4, lengths={"S": 3, "D1": 2, "D2": 9, "D3": 1})
        library.begin("D1", "D2", "D3")  # 3 | 5 | 14 | 15
        parts = [(), ("D1",), ("D1", "D2"), ("D1", "D2", "D3")]
        assert [len(library.node(*part).keys) for part in parts] == [0, 1, 2, 0]

    @pytest.mark.parametrize("lookahead", [0, 1, 3])
    def test_a_document_is_one_node_whatever_its_blocks_keys_cover_behind_it(
        self, lookahead: int
    ) -> None:
        """With EAGLE or MTP, the key of a document's last block depends on what comes next."""
        lengths = {"S": 8, "D1": 8, "D2": 8, "D3": 8}
        library = Library(block_size=4, lookahead=lookahead, lengths=lengths)
        for follower in ("D2", "D3", "D2"):
            library.ask("D1", follower)
        assert [node.name for node in library.tree.nodes()] == ["", "D1", "D2", "D3"]
        assert [library.node(*path).frequency for path in ((), ("D1",), ("D1", "D2"))] == [3, 3, 2]
        kept = 1 if lookahead else 2
        assert [len(node.keys) for node in library.tree.nodes()] == [kept, 2, 2, 2]
        counted = library.tree.stats()
        assert (counted.documents_hit_gpu, counted.changed_documents) == (3, 0)

    def test_text_shorter_than_what_is_looked_ahead_owns_nothing(self) -> None:
        library = Library(lookahead=3, lengths={"D1": 1})
        library.arrive("D1")
        assert [len(node.keys) for node in library.tree.nodes()] == [0, 0]

    def test_parents_come_first(self) -> None:
        library = Library()
        library.ask("D1", "D2", "D3")
        library.ask("D2")
        assert [node.name for node in library.tree.nodes()] == ["", "D1", "D2", "D2", "D3"]

    def test_text_behind_the_documents_has_no_owner(self) -> None:
        library = Library()
        request = library.begin("D1")
        assert library.tree.owner(request.keys[2]) is library.node("D1")
        assert library.tree.owner(request.keys[3]) is None

    def test_tenants_share_nothing(self) -> None:
        library = Library()
        library.ask("D1", tenant="one")
        assert library.ask("D1", tenant="two") == Found(gpu=0, host=0)
        assert library.ask("D1", tenant="one") == Found(gpu=3, host=0)

    def test_a_conversation_goes_on_behind_its_earlier_turns(self) -> None:
        library = Library()
        first = library.begin("D1")
        library.driver.finish(first)
        tokens = [*first.tokens, ("answer",), ("D2", 0), ("D2", 1), ("question", 2)]
        second = library.driver.arrive("", (("D2", 5, 7),), tokens, 8)
        text, document = second.path.nodes
        assert text.parent is library.node("D1")
        assert text.keys == tuple(second.keys[3:5])  # the question and the answer
        assert document.parent is text
        assert text.under is library.tree.root

    def test_only_the_first_documents_are_kept(self) -> None:
        """Permutations explode: top-3 of a top-5 (§8)."""
        library = Library(cache_depth=2)
        library.ask("D1", "D2", "D3")
        assert library.in_gpu() == ["D1", "D2"]
        assert library.tree.stats().gpu_idle_blocks == 5

    def test_an_id_with_another_text_is_noticed_and_never_served(self) -> None:
        library = Library()
        library.ask("D1")
        assert library.ask("D1'changed") == Found(gpu=1, host=0)
        library.ask("D1'changed")
        assert library.tree.stats().changed_documents == 1
        library.ask("D1'again")
        assert library.tree.stats().changed_documents == 2


class TestFormulas:
    def test_priorities_by_hand(self) -> None:
        """Formulas 1, 2 and 3 along one trace; S has 1 token, documents 2, questions 1."""
        library = Library(prefill_seconds=seconds, policy="pgdsf")
        library.ask("D1", "D2")  # all missed: alpha 0, beta 6
        cost = seconds(0, 6) / 6
        for part in ((), ("D1",), ("D1", "D2")):
            assert library.node(*part).frequency == 1
            assert library.node(*part).average_cost == pytest.approx(cost, abs=EXACT)
            assert library.node(*part).gpu.priority == pytest.approx(0 + 1 * cost, abs=EXACT)

        library.ask("D1", "D3")  # S and D1 hit: alpha 3, beta 3
        behind = seconds(3, 3) / 3
        assert library.node("D1").gpu.priority == pytest.approx(0 + 2 * cost, abs=EXACT)
        assert library.node("D1", "D3").gpu.priority == pytest.approx(behind, abs=EXACT)
        assert cost < behind  # so that D2 is the lowest-priority leaf

        library.evict(2)
        assert library.in_gpu() == ["D1", "D3"]
        assert library.tree.gpu.clock == pytest.approx(cost, abs=EXACT)

        library.ask("D1", "D2")  # D2 is back: missed twice, asked for twice
        again = (cost + seconds(3, 3) / 3) / 2
        node = library.node("D1", "D2")
        assert (node.frequency, node.history.computed) == (2, 2)
        assert node.average_cost == pytest.approx(again, abs=EXACT)
        assert node.gpu.priority == pytest.approx(cost + 2 * again, abs=EXACT)
        # What was not asked for keeps the clock of its last access.
        assert library.node("D1", "D3").gpu.priority == pytest.approx(behind, abs=EXACT)

        library.evict(4)  # D3, then D2: the clock is the highest priority that went
        assert library.in_gpu() == ["D1"]
        assert library.tree.gpu.clock == pytest.approx(cost + 2 * again, abs=EXACT)

    def test_the_host_has_its_own_clock(self) -> None:
        library = Library(prefill_seconds=seconds, host_blocks=2, policy="pgdsf")
        library.ask("D1")
        cost = seconds(0, 4) / 4
        library.ask("D2")
        behind = seconds(1, 3) / 3
        library.evict(2)
        assert (library.tree.gpu.clock, library.tree.host.clock) == (cost, 0.0)
        assert library.node("D1").host.priority == pytest.approx(0 + cost, abs=EXACT)
        library.evict(2)  # D2 pushes D1 from the host
        assert library.tree.gpu.clock == pytest.approx(behind, abs=EXACT)
        assert library.tree.host.clock == pytest.approx(cost, abs=EXACT)
        library.evict(1)  # S comes at the host's clock of now, asked for twice
        assert library.node().host.priority == pytest.approx(cost + 2 * cost, abs=EXACT)

    def test_without_a_profile_the_default_counts(self) -> None:
        library = Library()
        library.ask("D1")
        assert library.node("D1").average_cost == PrefillCostModel.default()(0, 4) / 4

    def test_frequency_survives_eviction(self) -> None:
        library = Library()
        library.ask("D1")
        library.ask("D1")
        library.evict(3)
        assert library.tree.stats().nodes == 0
        library.ask("D1")
        assert library.node("D1").frequency == 3

    def test_frequency_counts_within_the_window(self) -> None:
        now = 0.0
        library = Library(frequency_window=10.0, now=lambda: now)
        library.ask("D1")
        now = 6.0
        library.ask("D1")
        assert library.node("D1").frequency == 2
        now = 12.0
        library.ask("D1")
        assert library.node("D1").frequency == 2

    def test_a_preempted_request_counts_once(self) -> None:
        library = Library()
        request = library.begin("D1")
        library.driver.preempt(request)
        assert library.driver.admit(request, 100)
        assert library.node("D1").frequency == 1
        assert library.tree.stats().requests == 1


class TestEviction:
    def test_an_access_counts_for_what_is_idle_too(self) -> None:
        """A request that was admitted without its hits: the blocks it did not use move up."""
        library = Library(policy="lru")
        library.ask("D1")
        library.ask("D2")
        library.tree.access(library.arrive("D1").path, 0, 0, 4)
        library.evict(2)
        assert library.in_gpu() == ["D1"]

    def test_leaves_go_first_and_their_last_blocks_first(self) -> None:
        library = Library(lengths={"D1": 3, "D2": 3})
        library.ask("D1", "D2")
        library.evict(2)
        assert library.ask("D1", "D2") == Found(gpu=5, host=0)
        library.evict(4)
        assert library.in_gpu() == ["D1"]
        assert library.ask("D1", "D2") == Found(gpu=3, host=0)

    def test_blocks_in_use_stay(self) -> None:
        library = Library()
        library.begin("D1")
        library.ask("D1", "D2")
        assert library.tree.stats().gpu_idle_blocks == 2
        library.evict(2)
        with pytest.raises(RuntimeError, match="asked to evict 1 blocks, only 0 are idle"):
            library.tree.evict(1)

    def test_what_a_waiting_request_needs_goes_last(self) -> None:
        library = Library(policy="lru", lengths={"S": 0})
        for name in ("D1", "D2", "D3"):
            library.ask(name)
        waiting = library.arrive("D1")
        library.evict(2)
        assert library.in_gpu() == ["D1", "D3"]
        library.driver.abort(waiting)
        library.evict(2)
        assert library.in_gpu() == ["D3"]

    def test_of_what_waiting_requests_need_the_lowest_goes(self) -> None:
        library = Library(policy="lru", lengths={"S": 0})
        for name in ("D1", "D2"):
            library.ask(name)
        for name in ("D2", "D1"):
            library.arrive(name)
        library.evict(2)
        assert library.in_gpu() == ["D2"]

    def test_too_much_evicts_nothing(self) -> None:
        library = Library()
        library.ask("D1")
        before = library.tree.stats()
        with pytest.raises(RuntimeError, match="asked to evict 4 blocks, only 3 are idle"):
            library.tree.evict(4)
        assert library.tree.stats() == before

    def test_second_copies(self) -> None:
        """Two requests computed the same; the first copy that is released is kept."""
        tree: KnowledgeTree[str] = KnowledgeTree(block_size=1, gpu_blocks=9)
        path = tree.enter("", [("D1", 0, 2)], [1, 2])
        assert tree.release(1, "first")
        assert not tree.release(1, "second")
        assert not tree.reuse(1, "second")
        assert tree.reuse(1, "first")
        tree.leave(path)

    def test_what_comes_late_still_goes_first(self) -> None:
        """The last block of a document is released when a copy of its first is idle already."""
        tree: KnowledgeTree[str] = KnowledgeTree(block_size=1, gpu_blocks=9)
        tree.enter("", [("D1", 0, 3)], [1, 2, 3])
        assert tree.release(2, "2")
        assert tree.release(1, "1")
        assert tree.release(3, "3")
        assert not tree.release(2, "copy of 2")
        assert not tree.release(1, "copy of 1")
        assert tree.evict(3) == ["3", "2", "1"]

    def test_a_node_without_anything_is_gone(self) -> None:
        library = Library()
        request = library.arrive("D1")
        assert library.tree.stats().nodes == 2
        library.driver.abort(request)
        assert library.tree.stats().nodes == 0

    def test_the_heap_stays_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tier, "HEAP_SLACK", 8)
        library = Library()
        library.ask("D1")
        for _ in range(100):  # each prices an idle node again
            path = library.arrive("D1").path
            library.tree.access(path, 0, 0, 4)
        (part,) = library.tree.gpu._parts.values()
        assert len(part.heap) <= 2 * 2 + 8 + 1


class TestWindows:
    """Two groups of layers: one sees all of a prompt, the other the last two blocks."""

    @staticmethod
    def computed(lengths: dict[str, int], gpu_blocks: int = 99) -> KnowledgeTree[tuple[int, int]]:
        """A tree after one request; a block's slot is its key and its group."""
        tree: KnowledgeTree[tuple[int, int]] = KnowledgeTree(
            block_size=1, gpu_blocks=gpu_blocks, windows=Windows((None, 2))
        )
        ends = list(accumulate(lengths.values()))
        spans = [(name, end - lengths[name], end) for name, end in zip(lengths, ends, strict=True)]
        path = tree.enter("", spans, range(ends[-1]))
        tree.access(path, 0, 0, ends[-1])
        for group in range(2):
            for key in reversed(range(ends[-1])):
                tree.release(key, (key, group), group)
        tree.leave(path)
        return tree

    def test_only_the_end_of_a_document_is_kept_of_what_sees_no_more(self) -> None:
        tree = self.computed({"D1": 4, "D2": 1, "D3": 3})
        kept = set(tree.gpu.slots.values())
        assert kept == {(key, 0) for key in range(8)} | {(key, 1) for key in (2, 3, 4, 6, 7)}

    def test_a_block_is_used_again_in_its_group(self) -> None:
        tree = self.computed({"D1": 4})
        assert not tree.reuse(3, (3, 1))
        assert tree.reuse(3, (3, 1), 1)
        assert not tree.reuse(3, (3, 1), 1)
        assert tree.reuse(3, (3, 0))

    def test_a_document_without_its_end_is_not_said_to_be_there(self) -> None:
        tree = self.computed({"D1": 4})
        (root,) = tree.snapshot().roots
        (document,) = root.children
        assert (document.place, document.blocks, document.gpu_blocks) == ("gpu", 6, 6)
        tree.evict(1)
        ((document,),) = (root.children for root in tree.snapshot().roots)
        assert (document.place, document.gpu_blocks) == ("none", 5)

    def test_nothing_of_a_forgotten_document_is_known(self) -> None:
        tree = self.computed({"D1": 4})
        tree.evict(6)
        assert not tree.release(3, (3, 1), 1)
        assert not tree.windows._behind

    def test_all_blocks_of_a_pinned_document_stay_and_count(self) -> None:
        tree = self.computed({"D1": 4}, gpu_blocks=6)
        path = tree.enter("", [("D1", 0, 4)], range(4))
        tree.pin(path)
        assert (tree.pins.blocks, tree.gpu.idle) == (6, 0)
        assert tree.unpin(path)
        assert (tree.pins.blocks, tree.gpu.idle) == (0, 6)


class TestHostTier:
    def test_what_is_evicted_comes_back_from_the_host(self) -> None:
        library = Library(host_blocks=10)
        library.ask("D1")
        library.evict(3)
        assert library.on_host() == ["D1"]
        assert library.ask("D1", "D2") == Found(gpu=0, host=3)
        assert library.ask("D1", "D2") == Found(gpu=5, host=0)

    def test_swapped_out_only_once(self) -> None:
        library = Library(host_blocks=10)
        library.ask("D1")
        for _ in range(3):
            library.evict(3)
            assert library.ask("D1") == Found(gpu=0, host=3)
        stats = library.tree.stats()
        assert (stats.swap_outs, stats.swap_ins, stats.gpu_evicted_blocks) == (3, 9, 9)

    def test_computed_again_but_not_swapped_out_again(self) -> None:
        """vLLM computes the last token of a prompt, though all of it is on the host."""
        tree: KnowledgeTree[str] = KnowledgeTree(block_size=1, gpu_blocks=9, host_blocks=1)
        tree.enter("", [("D1", 0, 1)], [1])
        tree.release(1, "slot")
        tree.evict(1)
        assert len(tree.swap_out()) == 1
        tree.release(1, "another slot")
        assert tree.host.evict(1) is None  # the copy stays while the block is in the GPU
        tree.evict(1)
        assert tree.swap_out() == []

    def test_the_lowest_leaf_of_both_goes(self) -> None:
        """Also where that is the newcomer, as in Cherkasova's GDSF."""
        library = Library(host_blocks=2, policy="lfu", lengths={"S": 0})
        library.ask("D1")
        library.ask("D1")
        library.evict(2)
        library.ask("D2")
        library.evict(2)
        assert library.on_host() == ["D1"]
        assert library.tree.stats().dropped == 2
        for _ in range(3):
            library.ask("D2")
        library.evict(2)
        assert library.on_host() == ["D2"]
        assert library.tree.stats().host_evicted_blocks == 2
        assert library.tree.stats().host_evicted_nodes == 1

    def test_what_stands_before_a_newcomer_stays(self) -> None:
        library = Library(host_blocks=3, lengths={"S": 0, "D1": 3, "D2": 1})
        library.ask("D1")
        library.evict(3)
        assert library.ask("D1", "D2") == Found(gpu=0, host=3)
        library.evict(4)  # four blocks for three places: the last one goes
        assert library.ask("D1", "D2") == Found(gpu=0, host=3)

    def test_what_left_in_this_step_is_not_there_yet(self) -> None:
        library = Library(host_blocks=10)
        library.ask("D1")
        keys = [key for node in library.tree.nodes() for key in node.keys]
        for slot in library.tree.evict(3):
            library.driver._forget(slot)
            library.driver.free[slot] = None
        assert library.tree.on_host(keys, 0) == 0
        assert library.tree.stats().host_used_blocks == 0
        library.driver.end_step()
        assert library.tree.on_host(keys, 0) == 3
        assert library.tree.on_host(keys, 1) == 2

    def test_without_a_host_tier(self) -> None:
        library = Library()
        library.ask("D1")
        library.evict(3)
        assert library.ask("D1") == Found(gpu=0, host=0)
        assert library.tree.stats().swap_outs == 0


class TestStats:
    def test_half_of_the_documents(self) -> None:
        """[D1, D2] is stored and [D1, D3] asked for: a hit rate of 50 % (§7.3)."""
        library = Library()
        library.ask("D1", "D2")
        before = library.tree.stats()
        assert before.document_hit_rate == 0.0
        library.ask("D1", "D3")
        after = library.tree.stats()
        hits = after.documents_hit_gpu - before.documents_hit_gpu
        assert hits / (after.documents - before.documents) == 0.5
        assert after.document_hit_rate == 0.25
        assert after.token_hit_rate == 2 / 8

    def test_by_tier(self) -> None:
        library = Library(host_blocks=10)
        library.ask("D1", "D2")
        library.evict(3)  # D2 and the end of D1
        library.ask("D1", "D2")
        stats = library.tree.stats()
        assert (stats.documents_hit_gpu, stats.documents_hit_host) == (0, 2)
        assert (stats.document_tokens_hit_gpu, stats.document_tokens_hit_host) == (1, 3)
        assert stats.token_hit_rate == 0.5

    def test_a_document_that_ends_inside_a_block_is_found_whole(self) -> None:
        library = Library(block_size=4, lengths={"S": 4, "D1": 7})
        library.ask("D1", "D2")
        library.ask("D1", "D3")
        assert library.tree.stats().documents_hit_gpu == 1

    def test_a_document_inside_one_block_is_found_with_the_block(self) -> None:
        library = Library(block_size=8, lengths={"S": 1, "D1": 2, "D2": 6})
        library.ask("D1")
        library.ask("D1", "D2")
        assert library.tree.stats().documents_hit_gpu == 0
        library.ask("D1", "D2")  # 1 | 3 | 9: the first block holds D1
        assert library.tree.stats().documents_hit_gpu == 2

    def test_nothing_yet(self) -> None:
        stats = Library(host_blocks=7).tree.stats()
        assert (stats.document_hit_rate, stats.token_hit_rate) == (0.0, 0.0)
        assert (stats.host_blocks, stats.nodes) == (7, 0)


class TestClear:
    def test_all_is_forgotten_but_the_statistics(self) -> None:
        library = Library(host_blocks=10)
        library.ask("D1", "D2")
        library.evict(2)
        library.driver.clear()
        stats = library.tree.stats()
        assert (stats.nodes, stats.gpu_idle_blocks, stats.host_used_blocks) == (0, 0, 0)
        assert (stats.gpu_clock, stats.host_clock, stats.requests) == (0.0, 0.0, 1)
        assert library.ask("D1", "D2") == Found(gpu=0, host=0)
        assert library.node("D1").frequency == 1

    def test_paths_from_before_are_void(self) -> None:
        library = Library()
        library.ask("D1")
        old, waiting = library.arrive("D1"), library.arrive("D2")
        library.driver.clear()
        library.ask("D1")
        for path in (old.path, waiting.path):
            library.tree.access(path, 0, 0, 4)
            library.tree.leave(path)
        assert library.node("D1").frequency == 1
        assert library.tree.stats().nodes == 2
        assert library.tree.evict(3)


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"block_size": 0}, "block_size must be a whole number of tokens of at least 1, got 0"),
            ({"gpu_blocks": 0}, "gpu_blocks must be a whole number of at least 1, got 0"),
            ({"lookahead": -1}, "lookahead must be .* of at least 0, got -1"),
            ({"host_blocks": -1}, "host_blocks must be .* of at least 0, got -1"),
            ({"policy": "pgsdf"}, "one of lrfu, pgdsf, gdsf, lru, lfu, got 'pgsdf'"),
            ({"cache_depth": 0}, "documents of at least 1, or None, got 0"),
            ({"frequency_window": 0.0}, "seconds above 0, or None, got 0.0"),
            ({"frequency_window": float("nan")}, "got nan"),
        ],
    )
    def test_settings(self, settings: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            KnowledgeTree[int](**{"block_size": 1, "gpu_blocks": 9, **settings})


def test_costs_are_asked_for_as_the_request_found_them() -> None:
    asked: list[tuple[int, int]] = []

    def prefill(cached: int, new: int) -> float:
        asked.append((cached, new))
        return 1.0

    timed: Callable[[int, int], float] = prefill
    library = Library(prefill_seconds=timed, host_blocks=9)
    library.ask("D1")
    library.evict(1)
    library.ask("D1", "D2")  # 2 tokens in the GPU, 1 on the host, 3 new
    assert asked == [(0, 4), (3, 3)]
