"""Which of the retrieved documents help to answer a question, asked so that KV caches are shared.

Two ways, after "KV cache centric LLM application design", section 2.1. ``parallel`` asks about each
document by itself, all at once: the instructions in front are computed once, every prompt is short,
and an answer is one token. ``shared`` asks about all documents in one prompt that begins as the
prompt for the answer does: its KV cache is the answer's, so nothing may be taken out of it, and a
note behind the documents says which ones to disregard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import (
    LiteralText,
    MarkedText,
    Part,
    Prompt,
    PromptDocument,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition.marking import mark_documents

__all__ = [
    "EngineJudge",
    "Judge",
    "Layout",
    "RelevanceCheck",
    "RelevanceSettings",
    "Verdict",
    "mark_asked",
]

MODES = ("parallel", "shared")
YES, NO = "yes", "no"
TOKENS_PER_VERDICT = 8
"""Room for ``false``, a comma and some white space in any vocabulary."""

INSTRUCTION = (
    "You are given a document and a question. Decide whether the document holds anything that "
    "helps to answer the question. Answer yes or no."
)

Layout = Callable[[Sequence[PromptDocument], str], Prompt]
"""Lays documents and what follows them out as the application's prompts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceSettings:
    """What can be set on a relevance check.

    Attributes:
        mode: ``parallel`` asks about each document by itself and drops the irrelevant ones;
            ``shared`` asks once about all of them and adds a note.
        instruction: With ``parallel``: the system text of each request.
        min_documents: With ``parallel``: so many documents stay at least, the first ones where
            too few are relevant.

    Raises:
        ConfigurationError: A value is out of its range.
    """

    mode: Literal["parallel", "shared"] = "parallel"
    instruction: str = INSTRUCTION
    min_documents: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            msg = f"mode must be one of {', '.join(MODES)}, got {self.mode!r}"
            raise ConfigurationError(msg)
        if not isinstance(self.instruction, str):
            msg = f"instruction must be a text, got {self.instruction!r}"
            raise ConfigurationError(msg)
        if not is_whole(self.min_documents) or self.min_documents < 0:
            msg = f"min_documents must be a whole number of at least 0, got {self.min_documents!r}"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found.

    Attributes:
        relevant: For each document in its order, whether it helps.
        kept: Indices of the documents that go into the prompt for the answer.
        note: Stands behind them; empty for none.
    """

    relevant: tuple[bool, ...]
    kept: tuple[int, ...]
    note: str = ""


class Judge(Protocol):
    """What answers the checks."""

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """Answer prompts, all at once where that is possible, in their order."""

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """The async twin of :meth:`ask`."""


class EngineJudge:
    """The bundled engine, or a server that is spoken to as it is.

    Args:
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine`.
        namespace: Tenant.
    """

    def __init__(self, engine: Any, namespace: str = "") -> None:
        if not hasattr(engine, "generate_batch"):
            msg = f"engine must be a RAGCacheEngine, got {type(engine).__name__}"
            raise ConfigurationError(msg)
        self._engine = engine
        self._namespace = namespace

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """Answer prompts together."""
        answers = self._engine.generate_batch(prompts, options, namespace=self._namespace)
        return [answer.text for answer in answers]

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        """The async twin of :meth:`ask`."""
        answers = await self._engine.agenerate_batch(prompts, options, namespace=self._namespace)
        return [answer.text for answer in answers]


class RelevanceCheck:
    """Asks a model which documents help to answer a question. Thread-safe.

    Args:
        judge: What answers.
        settings: The knobs.
        layout: With ``shared``: lays a prompt out as the one for the answer will be, so that both
            begin alike. :meth:`Prompt.rag` by default.
    """

    def __init__(
        self,
        judge: Judge,
        settings: RelevanceSettings | None = None,
        layout: Layout | None = None,
    ) -> None:
        self._judge = judge
        self._settings = settings or RelevanceSettings()
        self._layout: Layout = layout or _plain_layout

    def check(
        self, query: str, documents: Sequence[PromptDocument], layout: Layout | None = None
    ) -> Verdict:
        """Tell which documents help to answer a question.

        An answer that makes no sense counts as relevant: rather a document too many. So does
        every document where the question is empty, and the model is not asked.

        Args:
            query: The question.
            documents: What was retrieved, in the order in which it shall stand.
            layout: Instead of the check's own, this time.

        Raises:
            ConfigurationError: The question is no text.
            RAGCacheError: What the model ran into.
        """
        prompts, options = self._ask(query, documents, layout)
        answers = self._judge.ask(prompts, options) if prompts else None
        return self._verdict(answers, len(documents))

    async def acheck(
        self, query: str, documents: Sequence[PromptDocument], layout: Layout | None = None
    ) -> Verdict:
        """The async twin of :meth:`check`."""
        # In a thread: a template may have to ask a model how it is to be filled.
        prompts, options = await asyncio.to_thread(self._ask, query, documents, layout)
        answers = await self._judge.aask(prompts, options) if prompts else None
        return self._verdict(answers, len(documents))

    def _ask(
        self, query: str, documents: Sequence[PromptDocument], layout: Layout | None
    ) -> tuple[list[Prompt], SamplingOptions]:
        if not isinstance(query, str):
            msg = f"the query must be a string, got {query!r}"
            raise ConfigurationError(msg)
        count = len(documents)
        if not count or not query.strip():
            return [], SamplingOptions()
        if self._settings.mode == "parallel":
            # The question last: a document that is asked about again finds its KV cache.
            asked = _asked(query, "\nDoes the document help to answer it? Answer yes or no.")
            system = self._settings.instruction
            prompts = [Prompt.rag(asked, [document], system=system) for document in documents]
            return prompts, SamplingOptions(max_tokens=1, choice=(YES, NO))
        asked = _asked(
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
        return [(layout or self._layout)(documents, asked)], options

    def _verdict(self, answers: Sequence[str] | None, count: int) -> Verdict:
        if answers is None:
            return Verdict((True,) * count, tuple(range(count)))
        if self._settings.mode == "shared":
            said = [word == "true" for word in re.findall(r"true|false", answers[0].lower())]
            relevant = tuple([*said, *[True] * count][:count])
            return Verdict(relevant, tuple(range(count)), _note(relevant))
        # One token may be but the beginning of the word.
        relevant = tuple(not answer.strip().lower().startswith(NO[0]) for answer in answers)
        kept = [index for index, helps in enumerate(relevant) if helps]
        if len(kept) < self._settings.min_documents:
            others = [index for index, helps in enumerate(relevant) if not helps]
            kept = sorted([*kept, *others[: self._settings.min_documents - len(kept)]])
        return Verdict(relevant, tuple(kept))


def _asked(query: str, rest: str) -> MarkedText:
    """What is asked; what the user said in it is no markup, whatever model reads it."""
    return MarkedText(["Question: ", LiteralText(query), rest])


def mark_asked(text: str, documents: Sequence[PromptDocument], asked: str) -> Iterator[Part]:
    """Find documents and what is asked in a prompt that a template made, and keep its parts."""
    before, found, after = text.partition(asked)
    yield from mark_documents(before, documents)
    if found:
        yield asked
        yield from mark_documents(after, documents)


def _plain_layout(documents: Sequence[PromptDocument], asked: str) -> Prompt:
    return Prompt.rag(asked, documents)


def _note(relevant: Sequence[bool]) -> str:
    """Name the irrelevant documents by their place: they carry no number in their text."""
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
