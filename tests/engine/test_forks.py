"""Programs that tests start as forks are apart from the tests from their first moment on."""

from __future__ import annotations

import os

import pytest

from tests.support.programs import start_program

pytestmark = pytest.mark.engine


def test_a_fork_has_a_group_of_its_own_when_it_is_returned() -> None:
    """Jupyter asks for it at once, and interrupts the group: it must not be the tests' own."""
    for _ in range(20):
        process = start_program("this", [], 1, 2)
        try:
            assert os.getpgid(process.pid) == process.pid
        except ProcessLookupError:
            pass  # it was quick
        finally:
            process.wait(60)
