"""Documents on disk: written, read, refused, and kept within bounds, without an engine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS, RAW, Codec, Encoded, Form
from ragcache_integrations.engine.in_vllm.anywhere.disk import DiskIndex, DiskWorker
from ragcache_integrations.engine.in_vllm.anywhere.files import (
    COPIED_BYTES,
    HEADER_BYTES,
    DocumentFileError,
    DocumentFolder,
    read_document,
    write_document,
)
from ragcache_integrations.engine.protocol import CacheSettings, document_key

FORM = Form(((2, None),), 3, 8, torch.float32)
TOKEN_BYTES = RAW.nbytes(FORM, 1)
MODEL, OTHER = b"m" * 16, b"o" * 16
GIB = 1 << 30


def document(
    tokens: int, seed: int = 0, dtype: torch.dtype = torch.float32, codec: Codec = RAW
) -> Encoded:
    torch.manual_seed(seed)
    keys, values = (torch.randn(2, tokens, 3, 8).to(dtype) for _ in range(2))
    return Encoded(codec, codec.encode(keys, values), seed)


def same(one: Encoded, other: Encoded) -> bool:
    return (one.codec, one.position, [*one.parts]) == (
        other.codec,
        other.position,
        [*other.parts],
    ) and all(torch.equal(one.parts[name], other.parts[name]) for name in one.parts)


def folder_of(tmp_path: Path, model: bytes = MODEL) -> DocumentFolder:
    return DocumentFolder(tmp_path / "documents", model)


def bytes_in(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in tmp_path.rglob("*-*.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_document_is_read_as_it_was_written(tmp_path: Path, dtype: torch.dtype) -> None:
    form = Form(((2, None),), 3, 8, dtype)
    path, written = tmp_path / "a-0.safetensors", document(7, 3, dtype)
    write_document(path, written)
    assert path.stat().st_size == HEADER_BYTES + 7 * RAW.nbytes(form, 1)
    assert same(read_document(path, RAW, form, 7), written)


@pytest.mark.parametrize("tokens", [7, 12_000])
def test_what_was_read_stays_when_its_file_goes(tmp_path: Path, tokens: int) -> None:
    """A small one is copied, a large one mapped."""
    path, written = tmp_path / "a-0.safetensors", document(tokens)
    write_document(path, written)
    read = read_document(path, RAW, FORM, tokens)
    mapped = str(path) in Path("/proc/self/maps").read_text()
    assert mapped == (path.stat().st_size >= COPIED_BYTES)
    write_document(path, document(tokens, 1))
    path.unlink()
    assert same(read, written)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-0.safetensors"
    write_document(path, document(7))
    with pytest.raises(DocumentFileError, match="8 tokens"):
        read_document(path, RAW, FORM, 8)
    with pytest.raises(DocumentFileError, match="float16"):
        read_document(path, RAW, Form(((4, None),), 3, 8, torch.float16), 7)
    with pytest.raises(DocumentFileError, match="shape"):
        read_document(path, RAW, Form(((3, None),), 2, 8, torch.float32), 7)
    renamed = tmp_path / "b-0.safetensors"
    path.rename(renamed)
    with pytest.raises(DocumentFileError, match="another document"):
        read_document(renamed, RAW, FORM, 7)
    os.truncate(renamed, 1 << 40)
    with pytest.raises(DocumentFileError, match="takes"):
        read_document(renamed, RAW, FORM, 7)
    link = tmp_path / "c-0.safetensors"
    link.symlink_to(renamed)
    with pytest.raises(OSError, match="link"):
        read_document(link, RAW, FORM, 7)


def test_documents_of_other_codecs_are_found_by_no_name_and_refused(tmp_path: Path) -> None:
    key, folder = document_key("", [1]), folder_of(tmp_path)
    for codec in CODECS.values():
        name = folder.name(codec.key(key))
        write_document(folder.file(name, 0), document(9, codec=codec))
        assert same(read_document(folder.file(name, 0), codec, FORM, 9), document(9, codec=codec))
    assert len(dict(folder.files(FORM))) == len(CODECS)
    int8 = folder.file(folder.name(CODECS["int8"].key(key)), 0)
    content = int8.read_bytes()
    for wrong in (b"int8 0", b"int9 1"):
        int8.unlink()
        int8.write_bytes(content.replace(b"int8 1", wrong))
        with pytest.raises(DocumentFileError, match=f"kept as '{wrong.decode()}', not as 'int8 1'"):
            read_document(int8, CODECS["int8"], FORM, 9)


def test_what_is_no_document_s_file_is_not_counted(tmp_path: Path) -> None:
    folder, name = folder_of(tmp_path), "ab" * 20
    size = HEADER_BYTES + RAW.nbytes(FORM, 4)
    for wrong in (f"{name}-0.raw", f"{name}-0.int4", "ab" * 19 + "-0", "ab" * 21 + "-0"):
        (folder.path / f"{wrong}.safetensors").write_bytes(bytes(size))
    (folder.path / f"{name}-0.int8.safetensors").mkdir()
    assert dict(folder.files(FORM)) == {}
    (folder.path / f"{name}-0.safetensors").write_bytes(bytes(size))
    assert dict(folder.files(FORM)) == {bytes.fromhex(name): size - HEADER_BYTES}


def test_a_name_tells_nothing_and_is_found_again(tmp_path: Path) -> None:
    folder, key = folder_of(tmp_path), b"k" * 20
    assert folder.name(key) == folder_of(tmp_path, OTHER).name(key)
    assert folder.name(key) != folder_of(tmp_path / "elsewhere").name(key)
    assert key.hex() not in str(folder.file(folder.name(key), 0))
    for path in (folder.path, folder.path.parent):
        assert path.stat().st_mode & 0o777 == 0o700


def test_a_secret_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    name = folder_of(tmp_path).name(b"k")
    (tmp_path / "documents" / "secret").write_bytes(b"short")
    assert folder_of(tmp_path).name(b"k") != name
    assert folder_of(tmp_path).name(b"k") == folder_of(tmp_path).name(b"k")


def index_of(folder: DocumentFolder, tokens: int, policy: str = "lru") -> DiskIndex:
    gib = tokens * TOKEN_BYTES / GIB
    settings = CacheSettings(policy=policy, reuse="anywhere", disk_cache_gib=gib)
    return DiskIndex(folder, settings, FORM, 1)


@pytest.mark.parametrize("policy", ["pgdsf", "lru"])
def test_what_is_on_disk_fits(tmp_path: Path, policy: str) -> None:
    """Also with files of another model, of another engine, and after starting again."""
    room = 300
    most = room * TOKEN_BYTES
    other = folder_of(tmp_path, OTHER)
    for number in range(9):
        path = other.file(other.name(bytes([number])), 0)
        write_document(path, document(30, number))
        os.utime(path, (1000 + number, 1000 + number))
    folder, dice = folder_of(tmp_path), random.Random(7)
    for _ in range(3):
        index, written = index_of(folder, room, policy), dict[bytes, Encoded]()
        worker = DiskWorker(folder, FORM, most / GIB)
        for _ in range(60):
            number = dice.randrange(40)
            key, tokens = bytes([number]), 5 + number
            if key in index:
                assert same(worker.read(key, tokens), document(tokens, number))
                index.access([key])
            elif index.add(key, tokens, []):
                worker.remove(index.take_drops())
                written[key] = document(tokens, number)
                worker.write(key, written[key])
                worker._tasks.join()
        worker.close()
        assert worker.take_unwritten() == set()
        assert len(index) > 0
        assert bytes_in(tmp_path) <= most
        files = {name for name, _ in folder.files(FORM)}
        assert len(files) == len(index)
    assert list(other.files(FORM)) == []


def test_a_smaller_disk_keeps_what_was_used_last(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for number in range(10):
        path = folder.file(folder.name(bytes([number])), 0)
        write_document(path, document(10, number))
        os.utime(path, (1000 + number, 1000 + number))
    index = index_of(folder, 70)
    assert [number for number in range(10) if bytes([number]) in index] == [5, 6, 7, 8, 9]
    assert len(index.take_drops()) == 5


def test_what_was_used_counts_after_a_restart_even_where_nothing_was_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    index, worker = index_of(folder, 1000), DiskWorker(folder, FORM, 1)
    for number in range(10):
        assert index.add(bytes([number]), 10, [])
        worker.write(bytes([number]), document(10, number))
    index.access(bytes([number]) for number in (7, 3, 99, 8, 3, 1))
    worker.touch(index.take_used())
    assert index.take_used() == []
    worker.close()
    names = [name for name, _ in folder.files(FORM)]
    assert names[-4:] == [folder.name(bytes([number])) for number in (7, 8, 3, 1)]
    smaller = index_of(folder, 40)
    assert [number for number in range(10) if bytes([number]) in smaller] == [1, 3, 8]


def test_engines_that_share_a_folder_see_each_other(tmp_path: Path) -> None:
    mine, theirs = (index_of(folder_of(tmp_path), 1000) for _ in range(2))
    folder = folder_of(tmp_path)
    worker = DiskWorker(folder, FORM, 1)
    assert theirs.add(b"a", 10, [])
    worker.write(b"a", document(10))
    worker.close()
    assert b"a" not in mine
    mine.look(b"a", 10)
    assert b"a" in mine
    folder.file(folder.name(b"a"), 0).unlink()
    version = mine.version
    mine.look(b"a", 10)
    assert b"a" not in mine
    assert mine.version != version


def test_what_one_worker_lacks_the_others_remove(tmp_path: Path) -> None:
    index, folder = index_of(folder_of(tmp_path), 1000), folder_of(tmp_path)
    workers = [DiskWorker(folder, FORM, 1, number, 2) for number in range(2)]
    assert index.add(b"a", 10, [])
    workers[0].write(b"a", document(10))
    with pytest.raises(FileNotFoundError):
        workers[1].read(b"a", 10)
    index.discard([b"a"])
    drops = index.take_drops()
    for worker in workers:
        worker.remove(drops)
        worker.close()
    index.look(b"a", 10)
    assert b"a" not in index


def test_a_damaged_file_is_removed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    path = folder.file(folder.name(b"a"), 0)
    write_document(path, document(10))
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    worker = DiskWorker(folder, FORM, 1)
    with pytest.raises(DocumentFileError, match="checksum"):
        worker.read(b"a", 10)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        worker.read(b"a", 10)
    worker.close()


@pytest.mark.parametrize("kind", ["cut off", "folder", "link"])
def test_what_is_no_whole_file_is_written_again(tmp_path: Path, kind: str) -> None:
    """It is not there for requests, which would fail to read it."""
    folder = folder_of(tmp_path)
    path = folder.file(folder.name(b"a"), 0)
    write_document(tmp_path / "whole", document(10))
    if kind == "cut off":
        path.write_bytes((tmp_path / "whole").read_bytes()[:-1])
    elif kind == "link":
        path.symlink_to(tmp_path / "whole")
    else:
        path.mkdir()
    index, worker = index_of(folder, 1000), DiskWorker(folder, FORM, 1)
    index.look(b"a", 10)
    assert b"a" not in index
    assert index.add(b"a", 10, [])
    worker.write(b"a", document(10))
    worker.close()
    index.look(b"a", 10)
    written = kind == "cut off"
    assert (b"a" in index) == written
    assert worker.take_unwritten() == (set() if written else {b"a"})


def test_a_bad_file_that_stays_is_not_trusted_again(tmp_path: Path) -> None:
    """Nor before it is removed, which is done in time, by a thread."""
    folder = folder_of(tmp_path)
    path = folder.file(folder.name(b"a"), 0)
    write_document(path, document(10))
    index = index_of(folder, 1000)
    assert b"a" in index
    index.discard([b"a"])
    index.look(b"a", 10)
    assert b"a" not in index
    assert index.take_drops() == [folder.name(b"a")]
    index.look(b"a", 10)
    assert b"a" not in index
    path.unlink()
    index.look(b"a", 10)
    write_document(path, document(10))
    index.look(b"a", 10)
    assert b"a" in index


def test_what_cannot_be_written_is_reported(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    worker = DiskWorker(folder, FORM, 1)
    for path in (folder.path, folder.path.parent):
        path.rename(path.with_name(f"{path.name} gone"))
    worker.write(b"a", document(10))
    assert worker.finish() == ({b"a"}, "No such file or directory")
    assert worker.finish() == (set(), "")
    worker.close()


def test_a_file_that_is_about_to_go_is_not_there(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    index, worker = index_of(folder, 60), DiskWorker(folder, FORM, 1)
    for key in (b"a", b"b"):
        assert index.add(key, 40, [])
        worker.remove(index.take_drops() if key == b"a" else [])
        worker.write(key, document(40))
        assert worker.finish() == (set(), "")
    index.look(b"a", 40)
    assert b"a" not in index
    assert b"b" in index
    worker.remove(index.take_drops())
    worker.close()
    assert [name for name, _ in folder.files(FORM)] == [folder.name(b"b")]


WRITER = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.engine.anywhere.test_disk import FORM, document, folder_of
from ragcache_integrations.engine.in_vllm.anywhere.disk import DiskWorker
worker = DiskWorker(folder_of(Path(sys.argv[1])), FORM, 1)
print("ready", flush=True)
for number in range(100_000):
    worker.write(number.to_bytes(4, "little"), document(2000, number))
"""


def test_a_process_that_is_killed_leaves_whole_files(tmp_path: Path) -> None:
    script = [sys.executable, "-c", WRITER, str(tmp_path), str(Path(__file__).parents[3])]
    with subprocess.Popen(script, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        folder = folder_of(tmp_path)
        until = time.monotonic() + 60
        while not (any(folder.path.glob(".*.tmp")) and len(list(folder.path.iterdir())) > 3):
            assert time.monotonic() < until
        process.kill()
    names = dict(folder.files(FORM))
    assert names
    worker = DiskWorker(folder, FORM, 1)
    for number in range(len(names)):
        key = number.to_bytes(4, "little")
        assert names.pop(folder.name(key)) == RAW.nbytes(FORM, 2000)
        assert same(worker.read(key, 2000), document(2000, number))
    for path in folder.path.glob(".*.tmp"):
        os.utime(path, (1, 1))
    worker._look()
    worker.close()
    assert not list(folder.path.glob(".*.tmp"))
