from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragcache_integrations.core.generation import Usage
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError, ModelNotFoundError
from ragcache_workbench.demo import run
from ragcache_workbench.demo.apps import App, Found, Observation, Piece
from ragcache_workbench.demo.engines import output_to
from ragcache_workbench.demo.run import TURN, DemoResult, FrameworkResult, figures
from ragcache_workbench.demo.settings import DemoSettings
from ragcache_workbench.evaluation.systems.base import noting_embedding


class Asked:
    """Notes who was asked what."""

    def __init__(self, name: str, asked: list[tuple[str, str]], answer: Observation) -> None:
        self._name, self._asked, self._answer = name, asked, answer

    def ask(self, question: str) -> Observation:
        self._asked.append((self._name, question))
        return self._answer


def test_turns_alternate_and_wait_for_stock_to_calm_down(
    result: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr("time.sleep", lambda _: asked.append(("", "")))
    one = result.frameworks["langchain"].before[0]
    apps: Any = [Asked(name, asked, one) for name in ("stock", "ours", "anywhere")]
    requests = result.requests[: 2 * TURN + 1]
    before, after, anywhere = run._in_turns(apps, requests, lambda: None)
    assert len(before) == len(after) == len(anywhere) == len(requests)
    texts = [request.text for request in requests]
    for name in ("stock", "ours", "anywhere"):
        assert [text for who, text in asked if who == name] == texts
    assert [who for who, _ in asked] == [
        *["stock"] * TURN,
        "",
        *["ours"] * TURN,
        *["anywhere"] * TURN,
        *["anywhere"] * TURN,
        *["ours"] * TURN,
        *["stock"] * TURN,
        "stock",
        "",
        "ours",
        "anywhere",
    ]


def test_figures(result: DemoResult) -> None:
    after = result.frameworks["langchain"].after
    summed = figures(after, 0.5)
    assert summed.store_calls == len(after) - summed.hits
    assert summed.prompt_tokens == sum(one.prompt_tokens for one in after)
    assert min(one.ttft_ms for one in after) < summed.ttft_ms < max(one.ttft_ms for one in after)
    assert summed.hit_recall == 0.5


def test_the_ratio_is_the_median_of_pairs(result: DemoResult) -> None:
    one = result.frameworks["langchain"].before[0]
    before, after = (
        tuple(replace(one, ttft_ms=time) for time in times)
        for times in ((10, 20, 1000), (20, 10, 900))
    )
    found = FrameworkResult(before, after, before, None)
    assert found.ttft_ratio("after") == pytest.approx(0.9)
    assert found.ttft_ratio("anywhere") == 1


def test_the_json(result: DemoResult) -> None:
    content = result.as_dict()
    assert list(content) == ["langchain", "llama_index"]
    for framework in content.values():
        for side in ("before", "after", "anywhere"):
            assert list(framework[side]) == [
                "store_calls",
                "embedding_ms",
                "retrieval_ms",
                "ttft_ms",
                "end_to_end_ms",
                "prompt_tokens",
                "cached_prompt_tokens",
                "hits",
                "hit_recall",
            ]
        assert framework["before"]["hits"] == 0
        assert framework["before"]["hit_recall"] is None


def test_what_an_application_does_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    index: Any = SimpleNamespace(searches=3)

    def stream(question: str, found: Found) -> Iterator[Piece]:
        """Retrieves from 0 to 3, embeds from 1 to 2, has pieces at 4 and 5, and ends at 6."""
        with noting_embedding():
            index.searches += 2
        found([PromptDocument("one", "a"), PromptDocument("two", "b")])
        yield "two, ", None
        yield question, Usage(10, 2, 4)

    corpus: Any = SimpleNamespace(index=index)
    seen = App(corpus, stream).ask("what?")
    assert (seen.store_calls, seen.hit) == (2, False)
    assert (seen.embedding_ms, seen.retrieval_ms) == (1000, 2000)
    assert (seen.ttft_ms, seen.first_token_ms, seen.end_to_end_ms) == (1000, 4000, 6000)
    assert (seen.prompt_tokens, seen.cached_prompt_tokens) == (10, 4)
    assert seen.document_ids == ("a", "b")
    assert seen.answer == "two, what?"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"questions": 0}, "questions must be a whole number of at least 1"),
        ({"distractors": -1}, "distractors must be a whole number of at least 0"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"top_k": 1300, "distractors": 900}, "top_k must be at most 1200"),
        ({"passages": 0}, "passages must be a whole number of at least 1"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"kv_cache_gib": 0.0}, "kv_cache_gib"),
        ({"frameworks": ("haystack",)}, "frameworks must be some of"),
        ({"frameworks": ()}, "frameworks must be some of"),
    ],
)
def test_bad_settings(setting: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        DemoSettings(**setting)  # type: ignore[arg-type]  # the point of the test


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        DemoSettings(model=str(tmp_path / "nowhere"))


def test_output_is_kept_off_the_screen(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    with output_to(log) as screen:
        os.write(1, b"engine out\n")
        os.write(2, b"engine error\n")
        screen.write("progress\n")
    os.write(1, b"after\n")
    assert log.read_bytes() == b"engine out\nengine error\n"
    out, error = capfd.readouterr()
    assert (out, error) == ("after\n", "progress\n")


def test_output_comes_back_after_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError), output_to(tmp_path / "log"):
        raise RuntimeError
    os.write(2, b"here\n")
    assert capfd.readouterr().err == "here\n"


def test_random_streams_are_not_shared_with_the_program() -> None:
    random.seed(1)
    first = random.random()
    random.seed(1)
    run.stream(DemoSettings(questions=5))
    assert random.random() == first
