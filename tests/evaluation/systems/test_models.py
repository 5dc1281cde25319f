"""What an evaluation says of a model's memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from ragcache_integrations.langchain import ChatRAGCache
from ragcache_workbench.evaluation.systems import Model


@pytest.mark.parametrize(
    ("knobs", "is_said"),
    [
        ({"document_cache_gib": 2}, True),
        ({"document_cache_gib": 80}, False),
        # `encode` fails if the disk does not hold all documents.
        ({"document_cache_gib": 2, "disk_cache_gib": 80}, False),
    ],
)
def test_documents_that_do_not_fit_are_said(
    knobs: dict[str, Any],
    is_said: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Model(
        MagicMock(),
        ChatRAGCache(model="some", reuse="anywhere", **knobs),
        "some",
        (),
        noise=False,
    )
    # It stands for an engine that keeps 64 GiB, which is not at hand.
    engine = SimpleNamespace(
        encode=lambda _: SimpleNamespace(prompt_tokens=1 << 20),
        stats=lambda: SimpleNamespace(block_bytes=1 << 20),
        block_size=16,
    )
    monkeypatch.setattr(model, "_engine", lambda: engine)
    model.encode(["a", "b"])
    assert ("need 64.0 GiB, and document_cache_gib=2" in caplog.text) == is_said
    assert ("disk_cache_gib=65 would hold them" in caplog.text) == is_said
