"""The garbage collector in the engine's process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ragcache_integrations.engine.in_vllm.main import kept_without_collecting


@pytest.fixture(autouse=True)
def _back_to_normal() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def load(*, well: bool) -> None:
    with kept_without_collecting():
        assert not gc.isenabled()
        if not well:
            raise ImportError


def test_what_is_loaded_is_looked_at_by_no_collection() -> None:
    before = gc.get_freeze_count()
    load(well=True)
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def test_collecting_goes_on_where_loading_fails() -> None:
    with pytest.raises(ImportError):
        load(well=False)
    assert gc.isenabled()
