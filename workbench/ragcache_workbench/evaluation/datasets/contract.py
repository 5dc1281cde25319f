"""Checks that a data set of the user's keeps to the interface.

What it returns is read again from the folder of a run, after the last answer. So a mistake is
reported before the first question where that is possible, and in words everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ragcache_integrations.core.checks import as_number, check_int, check_text, check_type
from ragcache_integrations.errors import ConfigurationError

from .base import Answer, EvalDataset, EvalPrompt, EvalQuestion, Scored

__all__ = ["check_dataset", "checked_metrics", "checked_score"]


def check_dataset(dataset: EvalDataset) -> None:
    """Check the attributes of a data set, a prompt, and the scores of an empty answer.

    Raises:
        ConfigurationError: It does not keep to the interface; the message names what is wrong.
    """
    allowed = "the name of a data set or an object of a subclass of EvalDataset"
    check_type("dataset", dataset, EvalDataset, allowed)
    kind = type(dataset).__name__
    for name in ("name", "title"):
        check_text(f"{kind}.{name}", getattr(dataset, name, None))
    check_int(f"{kind}.max_tokens", getattr(dataset, "max_tokens", None), 1)
    metrics: Any = getattr(dataset, "metrics", None)
    if not isinstance(metrics, tuple | list) or not all(isinstance(one, str) for one in metrics):
        msg = f"{kind}.metrics must be a tuple of the names of scores, got {metrics!r}"
        raise ConfigurationError(msg)
    question = dataset.questions[0]
    prompt = dataset.prompt(question, question.text)
    check_type(f"what {kind}.prompt returns", prompt, EvalPrompt, "an EvalPrompt")
    checked_score(dataset, question, Answer(""))


def checked_score(dataset: EvalDataset, question: EvalQuestion, answer: Answer) -> Scored:
    """Score an answer; truth values and NumPy's numbers become floats.

    Raises:
        ConfigurationError: A score is missing, or no finite number.
    """
    place = f"{type(dataset).__name__}.score"
    scored = dataset.score(question, answer)
    check_type(f"what {place} returns", scored, Scored, "a Scored")
    scores = checked_metrics(place, scored.scores)
    missing = [name for name in dataset.metrics if name not in scores]
    if missing:
        msg = f"{place} must return all of the metrics, but {', '.join(missing)} is not there"
        raise ConfigurationError(msg)
    if scored.prediction is not None:
        check_text(f"the prediction of {place}", scored.prediction, "a string or None")
    return Scored(scores, scored.prediction)


def checked_metrics(place: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers by their names as floats.

    Args:
        place: What returned them, for the message.
        values: The numbers.

    Raises:
        ConfigurationError: One is no finite number.
    """
    checked = {}
    for name, value in values.items():
        number = float(value) if isinstance(value, bool | np.bool_) else as_number(value)
        if not math.isfinite(number):
            msg = f"{place} must return finite numbers, got {value!r} for {name!r}"
            raise ConfigurationError(msg)
        checked[name] = number
    return checked
