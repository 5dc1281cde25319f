"""Asks a model which of the retrieved documents help to answer a question, and shares KV caches.

There are two modes, after "KV cache centric LLM application design", section 2.1. ``parallel`` asks
about each document in a separate request, all at the same time: the instructions at the beginning
are computed once, every prompt is short, and an answer is one token. ``shared`` asks about all
documents in one prompt that begins like the prompt for the answer. The answer reuses its KV cache,
so no document may be removed; a note after the documents lists those to disregard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

from pydantic import PrivateAttr, SkipValidation, model_validator

from ragcache_integrations.core.checks import check_choice, check_int, check_text
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.knobs import CheckedSettings, Count, PositiveOrNone, checked
from ragcache_integrations.core.prompt import (
    LiteralText,
    MarkedText,
    Part,
    Prompt,
    PromptDocument,
)
from ragcache_integrations.core.texts import estimate_tokens
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition import mark_documents

__all__ = [
    "CountTokens",
    "Judge",
    "Layout",
    "RelevanceCheck",
    "RelevanceKnobs",
    "RelevanceSettings",
    "Verdict",
    "mark_question",
    "sampling_arguments",
]

MODES = ("parallel", "shared")
YES, NO = "yes", "no"
TOKENS_PER_VERDICT = 8
"""The most tokens of ``false``, a comma and some white space in any vocabulary."""

INSTRUCTION = (
    "You are given a document and a question. Decide whether the document holds anything that "
    "helps to answer the question. Answer yes or no."
)

CountTokens = Callable[[str], int]
D = TypeVar("D")

Layout = Callable[[Sequence[PromptDocument], str], Prompt]
"""Makes a prompt of documents and a question, like the application's prompts."""


class RelevanceSettings(CheckedSettings):
    """The settings of a relevance check.

    Attributes:
        mode: ``parallel`` asks about each document separately and drops the irrelevant ones;
            ``shared`` asks once about all of them and adds a note.
        instruction: With ``parallel``: the system text of each request.
        min_documents: With ``parallel``: the fewest documents that stay. If too few are relevant,
            the first of the others stay, too.
        max_document_tokens: With ``parallel``: the most tokens of the documents that stay. Each
            relevant document stays that fits in addition to those before it, and the first
            ``min_documents`` stay in any case; ``None`` for no limit.
        count_tokens: Counts the tokens of a text for that limit; ``None`` to estimate them.

    Raises:
        ConfigurationError: A value is out of range, or has no meaning in this mode.
    """

    mode: Annotated[Literal["parallel", "shared"], checked(check_choice, MODES)] = "parallel"
    instruction: Annotated[str, checked(check_text, "a text")] = INSTRUCTION
    min_documents: Count = 0
    max_document_tokens: PositiveOrNone = None
    count_tokens: Annotated[CountTokens | None, SkipValidation] = None

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        if self.max_document_tokens is not None and self.mode == "shared":
            msg = "max_document_tokens needs mode='parallel': mode='shared' keeps all documents"
            raise ConfigurationError(msg)
        return self


class RelevanceKnobs(RelevanceSettings):
    """The knobs that both frameworks' filters have; their docstrings say what they mean."""

    separator: str = "\n\n"

    _check: RelevanceCheck = PrivateAttr()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    Attributes:
        relevant: Whether each document helps, in their order.
        kept: Indices of the documents that go into the prompt for the answer.
        note: A text for the prompt after the documents; empty for none.
    """

    relevant: tuple[bool, ...]
    kept: tuple[int, ...]
    note: str = ""

    def apply(self, documents: Sequence[D], note: Callable[[str], D]) -> list[D]:
        """The framework's documents that go into the prompt, and the note as the last one.

        Args:
            documents: All of them.
            note: Makes a document of the note.
        """
        kept = [documents[index] for index in self.kept]
        return [*kept, note(self.note)] if self.note else kept


class Judge(Protocol):
    """Answers the prompts of checks."""

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """Answer prompts, in parallel if possible; the answers are in their order."""

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """Async version of :meth:`ask`."""


class RelevanceCheck:
    """Asks a model which documents help to answer a question. Thread-safe.

    ::

        check = RelevanceCheck(judge, RelevanceSettings(min_documents=1))
        verdict = check.check("Who discovered radium?", documents)
        kept = [documents[index] for index in verdict.kept]

    Args:
        judge: Answers the prompts.
        settings: The settings.
    """

    def __init__(self, judge: Judge, settings: RelevanceSettings | None = None) -> None:
        self._judge = judge
        self._settings = settings or RelevanceSettings()

    def check(
        self, query: str, documents: Sequence[PromptDocument], layout: Layout | None = None
    ) -> Verdict:
        """Find out which documents help to answer a question.

        A document counts as relevant if the model's answer makes no sense. If the question is
        empty, all documents do, and the model is not asked.

        Args:
            query: The question.
            documents: The retrieved documents, in the order of the prompt.
            layout: With ``shared``: makes a prompt like the one for the answer, so that both have
                the same beginning; ``None`` for :meth:`Prompt.rag`.

        Raises:
            ConfigurationError: The question is no text.
            RAGCacheError: The model failed.
        """
        prompts, options = self._ask(query, documents, layout)
        answers = self._judge.ask(prompts, options) if prompts else None
        return self._verdict(answers, documents)

    async def acheck(
        self, query: str, documents: Sequence[PromptDocument], layout: Layout | None = None
    ) -> Verdict:
        """Async version of :meth:`check`."""
        # In a thread, because a template may have to ask a model.
        prompts, options = await asyncio.to_thread(self._ask, query, documents, layout)
        answers = await self._judge.aask(prompts, options) if prompts else None
        return self._verdict(answers, documents)

    def _ask(
        self, query: str, documents: Sequence[PromptDocument], layout: Layout | None
    ) -> tuple[list[Prompt], SamplingOptions]:
        check_text("the query", query)
        count = len(documents)
        if not count or not query.strip():
            return [], SamplingOptions()
        if self._settings.mode == "parallel":
            # The question comes last, so that checks of the same document share its KV cache.
            question = _question(query, "\nDoes the document help to answer it? Answer yes or no.")
            system = self._settings.instruction
            prompts = [Prompt.rag(question, [document], system=system) for document in documents]
            return prompts, SamplingOptions(max_tokens=1, choice=(YES, NO))
        question = _question(
            query,
            f"\n\nFor each of the {count} documents above, in their order: does it help to answer "
            f"the question? Answer with a JSON list of {count} values, true or false, and nothing "
            "else.",
        )
        schema = {
            "type": "array",
            "items": {"type": "boolean"},
            "minItems": count,
            "maxItems": count,
        }
        options = SamplingOptions(max_tokens=TOKENS_PER_VERDICT * (count + 1), json_schema=schema)
        asking = Prompt.rag(question, documents) if layout is None else layout(documents, question)
        return [asking], options

    def _verdict(
        self, answers: Sequence[str] | None, documents: Sequence[PromptDocument]
    ) -> Verdict:
        count = len(documents)
        if answers is None:
            return Verdict((True,) * count, self._within_limit(range(count), documents))
        if self._settings.mode == "shared":
            answered = [word == "true" for word in re.findall(r"true|false", answers[0].lower())]
            relevant = tuple([*answered, *[True] * count][:count])
            return Verdict(relevant, tuple(range(count)), _note(relevant))
        # The token may be only the beginning of the word.
        relevant = tuple(not answer.strip().lower().startswith(NO[0]) for answer in answers)
        kept = [index for index, helps in enumerate(relevant) if helps]
        if len(kept) < self._settings.min_documents:
            others = [index for index, helps in enumerate(relevant) if not helps]
            kept = sorted([*kept, *others[: self._settings.min_documents - len(kept)]])
        return Verdict(relevant, self._within_limit(kept, documents))

    def _within_limit(
        self, kept: Sequence[int], documents: Sequence[PromptDocument]
    ) -> tuple[int, ...]:
        """Return the indices whose documents fit, each in addition to those before it."""
        limit = self._settings.max_document_tokens
        if limit is None:
            return tuple(kept)
        count_tokens = self._settings.count_tokens or estimate_tokens
        fitting, left = [], limit
        for number, index in enumerate(kept):
            tokens = check_int("the result of count_tokens", count_tokens(documents[index].text), 0)
            if tokens <= left or number < self._settings.min_documents:
                fitting.append(index)
                left -= tokens
        return tuple(fitting)


def _question(query: str, rest: str) -> MarkedText:
    """The question to the model; the user's text in it is literal, and so never markup."""
    return MarkedText(["Question: ", LiteralText(query), rest])


def mark_question(text: str, documents: Sequence[PromptDocument], question: str) -> Iterator[Part]:
    """Split a text that a template made at the documents and the question, which keeps its parts.

    Args:
        text: The text.
        documents: The documents to look for.
        question: The question, which may have literal parts.
    """
    before, separator, after = text.partition(question)
    yield from mark_documents(before, documents)
    if separator:
        yield question
        yield from mark_documents(after, documents)


def sampling_arguments(options: SamplingOptions, *, is_ours: bool) -> dict[str, Any]:
    """Keyword arguments for a framework's model.

    Args:
        options: The options of the request.
        is_ours: Whether the model belongs to this package, and accepts a choice or a schema.
    """
    if not is_ours:
        return {"max_tokens": options.max_tokens}
    grammar = {"choice": options.choice, "json_schema": options.json_schema}
    return {"max_tokens": options.max_tokens, "temperature": 0.0} | {
        name: value for name, value in grammar.items() if value
    }


def _note(relevant: Sequence[bool]) -> str:
    """List the irrelevant documents by their place, because their texts have no numbers."""
    places = [str(index + 1) for index, helps in enumerate(relevant) if not helps]
    if not places:
        return ""
    if len(places) == len(relevant):
        return "None of the documents above is relevant to the question: disregard them."
    listed = " and ".join([", ".join(places[:-1]), places[-1]] if places[1:] else places)
    many = "s" if places[1:] else ""
    disregard = "them" if places[1:] else "it"
    return (
        f"Of the {len(relevant)} documents above, counted from the first, document{many} {listed} "
        f"{'are' if places[1:] else 'is'} not relevant to the question: disregard {disregard}."
    )
