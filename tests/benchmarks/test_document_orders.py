from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from parts.prompts.contextpilot_peer import has_contextpilot
from parts.prompts.document_orders import BLOCK, ORDERS, Ordered, order_all, order_limited
from parts.traffic.questions import Corpus, Question
from parts.traffic.retrieval_streams import DEPTH, load_mmlu, question_texts, retrieve

from ragcache_integrations.errors import ConfigurationError

LENGTHS = dict.fromkeys("abcdefghij", BLOCK)
QUESTIONS = tuple(Question(f"what is the name of thing number {number}?") for number in range(40))


@pytest.fixture(autouse=True)
def _without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are for the times, which nobody looks at here, and the tests' own heap is large."""
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(f"parts.prompts.document_orders.gc.{name}", lambda: None)


def topics(count: int, seed: int) -> list[tuple[str, ...]]:
    rng = random.Random(seed)
    pools = ["abcdef", "cdefgh", "efghij"]
    return [tuple(rng.sample(rng.choice(pools), 4)) for _ in range(count)]


def test_what_an_unlimited_cache_holds() -> None:
    ordered = Ordered("some", [1, 0, 2], [tuple("ab"), tuple("ac"), tuple("ab")], 0.0)
    assert ordered.cached_tokens(LENGTHS) == [BLOCK, 0, 2 * BLOCK]


@pytest.mark.parametrize("policy", ["vllm", "pgdsf"])
def test_a_cache_that_has_room_for_all_is_as_good_as_an_unlimited_one(policy: str) -> None:
    for ordered in order_all(topics(40, 0), LENGTHS):
        share = sum(ordered.cached_tokens(LENGTHS)) / (40 * 4 * BLOCK)
        assert ordered.cached_share(LENGTHS, 10**5, policy) == pytest.approx(share)
        small = ordered.cached_share(LENGTHS, 12 * BLOCK, policy)
        assert small <= share
        assert small < share or "batch" in ordered.name  # served depth first, it needs little


def test_every_order_serves_the_same_requests() -> None:
    requests = topics(60, 1)
    for ordered in order_all(requests, LENGTHS):
        assert sorted(ordered.numbers) == list(range(60))
        for number, documents in zip(ordered.numbers, ordered.sent, strict=True):
            assert sorted(documents) == sorted(requests[number])
        assert ordered.us > 0


def test_the_orders_find_more_than_relevance_does() -> None:
    cached = {
        ordered.name: sum(ordered.cached_tokens(LENGTHS))
        for ordered in order_all(topics(200, 2), LENGTHS)
    }
    assert set(cached) == set(ORDERS)
    assert cached["relevance"] < cached["cached_first"] < cached["batch"]


@pytest.mark.skipif(not has_contextpilot(), reason="the peer is in the group bench")
def test_batches_find_no_less_than_the_peer_does() -> None:
    """A small stand-in for the benchmark, on streams that are not real."""
    for seed in range(3):
        cached = {
            ordered.name: sum(ordered.cached_tokens(LENGTHS))
            for ordered in order_all(topics(200, seed), LENGTHS)
        }
        assert cached["batch"] >= cached["contextpilot_batch"]


def test_limits_cost_something_and_are_named() -> None:
    requests = topics(200, 3)
    pinned = order_limited(requests, LENGTHS, {"pin_top": 1})
    free = order_limited(requests, LENGTHS, {})
    assert pinned.name == "pin_top 1"
    assert sum(pinned.cached_tokens(LENGTHS)) < sum(free.cached_tokens(LENGTHS))


def test_streams_of_questions() -> None:
    streams = dict(question_texts({"nq": QUESTIONS}, 60, seed=0))
    assert list(streams) == [
        *("nq, popular", "nq, once", "nq, rephrased", "nq, very popular", "nq, drifting")
    ]
    assert len(set(streams["nq, once"])) == len(streams["nq, once"]) == 40
    assert len(set(streams["nq, rephrased"])) == 60
    assert len(set(streams["nq, very popular"])) < len(set(streams["nq, popular"])) < 60
    assert streams == dict(question_texts({"nq": QUESTIONS}, 60, seed=0))
    assert streams != dict(question_texts({"nq": QUESTIONS}, 60, seed=1))
    together = dict(question_texts({"nq": QUESTIONS, "mmlu": QUESTIONS}, 60, seed=0))
    assert len(together) == 7
    assert "together, popular" in together


def test_retrieval_gives_the_nearest_passages() -> None:
    rng = np.random.default_rng(0)
    vectors: dict[str, NDArray[np.float32]] = {}

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        for text in texts:
            vectors.setdefault(text, rng.standard_normal(8).astype(np.float32))
        return np.array([vectors[text] for text in texts])

    passages = [f"passage {number}" for number in range(30)]
    corpus = Corpus(tuple(passages), (), {})
    (stream,) = retrieve(corpus, passages, {"some": ["one", "two", "one"]}, embed)  # type: ignore[arg-type]  # a stand-in
    assert stream.requests[0] == stream.requests[2]
    distances = np.linalg.norm(embed(passages) - vectors["two"], axis=1)
    assert stream.requests[1] == tuple(np.argsort(distances)[:DEPTH].tolist())
    assert stream.top(2)[1] == tuple(map(str, stream.requests[1][:2]))
    with pytest.raises(ConfigurationError, match="there are 30 passages, got 31"):
        retrieve(corpus, [*passages, "more"], {}, embed)  # type: ignore[arg-type]  # a stand-in


def test_mmlu_is_read_without_choices_and_repeats(tmp_path: Path) -> None:
    folder = tmp_path / "mmlu"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match="there is none"):
        load_mmlu(tmp_path)
    (folder / "x_test.csv").write_text('"Why, then?",1,2,3,4,A\nHow?,1,2,3,4,B\nHow?,1,2,3,4,C\n')
    (folder / "x_dev.csv").write_text("Not this?,1,2,3,4,A\n")
    assert [one.text for one in load_mmlu(tmp_path)] == ["Why, then?", "How?"]
