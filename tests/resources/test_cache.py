import threading
from pathlib import Path

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources.cache import build_once, cache_home
from tests.support.room import room_for


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAGCACHE_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_home() == Path.home() / ".cache" / "ragcache-integrations"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_home() == Path.home() / ".cache" / "ragcache-integrations"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_home() == Path("/elsewhere/ragcache-integrations")
    monkeypatch.setenv("RAGCACHE_HOME", "~/mine")
    assert cache_home() == Path.home() / "mine"


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert build_once(folder, lambda new: (new / "file").touch()) == folder
    assert build_once(folder, lambda _: pytest.fail("built twice")) == folder
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        build_once(tmp_path / "a", build)
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_room_the_error_says_so_and_nothing_is_left(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "fits").write_bytes(bytes(500))
        (folder / "too large").write_bytes(bytes(5000))

    with room_for(1000), pytest.raises(ConfigurationError, match=r"no room .*RAGCACHE_HOME"):
        build_once(tmp_path / "model", build)
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_a_build_are_its_own(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "missing").read_bytes()

    with pytest.raises(FileNotFoundError):
        build_once(tmp_path / "model", build)
    assert list(tmp_path.iterdir()) == []


def test_many_threads_build_one_whole_folder(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    seen: list[list[str]] = []

    def build(folder: Path) -> None:
        together.wait(10)  # everybody is building before anybody is done
        for name in "abc":
            (folder / name).write_text(name * 1000)

    def use() -> None:
        folder = build_once(tmp_path / "model", build)
        seen.append(sorted(path.read_text()[0] for path in folder.iterdir()))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["a", "b", "c"]] * 8
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="RAGCACHE_HOME"):
        build_once(tmp_path / "file" / "model", lambda _: None)
