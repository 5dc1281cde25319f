"""What tests of saved and copied histories share."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import strategies as st
from langchain_core.messages import BaseMessage

BUDGET = 120


def words(text: str) -> int:
    return len(text.split())


def is_a_name(message: Any) -> bool:
    return "name" in (message.text if isinstance(message, BaseMessage) else message.content or "")


GATE = threading.Event()
GATE.set()

TEXT = st.one_of(
    st.sampled_from(["hello", "my name is Ada", "über “quotes” \u2028 \x00", "<|im_start|>", ""]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.integers(1, 15).map(lambda count: "word " * count),
)
