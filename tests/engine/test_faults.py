"""What happens when a process, a model or the application ends at the wrong moment."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.process import client as _client
from ragcache_integrations.engine.protocol import (
    FaultSettings,
    backoff_seconds,
    heartbeat_seconds,
)
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    EngineDeadError,
    EngineOutOfMemoryError,
    EngineStartError,
    ModelNotFoundError,
)
from tests.support.forking import run_forking
from tests.support.programs import start_program
from tests.support.waiting import gone, wait_until

pytestmark = pytest.mark.engine

LONG = SamplingOptions(max_tokens=4000, ignore_eos=True)
PROMPT = Prompt.rag("how far is it to the moon?")


def make_engine(**faults: Any) -> RAGCacheEngine:
    return RAGCacheEngine(kv_cache_gib=0.125, vllm_args={"enforce_eager": True}, **faults)


def test_without_restarts_a_kill_fails_what_it_had_and_what_comes() -> None:
    engine = make_engine(max_restarts=0)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            engine.generate(PROMPT, LONG)
        except BaseException as error:
            errors.append(error)

    async def ask_async() -> None:
        try:
            await engine.agenerate(PROMPT, LONG)
        except EngineDeadError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads.append(threading.Thread(target=lambda: asyncio.run(ask_async())))
    for thread in threads:
        thread.start()
    wait_until(lambda: engine.load().running_requests == 4)
    os.kill(engine.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in errors] == [EngineDeadError] * 4
    assert "killed by SIGKILL" in str(errors[0])
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        engine.generate(PROMPT)
    with pytest.raises(EngineDeadError):
        engine.load()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.generate(PROMPT)


def test_closing_fails_what_is_in_flight_and_leaves_nothing() -> None:
    engine = make_engine()
    descriptors = psutil.Process().num_fds()
    stream = engine.stream(PROMPT, LONG)
    next(stream)
    family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    threading.Timer(0.2, engine.close).start()
    with pytest.raises(EngineClosedError, match="closed during the request"):
        stream.result()
    engine.close()
    engine.close()
    assert engine.closed
    assert "closed" in repr(engine)
    assert all(gone(process.pid) for process in family)
    assert psutil.Process().num_fds() < descriptors
    for call in (engine.generate, engine.prefill, engine.stream):
        with pytest.raises(EngineClosedError, match="the engine is closed"):
            call(PROMPT)
    with pytest.raises(EngineClosedError):
        engine.load()
    assert not [thread for thread in threading.enumerate() if str(engine.pid) in thread.name]


async def test_closing_asynchronously() -> None:
    async with await asyncio.to_thread(make_engine) as engine:
        pid = engine.pid
    assert engine.closed
    assert gone(pid)
    with pytest.raises(EngineClosedError):
        await engine.agenerate(PROMPT)
    with pytest.raises(EngineClosedError):
        await engine.aload()


def test_two_engines_on_one_machine_and_a_dropped_one() -> None:
    with make_engine() as one:
        other = make_engine()
        pid = other.pid
        assert one.pid != pid
        options = SamplingOptions(max_tokens=5)
        assert one.generate(PROMPT, options).text == other.generate(PROMPT, options).text
        del other
        gc.collect()
        wait_until(lambda: gone(pid))
        assert one.generate(PROMPT, options).usage.completion_tokens == 5


# No guard `if __name__ == "__main__"`: a plain script must do.
SCRIPT = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores Ctrl-C
from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
engine = RAGCacheEngine(kv_cache_gib=0.125, vllm_args={"enforce_eager": True})
print(engine.pid, flush=True)
stream = engine.stream(Prompt.rag("why?"), SamplingOptions(max_tokens=4000, ignore_eos=True))
next(stream)
print("streaming", flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["return", "SIGKILL", "SIGINT"])
def test_however_the_application_ends_the_engine_ends_too(ending: str, tmp_path: Path) -> None:
    script = tmp_path / "application.py"
    script.write_text(SCRIPT)
    how = "wait" if ending.startswith("SIG") else ending
    reading, writing = os.pipe()
    with (
        tempfile.TemporaryDirectory() as place,  # pytest's own are too long for sockets
        os.fdopen(reading) as said,
        (tmp_path / "warnings").open("wb") as warnings,
    ):
        application = start_program(
            script,
            [how],
            writing,
            warnings.fileno(),
            folder=tmp_path,
            environment={**os.environ, "TMPDIR": place},
        )
        os.close(writing)
        pid = int(said.readline())
        assert said.readline() == "streaming\n"
        if ending.startswith("SIG"):
            application.send_signal(getattr(signal, ending))
        application.wait(300)
        wait_until(lambda: gone(pid))
        assert not list(Path(place).glob("ragcache-engine-*"))


def test_what_the_engine_logs_is_bounded(
    engine: RAGCacheEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = engine._process._process._log.fileno()
    monkeypatch.setattr(_client, "MOST_WORDS_BYTES", 100)
    os.write(log, 101 * b"x")
    wait_until(lambda: os.fstat(log).st_size == 0)
    os.write(log, b"anew")
    assert os.pread(log, 10, 0).startswith(b"anew"), "it goes on where it was before"


def test_a_fork_may_not_use_its_parents_engine() -> None:
    assert run_forking("tests.engine.forks") == "done\n"


# Not coming up


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json is missing"):
        RAGCacheEngine(tmp_path)


def test_a_model_without_weights(tmp_path: Path) -> None:
    broken = tmp_path / "model"
    shutil.copytree(default_model_path(), broken, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ModelNotFoundError, match="did not start"):
        RAGCacheEngine(broken)


def test_a_hub_name_that_cannot_be_had() -> None:
    with pytest.raises(ModelNotFoundError, match="nobody/nothing"):
        RAGCacheEngine("nobody/nothing")


def test_more_cache_than_memory() -> None:
    with pytest.raises(EngineOutOfMemoryError, match="the memory of the KV cache is kv_cache_gib"):
        RAGCacheEngine(kv_cache_gib=1_000_000)
    with pytest.raises(EngineOutOfMemoryError, match="host_cache_gib is added on a CPU"):
        RAGCacheEngine(kv_cache_gib=0.1, host_cache_gib=1_000_000)


def test_less_cache_than_one_prompt_needs() -> None:
    with pytest.raises(EngineOutOfMemoryError, match="KV cache"):
        RAGCacheEngine(kv_cache_gib=0.001)


def test_an_argument_that_vllm_does_not_know() -> None:
    with pytest.raises(ConfigurationError, match="enforce_eagerly"):
        RAGCacheEngine(vllm_args={"enforce_eagerly": True})


def test_not_in_time() -> None:
    started = {process.pid for process in psutil.Process().children()}
    with pytest.raises(EngineStartError, match=r"not ready after 0\.1 s"):
        RAGCacheEngine(startup_timeout=0.1)
    assert {process.pid for process in psutil.Process().children()} <= started


# The knobs


def test_the_knobs_as_they_are_used() -> None:
    assert isinstance(FaultSettings(restart_window=60).restart_window, float)
    assert isinstance(FaultSettings(hang_timeout=20).hang_timeout, float)
    assert heartbeat_seconds(FaultSettings().hang_timeout) == 1
    assert heartbeat_seconds(None) == 1
    assert heartbeat_seconds(2.0) == 0.5
    assert [backoff_seconds(tries) for tries in (1, 2, 3, 4)] == [0.5, 1, 2, 4]
    assert backoff_seconds(100_000) == 30
