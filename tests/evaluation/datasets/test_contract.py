"""A data set of the user's that does not keep to the interface is refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation import EvalRun, evaluate
from ragcache_workbench.evaluation.datasets import (
    Answer,
    EvalDataset,
    EvalDocument,
    EvalQuestion,
    Scored,
)
from tests.evaluation.world import Echo, make_retriever


class Towns(EvalDataset):
    """Questions that are about nothing."""

    name, title, max_tokens = "towns", "Towns", 4
    metrics: ClassVar[tuple[str, ...]] = ("right",)
    returned: Any = Scored({"right": 1.0})

    @classmethod
    @override
    def load(cls, data: str = "", documents: Path | None = None) -> Self:
        questions = [EvalQuestion(str(number), f"who is {number}?", ("x",)) for number in range(3)]
        return cls(questions, [EvalDocument("a", "A.")], "here")

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        found: Scored = self.returned
        return found


def run(dataset: Any, out: Path) -> EvalRun:
    return evaluate(dataset, retriever=make_retriever, model=Echo(), out=out, random_weights=False)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"returned": None}, "what Own.score returns must be a Scored, got NoneType"),
        ({"returned": Scored({"f1": 1.0})}, "all of the metrics, but right is not there"),
        ({"returned": Scored({"right": float("nan")})}, "finite numbers, got nan for 'right'"),
        ({"returned": Scored({"right": "1"})}, "finite numbers, got '1' for 'right'"),  # type: ignore[dict-item]  # on purpose
        ({"returned": Scored({"right": 1}, 3)}, "a string or None, got 3"),  # type: ignore[arg-type]  # on purpose
        ({"prompt": lambda *_: "a text"}, "Own.prompt returns must be an EvalPrompt, got str"),
        ({"metrics": "right"}, "Own.metrics must be a tuple of the names of scores, got 'right'"),
        ({"title": None}, "Own.title must be a string, got None"),
        ({"max_tokens": 0}, "Own.max_tokens must be a whole number of at least 1, got 0"),
    ],
)
def test_mistakes_are_named_before_the_first_question(
    attributes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    own: Any = type("Own", (Towns,), attributes)
    with pytest.raises(ConfigurationError) as refused:
        run(own.load(), tmp_path / "out")
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dataset", [3, Towns, None])
def test_what_is_no_data_set(dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="dataset must be the name of a data set or an ob"):
        run(dataset, tmp_path)


@pytest.mark.parametrize("value", [True, np.array([True])[0], 1, np.float32(1), np.int64(1)])
def test_whatever_counts_as_a_number_is_a_score(value: Any, tmp_path: Path) -> None:
    class Own(Towns):
        returned = Scored({"right": value})

        @override
        def summary_scores(self, *_: object) -> dict[str, float]:
            return {"all": value}

    found = run(Own.load(), tmp_path)
    assert found.quality == {"right": 1.0, "all": 1.0}
    assert EvalRun.load(found.path).scores[0].scores == {"right": 1.0}


def test_scores_of_later_answers_are_checked_too(tmp_path: Path) -> None:
    class Own(Towns):
        @override
        def score(self, question: EvalQuestion, answer: Answer) -> Scored:
            return Scored({"right": float("inf") if answer.text else 0.0})

    with pytest.raises(ConfigurationError, match="finite numbers, got inf for 'right'"):
        run(Own.load(), tmp_path)
