"""Context variables that one test sets are not set in the next one."""

from __future__ import annotations

from contextvars import ContextVar

import pytest

LEFT: ContextVar[str] = ContextVar("left", default="nothing")


@pytest.mark.parametrize("test", ["one", "the next"])
def test_what_a_test_sets_is_gone(test: str) -> None:
    assert LEFT.get() == "nothing"
    LEFT.set(test)


@pytest.mark.asyncio
@pytest.mark.parametrize("test", ["one", "the next"])
async def test_what_an_async_test_sets_is_gone(test: str) -> None:
    assert LEFT.get() == "nothing"
    LEFT.set(test)
