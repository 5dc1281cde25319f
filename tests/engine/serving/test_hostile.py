"""What no honest client sends, in the small; ``benchmarks/servers/hostile.py`` more of it."""

from __future__ import annotations

import asyncio

import pytest
from parts.traffic.hostile_requests import KINDS, hostile_requests, send_all

from .starting import MODEL, Server

pytestmark = pytest.mark.engine

NUMBER = 304


def test_hostile_requests_get_4xx_and_change_nothing(server: Server) -> None:
    document = {"type": "document", "id": "cats", "text": "Cats purr. " * 30}
    question = [document, {"type": "text", "text": "Who purrs?"}]
    _, before = server.chat(question)
    requests = list(hostile_requests(NUMBER, MODEL, seed=1))
    assert {request.kind for request in requests} == set(KINDS)
    found = asyncio.run(send_all(requests, "127.0.0.1", server.port))
    wrong = {
        key: number
        for key, number in found.items()
        if key[1] not in range(400, 500) and key[1] != -1
    }
    assert not wrong
    assert sum(found.values()) == NUMBER
    _, after = server.chat(question)
    assert after["choices"][0]["message"] == before["choices"][0]["message"]
    assert server.ask("GET", "/health")[0] == 200
    assert server.process.poll() is None
