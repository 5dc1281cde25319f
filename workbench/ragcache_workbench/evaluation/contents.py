"""What the JSON files of a run's folder hold, as far as a report reads them.

The folder may be damaged or somebody else's, so a run is read only if all of this is there.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from .records import Number, Whole
from .scores import MECHANICS_ONLY

__all__ = ["check_contents"]

Figures = dict[str, Number]


class _Dataset(TypedDict):
    name: str
    title: str
    source: str
    questions: Whole
    documents: Whole
    of_documents: NotRequired[Whole]


class _Workload(TypedDict):
    questions: Whole
    digest: str
    refused: NotRequired[dict[str, Whole]]


class _Config(TypedDict):
    format: Literal[1]
    label: NotRequired[str]
    settings: dict[str, Any]
    dataset: _Dataset
    workload: _Workload
    given: NotRequired[list[str]]
    retriever: str
    model: str
    random_weights: bool


class _Environment(TypedDict):
    time: NotRequired[str]
    command: NotRequired[str]
    packages: NotRequired[dict[str, str]]


class _Session(TypedDict):
    started: str
    before: Whole
    environment: NotRequired[_Environment]


class _Summary(TypedDict):
    figures: Figures
    quality: str | dict[str, Number | dict[str, Figures]]
    configurations: NotRequired[dict[str, Whole]]
    sessions: list[_Session]
    breaks: list[Whole]


class _Contents(TypedDict):
    config: _Config
    summary: _Summary
    environment: _Environment


@cache
def _reader() -> TypeAdapter[_Contents]:
    return TypeAdapter(_Contents)


def check_contents(config: Any, summary: Any, environment: Any) -> None:
    """Check the content of ``config.json``, ``summary.json`` and ``environment.json``.

    Raises:
        ValueError: Something that a report reads is missing, of another type or out of its range.
    """
    contents = {"config": config, "summary": summary, "environment": environment}
    quality = _reader().validate_python(contents, strict=True)["summary"]["quality"]
    wrong = quality != MECHANICS_ONLY
    if isinstance(quality, dict):
        means = {name: value for name, value in quality.items() if name != "by_group"}
        groups = quality.get("by_group", {})
        metrics = [set(group) for group in groups.values()] if isinstance(groups, dict) else [set()]
        wrong = any(isinstance(value, dict) for value in means.values()) or any(
            names != metrics[0] or not names for names in metrics
        )
    if wrong:
        msg = "summary.quality: it must have metrics, and the same ones for each part of the data"
        raise ValueError(msg)
