"""Copies of answers that callers may change."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

__all__ = ["copy_answer"]

A = TypeVar("A")


def copy_answer(answer: A) -> A:
    """Copy an answer so that no change of the copy, however deep, changes it.

    Raises:
        Exception: It can't be copied.
    """
    return answer if isinstance(answer, str) else deepcopy(answer)
