"""One server for most of the tests; its start takes a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .starting import QUIET, SMALL, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With both tiers, the bundled model, limits that tests can reach, and a tenant's quota."""
    folder = tmp_path_factory.mktemp("server")
    # A fixed number of blocks keeps the host tier on a CPU.
    tiers = ("--num-gpu-blocks-override", "1365", "--host-cache-gib", "0.05")
    arguments = (*SMALL, *tiers, "--max-prompt-bytes", "1000000")
    quota = ("--quota", f"{QUIET}=0.1")
    with Server(folder, *arguments, *quota) as running:
        yield running.wait_ready()
