"""Children that are forked while threads of the parent make modules."""

from __future__ import annotations

from tests.support.forking import run_forking


def test_a_child_uses_what_is_there_and_makes_the_rest() -> None:
    assert run_forking("tests.modular.forks", anew=True) == "done\n"
