"""A run that is broken off, at any moment and in any way, goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from langchain_core.outputs import ChatGenerationChunk

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import EvalRun, evaluate
from ragcache_workbench.evaluation.records import Checkpoint, Record, RunDirectory, read_records
from tests.evaluation.world import Echo, make_retriever
from tests.support.room import room_for

WORKLOAD: dict[str, Any] = {"sample": 30, "workload": "zipf", "length": 90, "seed": 3, "k": 4}


class CrashError(RuntimeError):
    """What a model may run into."""


def run(out: Path, model: Echo | None = None, **knobs: Any) -> EvalRun:
    return evaluate(
        "nq",
        retriever=make_retriever,
        model=model or Echo(),
        out=out,
        **{"checkpoint_seconds": 0.0, **WORKLOAD, **knobs},
    )


def facts(found: EvalRun) -> list[dict[str, Any]]:
    """All that does not depend on the clock."""
    return [
        {
            name: value
            for name, value in record.as_dict().items()
            if not name.endswith("_seconds") and name not in {"session", "disturbed"}
        }
        for record in found.records
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> EvalRun:
    return run(tmp_path_factory.mktemp("undisturbed"))


def test_the_undisturbed_run_has_something_to_lose(undisturbed: EvalRun) -> None:
    assert len(undisturbed.records) == 90
    assert 10 < undisturbed.figures["cache_hits"] < 80
    assert undisturbed.summary["breaks"] == []
    assert {record.session for record in undisturbed.records} == {1}
    # More questions miss than the cache has room for, so that what was evicted matters.
    assert 90 - undisturbed.figures["cache_hits"] > 25


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 0.05, 1e9])
def test_crashes_lose_nothing(
    undisturbed: EvalRun, tmp_path: Path, checkpoint_seconds: float
) -> None:
    """Whatever is left of the checkpoints' interval is asked again, from the same state."""
    breaks = 0
    for calls in (4, 9, 30, 40, 1000):  # the first call is to warm up

        def called(number: int, last: int = calls) -> None:
            if number == last:
                raise CrashError

        try:
            found = run(tmp_path, Echo(called=called), checkpoint_seconds=checkpoint_seconds)
        except CrashError:
            breaks += 1
    assert breaks == 4
    assert facts(found) == facts(undisturbed)
    assert found.scores == undisturbed.scores
    for name in ("cache_hits", "cache_hit_rate", "k_recall", "prompt_tokens", "tokens_saved"):
        assert found.figures[name] == undisturbed.figures[name]
    sessions = found.summary["sessions"]
    if checkpoint_seconds == 0:
        assert len(found.summary["breaks"]) == 4
        assert found.summary["breaks"] == sorted(found.summary["breaks"])
        assert [record.session for record in found.records] == sorted(
            one.session for one in found.records
        )
    elif checkpoint_seconds == 1e9:
        assert len(sessions) == 1  # nothing was ever kept before the end
    left = {one.name for one in found.path.iterdir()}
    assert left == {
        *(".lock", "checkpoint.json", "config.json", "environment.json"),
        *("records.jsonl", "scores.jsonl", "summary.json"),
    }


@pytest.mark.parametrize("size", [0, 4_000, 12_000, 20_000])
def test_a_full_disk_loses_nothing(undisturbed: EvalRun, tmp_path: Path, size: int) -> None:
    with room_for(size), pytest.raises(ConfigurationError, match="cannot write the run to") as no:
        run(tmp_path)
    assert ("resumes it" in str(no.value)) == (size > 0)
    assert facts(run(tmp_path)) == facts(undisturbed)


@pytest.mark.parametrize(
    "knobs", [{"cache_index": "lsh", "num_hyperplanes": 3}, {"eviction": "fifo"}]
)
@pytest.mark.slow
def test_with_other_caches(tmp_path: Path, knobs: dict[str, Any]) -> None:
    whole = run(tmp_path / "whole", **knobs)

    def called(number: int) -> None:
        if number % 20 == 0:
            raise CrashError

    for _ in range(10):
        try:
            found = run(tmp_path / "broken", Echo(called=called), **knobs)
            break
        except CrashError:
            continue
    assert facts(found) == facts(whole)
    assert len(found.summary["breaks"]) > 2


def test_the_order_of_documents_goes_on_too(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", order="cached_first")

    def called(number: int) -> None:
        if number == 40:
            raise CrashError

    with pytest.raises(CrashError):
        run(tmp_path / "broken", Echo(called=called), order="cached_first")
    assert facts(run(tmp_path / "broken", order="cached_first")) == facts(whole)
    assert facts(whole) != facts(run(tmp_path / "other", order="relevance"))  # it does something


@pytest.mark.parametrize("knobs", [{"users": 5}, {"rate": 400.0}])
def test_no_question_is_its_own_hit(tmp_path: Path, knobs: dict[str, Any]) -> None:
    """Several at a time: what is under way at a checkpoint is known to the cache already."""
    answers = 0

    class Crashing(Echo):
        """Fails some times, with every fifteenth answer: others are through before it."""

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            nonlocal answers
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk
            answers += 1
            if answers % 15 == 0 and breaks < 5:
                raise CrashError

    breaks = 0
    while True:
        try:
            found = run(tmp_path, Crashing(seconds=0.004), **knobs)
            break
        except CrashError:
            breaks += 1
    assert breaks >= 2
    assert [record.number for record in found.records] == list(range(90))
    assert len({one.sequence for one in found.records}) == 90
    # No text comes twice in this stream: a distance of 0 would be to the question itself.
    assert all(one.distance != 0 for one in found.records)
    assert any(one.disturbed for one in found.records)
    assert found.figures["disturbed"] == sum(one.disturbed for one in found.records)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.evaluation.records.test_resuming import run
from tests.evaluation.world import Echo
run(Path(sys.argv[2]), Echo(seconds=0.004))
"""


@pytest.mark.slow
def test_killed_again_and_again(undisturbed: EvalRun, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SCRIPT, str(root), str(tmp_path)]
    kills = 0
    while True:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        before = len(list_records(tmp_path))
        while process.poll() is None:
            if kills < 3 and len(list_records(tmp_path)) > before + 15:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.005)
        _, error = process.communicate(timeout=300)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error
    (folder,) = tmp_path.iterdir()
    found = EvalRun.load(folder)
    assert kills == 3
    assert len(found.summary["breaks"]) == 3
    assert facts(found) == facts(undisturbed)
    assert found.scores == undisturbed.scores


def list_records(out: Path) -> list[str]:
    return [
        line for one in out.glob("*/records.jsonl") for line in one.read_text().split("\n") if line
    ]


def test_a_complete_run_is_read_and_not_asked_again(undisturbed: EvalRun) -> None:
    silent = Echo(called=lambda _: pytest.fail("it was asked"))
    again = run(undisturbed.path.parent, silent)
    assert facts(again) == facts(undisturbed)
    assert again.summary == undisturbed.summary


def test_begun_anew(tmp_path: Path) -> None:
    first = run(tmp_path, sample=5, length=8)
    second = run(tmp_path, sample=5, length=8, fresh=True)
    assert first.path == second.path
    assert facts(first) == facts(second)
    times = [record.end_to_end_seconds for record in first.records]
    assert times != [one.end_to_end_seconds for one in second.records]


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    def called(number: int) -> None:
        if number == 20:
            raise CrashError

    with pytest.raises(CrashError):
        run(tmp_path, Echo(called=called))
    (folder,) = tmp_path.iterdir()
    records = (folder / "records.jsonl").read_bytes()
    # As if killed while the next checkpoint was being written.
    (folder / "records.jsonl").write_bytes(records + records[:100])
    (folder / "cache-9-9.npz").write_bytes(b"half a cache")
    (folder / f".{'0123' * 8}.tmp").write_bytes(b"half a file")
    found = run(tmp_path)
    assert [record.number for record in found.records] == list(range(90))
    assert not list(folder.glob("cache-*")) + list(folder.glob(".*.tmp"))


@pytest.mark.parametrize("name", ["config.json", "checkpoint.json", "records.jsonl"])
def test_a_damaged_run_is_refused_with_what_to_do_and_that_helps(name: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"sample": 5, "length": 8}
    first = run(tmp_path, **small)
    (first.path / name).write_text("x", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="with --fresh, or name another --out") as refused:
        run(tmp_path, **small)
    assert str(first.path / name) in str(refused.value)
    assert facts(run(tmp_path, fresh=True, **small)) == facts(first)


def test_two_processes_do_not_write_the_same_run(tmp_path: Path) -> None:
    seen = []

    def called(number: int) -> None:
        if number == 5:
            with pytest.raises(ConfigurationError, match="another process: wait until that ends"):
                run(tmp_path)
            seen.append(number)

    run(tmp_path, Echo(called=called), users=1)
    assert seen == [5]


def test_after_a_checkpoint_that_failed_none_follows_half_of_it(tmp_path: Path) -> None:
    config = {"workload": {"questions": 3}}
    records = [
        Record(number=number, question="q", text="t" * 5_000, session=1, sequence=number, answer="")
        for number in range(3)
    ]

    def checkpoint() -> Checkpoint:
        return Checkpoint(sessions=[{"started": "now", "before": 0}])

    with RunDirectory(tmp_path, config) as directory:
        directory.commit(checkpoint(), records[:1])
        with room_for(8_000), pytest.raises(ConfigurationError, match="same command resumes it"):
            directory.commit(checkpoint(), records[1:2])
        with pytest.raises(ConfigurationError, match="could not be written: resume it"):
            directory.commit(checkpoint(), records[2:])
    with RunDirectory(tmp_path, config) as directory:
        assert [record.number for record in directory.records] == [0]
        directory.commit(checkpoint(), records[1:])
    with RunDirectory(tmp_path, config) as directory:
        assert [record.number for record in directory.records] == [0, 1, 2]


def test_half_a_character_of_an_answer_can_be_read_again(tmp_path: Path) -> None:
    """Servers may send one, and JSON takes it; what reads the records does not."""
    config = {"workload": {"questions": 1}, "label": "\ud800"}
    record = Record(
        number=0, question="q", text="t", session=1, sequence=0, answer="a\ud800 \ud83d\ude00"
    )
    with RunDirectory(tmp_path, config) as directory:
        directory.commit(Checkpoint(sessions=[{"started": "now", "before": 0}]), [record])
    with RunDirectory(tmp_path, config) as directory:
        assert [record.answer for record in directory.records] == ["a\ufffd 😀"]


def damage(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("checkpoint.json", "{", "no checkpoint of a run"),
        ("checkpoint.json", "{}", "no checkpoint of a run"),
        ("config.json", "[]", "holds another run"),
        ("records.jsonl", "", "must have"),
    ],
)
def test_damaged_runs_are_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    def called(number: int) -> None:
        if number == 10:
            raise CrashError

    with pytest.raises(CrashError):
        run(tmp_path, Echo(called=called))
    (folder,) = tmp_path.iterdir()
    damage(folder, name, content)
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    with pytest.raises(ConfigurationError, match=words):
        run(tmp_path)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before


def test_another_run_in_the_folder_is_named(tmp_path: Path) -> None:
    found = run(tmp_path, sample=5, length=8)
    config = json.loads((found.path / "config.json").read_text())
    config["settings"]["k"] = 9
    (found.path / "config.json").write_text(json.dumps(config))
    (found.path / "summary.json").unlink()
    with pytest.raises(ConfigurationError, match=r"settings\.k is 4 here and 9 there"):
        run(tmp_path, sample=5, length=8)
    config["settings"]["k"] = "9" * 50_000
    (found.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=r"settings\.k is 4 here and '9") as caught:
        run(tmp_path, sample=5, length=8)
    assert len(str(caught.value)) < 2000


def test_folders_that_are_not_ours(tmp_path: Path) -> None:
    found = run(tmp_path / "runs", sample=5, length=8)
    other = tmp_path / "mine" / found.name
    other.mkdir(parents=True)
    (other / "thesis.json").write_text("{}")
    for fresh in (False, True):
        with pytest.raises(ConfigurationError, match="must be empty or hold a run"):
            run(tmp_path / "mine", sample=5, length=8, fresh=fresh)
    assert (other / "thesis.json").read_text() == "{}"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot write the run"):
        run(tmp_path / "file", sample=5, length=8)
    with pytest.raises(ConfigurationError, match="must be the folder of a run"):
        EvalRun.load(tmp_path)
    (found.path / "summary.json").unlink()
    with pytest.raises(ConfigurationError, match="is not complete"):
        EvalRun.load(found.path)
    assert len(read_records(found.path)) == 8


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 questions that broke off after 3 answers."""
    out = tmp_path_factory.mktemp("broken")

    def called(number: int) -> None:
        if number == 5:
            raise CrashError

    with pytest.raises(CrashError):
        run(out, Echo(called=called), **SMALL)
    (folder,) = out.iterdir()
    return folder


SMALL: dict[str, Any] = {"sample": 6, "workload": "uniform", "variants": 2, "length": None, "k": 3}
PENDING = {
    "number": 7,
    "sequence": 50,
    "documents": [["a", "b"]],
    "noted": {},
    "retrieval_seconds": 0.1,
}


def copied(folder: Path, to: Path) -> Path:
    copy = to / "out" / folder.name
    shutil.copytree(folder, copy)
    return copy


def set_checkpoint(folder: Path, **changes: Any) -> None:
    file = folder / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def refuse(folder: Path, match: str = "") -> None:
    before = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    with pytest.raises(ConfigurationError, match=match):
        run(folder.parent, Echo(called=lambda _: pytest.fail("asked")), **SMALL)
    assert {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()} == before


@pytest.mark.parametrize(
    "wrong",
    [
        *({"records_bytes": one} for one in (-5, "5", 3.0, True, None, 10**12, 0, [1])),
        *({"records_sha256": one} for one in ("0", 3)),
        *({"cache": one} for one in ("../../x", "/etc/passwd", "cache-7-7.npz", 7, "\0", None)),
        *({"complete": one} for one in (True, "no", 1)),
        {"sessions": [7]},
        {"sessions": []},
        {"sessions": None},
        {"sessions": [{}]},
        {"sessions": [{"started": "now", "before": -1}]},
        {"sessions": [{"started": "now", "before": 0, "engine": {"a": "b"}}]},
        {"pending": [{"x": 1}]},
        {"pending": [PENDING | {"number": 10**9}]},
        {"pending": [PENDING | {"number": 0}]},
        {"pending": [PENDING, PENDING]},
        {"pending": [PENDING | {"sequence": -1}]},
        {"pending": [PENDING | {"noted": {"answer": True}}]},
        {"pending": [PENDING | {"retrieval_seconds": float("nan")}]},
        {"pending": [PENDING | {"documents": [["a", 3]]}]},
        {"format": 2},
    ],
    ids=str,
)
def test_no_checkpoint_says_what_cannot_be(
    broken_off: Path, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    folder = copied(broken_off, tmp_path)
    set_checkpoint(folder, **wrong)
    refuse(folder, folder.name)


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", '{"a":' * 5000 + "1" + "}" * 5000, "\0"])
@pytest.mark.parametrize("name", ["checkpoint.json", "config.json"])
def test_no_json_crashes(broken_off: Path, tmp_path: Path, name: str, text: str) -> None:
    folder = copied(broken_off, tmp_path)
    (folder / name).write_text(text)
    refuse(folder, folder.name)


def records_changed(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the records, and what the checkpoint says of them."""
    content = change((folder / "records.jsonl").read_bytes())
    (folder / "records.jsonl").write_bytes(content)
    digest = sha256(content).hexdigest()
    set_checkpoint(folder, records_bytes=len(content), records_sha256=digest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content * 2, "comes twice"),
        (lambda content: content.replace(b'"number": 0', b'"number": 10000000'), "questions, and"),
        (lambda content: content.replace(b'"number": 0', b'"number": 11'), "must be of question"),
        (lambda content: content.replace(b'"number": 0', b'"number": true'), "number"),
        (lambda content: content.replace(b'"session": 1', b'"session": 7'), "1 sessions"),
        (lambda content: content.replace(b'"answer": "', b'"answer": ["'), "holds no records"),
        (lambda content: content.replace(b'"text": "', b'"text": "X'), "got other words"),
        (lambda content: content[:-5], "holds no records"),
        (lambda content: b"[" * 100_000, "holds no records"),
    ],
)
def test_damaged_records_do_not_count(
    broken_off: Path, tmp_path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    folder = copied(broken_off, tmp_path)
    records_changed(folder, change)
    refuse(folder, words)


def test_a_bit_of_a_record_cannot_change_without_notice(broken_off: Path, tmp_path: Path) -> None:
    folder = copied(broken_off, tmp_path)
    content = bytearray((folder / "records.jsonl").read_bytes())
    content[content.index(b'"answer": "') + 12] ^= 1
    (folder / "records.jsonl").write_bytes(content)
    refuse(folder, "checksum is wrong")


def test_a_run_of_an_older_version_goes_on(broken_off: Path, tmp_path: Path) -> None:
    folder = copied(broken_off, tmp_path)
    checkpoint = json.loads((folder / "checkpoint.json").read_text())
    del checkpoint["records_sha256"]
    (folder / "checkpoint.json").write_text(json.dumps(checkpoint))
    assert len(run(folder.parent, **SMALL).records) == 12


@pytest.mark.parametrize(
    "name",
    [
        *("records.jsonl", "summary.json", "scores.jsonl", ".lock", "checkpoint.json"),
        *("environment.json", "config.json"),
    ],
)
@pytest.mark.parametrize("kind", ["link", "pipe", "hanging link"])
def test_nothing_but_regular_files_is_touched(
    broken_off: Path, tmp_path: Path, name: str, kind: str
) -> None:
    folder = copied(broken_off, tmp_path)
    precious = tmp_path / "precious"
    if kind != "hanging link":
        precious.write_text("precious" * 1000)
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(precious)
    with pytest.raises(ConfigurationError, match=name):
        run(folder.parent, Echo(called=lambda _: pytest.fail("asked")), **SMALL)
    assert kind == "hanging link" or precious.read_text() == "precious" * 1000
    assert precious.exists() == (kind != "hanging link")


def test_a_file_with_two_names_is_not_written_to(broken_off: Path, tmp_path: Path) -> None:
    folder = copied(broken_off, tmp_path)
    content = (folder / "records.jsonl").read_bytes()
    (tmp_path / "precious").hardlink_to(folder / "records.jsonl")
    refuse(folder, "must have one name, but has 2")
    assert (tmp_path / "precious").read_bytes() == content


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scores.jsonl", lambda text: text.split("\n", 1)[1]),
        ("scores.jsonl", lambda text: text.replace('"number": 0', '"number": 1')),
        ("scores.jsonl", lambda text: text.replace('"scores": {', '"scores": 3, "x": {')),
        ("scores.jsonl", lambda _: "[" * 100_000),
        ("summary.json", lambda _: "[]"),
        ("summary.json", lambda text: text.replace('"figures"', '"figure"')),
        ("summary.json", lambda text: text.replace('"breaks"', '"broken"')),
        ("summary.json", lambda text: text.replace('"f1": 0.0', '"f1": {}')),
        (
            "summary.json",
            lambda text: text.replace('"ttft_ms_mean": ', '"ttft_ms_mean": NaN, "x": '),
        ),
        ("environment.json", lambda text: text.replace('"command": ""', '"command": 3')),
        ("config.json", lambda text: text.replace('"format": 1', '"format": 2')),
        ("config.json", lambda text: text.replace('"source"', '"from"')),
        ("config.json", lambda text: text.replace('"label": ""', '"label": "\\ud800"')),
        ("records.jsonl", lambda text: text.split("\n", 1)[1]),
        ("records.jsonl", lambda text: text.replace('"hit": true', '"hit": null', 1)),
        ("checkpoint.json", lambda text: text.replace('"complete": true', '"complete": false')),
        ("checkpoint.json", lambda text: text.replace('"cache": "', '"cache": "' + "c" * 5000)),
        ("config.json", lambda text: text.replace('"questions": ', '"questions": "x", "q": ')),
        ("config.json", lambda text: text.replace('"seed": 3', f'"seed": {10**400}')),
        (
            "config.json",
            lambda text: text.replace('"documents": ', f'"documents": {10**30}, "d": '),
        ),
        ("scores.jsonl", lambda text: text.replace('"f1": ', '"f1": 1e308, "f2": ', 1)),
        ("scores.jsonl", lambda text: text.replace('"recall": ', '"recall": 1e308, "r": ', 1)),
        ("summary.json", lambda text: text.replace('"figures": {', '"figures": {"f": 1e308, ', 1)),
    ],
)
def test_a_complete_run_that_is_damaged_is_not_read(
    undisturbed: EvalRun, tmp_path: Path, name: str, change: Callable[[str], str]
) -> None:
    folder = copied(undisturbed.path, tmp_path)
    text = (folder / name).read_text()
    assert change(text) != text
    (folder / name).write_text(change(text))
    with pytest.raises(ConfigurationError, match=folder.name):
        EvalRun.load(folder)
