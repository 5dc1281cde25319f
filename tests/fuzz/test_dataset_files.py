"""Files of data sets and logs of queries: read, or refused with an error of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, load_dataset
from ragcache_workbench.evaluation.workloads import query_ranks
from tests.evaluation.datasets.files import (
    FINQA,
    HOTPOTQA,
    LONGBENCH,
    MUSIQUE,
    SQUAD,
    TATQA,
    TRIVIAQA,
)
from tests.support.sizes import examples

from .bounds import bounded
from .hostile import altered, altered_text, damaged
from .test_lint import PIECES

FILES: dict[str, tuple[str, Any]] = {
    "squad": ("dev-v2.0.json", SQUAD),
    "triviaqa": ("qa/web-dev.json", TRIVIAQA),
    "hotpotqa": ("hotpot_dev_distractor_v1.json", HOTPOTQA),
    "2wikimultihopqa": ("dev.json", HOTPOTQA),
    "musique": ("musique_ans_v1.0_dev.jsonl", MUSIQUE),
    "longbench": ("trec.jsonl", LONGBENCH["trec"]),
    "tatqa": ("tatqa_dataset_dev.json", TATQA),
    "finqa": ("dev.json", FINQA),
}
NAMES = st.sampled_from(sorted(FILES))
CLICKS = [{"Keywords": f"query {number % 5}", "SessionId": number % 3} for number in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for name, (file, _) in FILES.items():
        (root / name / file).parent.mkdir(parents=True, exist_ok=True)
    for page in ("wikipedia/Webber.txt", "web/35/35_995.txt"):
        path = root / "triviaqa" / "evidence" / page
        path.parent.mkdir(parents=True)
        path.write_text("On Sunset Boulevard.")
    return root


def as_text(name: str, content: Any) -> bytes:
    if name in {"musique", "longbench"} and isinstance(content, list):
        return "".join(json.dumps(row) + "\n" for row in content).encode()
    return json.dumps(content).encode()


def check(folder: Path, name: str, content: bytes) -> None:
    path = folder / name / FILES[name][0]
    path.write_bytes(content)
    with bounded():
        try:
            dataset = load_dataset(name, path)
        except ConfigurationError:
            return
        for question in dataset.questions:
            for text in (question.answers[0], "12.5% of it", ""):
                scores = dataset.score(question, Answer(text)).scores
                assert all(0 <= score <= 1 for score in scores.values())


@given(st.data(), NAMES)
@examples(200)
def test_other_values(folder: Path, data: st.DataObject, name: str) -> None:
    content = FILES[name][1]
    lines = FILES[name][0].endswith(".jsonl") and data.draw(st.booleans())
    text = as_text(name, data.draw(altered(content))) if lines else None
    check(folder, name, text or data.draw(altered_text(content)).encode())


@given(st.data(), NAMES)
@examples(200)
def test_damaged_bytes(folder: Path, data: st.DataObject, name: str) -> None:
    check(folder, name, data.draw(damaged(as_text(name, FILES[name][1]), PIECES)))


@given(damaged(as_text("musique", CLICKS), PIECES), st.integers(1, 9))
@examples(100)
def test_a_damaged_log_of_queries(folder: Path, content: bytes, most: int) -> None:
    path = folder / "2013-01-01.json"
    path.write_bytes(content)
    with bounded():
        try:
            ranks = query_ranks(path, most)
        except ConfigurationError:
            return
    assert set(ranks) == set(range(max(ranks) + 1))
    assert len(set(ranks)) <= most
