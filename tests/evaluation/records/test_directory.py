"""The folder of a run while it begins, or starts over."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.records import RunDirectory

CONFIG = {"workload": {"questions": 2}}


def test_killed_before_the_configuration_was_in_place(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / f".{'0a' * 16}.tmp").write_text("{")
    RunDirectory(tmp_path, CONFIG).close()
    assert not list(tmp_path.glob(".*.tmp"))


def test_starting_over_can_be_killed_at_each_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink
    for survived in range(8):
        path = tmp_path / str(survived)
        RunDirectory(path, CONFIG).close()
        (path / "cache-1-1.npz").touch()
        deletions = iter(range(survived))

        def killed(file: Path, *, missing_ok: bool = False, left: Any = deletions) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            unlink(file, missing_ok=missing_ok)

        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(Path, "unlink", killed)
            RunDirectory(path, CONFIG, fresh=True).close()
        RunDirectory(path, CONFIG, fresh=True).close()
        assert not (path / "cache-1-1.npz").exists()


def test_a_lock_that_the_system_refuses_is_not_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigurationError, match=os.strerror(errno.ENOLCK)):
        RunDirectory(tmp_path, CONFIG)
