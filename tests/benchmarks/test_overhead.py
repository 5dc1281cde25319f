"""What the overhead benchmark counts and subtracts. Its times are nobody's business here."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import overhead
import pytest
from parts.overhead.call_counts import CallCounter
from parts.overhead.contests import KINDS, Contest, count_calls, ratio_of, time_calls
from parts.overhead.subtraction import Stopwatch, rephrase, vectors_of

FIELDS = ("ratio", "interval", "calls", "files")


def test_every_question_is_new_once_then_repeated_then_rephrased() -> None:
    plain: list[str] = []
    ours: list[str] = []
    questions = [f"question {number}" for number in range(12)]
    contest = Contest(plain.append, ours.append, Stopwatch())
    times = asyncio.run(time_calls(contest, questions, warm_up=3))
    assert plain == questions[1:]
    for question in questions[1:-1]:
        assert ours.count(question) == 2
        assert ours.count(rephrase(question)) == 1
        assert ours.index(question) < ours.index(rephrase(question))
    for kind in KINDS:
        assert [len(seconds) for seconds in times[kind]] == [8, 8]


def test_what_the_stopwatch_saw_is_subtracted_on_both_sides() -> None:
    stopwatch = Stopwatch()
    search = stopwatch.timed(time.sleep)

    async def plain(_: str) -> None:
        search(0.02)

    contest = Contest(plain, lambda _: None, stopwatch)
    times = asyncio.run(time_calls(contest, [str(number) for number in range(4)], warm_up=0))
    assert stopwatch.seconds >= 3 * 0.02
    assert max(times["hit"][1]) < 0.02


def test_a_coroutine_is_timed_until_it_ends() -> None:
    stopwatch = Stopwatch()
    asyncio.run(stopwatch.atimed(asyncio.sleep)(0.01))  # type: ignore[arg-type] # a coroutine
    assert stopwatch.seconds >= 0.005


def test_a_ratio_is_ours_over_plain() -> None:
    times = {kind: ([4.0] * 9, [2.0] * 9) for kind in KINDS}
    assert ratio_of([times, times], "hit").value == pytest.approx(2.0)


def test_calls_are_counted_in_all_threads_and_of_one_folder_alone(tmp_path: Path) -> None:
    module = tmp_path / "counted.py"
    module.write_text("def work(x):\n    return inner(x)\ndef inner(x):\n    return x\n")
    names: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), names)
    counter = CallCounter(str(tmp_path))

    def in_thread(text: str) -> None:
        thread = threading.Thread(target=names["work"], args=(text,))
        thread.start()
        thread.join()
        names["inner"](text)

    with counter.watching():
        counts = asyncio.run(count_calls(counter, in_thread, ["warm up", "counted"]))
    assert counts == dict.fromkeys(KINDS, (3, 1))
    assert threading.getprofile() is None


def test_rephrasings_alone_are_close() -> None:
    questions = ["a", "b", "c"]
    vectors = vectors_of(questions, 64, 0)

    def distance(one: str, other: str) -> float:
        pairs = zip(vectors[one], vectors[other], strict=True)
        return float(sum((x - y) ** 2 for x, y in pairs) ** 0.5)

    for question in questions:
        assert 0.01 < distance(question, rephrase(question)) < 0.2
        assert all(distance(question, other) > 0.7 for other in questions if other != question)


COUNTING = """
import argparse, asyncio, json, overhead
from parts.overhead.call_counts import CallCounter
from parts.overhead.contests import count_calls

bench = overhead.Bench(argparse.Namespace(quick=True, seeds=1, questions=1, rerank_factor=4))
questions = [f"What is {number}?" for number in range(5)]

async def count(framework, asynchronous):
    counter = CallCounter()
    with counter.watching():
        contest = bench._contest(framework, questions, 0, asynchronous=asynchronous)
        return await count_calls(counter, contest.ours, questions)

names = [(framework, way) for framework in overhead.FRAMEWORKS for way in (False, True)]
print(json.dumps([asyncio.run(count(*name)) for name in names]))
"""
MOST = {"hit": (58, 15), "rephrased": (430, 28), "miss": (310, 32)}
"""Calls and files. What a hit has beyond a few of each is documents' copies; what the others have,
the guard's reading of a new question (300 calls of a rephrasing) and the insertion."""


def test_a_question_takes_no_more_calls_and_files_than_it_has_to() -> None:
    # In another process: nothing follows runs for LLMs there, as other tests have it done.
    paths = [str(Path(overhead.__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", COUNTING],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    for counts in json.loads(done.stdout.splitlines()[-1]):
        for kind, (calls, files) in counts.items():
            assert calls <= MOST[kind][0], kind
            assert files <= MOST[kind][1], kind


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
@pytest.mark.slow
def test_hits_take_fewer_calls_than_misses_in_both_frameworks(framework: str) -> None:
    options = argparse.Namespace(quick=True, seeds=1, questions=1, rerank_factor=4)
    bench = overhead.Bench(options)
    bench.questions = 3
    figures = json.loads(json.dumps(asyncio.run(overhead.measure(bench, framework))))
    names = [f"{prefix}{kind}" for prefix in ("", "async_") for kind in (*KINDS, "llm")]
    assert figures.keys() == {f"{name}_{field}" for name in names for field in FIELDS}
    for prefix in ("", "async_"):
        hit, rephrased, miss = (
            figures[f"{prefix}{kind}_calls"] for kind in ("hit", "rephrased", "miss")
        )
        assert 0 < hit < rephrased < miss
        assert 0 < figures[f"{prefix}hit_files"] <= figures[f"{prefix}miss_files"]
        assert figures[f"{prefix}llm_calls"] > 0
