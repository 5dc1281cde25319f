"""Children that are forked while threads of the parent ask neither hang nor answer wrongly."""

from __future__ import annotations

import pytest

from tests.support.forking import run_forking


@pytest.mark.parametrize(
    "scene", ["langchain", "with_faiss", "llama_index", "redis", "flights", "cache", "change"]
)
@pytest.mark.slow
def test_a_child_answers(scene: str) -> None:
    assert run_forking("tests.retrievers.sharing.forks", scene, anew=True) == "done\n"
