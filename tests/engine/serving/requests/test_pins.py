"""The field ``pin`` of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.core.prompt import FOREVER, PIN, PIN_TICKET, extra_args_from_spans
from ragcache_integrations.engine.serving.reports import awaited_pin_refusal, refuse_pin
from ragcache_integrations.engine.serving.requests import OwnFields, pin_ticket
from ragcache_integrations.engine.serving.wire import RequestRefusedError

WITH_TREE, WITHOUT = OwnFields({}), OwnFields(None)
BODY: dict[str, Any] = {"prompt": "?", "vllm_xargs": extra_args_from_spans([("a", 0, 3)])}


@pytest.mark.parametrize(
    ("pin", "seconds"), [(60, 60.0), (0.5, 0.5), (True, FOREVER), (False, 0.0), (0, 0.0)]
)
def test_it_becomes_seconds_for_the_scheduler(pin: object, seconds: float) -> None:
    passed = WITH_TREE.apply({**BODY, "pin": pin})
    ticket = passed["vllm_xargs"].pop(PIN_TICKET, "")
    assert passed == {**BODY, "vllm_xargs": {**BODY["vllm_xargs"], PIN: seconds}}
    assert bool(ticket) == bool(seconds), "only a pin can lack room"


def test_every_pin_has_its_own_ticket() -> None:
    tickets = {pin_ticket(WITH_TREE.apply({**BODY, "pin": 60})) for _ in range(10)}
    assert len(tickets) == 10
    assert not pin_ticket(BODY)
    assert not pin_ticket({"prompt": "?"})


def test_without_it_the_request_stays() -> None:
    assert WITHOUT.apply(BODY) == BODY
    assert WITHOUT.apply({**BODY, "pin": None}) == BODY


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({**BODY, "pin": -1}, "number of seconds, true for no end, .* got -1"),
        ({**BODY, "pin": "an hour"}, "got 'an hour'"),
        ({"prompt": "?", "pin": 5}, "marks no documents"),
        ({"vllm_xargs": {PIN: 5.0}}, "not for clients: send pin"),
        ({"vllm_xargs": {PIN_TICKET: "../x"}}, "not for clients: send pin"),
    ],
)
def test_what_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefusedError, match=words):
        WITH_TREE.apply(body)
    with pytest.raises(RequestRefusedError, match="without a knowledge tree"):
        WITHOUT.apply({**BODY, "pin": 5})


def test_a_refused_pin_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    folder, ticket = str(tmp_path), "a" * 32
    with awaited_pin_refusal(folder, ticket) as refusal:
        assert refusal() is None
        assert refuse_pin(folder, ticket, "no room, née")
        assert refusal() == "no room, née"
    assert not [*tmp_path.iterdir()]


def test_a_pin_refused_after_its_client_has_gone_leaves_no_file(tmp_path: Path) -> None:
    folder, ticket = str(tmp_path), "b" * 32
    with awaited_pin_refusal(folder, ticket):
        pass
    assert not refuse_pin(folder, ticket, "no room")
    assert not [*tmp_path.iterdir()]
    assert not refuse_pin(folder, "../x", "no room")
    with awaited_pin_refusal("", ticket) as refusal:
        assert not Path(ticket).exists()
        assert refusal() is None
