"""How good the answers are, and whether what makes them sooner changes them.

The same questions are answered from the same documents in several ways: computed in full, with the
documents' KV caches reused, with the documents in reverse order, and by ``map_reduce``; and block
by block, each document encoded on its own, as they are reused anywhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from ragcache_integrations.adaptive.asker import EngineAsker
from ragcache_integrations.adaptive.synthesis import SynthesisSettings, synthesise
from ragcache_integrations.adaptive.types import SynthesisConfig
from ragcache_integrations.core.threads import map_in_threads
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.resources import Question
from ragcache_workbench.evaluation.datasets import exact_match, token_f1

from .apps import SYSTEM, Corpus, passage_text, question_part
from .engines import preset

__all__ = [
    "ANSWER_TOKENS",
    "BLOCKS",
    "WAYS",
    "Quality",
    "answer_quality",
    "block_quality",
    "documents_of",
]

ANSWER_TOKENS = 24
"""Length limit of an answer that is scored."""

TOGETHER = 8
"""Questions that are answered at once: nothing is timed here."""

SUMMARY_WORDS = 40
"""Length limit of a summary of ``map_reduce``."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of the answers that were computed in one way.

    Attributes:
        way: How they were computed; a name of :data:`WAYS` or :data:`BLOCKS`.
        f1: Mean F1 of an answer's words with those of the best reference (SQuAD).
        exact: Share of the answers that are a reference.
        same: Share of the answers that are identical to those computed in full.
        cached: Share of the prompt tokens whose KV cache was reused.
        texts: The answers.
    """

    way: str
    f1: float
    exact: float
    same: float
    cached: float
    texts: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, float]:
        """The figures by their names."""
        return {name: getattr(self, name) for name in ("f1", "exact", "same", "cached")}


Reply = tuple[str, int, int]
"""An answer, the tokens of its prompts, and the cached ones among them."""


def documents_of(
    store: Corpus, questions: Sequence[Question], k: int
) -> list[list[PromptDocument]]:
    """Return the documents of each question, most relevant first."""
    ids_by_question = store.nearest([question.text for question in questions], k)
    return [
        [PromptDocument(passage_text(store.passage(name)), id=name) for name in ids]
        for ids in ids_by_question
    ]


def answer_quality(
    engine: RAGCacheEngine,
    questions: Sequence[Question],
    documents: Sequence[Sequence[PromptDocument]],
    on_answer: Callable[[], object] = lambda: None,
) -> tuple[Quality, ...]:
    """Answer questions in each of :data:`WAYS`, and score the answers.

    Args:
        engine: The engine that answers.
        questions: Questions with their reference answers; at least one.
        documents: The documents of each question, most relevant first.
        on_answer: Called after each answer.
    """
    scores: list[Quality] = []
    for way, answer in WAYS.items():
        answers = _answers(partial(answer, engine), questions, documents, on_answer)
        scores.append(_quality(way, answers, questions, scores[0].texts if scores else None))
    return tuple(scores)


def block_quality(
    engine: RAGCacheEngine,
    questions: Sequence[Question],
    documents: Sequence[Sequence[PromptDocument]],
    full: Quality,
    on_answer: Callable[[], object] = lambda: None,
) -> tuple[Quality, ...]:
    """Answer questions block by block in each of :data:`BLOCKS`, and score the answers.

    Args:
        engine: An engine that reuses documents anywhere; they are encoded first.
        questions: As of :func:`answer_quality`.
        documents: As there.
        full: The answers computed in full.
        on_answer: Called after each answer.
    """
    scores = []
    engine.encode(document for chunks in documents for document in chunks)
    for links, way in BLOCKS.items():
        answer = partial(_generate, preset(engine, link_tokens=links))
        answers = _answers(answer, questions, documents, on_answer)
        scores.append(_quality(way, answers, questions, full.texts))
    return tuple(scores)


def _quality(
    way: str, answers: Sequence[Reply], questions: Sequence[Question], full: Sequence[str] | None
) -> Quality:
    texts = tuple(text for text, _, _ in answers)
    pairs = list(zip(texts, questions, strict=True))
    return Quality(
        way,
        fmean(token_f1(text, question.answers) for text, question in pairs),
        fmean(exact_match(text, question.answers) for text, question in pairs),
        fmean(text == other for text, other in zip(texts, full or texts, strict=True)),
        sum(cached for _, _, cached in answers) / max(1, sum(tokens for _, tokens, _ in answers)),
        texts,
    )


def _answers(
    answer: Callable[[str, Sequence[PromptDocument]], Reply],
    questions: Sequence[Question],
    documents: Sequence[Sequence[PromptDocument]],
    on_answer: Callable[[], object],
) -> list[Reply]:
    def reply(question_and_documents: tuple[Question, Sequence[PromptDocument]]) -> Reply:
        question, chunks = question_and_documents
        replied = answer(question.text, chunks)
        on_answer()
        return replied

    return map_in_threads(reply, list(zip(questions, documents, strict=True)), TOGETHER)


def _in_full(engine: RAGCacheEngine, question: str, documents: Sequence[PromptDocument]) -> Reply:
    # Where nobody has been, so that nothing is cached. What is encoded ahead stays.
    alone = preset(engine, namespace=secrets.token_hex(8))
    return _generate(alone, question, documents)


def _once_more(engine: RAGCacheEngine, question: str, documents: Sequence[PromptDocument]) -> Reply:
    _generate(engine, question, documents, max_tokens=1)
    return _generate(engine, question, documents)


def _reversed(engine: RAGCacheEngine, question: str, documents: Sequence[PromptDocument]) -> Reply:
    return _generate(engine, question, documents[::-1])


def _generate(
    engine: RAGCacheEngine,
    question: str,
    documents: Sequence[PromptDocument],
    max_tokens: int = ANSWER_TOKENS,
) -> Reply:
    prompt = Prompt.rag(question_part(question), documents, system=SYSTEM)
    generation = engine.generate(prompt, SamplingOptions(max_tokens=max_tokens))
    usage = generation.usage
    return generation.text.strip(), usage.prompt_tokens, usage.cached_tokens


def _map_reduce(
    engine: RAGCacheEngine, question: str, documents: Sequence[PromptDocument]
) -> Reply:
    answer = synthesise(
        EngineAsker(engine, SamplingOptions(max_tokens=ANSWER_TOKENS)),
        question,
        documents,
        SynthesisConfig("map_reduce", len(documents), SUMMARY_WORDS),
        SynthesisSettings(max_tokens=ANSWER_TOKENS),
    )
    usage = answer.usage
    tokens = (usage.prompt_tokens, usage.cached_tokens) if usage else (0, 0)
    return answer.text.strip(), *tokens


WAYS = {
    "computed in full": _in_full,
    "from the KV cache": _once_more,
    "documents reversed": _reversed,
    "map_reduce": _map_reduce,
}
"""The ways to compute an answer on the engine, by their names."""

BLOCKS = {
    0: "block by block, no link tokens",
    16: "block by block, 16 link tokens",
}
"""The ways to compute it from documents that were encoded one by one, by how many first tokens of
each are computed again in their place (EPIC)."""
