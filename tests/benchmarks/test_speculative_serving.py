"""What the benchmark of speculation replays and counts."""

from __future__ import annotations

import time

import pytest
from parts.speculation.recorded_stages import Recording
from parts.speculation.serving import Corpus, Replay

RECORDING = Recording(
    {"kind": "ivf"},
    [
        [(0.01, ("1", "2")), (0.04, ("1", "3"))],
        [(0.02, ("4", "5")), (0.06, ("4", "5"))],
        [(0.01, ("6", "7")), (0.05, ("6", "7"))],
    ],
)


def test_searches_are_stretched_in_proportion() -> None:
    replay = Replay(RECORDING, seconds=0.5)  # the median search took 0.05
    assert [ids for _, ids in replay.stages(0)] == [("1", "2"), ("1", "3")]
    assert [seconds for seconds, _ in replay.stages(0)] == pytest.approx([0.1, 0.4])
    assert replay.stages(4) == replay.stages(1)
    assert len(replay) == 3
    assert replay.agreeing() == pytest.approx(2 / 3)


async def test_stages_come_when_they_did() -> None:
    began = time.perf_counter()
    stages = [(stage, time.perf_counter() - began) async for stage in Replay(RECORDING, 0.05)(0)]
    assert [(stage.documents, stage.final) for stage, _ in stages] == [
        (("1", "2"), False),
        (("1", "3"), True),
    ]
    for (_, seconds), wanted in zip(stages, (0.01, 0.04), strict=True):
        assert seconds >= wanted


def test_every_id_has_a_document_of_its_own() -> None:
    corpus = Corpus(words=50)
    documents = [corpus.document(str(number)) for number in range(200)]
    assert len({one.text for one in documents}) == 200
    assert {len(document.text.split()) for document in documents} == {51}
    assert corpus.document("17") == Corpus(words=50).document("17")
    prompt = corpus.prompt("why?", ["1", "2"])
    assert [one.id for one in prompt.documents] == ["1", "2"]
