"""Routers in front of replicas; those that are not installed are skipped."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from parts.servers.routers import (
    ClientSide,
    Route,
    haproxy_config,
    installed,
    nginx_config,
    route,
    vllm_router_arguments,
)

DOCS = Path(__file__).parents[3] / "docs" / "scaling.md"
REPLICAS = ["10.0.0.1:8000", "10.0.0.2:8000"]
KEYS = [f"{number:016x}" for number in range(40)]


def chosen(side: Route, key: str) -> str:
    with side(key) as (base_url, _):
        return base_url


def test_the_documentation_has_the_configurations_that_are_tested() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert haproxy_config(REPLICAS, 8080) in text
    assert nginx_config(REPLICAS, 8080) in text
    words = " ".join(text.replace("\\\n", " ").split())
    assert f"vllm-router {' '.join(vllm_router_arguments(REPLICAS, 8080))}" in words


def test_equal_keys_meet_and_keys_without_value_take_turns() -> None:
    side = ClientSide(REPLICAS)
    for key in KEYS:
        assert len({chosen(side, key) for _ in range(3)}) == 1
    assert len({chosen(side, key) for key in KEYS}) == 2
    assert Counter(chosen(side, "") for _ in range(10)) == dict.fromkeys(
        (f"http://{one}/v1" for one in REPLICAS), 5
    )


def test_only_the_keys_of_a_replica_that_goes_move() -> None:
    three = ClientSide([*REPLICAS, "10.0.0.3:8000"])
    two = ClientSide(REPLICAS)
    for key in KEYS:
        if three.ranked(key)[0] in REPLICAS:
            assert chosen(two, key) == chosen(three, key)


def test_a_popular_key_does_not_overload_its_replica() -> None:
    side = ClientSide(REPLICAS, factor=150)
    with ExitStack() as stack:
        urls = [stack.enter_context(side(KEYS[0]))[0] for _ in range(20)]
    first, second = (count for _, count in Counter(urls).most_common())
    assert (first, second) == (15, 5)
    assert chosen(side, KEYS[0]) == urls[0]
    with ExitStack() as stack:
        unbounded = ClientSide(REPLICAS, factor=0)
        assert len({stack.enter_context(unbounded(KEYS[0]))[0] for _ in range(20)}) == 1


def test_there_is_always_one() -> None:
    assert installed() in {"haproxy", "nginx", "vllm-router", "client"}


# The real ones, in front of two servers that say who they are.


class Named(BaseHTTPRequestHandler):
    """In HTTP/1.0: no connection outlives its server."""

    server: Quiet

    def do_GET(self) -> None:
        self._say({})

    def do_POST(self) -> None:
        self._say(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _say(self, body: object) -> None:
        content = json.dumps({"port": self.server.server_address[1], "body": body}).encode()
        self.send_response(503 if self.server.draining else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    draining = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Routers hang up on health checks as soon as they have the status."""


@contextmanager
def replica() -> Iterator[Quiet]:
    with Quiet(("127.0.0.1", 0), Named) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def address(server: Quiet) -> str:
    return f"127.0.0.1:{server.server_address[1]}"


BODY = {
    "model": "m",
    "prompt": [1, 2, 3],
    "cache_salt": "tenant",
    "vllm_xargs": {"rag_documents": ["a"], "rag_starts": [0], "rag_ends": [2]},
    "documents": [{"id": "a", "text": "b"}],
}


def answer(side: Route, key: str) -> tuple[int, dict[str, object]]:
    with side(key) as (base_url, headers):
        request = urllib.request.Request(
            f"{base_url}/completions",
            data=json.dumps(BODY).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        with urllib.request.urlopen(request, timeout=10) as got:
            said = json.loads(got.read())
    return said["port"], said["body"]


def needs(name: str) -> pytest.MarkDecorator:
    there = importlib.util.find_spec("vllm_router") if name == "vllm-router" else shutil.which(name)
    return pytest.mark.skipif(there is None, reason=f"{name} is not installed")


every_router = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs(name)) for name in ("haproxy", "nginx", "vllm-router")],
)


@every_router
def test_requests_of_a_key_meet_and_arrive_as_they_were(name: str) -> None:
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica()) for _ in range(2)]
        addresses = [address(one) for one in replicas]
        # Bounded, HAProxy sends a request elsewhere while it still ends the one before it.
        side = stack.enter_context(route(name, addresses, factor=0))
        ports = {key: {answer(side, key)[0] for _ in range(3)} for key in KEYS[:12]}
        assert {key: met for key, met in ports.items() if len(met) > 1} == {}
        assert len(set.union(*ports.values())) == 2
        _, body = answer(side, KEYS[0])
        assert {field: body[field] for field in BODY} == BODY


@every_router
def test_without_a_key_all_replicas_serve(name: str) -> None:
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica()) for _ in range(2)]
        addresses = [address(one) for one in replicas]
        side = stack.enter_context(route(name, addresses, affine=False))
        assert len({answer(side, "")[0] for _ in range(6)}) == 2


takes_over = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in ("haproxy", "nginx")]
)


@takes_over
def test_another_replica_takes_over_from_one_that_is_gone(name: str) -> None:
    with ExitStack() as stack:
        stays = stack.enter_context(replica())
        with replica() as goes:
            side = stack.enter_context(route(name, [address(goes), address(stays)]))
            went = [key for key in KEYS if answer(side, key)[0] == goes.server_address[1]]
            assert went
        assert {answer(side, key)[0] for key in went} == {stays.server_address[1]}


@takes_over
def test_who_asks_again_does_not_meet_a_replica_that_drains(name: str) -> None:
    with ExitStack() as stack:
        stays, drains = (stack.enter_context(replica()) for _ in range(2))
        side = stack.enter_context(route(name, [address(drains), address(stays)]))
        went = [key for key in KEYS if answer(side, key)[0] == drains.server_address[1]]
        drains.draining = True
        deadline = time.monotonic() + 30
        for key in went:
            while time.monotonic() < deadline:
                with contextlib.suppress(urllib.error.HTTPError):
                    port, body = answer(side, key)
                    break
                time.sleep(0.1)
            assert port == stays.server_address[1]
            assert body == BODY
