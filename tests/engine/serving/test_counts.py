from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ragcache_integrations.engine import EngineStats
from ragcache_integrations.engine.serving.reports import metrics_text, read_counts, write_counts
from ragcache_integrations.knowledge_tree.stats import TreeStats


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_counts(str(tmp_path), rank, 100, TreeStats(documents=1))
        write_counts(str(tmp_path), rank, 100, TreeStats(documents=rank + 2, swap_outs=3))
    found = read_counts(str(tmp_path))
    assert found == {
        "0": EngineStats(tree=TreeStats(documents=2, swap_outs=3), block_bytes=100),
        "1": EngineStats(tree=TreeStats(documents=3, swap_outs=3), block_bytes=100),
    }


def test_files_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text("[100, {")
    (tmp_path / "1.json").write_text('[100, {"unknown": 1}]')
    (tmp_path / "2.json").write_text("7")
    assert read_counts(str(tmp_path)) == {}
    assert read_counts(str(tmp_path / "missing")) == {}
    assert read_counts("") == {}
    write_counts(str(tmp_path / "missing"), 0, 100, TreeStats())


def test_every_metric_is_named_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_counts(str(tmp_path), rank, 100, TreeStats(documents=rank + 2, swap_outs=3))
    text = metrics_text(EngineStats(requests=5), str(tmp_path), {400: 2, 429: 1}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == text.count("# TYPE")
    assert [sample.value for sample in families["ragcache_requests"].samples] == [5]
    documents = {
        sample.labels["engine"]: sample.value
        for sample in families["ragcache_documents"].samples
        if sample.name.endswith("_total")
    }
    assert documents == {"0": 2, "1": 3}
    refused = {s.labels["status"]: s.value for s in families["ragcache_refused_requests"].samples}
    assert refused == {"400": 2, "429": 1}
    swapped = [s.value for s in families["ragcache_swap_out_bytes"].samples]
    assert swapped == [300, 300]


def test_without_a_tree() -> None:
    text = metrics_text(EngineStats(requests=5), "", {}).decode()
    assert "ragcache_requests_total 5.0" in text
    assert "ragcache_documents" not in text
