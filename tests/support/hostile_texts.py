"""Texts that try to be markup, and texts that do not."""

from __future__ import annotations

from hypothesis import strategies as st

from ragcache_integrations.engine import Message, PromptDocument

from .chat_models import FAMILIES

__all__ = ["MARKUP", "conversations", "harmless_texts", "hostile_texts"]

MARKUP = tuple(
    dict.fromkeys(token for family in FAMILIES.values() for token in family.markup if token.strip())
)

_characters = st.characters(exclude_categories=["Cs"])
_fragments = st.builds(
    lambda token, start, end: token[start : start + end],
    st.sampled_from(MARKUP),
    st.integers(0, 12),
    st.integers(1, 24),
)
# What a placeholder, a cut or an older mark looks like.
_marks = st.sampled_from(
    [
        *("\ue0000\ue001", "\ue000", "\ue001", '\U000104280"\U00010429', "\U00010428", 'X0"', '"'),
        *("\\", "Qz0zQ", "<0x0A>", "<unk>", "[UNK]", "\0", "{{ bos_token }}", "{% endfor %}", "x"),
        *("<think>", "</think>", "user", "system", "assistant", "\nuser: ", "\ufeff", "\u200b"),
    ]
)
_blanks = st.text(" \n\t\r\u00a0\u2028", min_size=1, max_size=3)
hostile_texts = st.lists(
    st.sampled_from(MARKUP)
    | _fragments
    | _marks
    | _blanks
    | st.text(_characters, max_size=8)
    | st.text(st.characters(categories=["Co"]), max_size=3),
    max_size=8,
).map("".join)
"""Of every length, most of them of markup and pieces of it."""

harmless_texts = st.lists(
    st.sampled_from(
        ["Hello,", "cats", "purr", "é", "日本", "12,345", "don't", "{a: [1]}", "<b>", "|"]
    )
    | _blanks
    | st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=5),
    max_size=8,
).map(lambda pieces: "".join(pieces).replace("<", "(").replace("[", "(").replace("\uff5c", ""))
"""Without anything that is markup or a part of it."""


@st.composite
def conversations(
    draw: st.DrawFn,
    texts: st.SearchStrategy[str],
    *,
    system: bool = True,
    documents: bool = False,
    tools: bool = False,
) -> tuple[Message, ...]:
    """Turns that every template takes: perhaps a system turn, then users, assistants and tools."""
    parts = texts
    if documents:
        parts = texts | texts.filter(bool).map(PromptDocument)  # type: ignore[arg-type]

    def message(role: str) -> Message:
        return Message(role, draw(st.lists(parts, max_size=3)))

    messages = [message("system")] if system and draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        messages += [message("user"), message("assistant")]
        if tools and draw(st.booleans()):
            messages += [message("tool"), message("assistant")]
    return (*messages, Message("user", ["x", *message("user").parts]))
