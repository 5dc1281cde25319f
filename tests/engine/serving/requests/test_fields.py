from __future__ import annotations

from typing import Any

import pytest

from ragcache_integrations.engine.serving.refusals import RequestRefusedError
from ragcache_integrations.engine.serving.requests.fields import check_fields, has_grammar


@pytest.mark.parametrize("value", ["x", 7, [], True, ""])
def test_structured_outputs_that_are_no_object(value: Any) -> None:
    with pytest.raises(RequestRefusedError, match="structured_outputs must be an object"):
        check_fields({"structured_outputs": value})


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({}, False),
        ({"structured_outputs": None}, False),
        ({"structured_outputs": {}}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"response_format": "x"}, False),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"response_format": {"type": "json_schema"}}, True),
        ({"response_format": {"type": ["x"]}}, True),
    ],
)
def test_grammars(body: dict[str, Any], grammar: bool) -> None:
    check_fields(body)
    assert has_grammar(body) == grammar
