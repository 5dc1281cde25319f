"""Opening and replacing files that somebody else may have put there."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ragcache_integrations.core.files import (
    open_own,
    open_regular,
    private_folder,
    read_regular,
    replacing,
)

SOMEBODY = 54321
"""Number of a user and of a group that this user has nothing to do with."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def write(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"new")


def append(path: Path) -> None:
    with open_own(path) as file:
        file.write(b"new")


def read(path: Path) -> None:
    read_regular(path, 100)


@pytest.mark.parametrize("act", [write, append, read])
@pytest.mark.parametrize("make", [pipe, listening])
def test_what_is_no_file_stays_what_it_is(
    tmp_path: Path, make: Callable[[Path], None], act: Callable[[Path], None]
) -> None:
    path = tmp_path / "it"
    make(path)
    before = stat.S_IFMT(path.stat().st_mode)
    with pytest.raises(OSError, match="pipe, device or socket"):
        act(path)
    assert stat.S_IFMT(path.stat().st_mode) == before
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize("act", [write, append, read])
def test_a_folder_is_told(tmp_path: Path, act: Callable[[Path], None]) -> None:
    with pytest.raises(IsADirectoryError):
        act(tmp_path)


def test_devices_are_refused() -> None:
    with pytest.raises(OSError, match="pipe, device or socket"):
        open_regular("/dev/zero")
    with pytest.raises(OSError, match="pipe, device or socket"):
        open_own("/dev/null")


@pytest.mark.parametrize("there", [True, False])
def test_links_are_followed_only_where_that_is_wanted(tmp_path: Path, there: bool) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    if there:
        target.write_text("precious")
    with pytest.raises(OSError, match="symbolic link"), replacing(link, links=False):
        pytest.fail("it was opened")
    with pytest.raises(OSError, match="symbolic link"):
        open_own(link)
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(link, 100, links=False)
    assert target.exists() == there
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert read_regular(link, 100) == b"new"


def test_a_file_with_two_names_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "other").hardlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="must have one name, but has 2"):
        open_own(tmp_path / "other")
    write(tmp_path / "other")  # which is another file then
    assert (tmp_path / "precious").read_text() == "precious"


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="must have at most 100 bytes"):
        read_regular(path, 100)
    os.truncate(path, 100)
    assert read_regular(path, 100) == bytes(100)


def test_own_files_are_made_and_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        append(tmp_path / "own")
    assert (tmp_path / "own").read_bytes() == b"newnew"


def test_what_takes_the_place_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "it"

    def write_late() -> None:
        with replacing(path) as file:
            file.write(b"new")
            os.mkfifo(path)

    with pytest.raises(OSError, match="pipe, device or socket"):
        write_late()
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


# Folders that are this user's alone


@pytest.fixture
def passable(tmp_path: Path) -> Path:
    """A folder that others can go into, as far as it is up to it and to those above."""
    folder = tmp_path / "passable"
    folder.mkdir(mode=0o755)
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and above.stat().st_mode & 0o077 == 0:
            above.chmod(0o711)
        if above.name.startswith("pytest-of-"):
            break
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_made_with_those_above(passable: Path) -> None:
    before = os.umask(0o022)
    try:
        made = private_folder(passable / "new" / "private")
    finally:
        os.umask(before)
    assert made == passable.resolve() / "new" / "private"
    assert mode(made) == 0o700
    (made / "kept").touch()
    assert private_folder(made) == made
    assert (made / "kept").exists()


def test_a_folder_that_others_can_read_becomes_private(passable: Path) -> None:
    passable.chmod(0o755)
    private_folder(passable)
    assert mode(passable) == 0o700


@pytest.mark.parametrize("open_mode", [0o777, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused(passable: Path, open_mode: int) -> None:
    passable.chmod(open_mode)
    with pytest.raises(PermissionError, match="others can write"):
        private_folder(passable)
    assert mode(passable) == open_mode


@as_root
@pytest.mark.parametrize("what", ["itself", "the one above", "its group", "the group above"])
def test_a_folder_that_somebody_else_has_is_refused(passable: Path, what: str) -> None:
    folder = passable / "folder"
    folder.mkdir(mode=0o700)
    foreign = folder if what.startswith("its") else passable
    if "group" in what:
        os.chown(foreign, -1, SOMEBODY)
        foreign.chmod(0o770)
    else:
        os.chown(foreign, SOMEBODY, -1)
    with pytest.raises(PermissionError, match="this user's"):
        private_folder(folder)


def test_a_folder_that_others_can_replace_is_refused(passable: Path) -> None:
    passable.chmod(0o777)
    with pytest.raises(PermissionError, match=r"others can write to '.*passable'"):
        private_folder(passable / "folder")
    passable.chmod(0o1777)  # as /tmp is
    assert private_folder(passable / "folder").is_dir()


def test_where_nobody_else_gets_to_anything_may_be_open(passable: Path) -> None:
    closed = passable / "closed"
    closed.mkdir(mode=0o700)
    (closed / "open").mkdir()
    (closed / "open").chmod(0o777)
    assert private_folder(closed / "open" / "folder").is_dir()


def test_a_link_is_followed_and_judged_where_it_leads(passable: Path) -> None:
    (passable / "elsewhere").mkdir()
    (passable / "link").symlink_to("elsewhere")
    assert private_folder(passable / "link") == (passable / "elsewhere").resolve()
    (passable / "elsewhere").chmod(0o777)
    with pytest.raises(PermissionError):
        private_folder(passable / "link")


@pytest.mark.parametrize("make", [pipe, Path.touch])
def test_what_is_no_folder_is_no_private_one(passable: Path, make: Callable[[Path], None]) -> None:
    make(passable / "it")
    with pytest.raises(NotADirectoryError):
        private_folder(passable / "it")
