"""The conversations of ``benchmarks/context.py``: every way is asked the same."""

from __future__ import annotations

import pytest
from parts.prompts.contextpilot_peer import has_contextpilot
from parts.prompts.conversations import (
    Kind,
    by_contextpilot,
    chat_turns,
    repeated_searches,
    turns_by_contextpilot,
)


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("kind", ["chat", "agent"])
def test_the_second_turn_refers_to_all_that_the_first_has_found(kind: Kind) -> None:
    conversation = repeated_searches("bundled", 2)[0]
    plain, once = (
        chat_turns(conversation, kind, 100_000, words, once=once) for once in (False, True)
    )
    assert [m.text for m in once[0]] == [m.text for m in plain[0]]
    assert [m.text for m in once[1][:-1]] == [m.text for m in plain[1][:-1]]
    assert words(once[1][-1].text) < 0.3 * words(plain[1][-1].text)
    first, second = conversation.questions
    assert {chunk.id for chunk in first.chunks} == {chunk.id for chunk in second.chunks}
    assert len({chunk.id for chunk in second.chunks}) == 4
    assert first.text != second.text
    for turn, question in zip(plain, conversation.questions, strict=True):
        assert all(chunk.page_content.strip() in turn[-1].text for chunk in question.chunks)
        assert any(question.text in str(message.text) for message in turn)


@pytest.mark.skipif(not has_contextpilot(), reason="ContextPilot is not installed")
@pytest.mark.parametrize("kind", ["chat", "agent"])
def test_contextpilot_is_asked_the_same(kind: Kind) -> None:
    conversation = repeated_searches("bundled", 2)[0]
    plain = chat_turns(conversation, kind, 100_000, words, once=False)
    by_id = turns_by_contextpilot(conversation, kind, 100_000, words)
    assert [m.type for m in by_id[1]] == [m.type for m in plain[1]]
    assert words(by_id[0][-1].text) >= words(plain[0][-1].text)
    assert words(by_id[1][-1].text) < 0.3 * words(plain[1][-1].text)
    assert [m.type for m in by_contextpilot(plain[1])] == [m.type for m in plain[1]]
