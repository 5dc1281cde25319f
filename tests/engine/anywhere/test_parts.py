"""The parts of reuse anywhere, one by one."""

from __future__ import annotations

import sys

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragcache_integrations.core.prompt import Span
from ragcache_integrations.engine.in_vllm.anywhere.paged import ORIGIN, angles_between, turn
from ragcache_integrations.engine.in_vllm.anywhere.plan import make_plan
from ragcache_integrations.engine.in_vllm.anywhere.store import DocumentStore
from ragcache_integrations.engine.protocol import document_key
from ragcache_integrations.knowledge_tree.policies import POLICIES


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Documents with text between them, and the length of the prompt."""
    spans: list[Span] = []
    at = 0
    for number in range(draw(st.integers(1, 6))):
        begin = at + draw(st.integers(0, 5))
        at = begin + draw(st.integers(1, 40))
        spans.append((f"d{number}", begin, at))
    return spans, at + draw(st.integers(0, 9))


@given(prompts(), st.sets(st.integers(0, 5)), st.integers(0, 50), st.integers(0, 90), st.data())
def test_each_token_is_read_or_computed_once(
    prompt: tuple[list[Span], int], known: set[int], links: int, exact: int, data: st.DataObject
) -> None:
    spans, length = prompt
    keys = [bytes([number]) for number in range(len(spans))]
    stored = {bytes([number]) for number in known}
    plan = make_plan(spans, keys, stored, links, length, exact)
    assert plan.end < length
    for local in (0, data.draw(st.integers(0, length))):
        left = plan.after(local)
        read = [range(load.first, load.end) for load in left.loads]
        computed = [range(*row) for row in left.rows]
        places = sorted(place for part in (*read, *computed) for place in part)
        assert places == list(range(local, plan.end))
        assert left.computed == sum(map(len, computed))
        assert all(part for part in (*read, *computed))
    for load in plan.loads:
        assert load.key in stored
        assert load.first >= max(load.begin + links, exact)
    missing = {key for key, _, _ in plan.missing}
    assert missing == {key for key in keys if key not in stored}


def test_a_document_is_known_by_its_tokens_and_its_tenant() -> None:
    assert document_key("", [1, 2]) == document_key("", [1, 2])
    keys = {document_key(*made) for made in (("", [1, 2]), ("a", [1, 2]), ("", [1, 2, 3]))}
    assert len(keys) == 3


def test_no_name_of_a_tenant_makes_other_tokens_of_its_own() -> None:
    """Whatever the tenant is called, its name does not pass for the first tokens."""
    number = (7).to_bytes(4, sys.byteorder).decode()
    for joined in ("\0" + number[:-1], number, "\0" + number, number + "\0"):
        assert document_key(f"a{joined}", [8]) != document_key("a", [7, 8])


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.booleans()), max_size=60),
    st.sets(st.integers(0, 9), max_size=3),
)
def test_what_is_stored_fits(
    policy: str, steps: list[tuple[int, int, bool]], kept: set[int]
) -> None:
    store, sizes = DocumentStore(100, policy), dict[bytes, int]()
    staying = {bytes([number]) for number in kept}
    for number, tokens, reads in steps:
        key = bytes([number])
        if reads:
            store.access([key])
            continue
        before = dict(sizes)
        gone = store.add(key, tokens, tokens, staying)
        if gone is None:
            assert tokens + sum(before.get(name, 0) for name in staying) > 100
        else:
            assert staying.isdisjoint(gone)
            for name in gone:
                del sizes[name]
            sizes.setdefault(key, tokens)
        assert store.used == sum(sizes.values()) <= 100
        assert {name for name in sizes if name in store} == set(sizes)
        assert len(store) == len(sizes)
    assert set(store.clear()) == set(sizes)
    assert store.used == 0


def test_one_that_comes_back_has_the_size_of_now() -> None:
    store = DocumentStore(100)
    store.add(b"a", 60, 60)
    assert store.add(b"b", 100, 100) == [b"a"]
    assert store.add(b"a", 10, 10) == [b"b"]
    assert store.add(b"c", 90, 90) == []
    assert store.used == 100


def test_the_one_that_is_read_stays() -> None:
    for policy in sorted(POLICIES):
        store = DocumentStore(30, policy)
        for key in (b"a", b"b", b"c"):
            assert store.add(key, 10, 10) == []
        store.access([b"a"])
        store.access([b"c"])
        assert store.add(b"d", 10, 10) == [b"b"], policy
        assert store.evicted == 1


def moved(keys: Tensor, table: Tensor, before: int, after: int) -> Tensor:
    places = (slice(at, at + len(keys)) for at in (before, after))
    return turn(keys.clone(), angles_between(table, *places))


def test_keys_are_turned_as_the_table_says() -> None:
    angles = torch.arange(200)[:, None] * (10_000 ** -(torch.arange(8) / 8))
    table = torch.cat([angles.cos(), angles.sin()], -1)
    first, second = torch.randn(2, 20, 3, 8)
    first_and_second = torch.cat([first, second], -1)
    here, there = angles[:20, None], angles[150:170, None]
    expected = [
        torch.cat([first * a.cos() - second * a.sin(), second * a.cos() + first * a.sin()], -1)
        for a in (here, there)
    ]
    torch.testing.assert_close(moved(expected[0], table, 0, 150), expected[1])
    torch.testing.assert_close(moved(expected[1], table, 150, 0), expected[0])
    torch.testing.assert_close(moved(expected[0][5:], table, 5, 155), expected[1][5:])
    layers = torch.stack([expected[0], expected[1]])
    there = turn(layers.clone(), angles_between(table, slice(20), slice(150, 170)))
    torch.testing.assert_close(there[0], expected[1])
    torch.testing.assert_close(there[1], moved(expected[1], table, 0, 150))
    before = turn(expected[1].clone(), angles_between(table, slice(150, 170), ORIGIN))
    torch.testing.assert_close(before, first_and_second)


def test_a_factor_in_the_table_is_none_of_the_angle() -> None:
    angles = torch.arange(64)[:, None] * (10_000 ** -(torch.arange(4) / 4))
    table = torch.cat([angles.cos(), angles.sin()], -1)
    keys = torch.randn(8, 1, 8)
    torch.testing.assert_close(moved(keys, table * 1.3, 0, 40), moved(keys, table, 0, 40))
