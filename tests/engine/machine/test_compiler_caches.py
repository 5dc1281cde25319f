"""Where compilers keep code for the next engine."""

from __future__ import annotations

import getpass
import os
import stat
import tempfile
from pathlib import Path

import pytest

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.machine import VARIABLES, compiler_caches

SET_BEFORE = VARIABLES.keys() & os.environ.keys()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_they_are_in_a_folder_that_is_the_users_alone(home: Path, tmp_path: Path) -> None:
    caches = compiler_caches(tmp_path / "unused")
    assert caches.keys() == VARIABLES.keys()
    assert {Path(folder).parent for folder in caches.values()} == {home.resolve() / "compiled"}
    assert len(set(caches.values())) == len(VARIABLES)
    assert stat.S_IMODE((home / "compiled").stat().st_mode) == 0o700
    assert not (tmp_path / "unused").exists()


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    assert compiler_caches(tmp_path).keys() == VARIABLES.keys() - {"TRITON_CACHE_DIR"}
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # compilers would take the working directory
    assert "TRITON_CACHE_DIR" in compiler_caches(tmp_path)


def test_where_all_are_set_nothing_is_made(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "/mine")
    assert compiler_caches(tmp_path) == {}
    assert not home.exists()


def test_what_torch_has_chosen_is_no_choice_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It sets the variables of the process in which it compiles."""
    own = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(own))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own / "triton" / "0"))
    assert compiler_caches(tmp_path).keys() == VARIABLES.keys()


@pytest.mark.parametrize("why", ["others can write", "no folder", "no home"])
def test_a_folder_that_is_not_safe_is_not_used(
    why: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    home.mkdir()
    if why == "others can write":
        (home / "compiled").mkdir()
        (home / "compiled").chmod(0o777)
        (home / "compiled" / "planted").touch()
    elif why == "no folder":
        (home / "compiled").touch()
    else:
        monkeypatch.delenv("RAGCACHE_HOME")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", classmethod(lambda _: Path("~unknown").expanduser()))
    caches = compiler_caches(tmp_path / "private")
    folders = {Path(folder).parent for folder in caches.values()}
    assert folders == {tmp_path / "private" / "compiled"}
    assert "not kept for the next one" in caplog.text
    assert "Set RAGCACHE_HOME" in caplog.text


@pytest.mark.engine
def test_the_engines_process_is_started_with_them(engine: RAGCacheEngine) -> None:
    said = Path(f"/proc/{engine.pid}/environ").read_bytes().split(b"\0")
    environment = dict(line.split(b"=", 1) for line in said if b"=" in line)
    for name in VARIABLES.keys() - SET_BEFORE:
        value = Path(os.fsdecode(environment[name.encode()]))
        assert value.name == VARIABLES[name]
        assert stat.S_IMODE(value.parent.stat().st_mode) == 0o700
