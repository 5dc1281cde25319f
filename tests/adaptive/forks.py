"""Forks while questions are being answered. ``test_given_up.py`` runs it."""

from __future__ import annotations

import sys
import threading
from contextlib import closing

from ragcache_integrations.adaptive import AdaptivePipeline, ModelAnswer, ModelRequest
from tests.support.forking import in_child

from .askers import ScriptedAsker, said
from .test_pipeline import QUESTION, Memory, left_clean, make, retrieve


def is_idle(pipeline: AdaptivePipeline) -> bool:
    return left_clean(pipeline) and pipeline._is_idle()


def in_another_thread() -> None:
    """The child has no such thread: golden feedback would wait for its question for ever."""
    asked, forked = threading.Event(), threading.Event()

    def answer(_: ModelRequest) -> ModelAnswer:
        asked.set()
        assert forked.wait(10)
        return said("yes", -0.5)

    def look() -> None:
        assert is_idle(pipeline)

    pipeline = make(memory=Memory(), asker=ScriptedAsker(answer), mode="gradual")
    answering = threading.Thread(target=pipeline.answer, args=(QUESTION, retrieve))
    answering.start()
    assert asked.wait(10)
    assert not pipeline._is_idle()
    in_child(look)
    forked.set()
    answering.join()
    assert is_idle(pipeline)


def in_the_same_thread() -> None:
    """Parent and child go on with the stream."""

    def go_on() -> None:
        assert "".join(piece for piece in pieces if isinstance(piece, str)) == "yes"
        assert is_idle(pipeline)

    pipeline = make(memory=Memory(), mode="gradual")
    with closing(pipeline.stream(QUESTION, retrieve)) as pieces:
        next(pieces)
        in_child(go_on)
        assert not pipeline._is_idle()
        go_on()


if __name__ == "__main__":
    in_another_thread()
    in_the_same_thread()
    sys.stdout.write("done\n")
