"""The record of common beginnings, which outlives the engine's process."""

from __future__ import annotations

import random

import pytest

from ragcache_integrations.engine.process.exchange import DOCUMENTS, MOST_PREFIXES, RECORDED
from ragcache_integrations.engine.process.exchange import HotPrefixes as Record

SYSTEM = [1, 2, 3, 4]

Spans = list[tuple[str, int, int]]


def prompt(*names: str, system: list[int] = SYSTEM, length: int = 5) -> tuple[list[int], Spans]:
    """A system text, documents with a separator before each, and a question."""
    tokens, spans = list(system), []
    for name in names:
        tokens.append(9)
        begin = len(tokens)
        tokens += [ord(name[0]) + at for at in range(length)]
        spans.append((name, begin, len(tokens)))
    return [*tokens, 77, 78], spans


def note(record: Record, *names: str, namespace: str = "", times: int = 1) -> None:
    tokens, spans = prompt(*names)
    for _ in range(times):
        record.note(namespace, tokens, spans)


def test_the_common_text_comes_first_and_each_behind_what_it_continues() -> None:
    record = Record(1000)
    note(record, "a", "b", times=3)
    note(record, "a", "c", times=5)
    note(record, "d", times=2)
    note(record, "e")
    hottest = record.hottest(1000)
    assert [[name for name, _, _ in prefix.documents] for prefix in hottest] == [
        [],
        ["a"],
        ["a", "c"],
        ["a", "b"],
        ["d"],
    ]
    tokens, spans = prompt("a", "c")
    assert hottest[0].token_ids == tokens[: spans[0][1]]
    assert hottest[2].token_ids == tokens[:-2]
    assert list(hottest[2].documents) == spans


def test_no_more_than_the_budget_and_a_document_only_with_what_is_before_it() -> None:
    record = Record(1000)
    note(record, "a", "b", times=4)
    note(record, "c", times=3)
    assert [len(prefix.token_ids) for prefix in record.hottest(5)] == [5]
    assert [len(prefix.token_ids) for prefix in record.hottest(10)] == [5, 10]
    assert record.hottest(4) == []
    assert record.hottest(0) == []


def test_tenants_and_other_texts_of_one_id_are_kept_apart() -> None:
    record = Record(1000)
    note(record, "a", namespace="one", times=2)
    note(record, "a", namespace="two", times=3)
    tokens, spans = prompt("a", length=6)
    record.note("two", tokens, spans)
    record.note("two", tokens, spans)
    found = [(prefix.namespace, len(prefix.token_ids)) for prefix in record.hottest(1000)]
    assert found == [("two", 5), ("two", 10), ("one", 5), ("one", 10), ("two", 11)]


def test_only_the_first_documents_and_nothing_of_prompts_without() -> None:
    record = Record(1000)
    note(record, *"abcdef", times=2)
    assert max(len(prefix.documents) for prefix in record.hottest(1000)) == DOCUMENTS
    record.clear()
    assert record.hottest(1000) == []
    assert record.recorded_tokens == 0
    record.note("", [1, 2, 3], [])
    assert record.recorded_tokens == 0
    nothing = Record(0)
    note(nothing, "a", times=3)
    assert nothing.recorded_tokens == 0


def test_a_prompt_that_begins_with_a_document() -> None:
    record = Record(1000)
    for _ in range(2):
        record.note("", [5, 6, 7, 8], [("d", 0, 3)])
    (prefix,) = record.hottest(1000)
    assert prefix.token_ids == [5, 6, 7]
    assert prefix.documents == (("d", 0, 3),)


def test_there_are_not_too_many_of_them() -> None:
    record = Record(100_000)
    for number in range(2 * MOST_PREFIXES):
        tokens = [1, 2, number]
        record.note("", tokens, [(f"d{number}", 2, 3)])
        record.note("", tokens, [(f"d{number}", 2, 3)])
    assert len(record.hottest(100_000)) == MOST_PREFIXES


@pytest.mark.parametrize("seed", range(10))
def test_memory_is_bounded_and_what_is_common_stays(seed: int) -> None:
    dice = random.Random(seed)
    record = Record(200)
    for _ in range(400):
        if dice.random() < 0.3:
            note(record, "A", "B")
        else:
            rare = [dice.randint(100, 30_000) for _ in range(dice.randint(1, 30))]
            record.note("", [*SYSTEM, *rare, 77], [("rare", len(SYSTEM), len(SYSTEM) + len(rare))])
        assert record.recorded_tokens <= RECORDED * 200
    note(record, "A", "B", times=2)
    assert [list(prefix.documents) for prefix in record.hottest(20)][-1] == prompt("A", "B")[1]
