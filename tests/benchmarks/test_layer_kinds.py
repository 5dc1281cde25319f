"""The comparison over models whose layers see different parts of a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from parts.layer_kinds.comparison import STOCK, STREAMS, TREE, compare, make_prompts
from parts.layer_kinds.models import make_model

pytestmark = pytest.mark.engine


def test_the_tree_of_a_gemma_finds_more_and_answers_alike(tmp_path: Path) -> None:
    ((stream, outcome),) = compare(
        make_model("gemma3", tmp_path), ["skewed"], requests=40, blocks=150
    )
    assert stream == "skewed"
    assert outcome.different == {TREE: 0, STOCK: 0}
    assert outcome.distinct > 30
    assert outcome.hits[TREE] == pytest.approx(outcome.counted)
    assert outcome.hits[TREE] > 1.15 * outcome.hits[STOCK]


def test_the_streams_differ() -> None:
    documents = {
        stream: [span for prompt in make_prompts(stream, 200) for span in prompt.documents]
        for stream in STREAMS
    }
    names = {stream: [span.id for span in spans] for stream, spans in documents.items()}
    most = {stream: max(map(ids.count, set(ids))) for stream, ids in names.items()}
    assert 2 * most["uniform"] < min(most["drifting"], most["skewed"])
    assert names["drifting"] != names["skewed"]
