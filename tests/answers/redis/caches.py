"""Caches of several processes, as it were, that share one Redis."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np

from ragcache_integrations.answers import (
    AnswerCore,
    AnswerFlow,
    AnswerKnobs,
    Lookup,
    Question,
    SharedAnswerStats,
    same_text,
)
from ragcache_integrations.answers.entries import AnswerCodec
from tests.answers.traffic import embed
from tests.query_cache.redis.servers import RealRedis, patient

DOCUMENTS = frozenset({("1", ("text of 1", frozenset([("page", (int, 3))])))})
WORDS = ["rome is it nice", "rome is it pretty", "rome is it old", "oslo is it nice"]


def _same(value: Any) -> Any:
    return value


TEXTS: AnswerCodec[str] = AnswerCodec("texts", _same, _same)


def new_tag() -> str:
    """A tag apart from those of all other tests."""
    return uuid.uuid4().hex


class Process:
    """What one process has of a cache: asks as an adapter does.

    Args:
        redis: The server, or its URL and whatever else.
        tag: What processes have in common.
        knobs: More settings.
    """

    def __init__(self, redis: RealRedis | Any, tag: str, **knobs: Any) -> None:
        cache = patient(redis.url) if isinstance(redis, RealRedis) else redis
        settings = {"tolerance": 0.5, "cache": cache, "tag": tag} | knobs
        self.flow = AnswerFlow(AnswerCore[str](AnswerKnobs(**settings)), same_text, None, TEXTS)

    def look_up(self, question: Question) -> Lookup[str]:
        return self.flow.look_up(question, lambda: vector(question.text))

    def served(self, question: Question) -> str | None:
        entry = self.look_up(question).entry
        return None if entry is None else entry.answer

    def answer(self, question: Question, answer: str) -> None:
        """Look up, find nothing, and keep an answer."""
        lookup = self.look_up(question)
        assert lookup.entry is None
        self.flow.keep(lookup, answer)

    def stats(self) -> SharedAnswerStats:
        stats = self.flow.stats()
        assert isinstance(stats, SharedAnswerStats)
        return stats


def ask(
    text: str, tenant: str = "", documents: Any = DOCUMENTS, version: int = 0, **others: Any
) -> Question:
    return Question(text, documents, (tenant, frozenset(others.items())), "", version)


def vector(text: str) -> np.ndarray:
    return np.asarray(embed(text), np.float32)
