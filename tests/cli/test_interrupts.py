"""Ctrl-C ends every command soon, wherever it is, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ragcache_integrations.core.interrupts import GRACE_SECONDS

PATIENCE = 120.0

pytestmark = pytest.mark.usefixtures("in_the_foreground")


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """A background job ignores Ctrl-C, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


LONGEST = GRACE_SECONDS + 20.0
"""Seconds. Two where nothing else runs; the bound is for machines that do much at once."""


class Command:
    """A ``ragcache`` in a process group of its own, as a shell starts one."""

    def __init__(self, *arguments: str, folder: Path, temporary: Path) -> None:
        self.err = folder / "err"
        self.temporary = temporary
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ragcache_integrations.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                cwd=folder,
                env=os.environ | {"TMPDIR": str(temporary), "RAGCACHE_HOME": str(folder)},
                start_new_session=True,
            )
        self.own = psutil.Process(self.process.pid)

    def said(self) -> str:
        return self.err.read_text(errors="replace")

    def wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def interrupt(self) -> None:
        """Press Ctrl-C, which reaches the whole process group."""
        started = self.own.children(recursive=True)
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(LONGEST) == 130, self.said()
        # Where nobody adopts a process, it stays as a zombie.
        left = [child for child in started if child.is_running() and child.status() != "zombie"]
        assert not left
        assert "Traceback" not in self.said()
        # torch makes a folder of its own where it is imported.
        files = [path for path in self.temporary.iterdir() if "ragcache" in path.name]
        assert not files


@contextlib.contextmanager
def command(*arguments: str, folder: Path) -> Iterator[Command]:
    with tempfile.TemporaryDirectory() as temporary:  # tmp_path is too long for sockets
        started = Command(*arguments, folder=folder, temporary=Path(temporary))
        try:
            yield started
        finally:
            if started.process.poll() is None:
                for process in (*started.own.children(recursive=True), started.own):
                    process.kill()
            started.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "serve", "doctor"])
def test_while_everything_is_imported(name: str, tmp_path: Path) -> None:
    with command(*name.split(), folder=tmp_path) as started:
        started.wait_until(lambda: any("numpy" in file.path for file in started.own.memory_maps()))
        started.interrupt()


@pytest.mark.engine
@pytest.mark.parametrize("arguments", ["eval nq --sample 1", "demo --quick"])
def test_while_an_engine_loads(arguments: str, tmp_path: Path) -> None:
    with command(*arguments.split(), folder=tmp_path) as started:
        started.wait_until(lambda: bool(started.own.children(recursive=True)))
        started.interrupt()


@pytest.mark.engine
def test_while_it_measures(tmp_path: Path) -> None:
    with command("profile", "--repeats", "1000", folder=tmp_path) as started:
        started.wait_until(lambda: "Measuring" in started.said())
        started.interrupt()


@pytest.mark.engine
def test_while_it_encodes(tmp_path: Path) -> None:
    """What was encoded until then stays."""
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"text": f"text {number} " * 200} for number in range(3000)]
    corpus.write_text("\n".join(map(json.dumps, rows)))

    def written() -> int:
        return len(list(tmp_path.glob("documents/*/*.safetensors")))

    with command("encode", str(corpus), folder=tmp_path) as started:
        started.wait_until(lambda: written() > 3)
        started.interrupt()
        assert 3 < written() < len(rows)


def test_what_a_library_makes_of_an_interruption_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(
        "import signal\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    raise ImportError('is something wrong with your setup?')\n"
    )
    with command("lint", "swallowing:prompt", folder=tmp_path) as started:
        assert started.process.wait(LONGEST) == 130, started.said()
        assert "Traceback" not in started.said()
