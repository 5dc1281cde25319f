"""Traces: what they count, and what they refuse."""

from __future__ import annotations

import math

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.simulation.traces import Trace, TraceRequest


def request(*documents: tuple[str, int], arrival: float = 0.0) -> TraceRequest:
    return TraceRequest(documents, arrival=arrival)


def test_documents_are_counted_once() -> None:
    trace = Trace((request(("a", 10), ("b", 20)), request(("b", 20))), system_tokens=5)

    assert trace.documents == {"a": 10, "b": 20}
    assert trace.document_tokens == 30
    assert trace.prompt_tokens(trace.requests[0]) == 5 + 30 + 32


@pytest.mark.parametrize(
    ("requests", "system_tokens", "told"),
    [
        ((), 0, "at least one request"),
        ((request(),), -1, "-1 tokens"),
        ((request(("a", 0)),), 0, r"request 0 has \[0\]"),
        ((TraceRequest((), question_tokens=0),), 0, "at least 1 token"),
        ((request(arrival=2.0), request(arrival=1.0)), 0, "request 1 arrives at 1.0 after 2.0"),
        ((request(arrival=math.nan),), 0, "nan"),
        ((request(arrival=math.inf),), 0, "inf"),
    ],
)
def test_impossible_traces_are_refused(
    requests: tuple[TraceRequest, ...], system_tokens: int, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Trace(requests, system_tokens)
