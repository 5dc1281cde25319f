"""Routers in front of replicas: HAProxy, nginx and vllm-router, as ``docs/scaling.md`` has them.

Where none is installed, the same choice is made on the client's side.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from parts.servers.servers import free_port
from ragcache_integrations.llms.openai.wire import AFFINITY_HEADER

__all__ = [
    "ROUTERS",
    "ClientSide",
    "Destination",
    "Route",
    "ThroughRouter",
    "haproxy_config",
    "installed",
    "nginx_config",
    "route",
    "vllm_router_arguments",
]

ROUTERS = ("haproxy", "nginx", "vllm-router", "client")
SESSION_HEADER = "X-Session-ID"
BALANCE_FACTOR = 150
"""The most concurrent requests of a replica, in per cent of the mean of all."""
STARTING_SECONDS = 30.0

Destination = tuple[str, dict[str, str]]
"""A base URL, and headers."""


class Route(Protocol):
    """How a request comes to a replica."""

    def __call__(self, key: str) -> AbstractContextManager[Destination]:
        """Where to send the request with this affinity, empty for none; open until its end."""


def haproxy_config(replicas: Sequence[str], port: int, *, factor: int = BALANCE_FACTOR) -> str:
    """HAProxy's: by the header, but no replica much busier than the others.

    Args:
        replicas: Host and port of each.
        port: Where it listens.
        factor: The most concurrent requests of a replica in per cent of the mean; 0 for no limit.
    """
    names = _numbered(f"    server replica{{number}} {replica}" for replica in replicas)
    return f"""\
global
    maxconn 4096

defaults
    mode http
    timeout connect 5s
    timeout check 10s
    timeout client 10m
    timeout server 10m
    option redispatch 1

frontend api
    bind :{port}
    default_backend replicas

backend replicas
    balance hdr({AFFINITY_HEADER})
    hash-type consistent
    hash-balance-factor {factor}
    option httpchk GET /health
    default-server weight 100 check inter 1s fall 1 rise 1
{names}
"""


def nginx_config(replicas: Sequence[str], port: int) -> str:
    """The part of nginx's that goes into its ``http`` block.

    Args:
        replicas: Host and port of each.
        port: Where it listens.
    """
    variable = "$http_" + AFFINITY_HEADER.lower().replace("-", "_")
    names = "\n".join(f"    server {replica} max_fails=1 fail_timeout=5s;" for replica in replicas)
    return f"""\
upstream replicas {{
    zone replicas 64k;
    hash {variable} consistent;
{names}
    keepalive 64;
}}

server {{
    listen {port};
    location / {{
        proxy_pass http://replicas;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
        proxy_read_timeout 10m;
        proxy_next_upstream error http_503 non_idempotent;
        client_max_body_size 64m;
    }}
}}
"""


def vllm_router_arguments(
    replicas: Sequence[str], port: int, policy: str = "consistent_hash"
) -> list[str]:
    """Those of ``vllm-router``."""
    addresses = [f"http://{replica}" for replica in replicas]
    return [*("--worker-urls", *addresses), "--policy", policy, "--port", str(port)]


def _numbered(lines: Iterator[str]) -> str:
    return "\n".join(line.format(number=number) for number, line in enumerate(lines, 1))


@dataclass(frozen=True)
class ThroughRouter:
    """Send everything to a router, which reads a header.

    Attributes:
        address: Host and port of the router.
        header: The header.
    """

    address: str
    header: str = AFFINITY_HEADER

    @contextlib.contextmanager
    def __call__(self, key: str) -> Iterator[Destination]:
        """Where to send the request with this affinity."""
        yield f"http://{self.address}/v1", {self.header: key} if key else {}


class ClientSide:
    """Choose the replica here, as a router does: by rendezvous hashing, in turns without a key.

    Of one event loop or thread.

    Args:
        replicas: Host and port of each.
        factor: As for :func:`haproxy_config`.
    """

    def __init__(self, replicas: Sequence[str], factor: int = BALANCE_FACTOR) -> None:
        self._factor = factor
        self._turns = itertools.cycle(replicas)
        self._busy = dict.fromkeys(replicas, 0)

    def ranked(self, key: str) -> list[str]:
        """All replicas, those that should serve this key first first."""

        def weight(replica: str) -> bytes:
            return hashlib.blake2b(f"{replica} {key}".encode(), digest_size=8).digest()

        return sorted(self._busy, key=weight, reverse=True)

    @contextlib.contextmanager
    def __call__(self, key: str) -> Iterator[Destination]:
        """Where to send the request with this affinity."""
        replica = self._choose(key)
        self._busy[replica] += 1
        try:
            yield f"http://{replica}/v1", {}
        finally:
            self._busy[replica] -= 1

    def _choose(self, key: str) -> str:
        if not key:
            return next(self._turns)
        ranked = self.ranked(key)
        if not self._factor:
            return ranked[0]
        requests = sum(self._busy.values()) + 1
        limit = math.ceil(requests * self._factor / 100 / len(ranked))
        return next(one for one in ranked if self._busy[one] < limit)


def installed() -> str:
    """The first of the routers that is here; ``client`` is always."""
    found = {
        "haproxy": shutil.which("haproxy"),
        "nginx": shutil.which("nginx"),
        "vllm-router": importlib.util.find_spec("vllm_router"),
    }
    return next((name for name in ROUTERS if found.get(name)), "client")


@contextlib.contextmanager
def route(
    name: str, replicas: Sequence[str], *, factor: int = BALANCE_FACTOR, affine: bool = True
) -> Iterator[Route]:
    """Start a router.

    Args:
        name: One of :data:`ROUTERS`.
        replicas: Host and port of each.
        factor: Where it has one: as for :func:`haproxy_config`.
        affine: Whether it will be given keys; requests without take turns.

    Raises:
        RuntimeError: It did not start.
    """
    if name == "client":
        yield ClientSide(replicas, factor)
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = _command(name, replicas, port, factor, Path(folder), affine=affine)
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - chosen above
            try:
                _wait(process, port, name)
                header = SESSION_HEADER if name == "vllm-router" else AFFINITY_HEADER
                yield ThroughRouter(f"127.0.0.1:{port}", header)
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
                process.wait()


def _command(
    name: str, replicas: Sequence[str], port: int, factor: int, folder: Path, *, affine: bool
) -> list[str]:
    if name == "haproxy":
        config = folder / "haproxy.cfg"
        config.write_text(haproxy_config(replicas, port, factor=factor))
        return ["haproxy", "-db", "-f", str(config)]
    if name == "nginx":
        config = folder / "nginx.conf"
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        config.write_text(
            f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr; events {{}}\n"
            f"http {{ access_log off; {paths}\n{nginx_config(replicas, port)} }}\n"
        )
        return ["nginx", "-p", str(folder), "-c", str(config)]
    arguments = vllm_router_arguments(
        replicas, port, "consistent_hash" if affine else "round_robin"
    )
    metrics = ["--prometheus-port", str(free_port())]
    return [sys.executable, "-m", "vllm_router.launch_router", *arguments, *metrics]


def _wait(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    deadline = time.monotonic() + STARTING_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{name} did not start: exit status {process.poll()}")
