"""What the engine's tree tells of the chunks that were retrieved."""

from __future__ import annotations

import asyncio

import pytest

from ragcache_integrations.adaptive import resources as cached
from ragcache_integrations.adaptive.resources import CachedChunks, chunk_facts
from ragcache_integrations.errors import EngineDeadError
from ragcache_integrations.knowledge_tree import NodeSnapshot, TreeSnapshot

IDS = ("a", "b", "c")
TOKENS = (100, 200, 300)


def node(name: str, tokens: int, place: str, *children: NodeSnapshot) -> NodeSnapshot:
    numbers = (1, 1, 1, 1, 0.0, 0.0, 0.0)
    return NodeSnapshot(name, tokens, place, *numbers, children=children)  # type: ignore[arg-type] # one of its places


def tree(*roots: NodeSnapshot) -> TreeSnapshot:
    return TreeSnapshot("pgdsf", 32, 0.0, 0.0, roots)


def test_nothing_is_known_without_a_tree() -> None:
    facts = chunk_facts(IDS, TOKENS, None)
    assert facts.tokens == TOKENS
    assert facts.path_cached == (0, 0, 0, 0)
    assert facts == chunk_facts(IDS, TOKENS, tree())


def test_a_path_counts_as_far_as_it_goes() -> None:
    below = node("a", 101, "in use", node("b", 202, "gpu", node("x", 5, "gpu")))
    root = node("", 50, "in use", below, node("c", 303, "host"), node("b", 202, "none"))
    facts = chunk_facts(IDS, TOKENS, tree(root))
    assert facts.path_cached == (50, 151, 353, 353)
    assert facts.path_in_use == (50, 151, 151, 151)
    assert facts.alone_cached == (151, 50, 353)
    assert facts.alone_in_use == (151, 50, 50)


def test_what_stands_behind_a_gap_is_no_path() -> None:
    root = node("", 50, "gpu", node("b", 202, "gpu", node("c", 303, "gpu")))
    facts = chunk_facts(IDS, TOKENS, tree(root))
    assert facts.path_cached == (50, 50, 50, 50)
    assert facts.alone_cached == (50, 252, 50)
    assert facts.path_in_use == (*facts.alone_in_use, 0) == (0, 0, 0, 0)


def test_tenants_do_not_see_each_other() -> None:
    root = node("other", 50, "gpu", node("a", 101, "gpu"))
    assert chunk_facts(IDS, TOKENS, tree(root)).path_cached == (0, 0, 0, 0)
    assert chunk_facts(IDS, TOKENS, tree(root), "other").path_cached == (50, 151, 151, 151)


def test_of_several_beginnings_the_one_that_holds_most_counts() -> None:
    little = node("", 20, "gpu", node("a", 101, "gpu"))
    much = node("", 50, "gpu", node("a", 101, "gpu", node("b", 202, "gpu")))
    facts = chunk_facts(IDS, TOKENS, tree(little, much, little))
    assert facts.path_cached == (50, 151, 353, 353)


class Engine:
    def __init__(self) -> None:
        self.looks = 0
        self.breaks = False

    def tree(self) -> TreeSnapshot | None:
        self.looks += 1
        if self.breaks:
            msg = "gone"
            raise EngineDeadError(msg)
        return tree(node("", 50, "gpu", node("a", 101, "gpu")))

    async def atree(self) -> TreeSnapshot | None:
        return self.tree()


def test_the_tree_is_not_looked_at_for_every_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "MAX_AGE_SECONDS", 1000.0)
    engine = Engine()
    chunks = CachedChunks(engine)
    facts = chunks.facts(IDS, TOKENS)
    assert facts.path_cached == (50, 151, 151, 151)
    assert asyncio.run(chunks.afacts(IDS, TOKENS)) == facts
    assert engine.looks == 1


def test_an_engine_that_is_gone_has_nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "MAX_AGE_SECONDS", 0.0)
    engine = Engine()
    chunks = CachedChunks(engine)
    assert chunks.facts(IDS, TOKENS).path_cached[-1] == 151
    engine.breaks = True
    assert chunks.facts(IDS, TOKENS).path_cached[-1] == 0
    assert asyncio.run(chunks.afacts(IDS, TOKENS)).path_cached[-1] == 0
