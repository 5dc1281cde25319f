"""Keeps the ports that torch opens in the engine's process to this machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

__all__ = ["loopback_environment"]

_LOOPBACKS = ("lo", "lo0")
# With one of these the engine's workers may be on several machines.
_SEVERAL_MACHINES = (
    *("distributed_executor_backend", "nnodes", "node_rank", "master_addr"),
    *("data_parallel_address", "data_parallel_backend"),
)


def loopback_environment(vllm_args: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables for the engine; those that are set already take precedence.

    Gloo, which connects torch's process groups, listens on a port for each group, even of a single
    process. It takes the address that the machine's name resolves to, which others can often reach.

    Args:
        vllm_args: The engine's arguments for vLLM. Nothing is set if they may spread it over
            several machines.
    """
    if any(name in vllm_args for name in _SEVERAL_MACHINES):
        return {}
    interfaces = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in _LOOPBACKS if name in interfaces), None)
    return {} if loopback is None else {"GLOO_SOCKET_IFNAME": loopback}
