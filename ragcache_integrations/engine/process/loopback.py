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
    """Environment variables to start the engine with; those that are set already win.

    Gloo, by which torch's process groups talk, listens on a port for each group even if there is
    one process alone, on the address that the machine's name stands for: often one that others
    can reach.

    Args:
        vllm_args: The engine's. Nothing is set where they may spread it over several machines.
    """
    if any(name in vllm_args for name in _SEVERAL_MACHINES):
        return {}
    there = {name for _, name in socket.if_nameindex()}
    own = next((name for name in _LOOPBACKS if name in there), None)
    return {} if own is None else {"GLOO_SOCKET_IFNAME": own}
