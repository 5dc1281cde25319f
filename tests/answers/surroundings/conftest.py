"""No test finds the calls of another."""

from __future__ import annotations

import pytest

from tests.answers.surroundings.steps import CALLS, READS


@pytest.fixture(autouse=True)
def _cleared() -> None:
    CALLS.clear()
    READS.clear()
