"""What ``ragcache serve`` says if no model is named."""

from __future__ import annotations

import pytest

from ragcache_integrations.engine.serving.launch import _with_model
from ragcache_integrations.engine.tiny_model import CHOICE


def test_random_weights_are_called_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CHOICE, "random-small")
    _with_model([])
    assert "a tiny one with random weights" in capsys.readouterr().err


def test_the_reader_is_called_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ragcache_reader")
    monkeypatch.delenv(CHOICE)
    _with_model([])
    assert "a small reader" in capsys.readouterr().err
