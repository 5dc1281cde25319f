"""Pages of presets: none replaces that of other settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from papers.base import Cell, Table
from papers.outcome import PresetResult, page_name
from papers.plan import plan_preset

from ragcache_workbench.evaluation.settings import EvalSettings

from .made import made_run


def named(folder: Path, *, data: str = "bundled", **knobs: Any) -> str:
    return page_name(plan_preset("nq", "metis", **knobs), folder, data)


def made(words: str, *, data: str = "bundled", **knobs: Any) -> PresetResult:
    """A result whose page says the words."""
    plan = plan_preset("nq", "metis", **knobs)
    run = made_run([0.5], settings=EvalSettings(dataset="nq", data=data))
    table = Table("One", ("figure", "ours"), ((Cell("words"), Cell(words)),))
    return PresetResult(plan=plan, runs=(run,), tables=(table,), remarks=(), headline={})


@pytest.mark.parametrize(
    ("knobs", "name"),
    [
        ({}, "metis-nq-quick"),
        ({"quick": False}, "metis-nq"),
        # What is usual anyway changes nothing.
        ({"sample": 8, "seeds": 1, "rate": None, "workload": "as_is"}, "metis-nq-quick"),
    ],
)
def test_the_usual_form_has_the_name_of_the_preset(
    tmp_path: Path, knobs: dict[str, Any], name: str
) -> None:
    assert named(tmp_path, **knobs) == name


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"sample": 5}, "metis-nq-quick-sample=5"),
        ({"seeds": 2}, "metis-nq-quick-seeds=2"),
        ({"rate": 0.5, "sample": None}, "metis-nq-quick-rate=0.5-sample=None"),
        ({"kv_cache_gib": 0.5, "quick": False}, "metis-nq-kv_cache_gib=0.5"),
        ({"corpus": "all"}, "metis-nq-quick-corpus=all"),
        ({"sample": 5, "data": "/a b/data"}, "metis-nq-quick-sample=5-data=data"),
        ({"sample": 5, "data": "/a/b c"}, "metis-nq-quick-sample=5-data=b_c"),
    ],
)
def test_other_settings_are_in_the_name(tmp_path: Path, knobs: dict[str, Any], words: str) -> None:
    name = named(tmp_path, **knobs)
    assert re.fullmatch(re.escape(words) + "-[0-9a-f]{8}", name)
    assert named(tmp_path, **knobs) == name


def test_each_setting_has_a_name_of_its_own(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"quick": False},
        {"sample": 5},
        {"sample": 6},
        {"sample": 5, "seeds": 2},
        {"sample": 5, "data": "/a/data"},
        {"sample": 5, "data": "/b/data"},
        # The words are cut and cleaned, the hash is not.
        {"sample": 5, "data": "a" * 200 + "b"},
        {"sample": 5, "data": "a" * 200 + "c"},
        {"sample": 5, "data": "a,b"},
        {"sample": 5, "data": "a b"},
    ]
    names = [named(tmp_path, **knobs) for knobs in settings]
    assert len(set(names)) == len(names)
    assert all(len(name) < 200 for name in names)


def test_the_same_settings_replace_their_own_page_and_no_other(tmp_path: Path) -> None:
    pages = {}
    for words in ("first", "second"):
        for knobs in ({}, {"sample": 5}, {"sample": 6}, {"quick": False}):
            page, data = made(words, **knobs).write(tmp_path)
            pages[str(knobs)] = page
            assert data == page.with_suffix(".json")
    assert len(set(pages.values())) == 4
    assert set(tmp_path.glob("*.md")) == set(pages.values())
    assert all("second" in page.read_text() for page in pages.values())
    assert pages["{}"].name == "metis-nq-quick.md"
    assert "sample=5" in pages["{'sample': 5}"].read_text().splitlines()[0]
    content = json.loads(pages["{'sample': 5}"].with_suffix(".json").read_text())
    assert (content["data"], content["changed"]) == ("bundled", {"sample": 5})


def test_other_data_of_the_same_name_keeps_the_page_that_is_there(tmp_path: Path) -> None:
    first, _ = made("first", data="/a/data").write(tmp_path)
    second, _ = made("second", data="/b/data").write(tmp_path)
    assert first.name == "metis-nq-quick.md"
    assert re.fullmatch(r"metis-nq-quick-data=data-[0-9a-f]{8}\.md", second.name)
    again, _ = made("first, again", data="/a/data").write(tmp_path)
    also, _ = made("second, again", data="/b/data").write(tmp_path)
    assert (again, also) == (first, second)
    assert "first, again" in first.read_text()
    assert "second, again" in second.read_text()


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"data": 3}', "\0", "[" * 10_000])
def test_a_page_that_nobody_knows_is_not_replaced(tmp_path: Path, content: str | None) -> None:
    page = tmp_path / "metis-nq-quick.md"
    page.write_text("somebody's")
    if content is not None:
        page.with_suffix(".json").write_text(content)
    own, data = made("ours").write(tmp_path)
    assert page.read_text() == "somebody's"
    assert own != page
    assert "ours" in own.read_text()
    if content is not None:
        assert page.with_suffix(".json").read_text() == content
    assert json.loads(data.read_text())["data"] == "bundled"
