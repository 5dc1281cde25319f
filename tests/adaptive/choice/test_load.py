"""Where the free memory is read, and what is made of a source that is gone."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ragcache_integrations.adaptive import MemoryLoad, MetricsLoadSource
from ragcache_integrations.adaptive import resources as resources_module
from ragcache_integrations.adaptive.resources import (
    EngineLoadSource,
    LoadReader,
    read_metrics,
    resources_of,
)
from ragcache_integrations.engine import EngineLoad
from ragcache_integrations.errors import (
    ConfigurationError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
)

# As vLLM 0.32 says it, cut.
METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="500"} 1.0
"""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.text = 200, METRICS
        self.paths: list[str] = []
        self.released = threading.Event()
        self.hangs = self.babbles = False

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.server.hangs:
            self.server.released.wait(30)
            return
        if self.server.babbles:
            self.wfile.write(b"no HTTP\r\n\r\n")
            return
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.released.set()
        one.shutdown()
        thread.join()


def test_the_metrics_of_a_server_are_read(server: Server) -> None:
    source = MetricsLoadSource(server.base_url)
    expected = MemoryLoad(6000, 8000, 3, 2)
    assert source.read() == expected
    assert asyncio.run(source.aread()) == expected
    assert server.paths == ["/metrics", "/metrics"]
    assert MetricsLoadSource("http://host:1/prefix/v1/").url == "http://host:1/prefix/metrics"


def test_of_several_engines_the_freest_counts() -> None:
    text = METRICS + METRICS.replace('engine="0"', 'engine="1"').replace("0.25", "0.5")
    assert read_metrics(text) == MemoryLoad(6000, 8000, 6, 4)


def test_what_a_server_does_not_tell_can_be_said() -> None:
    text = METRICS[: METRICS.index("# TYPE vllm:cache_config_info")]
    with pytest.raises(ConfigurationError, match="total_kv_tokens"):
        read_metrics(text)
    assert read_metrics(text, 1000) == MemoryLoad(750, 1000, 3, 2)
    old = text.replace("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert read_metrics(old, 1000).free_tokens == 750


@pytest.mark.parametrize("value", ["NaN", "nonsense"])
def test_numbers_that_are_none_say_nothing(value: str) -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_usage_perc"):
        read_metrics(METRICS.replace("} 0.25", f"}} {value}"))


@pytest.mark.parametrize(
    ("status", "text"), [(404, METRICS), (200, ""), (200, "<html>a proxy</html>")]
)
def test_a_server_that_tells_nothing(server: Server, status: int, text: str) -> None:
    server.status, server.text = status, text
    with pytest.raises(ServerResponseError):
        MetricsLoadSource(server.base_url).read()


def test_a_server_that_is_silent(server: Server) -> None:
    server.hangs = True
    with pytest.raises(ServerTimeoutError):
        MetricsLoadSource(server.base_url, timeout=0.1).read()


def test_a_server_that_speaks_no_http(server: Server) -> None:
    server.babbles = True
    with pytest.raises(ServerUnreachableError):
        MetricsLoadSource(server.base_url).read()


def nobody() -> MetricsLoadSource:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return MetricsLoadSource(f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_a_server_that_is_gone() -> None:
    with pytest.raises(ServerUnreachableError):
        nobody().read()


@pytest.mark.parametrize(
    "arguments",
    [("ftp://host",), ("host:8000",), ("",), (3,)],
)
def test_other_addresses_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(ConfigurationError, match="the address"):
        MetricsLoadSource(*arguments)  # type: ignore[arg-type] # that is the point
    with pytest.raises(ConfigurationError, match="total_kv_tokens"):
        MetricsLoadSource("http://host", total_kv_tokens=0)


class Engine:
    """Tells its load as an engine does."""

    model = ""

    def load(self) -> EngineLoad:
        return EngineLoad(100, 1000, 2, 1)

    async def aload(self) -> EngineLoad:
        return self.load()


def test_an_engine_is_asked() -> None:
    source = EngineLoadSource(Engine())
    assert source.read() == asyncio.run(source.aread()) == MemoryLoad(100, 1000, 2, 1)
    assert not source.read().idle
    with pytest.raises(ConfigurationError, match="load"):
        EngineLoadSource(object())  # type: ignore[arg-type] # that is the point


def test_what_there_is_to_look_at() -> None:
    engine = resources_of(Engine())
    assert isinstance(engine.load, EngineLoadSource)
    assert engine.tree is None

    class Server:
        base_url = "http://host:8000/v1"

    found = resources_of(Server())
    assert isinstance(found.load, MetricsLoadSource)
    assert found.load.url == "http://host:8000/metrics"
    assert resources_of(None).load is None
    given = EngineLoadSource(Engine())
    assert resources_of(Server(), given).load is given
    assert resources_of(None, given).load is given


def test_a_source_that_is_gone_is_said_once_and_asked_again_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = LoadReader(nobody())
    with caplog.at_level(logging.WARNING):
        assert reader.read() is None
        assert asyncio.run(reader.aread()) is None
    assert sum("free memory" in record.message for record in caplog.records) == 1

    source = EngineLoadSource(Engine())
    asked = 0

    class Wavering:
        def read(self) -> MemoryLoad:
            nonlocal asked
            asked += 1
            if asked == 1:
                msg = "gone"
                raise ServerUnreachableError(msg)
            return source.read()

        async def aread(self) -> MemoryLoad:
            return self.read()

    reader = LoadReader(Wavering())
    assert reader.read() is None
    assert reader.read() is None
    assert asked == 1
    monkeypatch.setattr(resources_module, "RETRY_SECONDS", 0.0)
    reader = LoadReader(Wavering())
    asked = 0
    assert reader.read() is None
    seen = reader.read()
    assert seen is not None
    assert seen.value == reader.now() == source.read()


def test_no_source_tells_nothing() -> None:
    assert LoadReader(None).read() is None
    assert asyncio.run(LoadReader(None).aread()) is None
