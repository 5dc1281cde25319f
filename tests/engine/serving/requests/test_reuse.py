from __future__ import annotations

from typing import Any

import pytest

from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.engine.serving.requests import OwnFields
from ragcache_integrations.engine.serving.wire import RequestRefusedError

SPANS = {"rag_documents": ["a"], "rag_starts": [0], "rag_ends": [4]}
ANYWHERE = CacheSettings(reuse="anywhere", link_tokens=7).model_dump()
EXACT = CacheSettings().model_dump()


@pytest.mark.parametrize(
    ("fields", "links"),
    [
        ({}, 7),
        ({"reuse": "anywhere"}, 7),
        ({"reuse": None, "link_tokens": None}, 7),
        ({"link_tokens": 0}, 0),
        ({"reuse": "prefix"}, None),
    ],
)
def test_they_reach_the_scheduler_and_nothing_else_does(
    fields: dict[str, Any], links: int | None
) -> None:
    body = {"prompt": [1, 2, 3, 4, 5], "vllm_xargs": SPANS, **fields}
    before = dict(body)
    expected = {**SPANS} if links is None else {**SPANS, "rag_link_tokens": links}
    translated = OwnFields(ANYWHERE).apply(body)
    assert translated == {"prompt": body["prompt"], "vllm_xargs": expected}
    assert body == before


@pytest.mark.parametrize("settings", [None, EXACT, ANYWHERE])
def test_a_request_without_documents_is_as_it_was(settings: dict[str, Any] | None) -> None:
    body = {"prompt": "x", "vllm_xargs": None}
    assert OwnFields(settings).apply(body) is body
    assert OwnFields(settings).apply({"prompt": "x", "reuse": "prefix"}) == {"prompt": "x"}


@pytest.mark.parametrize(
    ("settings", "body", "words"),
    [
        (ANYWHERE, {"reuse": "anywher"}, "reuse must be 'prefix' or 'anywhere', got 'anywher'"),
        (ANYWHERE, {"reuse": ["prefix"]}, "reuse must be"),
        (EXACT, {"reuse": "anywhere"}, "--reuse anywhere"),
        (None, {"reuse": "anywhere"}, "--reuse anywhere"),
        (EXACT, {"link_tokens": 3}, "link_tokens needs reuse"),
        (ANYWHERE, {"reuse": "prefix", "link_tokens": 3}, "link_tokens needs reuse"),
        (ANYWHERE, {"link_tokens": -1}, "from 0 to 1048576, got -1"),
        (ANYWHERE, {"link_tokens": 2.0}, "whole number"),
        (ANYWHERE, {"link_tokens": True}, "whole number"),
        (ANYWHERE, {"link_tokens": 2**40}, "whole number"),
        (ANYWHERE, {"vllm_xargs": {"rag_encode": 1}}, "not for clients"),
        (EXACT, {"vllm_xargs": {"rag_link_tokens": 1}}, "not for clients"),
    ],
)
def test_other_values_are_refused(
    settings: dict[str, Any] | None, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestRefusedError, match=words) as refused:
        OwnFields(settings).apply({"prompt": [1, 2, 3, 4, 5], **body})
    assert refused.value.status == 400
