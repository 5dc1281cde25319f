"""Servers and engines for the tests of the LLM classes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from ragcache_integrations.engine import RAGCacheEngine

from .doubles import Recorder, StubServer


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with StubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def refused_url() -> str:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Whatever blocks the event loop from within our code raises ``BlockingError``."""
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]) as blockbuster:
        yield blockbuster


@pytest.fixture
def recorder(engine: RAGCacheEngine) -> Recorder:
    return Recorder(engine)
