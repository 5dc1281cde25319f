"""Copies of answers that callers may change."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ragcache_integrations.retrievers.copying import copy_model

__all__ = ["copy_answer"]


def copy_answer(answer: Any) -> Any:
    """Copy an answer so that changes of the copy leave it as it is.

    Models, dicts, lists and tuples are copied, also within each other. What is none of them is
    shared, as it may not be copyable.
    """
    if isinstance(answer, BaseModel):
        return copy_model(answer)
    if isinstance(answer, dict):
        return {name: copy_answer(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [copy_answer(value) for value in answer]
    if type(answer) is tuple:
        return tuple(copy_answer(value) for value in answer)
    return answer
