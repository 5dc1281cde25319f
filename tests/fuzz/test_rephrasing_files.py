"""Files of rephrasings: read, or refused and left as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.records import Rephrasing, RephrasingsFile
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import damaged

HEAD = {"model": "some", "stream": "0123"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rephrasings") / "file.jsonl"


@pytest.fixture(scope="module")
def content(path: Path) -> bytes:
    with RephrasingsFile(path, HEAD) as file:
        file.append(Rephrasing(number=0, text="who was it"))
        file.append(Rephrasing(number=1, refused="another answer"))
        file.append(Rephrasing(number=2, text="what is it"))
    return path.read_bytes()


@examples(100)
@given(st.data())
def test_damaged(path: Path, content: bytes, data: st.DataObject) -> None:
    hostile = data.draw(damaged(content, (b"\n", b'"number": ', b"\\ud800")))
    path.write_bytes(hostile)
    try:
        with bounded(), RephrasingsFile(path, HEAD) as file:
            kept = list(file.kept)
            file.append(Rephrasing(number=len(kept), text="another"))
    except ConfigurationError:
        event("refused")
        assert path.read_bytes() == hostile
        return
    event(f"{len(kept)} read")
    assert [one.number for one in kept] == list(range(len(kept)))
    assert all(bool(one.text) != bool(one.refused) for one in kept)
    with RephrasingsFile(path, HEAD) as file:
        assert file.kept == [*kept, Rephrasing(number=len(kept), text="another")]
