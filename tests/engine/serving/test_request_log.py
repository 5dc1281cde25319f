"""The log of requests."""

from __future__ import annotations

import io
import json

import pytest

from ragcache_integrations.engine.serving.observing import RequestLog


class Full(io.StringIO):
    """A disk that is full for a while."""

    full = True

    def flush(self) -> None:
        if self.full:
            msg = "No space left on device"
            raise OSError(msg)


def test_it_writes_what_is_known() -> None:
    stream = io.StringIO()
    RequestLog(stream).write("request", path="/x", status=None)
    line = json.loads(stream.getvalue())
    assert line.pop("time")
    assert line == {"event": "request", "path": "/x"}


def test_a_log_that_cannot_be_written_is_said_once_and_harms_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = Full()
    log = RequestLog(stream)
    for _ in range(3):
        log.write("request")
    assert capsys.readouterr().err.count("No space left on device") == 1
    stream.full = False
    log.write("request")
    stream.close()
    log.write("request")
    log.write("request")
    assert capsys.readouterr().err.count("cannot be written") == 1
