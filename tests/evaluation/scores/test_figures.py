from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.records import Pending, Record
from ragcache_workbench.evaluation.scores import (
    PriceTable,
    figures_of,
    read_prices,
    retrieval_latency,
    throughput_under_limit,
    tier_hit_rates,
)


def record(number: int = 0, **facts: Any) -> Record:
    usual: dict[str, Any] = {"question": "q", "text": "t", "session": 1, "sequence": number}
    return Record(**{"number": number, **usual, **facts})


def test_records_and_pending_questions_survive_json() -> None:
    one = record(3, documents=("a", "b"), likeliest={" A": -1.5}, hit=True, answer="é\u2028")
    assert Record.from_json(json.dumps(one.as_dict()).encode()) == one
    assert Record.from_json(json.dumps({**one.as_dict(), "later": 1}).encode()) == one
    waiting = Pending(
        number=1, sequence=2, documents=(("a", "A."),), noted={"hit": True}, retrieval_seconds=0.1
    )
    saved = json.dumps(asdict(waiting))
    assert TypeAdapter(Pending).validate_json(saved, strict=True) == waiting


def test_hit_rates() -> None:
    records = [
        record(hit=True, recall_bound=1.0),
        record(hit=True, recall_bound=0.6),
        record(hit=False),
        record(hit=True),
    ]
    figures = figures_of(records, {}, {})
    assert figures["cache_hit_rate"] == 0.75
    assert figures["certified_share"] == pytest.approx(1 / 3)
    assert "cache_hit_rate" not in figures_of([record()], {}, {})
    assert "certified_share" not in figures_of([record(hit=False)], {}, {})


def test_retrieval_latency_is_without_embedding_where_that_is_known() -> None:
    assert retrieval_latency(record(retrieval_seconds=0.5, embedding_seconds=0.2)) == 0.3
    assert retrieval_latency(record(retrieval_seconds=0.5)) == 0.5
    assert retrieval_latency(record(retrieval_seconds=0.1, embedding_seconds=0.2)) == 0


def test_the_tiers_are_counted_as_in_the_paper() -> None:
    counts = {
        "tree_documents": 8,
        "tree_documents_hit_gpu": 4,
        "tree_documents_hit_host": 2,
        "tree_document_tokens": 1000,
        "tree_document_tokens_hit_gpu": 300,
        "tree_document_tokens_hit_host": 100,
    }
    assert tier_hit_rates(counts) == {
        "gpu_hit_rate": 0.5,
        "host_hit_rate": 0.25,
        "gpu_token_hit_rate": 0.3,
        "host_token_hit_rate": 0.1,
    }
    assert tier_hit_rates({}) == {}
    # Equal prompts that the model was not asked again would have been found, too.
    asked, again = record(number=0), record(number=1, reused=True)
    assert figures_of([asked], {}, counts)["gpu_hit_rate"] == 0.5
    assert "gpu_hit_rate" not in figures_of([asked, again], {}, counts)


def test_throughput_is_the_last_rate_within_the_limit() -> None:
    points = [(0.5, 100.0), (1.0, 120.0), (2.0, 900.0), (3.0, 5000.0)]
    # The limit is 500: between 1.0 and 2.0, (500 - 120) / (900 - 120) of the way.
    assert throughput_under_limit(points) == pytest.approx(1 + 380 / 780)
    assert throughput_under_limit(reversed(points)) == pytest.approx(1 + 380 / 780)
    assert throughput_under_limit(points, limit=120.0) == 1.0
    assert throughput_under_limit(points, limit=50.0) == 0.0
    assert throughput_under_limit(points, factor=100) == 3.0
    assert throughput_under_limit([(2.0, 7.0)]) == 2.0
    for wrong in ([], [(1.0, 2.0), (1.0, 3.0)]):
        with pytest.raises(ConfigurationError, match="at least one rate, each once"):
            throughput_under_limit(wrong)


RECORDS = [
    record(0, documents=("a",), prompt_tokens=1000, cached_tokens=0, output_tokens=10, hit=False),
    record(1, documents=("a",), prompt_tokens=1000, cached_tokens=800, output_tokens=10, hit=True),
]


def test_money() -> None:
    prices = PriceTable(input=1.0, cached_input=0.1, output=2.0, search=5.0)
    spent = (1000 * 1.0 + 200 * 1.0 + 800 * 0.1 + 20 * 2.0) / 1e6 + 1 * 5.0 / 1000
    full = (2000 * 1.0 + 20 * 2.0) / 1e6 + 2 * 5.0 / 1000
    figures = figures_of(RECORDS, {}, {}, prices)
    assert figures["cost"] == pytest.approx(spent)
    assert figures["money_saved"] == pytest.approx(full - spent)
    assert figures["tokens_saved"] == 800
    unknown = figures_of([record()], {}, {}, prices)
    assert not {"cost", "money_saved", "tokens_saved"} & set(unknown)


def test_prices_from_a_line_and_from_a_file(tmp_path: Path) -> None:
    table = PriceTable(input=0.15, cached_input=0.075, output=0.6)
    assert read_prices("input=0.15, cached_input=0.075,output=0.6") == table
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"input": 0.15, "cached_input": 0.075, "output": 0.6}))
    assert read_prices(str(file)) == table


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("input=0.15", "must name input and cached_input"),
        ("input=x,cached_input=1", "input=NUMBER"),
        ("input=1,cached_input=1,tea=2", "unknown price 'tea': allowed are cached_input, input"),
        ("input=-1,cached_input=1", "'input' must be a number of at least 0, got -1"),
        ("input=nan,cached_input=1", "'input' must be a number"),
        ("/no/such/file.json", "/no/such/file.json"),
    ],
)
def test_wrong_prices(given: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        read_prices(given)


def test_disturbed_times_do_not_count() -> None:
    records = [
        record(0, ttft_seconds=0.1, end_to_end_seconds=0.2, tpot_seconds=0.01),
        record(1, ttft_seconds=0.3, end_to_end_seconds=0.4),
        record(2, ttft_seconds=9.0, end_to_end_seconds=9.0, disturbed=True, error="x"),
    ]
    figures = figures_of(records, {0: 1.0, 1: 0.5}, {})
    assert figures["questions"] == 3
    assert (figures["errors"], figures["disturbed"]) == (1, 1)
    assert figures["ttft_ms_mean"] == pytest.approx(200)
    assert figures["ttft_ms_median"] == pytest.approx(200)
    assert figures["end_to_end_ms_p99"] == pytest.approx(398)
    assert figures["tpot_ms_mean"] == pytest.approx(10)
    assert figures["k_recall"] == 0.75
    for name in ("cache_hit_rate", "cache_hits", "hit_k_recall", "tokens_saved", "cost"):
        assert name not in figures
    priced = figures_of(RECORDS, {1: 0.5}, {}, PriceTable(input=1, cached_input=0))
    assert priced["hit_k_recall"] == 0.5
    assert priced["money_saved"] == pytest.approx(800e-6)
    assert "k_recall" not in figures_of(RECORDS, {0: 1.0}, {})  # of the hit it is not known
