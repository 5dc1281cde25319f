"""The file is whole or not there, and nothing but what was written is ever read."""

from __future__ import annotations

import copy
import errno
import hashlib
import io
import os
import pickle
import stat
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from ragcache_integrations.core.archive import read_archive, write_archive
from ragcache_integrations.errors import CacheFileError, ConfigurationError
from tests.support.memory import no_more_memory_than
from tests.support.room import room_for

Arrays = Mapping[str, NDArray[Any]]
SMALL: Arrays = {"numbers": np.arange(5), "vectors": np.eye(3, dtype=np.float32)}
KINDS = st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_])
ARRAYS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
    KINDS.flatmap(lambda kind: npst.arrays(kind, npst.array_shapes(max_dims=2, min_side=0))),
    max_size=4,
)


def same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def forge(path: Path, members: Mapping[str, bytes]) -> None:
    """Write any members behind a right checksum, as the module's docstring says it is made."""
    mark = b"ragcache-integrations query cache, SHA-256 "
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = mark + b"0" * 64
    content = buffer.getvalue()[:-64]
    path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())


def npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@given(ARRAYS)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, arrays: Arrays) -> None:
    path = tmp_path_factory.mktemp("round") / "cache.npz"
    write_archive(path, arrays)
    assert same(read_archive(path), arrays)
    with np.load(path, allow_pickle=False) as loaded:  # an ordinary .npz
        assert same(dict(loaded), arrays)


def test_the_forged_files_of_these_tests_are_like_the_real_ones(tmp_path: Path) -> None:
    forge(tmp_path / "forged", {f"{name}.npy": npy(array) for name, array in SMALL.items()})
    assert same(read_archive(tmp_path / "forged"), SMALL)


def test_no_bit_can_change_without_notice(tmp_path: Path) -> None:
    path = tmp_path / "cache.npz"
    write_archive(path, SMALL)
    content = path.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(CacheFileError):
            read_archive(path)


def test_nothing_can_be_missing_or_more_without_notice(tmp_path: Path) -> None:
    path = tmp_path / "cache.npz"
    write_archive(path, SMALL)
    content = path.read_bytes()
    path.write_bytes(content + b"\0")
    for length in range(len(content) - 1, -2, -1):
        with pytest.raises(CacheFileError):
            read_archive(path)
        os.truncate(path, max(length, 0))


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "foreign.npz", numbers=np.arange(5))
    with zipfile.ZipFile(tmp_path / "foreign.zip", "w") as archive:
        archive.writestr("hello", "world")
    np.save(tmp_path / "foreign.npy", np.eye(2))
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("ragcache-integrations query cache, SHA-256 " * 9)
    with (tmp_path / "pickle").open("wb") as file:
        pickle.dump(dict(SMALL), file)
    for path in tmp_path.iterdir():
        with pytest.raises(CacheFileError, match=path.name):
            read_archive(path)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickled_objects_are_never_opened(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bomb = Bomb(trace)
    for content in (npy(np.array([bomb], dtype=object)), pickle.dumps(bomb)):
        forge(tmp_path / "forged", {"numbers.npy": content})
        with pytest.raises(CacheFileError):
            read_archive(tmp_path / "forged")
    assert not trace.exists()
    pickle.loads(pickle.dumps(bomb))
    assert trace.exists()  # it would have been


@pytest.mark.parametrize("content", [b"", b"hello", npy(np.arange(9))[:-3], b"PK\5\6" + bytes(18)])
def test_a_member_that_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    forge(tmp_path / "forged", {"numbers.npy": content})
    with pytest.raises(CacheFileError):
        read_archive(tmp_path / "forged")


def sealed(path: Path, members: Mapping[str, bytes], packed: int) -> Path:
    """Write a zip of any compression behind a right checksum."""
    mark = b"ragcache-integrations query cache, SHA-256 "
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.comment = mark + b"0" * 64
    content = path.read_bytes()[:-64]
    path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    return path


def header(shape: str, descr: str = "'<f8'", order: str = "False") -> bytes:
    """Return the header of an array that declares whatever it likes."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


DECLARED = [
    header("(1000000000000000,)"),
    header("(4611686018427387904, 4611686018427387904)"),
    header("(-5,)"),
    header("(-1, -8)") + bytes(64),
    header("(1073741824,)"),
    header("(3,)") + bytes(23),
    header("(3,)") + bytes(25),
    header("(1,)", "'<U32'") + bytes(128),
    header("(2, 2)", order="True") + bytes(32),
    header("(1,)", "[('a', '<f8')]") + bytes(8),
    header("(1,)", "__import__('os').abort()"),
    b"\x93NUMPY\x02\x00" + bytes(100),
]


@pytest.mark.parametrize("content", DECLARED)
def test_what_an_array_declares_is_compared_with_what_there_is(
    tmp_path: Path, content: bytes
) -> None:
    forge(tmp_path / "forged", {"numbers.npy": content})
    with no_more_memory_than(1 << 29), pytest.raises(CacheFileError, match="malformed"):
        read_archive(tmp_path / "forged")


@pytest.mark.parametrize("packed", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nothing_is_unpacked(tmp_path: Path, packed: int) -> None:
    bomb = {"numbers.npy": header("(16777216,)", "'|u1'") + bytes(1 << 24)}
    path = sealed(tmp_path / "bomb", bomb, packed)
    assert path.stat().st_size < 1 << 17
    with pytest.raises(CacheFileError, match="must be uncompressed"):
        read_archive(path)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """The list of members may name the same bytes as often as it likes."""
    path = tmp_path / "overlapping"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(1000)))
        info = archive.infolist()[0]
        for number in range(50):
            twin = copy.copy(info)
            twin.filename = twin.orig_filename = f"b{number}.npy"
            archive.filelist.append(twin)
        archive.comment = b"ragcache-integrations query cache, SHA-256 " + bytes(64)
    content = path.read_bytes()[:-64]
    path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    with pytest.raises(CacheFileError, match="bytes in a file of"):
        read_archive(path)


def test_the_members_are_those_that_are_expected(tmp_path: Path) -> None:
    array = npy(np.arange(3))
    forge(tmp_path / "more", {"numbers.npy": array, "../../evil.npy": array})
    with pytest.raises(CacheFileError, match="members must be"):
        read_archive(tmp_path / "more", ["numbers"])
    with zipfile.ZipFile(tmp_path / "twice", "w") as archive:
        archive.writestr("numbers.npy", array)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("numbers.npy", array)
        archive.comment = b"ragcache-integrations query cache, SHA-256 " + bytes(64)
    content = (tmp_path / "twice").read_bytes()[:-64]
    (tmp_path / "twice").write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    with pytest.raises(CacheFileError, match="members must be"):
        read_archive(tmp_path / "twice")


def test_a_long_list_of_members_is_not_read(tmp_path: Path) -> None:
    array = npy(np.zeros(0))
    forge(tmp_path / "long", {f"{number:064}.npy": array for number in range(1000)})
    with pytest.raises(CacheFileError, match="65536 bytes of member names"):
        read_archive(tmp_path / "long")


def test_a_pipe_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CacheFileError, match="is a pipe, device or socket"):
        read_archive(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe, device or socket"):
        write_archive(tmp_path / "pipe", SMALL)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("content", [b"somebody's", b"PK\3\4" + bytes(200), b"\0"])
def test_no_other_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine").write_bytes(content)
    with pytest.raises(ConfigurationError, match="must be new or a saved query cache"):
        write_archive(tmp_path / "mine", SMALL)
    assert (tmp_path / "mine").read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("length", [0, 100, 300, -1])
def test_a_damaged_file_of_ours_is_replaced(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cache.npz"
    write_archive(path, SMALL)
    path.write_bytes(path.read_bytes()[:length])
    write_archive(path, SMALL)
    assert same(read_archive(path), SMALL)


def test_objects_are_not_written(tmp_path: Path) -> None:
    write_archive(tmp_path / "cache.npz", SMALL)
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_archive(tmp_path / "cache.npz", {"objects": np.array([object()])})
    assert [path.name for path in tmp_path.iterdir()] == ["cache.npz"]
    assert same(read_archive(tmp_path / "cache.npz"), SMALL)


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99, 1])
def test_where_there_is_no_room_the_old_file_stays_alone(tmp_path: Path, share: float) -> None:
    path = tmp_path / "cache.npz"
    larger = {"more": np.ones((100, 100), dtype=np.float32), **SMALL}
    write_archive(path, larger)
    needed = path.stat().st_size
    write_archive(path, SMALL)
    before = path.read_bytes()
    room = int(share * (needed - 1))
    with room_for(room), pytest.raises(OSError, match="File too large") as raised:
        write_archive(path, larger)
    assert raised.value.errno == errno.EFBIG
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace", "numpy.save"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_whatever_fails_the_old_file_stays_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    path = tmp_path / "cache.npz"
    write_archive(path, SMALL)
    monkeypatch.setattr(failing, fail)
    with pytest.raises(type(error)):
        write_archive(path, {"numbers": np.arange(9)})
    monkeypatch.undo()
    assert same(read_archive(path), SMALL)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "nowhere" / "cache.npz", SMALL)
    with pytest.raises(FileNotFoundError):
        read_archive(tmp_path / "nowhere" / "cache.npz")
    with pytest.raises(IsADirectoryError):
        write_archive(tmp_path, SMALL)
    with pytest.raises(IsADirectoryError):
        read_archive(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_symbolic_link_points_to_is_replaced(tmp_path: Path) -> None:
    link, target = tmp_path / "link.npz", tmp_path / "data" / "cache.npz"
    target.parent.mkdir()
    link.symlink_to(target)
    write_archive(link, SMALL)
    assert link.is_symlink()
    assert same(read_archive(target), SMALL)


def test_the_file_is_as_readable_as_others(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_archive(tmp_path / "cache.npz", SMALL)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1
