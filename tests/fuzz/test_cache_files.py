"""Files of query caches: loaded and usable, or refused, and the cache is empty."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.core.archive import read_archive, write_archive
from ragcache_integrations.errors import CacheFileError
from ragcache_integrations.query_cache import Candidate
from tests.query_cache.files.saving import DOCUMENTS, Cache, Kind, act, candidates
from tests.support.sizes import examples

from .archives import MARKS, changed, sealed
from .bounds import contained
from .hostile import REPLACEMENTS, altered_text, damaged, put_in_place

CACHES = [
    Kind("flat", "l2", "lru", 0.5, guarantee=None, reads=False, ttl=None),
    Kind("flat", "cosine", "fifo", 1.5, guarantee=0.5, reads=True, ttl=9.5),
    Kind("lsh", "l2", "lru", "auto", guarantee=None, reads=True, ttl=None),
    Kind("lsh", "ip", "lru", 0.5, guarantee="exact", reads=True, ttl=None),
]
POINTS = [[1, 0, 0], [0, 1, 0], [2, -1, 1], [-2, -2, 2]]
KEY = ("tenant", frozenset([(str, "a"), (int, 1)]))


@cache
def saved(kind: Kind) -> bytes:
    """A file with a few entries."""
    held = kind.cache()
    for number, point in enumerate(POINTS):
        found = candidates([str(number), str(number + 5), "13"], scored=bool(number % 2))
        held.insert(point, found, KEY if number % 2 else "tenant", complete=number == 1)
        act(held, ("report", point, [str(number)], 2, "tenant"))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cache.npz"
        held.save(path)
        return path.read_bytes()


def use(held: Cache, folder: Path) -> None:
    """Do with a cache whatever can be done with one."""
    for point in POINTS:
        for key in (None, KEY, "tenant"):
            hit = held.lookup(point, 2, key)
            held.explain(point, 2, key)
            for candidate in hit.candidates if hit else ():
                assert isinstance(candidate, Candidate)
                assert isinstance(candidate.id, str)
    held.documents_added(["3"], np.array([DOCUMENTS["3"]]))
    held.documents_removed(["13"])
    for number, point in enumerate(POINTS):
        held.insert([*point[1:], 3], candidates(["1", str(number)]), "tenant")
        act(held, ("report", point, ["1"], 2, "tenant"))
        assert held.lookup([*point[1:], 3], 1, "tenant") is not None
    held.stats()
    held.save(folder / "again.npz")
    held.load(folder / "again.npz")


def load(kind: Kind, path: Path, *, refused: bool = False) -> None:
    """Load a file in a process of its own: it is right, or refused."""

    def work() -> str:
        held, loaded = kind.cache(), False
        held.insert([1, 1, 1], candidates(["1"]))
        try:
            held.load(path)
        except CacheFileError:
            assert len(held) == 0
            assert held.lookup([1, 1, 1], 1) is None
        except (FileNotFoundError, IsADirectoryError):
            assert not path.is_file()
        except OSError:
            assert path.is_symlink()
        else:
            assert not refused
            loaded = True
        with np.errstate(all="ignore"):
            use(held, path.parent)
        return "loaded" if loaded else "refused"

    event(contained(work))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@examples(40)
@given(st.sampled_from(CACHES), st.data())
def test_forged_arrays(folder: Path, kind: Kind, data: st.DataObject) -> None:
    path = folder / "cache.npz"
    path.write_bytes(saved(kind))
    arrays = read_archive(path)
    names = st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=3, unique=True)
    for name in data.draw(names):
        if name in {"header", "documents"}:
            value = json.loads(arrays[name].tobytes())
            text = data.draw(altered_text(value)).encode()
            arrays[name] = np.frombuffer(text, np.uint8)
        else:
            arrays[name] = data.draw(changed(arrays[name], arrays))
    write_archive(path, arrays)
    load(kind, path)


@examples(30)
@given(st.sampled_from(CACHES), st.data())
def test_damaged_bytes(folder: Path, kind: Kind, data: st.DataObject) -> None:
    path, whole = folder / "cache.npz", saved(kind)
    pieces = (whole[:60], whole[-200:], *MARKS)
    content = data.draw(damaged(whole, pieces))
    right = data.draw(st.booleans())
    path.write_bytes(sealed(content) if right else content)
    load(kind, path, refused=not right and content != whole)


@examples(10)
@given(st.sampled_from(CACHES), st.sampled_from(REPLACEMENTS))
def test_other_files(folder: Path, kind: Kind, replacement: str) -> None:
    path, precious = folder / "replaced.npz", folder / "precious"
    precious.write_bytes(b"precious")
    put_in_place(replacement, path, precious)
    load(kind, path)
    assert precious.read_bytes() == b"precious"
    path.rmdir() if replacement == "folder" else path.unlink(missing_ok=True)
