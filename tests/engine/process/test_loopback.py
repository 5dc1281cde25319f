"""What the engine's process listens on, nobody else's machine can reach."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.process.client import environment, loopback_environment


@pytest.mark.engine
def test_the_engine_listens_on_loopback_alone(engine: RAGCacheEngine) -> None:
    family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    addresses = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses)


def test_gloo_keeps_to_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unlike an address, this does not depend on what the machine's name stands for."""
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert environment(str(tmp_path), {})["GLOO_SOCKET_IFNAME"] in {"lo", "lo0"}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert environment(str(tmp_path), {})["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize(
    "vllm_args",
    [{"distributed_executor_backend": "ray"}, {"nnodes": 2}, {"data_parallel_address": "10.0.0.1"}],
    ids=str,
)
def test_an_engine_on_several_machines_uses_their_network(vllm_args: dict[str, Any]) -> None:
    assert loopback_environment(vllm_args) == {}
