"""The order of a log's queries: read within bounds, replayed over a data set's questions."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import workloads as streams
from ragcache_workbench.evaluation.settings import EvalSettings
from ragcache_workbench.evaluation.workloads import make_workload, query_ranks

TEXTS = tuple(f"question {number}?" for number in range(20))


def record(query: str | None, session: str | None = None, **fields: Any) -> dict[str, Any]:
    """A record with the fields that TripClick has."""
    known = {"DateCreated": "/Date(1357045316053)/", "DocumentId": 7, "Documents": None}
    return known | {
        "Keywords": query,
        **({} if session is None else {"SessionId": session}),
        **fields,
    }


def write(path: Path, records: list[Any]) -> Path:
    text = "".join(json.dumps(entry) + "\n" for entry in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_ranks_of_popularity_in_the_order_of_the_log(tmp_path: Path) -> None:
    queries = ["asthma", "gout", "Gout ", "flu", "gout", "asthma", "mumps"]
    path = write(tmp_path / "log.json", [record(query) for query in queries])
    assert query_ranks(path, 9) == [1, 0, 0, 2, 0, 1, 3]
    # It ends before the first query that is one too many.
    assert query_ranks(path, 2) == [1, 0, 0]
    assert query_ranks(path, 9, 2) == [0, 1]


def test_clicks_of_a_search_are_one(tmp_path: Path) -> None:
    clicks = [("gout", "a"), ("gout", "a"), ("gout", "b"), ("flu", "b"), ("gout", "b"), (None, "b")]
    path = write(tmp_path / "log.json", [record(query, session) for query, session in clicks])
    assert query_ranks(path, 9) == [0, 0, 1, 0]


def test_a_folder_is_read_by_days(tmp_path: Path) -> None:
    write(tmp_path / "2013-01-02.json.gz", [record("flu"), record("gout")])
    write(tmp_path / "2013-01-01.json", [record("gout")])
    (tmp_path / "allarticles.txt").write_text("1\ttitle\turl\n")
    assert query_ranks(tmp_path, 9) == [0, 1, 0]


def test_brackets_and_commas_around_records(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(f"[{json.dumps(record('flu'))},\n\n{json.dumps(record('gout'))}]\n")
    assert query_ranks(path, 9) == [0, 1]


def test_the_log_is_replayed_over_the_questions(tmp_path: Path) -> None:
    queries = ["a", "b", "a", "c", "a", "b", "d", "e"]
    path = write(tmp_path / "log.json", [record(query) for query in queries])
    workload = make_workload(TEXTS, f"tripclick:{path}", seed=3)
    order = [item.question for item in workload.items]
    # The same query is the same question, another query another question.
    assert len(set(zip(order, queries, strict=True))) == len(set(queries)) == len(set(order))
    assert [item.text for item in workload.items] == [TEXTS[question] for question in order]
    assert workload == make_workload(TEXTS, f"tripclick:{path}", seed=3)
    assert workload.digest != make_workload(TEXTS, f"tripclick:{path}", seed=4).digest
    # With few questions, the stream ends before the query that has none.
    assert len(make_workload(TEXTS[:2], f"tripclick:{path}")) == 3
    assert Counter(item.question for item in workload.items).most_common(1)[0][1] == 3


def test_arrivals(tmp_path: Path) -> None:
    path = write(tmp_path / "log.json", [record(f"{number % 7}") for number in range(500)])
    workload = make_workload(TEXTS, f"tripclick:{path}", rate=2.0, minutes=1.0)
    assert len(workload) == pytest.approx(120, rel=0.4)
    assert workload.items[-1].arrival < 60


def test_a_log_that_is_too_short(tmp_path: Path) -> None:
    path = write(tmp_path / "log.json", [record("a"), record("b"), record("c")])
    with pytest.raises(ConfigurationError, match="3 searches of at most 20 different queries"):
        make_workload(TEXTS, f"tripclick:{path}", length=4)
    with pytest.raises(ConfigurationError, match="2 searches of at most 2 different queries"):
        make_workload(TEXTS[:2], f"tripclick:{path}", length=3)
    path.write_text("")
    with pytest.raises(ConfigurationError, match="needs a longer log"):
        make_workload(TEXTS, f"tripclick:{path}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"Keywords": ', "it is no JSON"),
        ("[1]", "got 1"),
        ('{"query": "flu"}', "'Keywords' are a text, got query.*tripdatabase"),
        ('{"Keywords": 7}', "'Keywords' are a text"),
        ('{"Keywords": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_record_is_named_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "log.json"
    path.write_text(f"{json.dumps(record('flu'))}\n{line}\n")
    with pytest.raises(ConfigurationError, match=f"line 2 of .*{words}"):
        query_ranks(path, 9)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log.json", [record("a")] * 50)
    monkeypatch.setattr(streams, "MOST_SEARCHES", 30)
    assert len(query_ranks(path, 9)) == 30
    monkeypatch.setattr(streams, "LONGEST_LINE", 200)
    write(path, [record("a" * 300)])
    with pytest.raises(ConfigurationError, match="at most 200 bytes"):
        query_ranks(path, 9)


@pytest.mark.parametrize("line", [b"\n", b'{"Keywords": null}\n'])
def test_lines_that_are_no_searches_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """A few packed bytes can hold any number of them."""
    monkeypatch.setattr(streams, "MOST_LINES", 100)
    path, search = tmp_path / "log.json.gz", b'{"Keywords": "a"}\n'
    path.write_bytes(gzip.compress(99 * line + search))
    assert query_ranks(path, 9) == [0]
    path.write_bytes(gzip.compress(100 * line + search))
    with pytest.raises(ConfigurationError, match="at most 100 lines"):
        query_ranks(path, 9)


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file or folder"):
        query_ranks(tmp_path / "nothing", 9)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=r"YYYY-MM-DD\.json, but it has notes\.txt"):
        query_ranks(tmp_path, 9)
    (tmp_path / "log.json.gz").write_bytes(b"no gzip")
    with pytest.raises(ConfigurationError, match=r"log\.json\.gz"):
        query_ranks(tmp_path / "log.json.gz", 9)


@pytest.mark.parametrize("name", ["tripclick", "tripclick:", "trip:log.json", "bursty"])
def test_other_names(name: str) -> None:
    with pytest.raises(ConfigurationError, match="or tripclick:PATH, with the path of a log, got"):
        EvalSettings(dataset="nq", workload=name)
    assert EvalSettings(dataset="nq", workload="tripclick:a/b").workload == "tripclick:a/b"
