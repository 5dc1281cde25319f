"""One server for most of the tests; its start takes a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .starting import SMALL, Server

# The generator of hostile requests is a part of a benchmark.
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With both tiers, the bundled model, and a limit that tests can reach."""
    folder = tmp_path_factory.mktemp("server")
    arguments = (*SMALL, "--host-cache-gib", "0.05", "--max-prompt-bytes", "1000000")
    with Server(folder, *arguments) as running:
        yield running.wait_ready()
