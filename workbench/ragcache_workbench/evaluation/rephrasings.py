"""Rephrasings of a Zipf stream by the run's own model, each checked by its answers.

As in Proximity §4.2.2, a model is asked for other words, every text of the stream is unique, and
the model has to answer each as it answers the question itself. A text that fails is refused, and
the rephrasing by rules is taken instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tqdm import tqdm

from ragcache_integrations.adaptive.asker import ModelRequest
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import (
    ConfigurationError,
    GenerationTimeoutError,
    PromptTooLongError,
)

from .asking import Answerer
from .datasets import Answer, EvalDataset, EvalQuestion
from .records import LONGEST_TEXT, Refusal, Rephrasing, RephrasingsFile
from .runner import Plan
from .settings import EvalSettings
from .workloads import FUNCTION_WORDS, Workload, WorkloadItem

__all__ = ["check_rephraser", "is_same_answer", "rephrased_by_model", "unfit"]

SYSTEM = "You rewrite questions. Reply with the rewritten question alone, in a single line."

WAYS: Final = (
    "Rewrite it in other words.",
    "Rewrite it with another order of words.",
    "Rewrite it as somebody would type it into a search engine.",
    "Rewrite it as a formal request.",
    "Rewrite it as somebody would ask it in a conversation.",
    "Rewrite it with as few words as possible.",
)
"""Each time that a question comes, the next way is tried first."""

ATTEMPTS = 2
MOST_SHOWN = 5
"""Earlier rephrasings of a question that the prompt shows, so that they are not repeated."""

SHORTEST, LONGEST = 1 / 4, 3
"""How long a rephrasing may be, as multiples of the question."""

FEWEST_SHARED = 1 / 4
"""Share of a question's words, without function words, that a rephrasing has at least."""

OTHER_ANSWER: Final = "another answer"
NO_ANSWER: Final = "no answer"

_LABEL = re.compile(r"(?i)(?:(?:re-?written|re-?phrased|new) )?question ?: ?")
_QUOTED = re.compile(r"""(["'`\u201c\u2018])(.+)(["'`\u201d\u2019])""")


def check_rephraser(plan: Plan) -> None:
    """Check that the model can be asked for rephrasings.

    Raises:
        ConfigurationError: It has random weights.
    """
    if plan.model.random_weights:
        raise ConfigurationError(
            "rephrasing='model' needs a model that answers, and this one has random weights: name "
            "a model, or take one of the kinds of rules, such as rephrasing='medium'"
        )


async def rephrased_by_model(plan: Plan, folder: Path, *, show_progress: bool = False) -> Plan:
    """Replace a stream's rephrasings by the model's, as far as they pass the checks.

    They are kept in a file of the folder, so that all runs of the same stream and model have the
    same texts, and an interruption loses none.

    Args:
        plan: A run whose stream was rephrased by rules.
        folder: The folder of runs.
        show_progress: Whether to show a progress bar on standard error.

    Returns:
        The same run with the new stream.

    Raises:
        ConfigurationError: The file is damaged, another process is writing it, or it cannot be
            written.
        Exception: The model raised it. The call can be repeated, and continues.
    """
    head = _head(plan)
    digest = hashlib.blake2b(json.dumps(head).encode(), digest_size=8).hexdigest()
    path = folder / f"rephrasings-{plan.dataset.name}-{digest}.jsonl"
    file = await asyncio.to_thread(RephrasingsFile, path, head)
    with file:
        rephraser = _Rephraser(plan)
        items = plan.workload.items
        _accept_kept(rephraser, file, items)
        left = items[len(file.kept) :]
        for item in tqdm(left, desc="Rephrasing", unit="question", disable=not show_progress):
            await asyncio.to_thread(file.append, await rephraser.rephrase(item))
        return replace(plan, workload=_stream(plan.workload, file.kept))


def _head(plan: Plan) -> dict[str, str]:
    """All on which rephrasings depend."""
    questions = [[question.id, question.text] for question in plan.questions]
    content = json.dumps([questions, SYSTEM, WAYS, plan.dataset.source])
    return {
        "dataset": plan.dataset.name,
        "model": plan.model.name,
        "stream": plan.workload.digest,
        "questions": hashlib.blake2b(content.encode(), digest_size=8).hexdigest(),
    }


def _accept_kept(
    rephraser: _Rephraser, file: RephrasingsFile, items: Sequence[WorkloadItem]
) -> None:
    if len(file.kept) > len(items):
        msg = (
            f"{file.path} has rephrasings of {len(file.kept)} questions of {len(items)}: delete it"
        )
        raise ConfigurationError(msg)
    for kept in file.kept:
        if wrong := rephraser.accept(items[kept.number], kept):
            msg = f"{file.path} is damaged: that of question {kept.number} is {wrong}. Delete it"
            raise ConfigurationError(msg)


def _stream(workload: Workload, kept: Sequence[Rephrasing]) -> Workload:
    items = (
        replace(item, text=rephrasing.text or item.text)
        for item, rephrasing in zip(workload.items, kept, strict=True)
    )
    refused = Counter(rephrasing.refused for rephrasing in kept if rephrasing.refused)
    return Workload(tuple(items), workload.rate, dict(sorted(refused.items())))


class _Rephraser:
    """Asks for rephrasings, and checks them.

    Args:
        plan: The run.
    """

    def __init__(self, plan: Plan) -> None:
        dataset = plan.dataset
        self._dataset, self._questions = dataset, plan.questions
        self._asker = plan.model.asker(options=False)
        # Neither synthesis nor limits of the run: all runs of a stream have the same rephrasings.
        usual = EvalSettings(dataset=dataset.name)
        self._answerer = Answerer(usual, dataset, plan.model, dataset.max_tokens)
        self._texts = {document.id: document.text for document in dataset.documents}
        originals = (question.text for question in plan.questions)
        stand_ins = (item.text for item in plan.workload.items)
        self._taken = {_words(text) for text in (*originals, *stand_ins)}
        self._accepted: dict[int, list[str]] = defaultdict(list)
        self._times: Counter[int] = Counter()  # that a question came, for the next way
        self._answers: dict[int, Answer | None] = {}

    async def rephrase(self, item: WorkloadItem) -> Rephrasing:
        """Ask for a rephrasing, which may be refused; it is noted."""
        asked = self._questions[item.question]
        # Where no answer is right, whatever is no question would be answered as well.
        refused: Refusal = "" if any(map(str.strip, asked.answers)) else NO_ANSWER
        text = ""
        for attempt in range(0 if refused else ATTEMPTS):
            way = WAYS[(self._times[item.question] + attempt) % len(WAYS)]
            text = await self._reworded(item.question, way)
            refused = unfit(text, asked.text, self._taken)
            refused = refused or await self._difference(item.question, text)
            if not refused:
                break
        rephrasing = Rephrasing(number=item.number, text="" if refused else text, refused=refused)
        self._note(item, rephrasing)
        return rephrasing

    def accept(self, item: WorkloadItem, kept: Rephrasing) -> Refusal:
        """Note a rephrasing that was kept.

        Returns:
            Why it is none; empty if it may be one.
        """
        original = self._questions[item.question].text
        wrong = unfit(kept.text, original, self._taken) if kept.text else ""
        self._note(item, kept)
        return wrong

    def _note(self, item: WorkloadItem, rephrasing: Rephrasing) -> None:
        self._times[item.question] += 1
        if rephrasing.text:
            self._taken.add(_words(rephrasing.text))
            self._accepted[item.question].append(rephrasing.text)

    async def _reworded(self, question: int, way: str) -> str:
        original = self._questions[question].text
        lines = [f"Question: {original}", f"{way} Keep its meaning, and all names and numbers."]
        if earlier := self._accepted[question][-MOST_SHOWN:]:
            lines.append("These are taken: " + " | ".join(earlier))
        text = "\n".join([*lines, "Rewritten question:"])
        prompt = Prompt(messages=(Message("system", SYSTEM), Message("user", [text])))
        most = 32 + len(original.encode()) // 2
        try:
            answer = await self._asker.aask(ModelRequest(prompt, max_tokens=most))
        except (GenerationTimeoutError, PromptTooLongError):
            return ""
        return _cleaned(answer.text)

    async def _difference(self, question: int, text: str) -> Refusal:
        """Return why a text is not the same question; empty if the model answers it the same."""
        if question not in self._answers:
            self._answers[question] = await self._answer(question, self._questions[question].text)
        before, after = self._answers[question], await self._answer(question, text)
        if before is None or after is None:
            return NO_ANSWER
        same = is_same_answer(self._dataset, self._questions[question], before, after)
        return "" if same else OTHER_ANSWER

    async def _answer(self, question: int, text: str) -> Answer | None:
        asked = self._questions[question]
        gold = [
            PromptDocument(self._texts[name], name)
            for name in asked.gold_documents
            if name in self._texts
        ]

        async def retrieve(*_: object) -> Sequence[PromptDocument]:
            return gold

        try:
            answered = await self._answerer.answer(asked, text, retrieve)
        except (GenerationTimeoutError, PromptTooLongError):
            return None
        return Answer(answered.text, answered.likeliest)


def is_same_answer(
    dataset: EvalDataset, question: EvalQuestion, before: Answer, after: Answer
) -> bool:
    """Whether an answer to a rephrasing is the one to the question.

    Of options it is the same one. A free answer is the same if no score of the data set is below
    that of the answer to the question; where this one scores nothing, so that every answer would
    do, it has to have the same words.

    Args:
        dataset: The data set, which scores answers.
        question: The question.
        before: The answer to the question in its own words.
        after: The answer to the rephrasing.
    """
    first, second = dataset.score(question, before), dataset.score(question, after)
    if dataset.chooses:
        return first.prediction is not None and first.prediction == second.prediction
    if any(first.scores.values()):
        return all(second.scores[name] >= value for name, value in first.scores.items())
    return bool(_words(before.text)) and _words(before.text) == _words(after.text)


def unfit(text: str, question: str, taken: set[str]) -> Refusal:
    """Return why a text is no rephrasing, before anything is asked; empty if it may be one.

    Args:
        text: The text.
        question: The question in its own words.
        taken: The words of texts that must not come again.
    """
    if not text or not text.isprintable() or not _words(text):
        return "no single line"
    most = min(LONGEST * len(question), LONGEST_TEXT)
    if not SHORTEST * len(question) <= len(text) <= most:
        return "too short or too long"
    if _words(text) in taken:
        return "no new words"
    if set(re.findall(r"\d+", text)) != set(re.findall(r"\d+", question)):
        return "other numbers"
    meant = {word for word in _words(question).split() if word not in FUNCTION_WORDS}
    if len(meant & set(_words(text).split())) < FEWEST_SHARED * len(meant):
        return "another subject"
    return ""


def _words(text: str) -> str:
    """The same for texts that differ in nothing but capitals, spaces and punctuation marks."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _cleaned(text: str) -> str:
    """A model's reply without a label before it and quotation marks around it."""
    text = text.strip()
    if label := _LABEL.match(text):
        text = text[label.end() :].strip()
    quoted = _QUOTED.fullmatch(text)
    return quoted[2].strip() if quoted else text
