"""LongBench: questions on long texts, in the subsets whose texts can be searched."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.core.checks import did_you_mean
from ragcache_integrations.core.files import Row, text_of

from .base import SYSTEM, Answer, EvalPrompt, EvalQuestion, Scored
from .metrics import rouge_l, token_f1
from .passages import Passages, answering
from .published import Content, Hub, Published, PublishedDataset
from .sources import texts_of

__all__ = ["SUBSETS", "LongBench", "Subset", "class_score"]

MEETINGS = (
    "You answer questions about meetings from parts of their transcripts, in a few sentences."
)
EXAMPLES = "You are given examples. Complete the last text as they do, with nothing else."


@dataclass(frozen=True, slots=True)
class Subset:
    """A task of LongBench.

    Attributes:
        score: Scores an answer by the right answers; ``None`` for a choice among classes.
        tokens: The most tokens of an answer, as in the authors' configuration.
        begins: How each text of a context begins, as a regular expression; empty if it is one text.
        system: The system's turn.
        examples: Whether the texts are solved examples, and the question is laid out as they are.
    """

    score: Callable[[str, Sequence[str]], float] | None
    tokens: int
    begins: str = ""
    system: str = SYSTEM
    examples: bool = False


SUBSETS: dict[str, Subset] = {
    "narrativeqa": Subset(token_f1, 128),
    "qasper": Subset(token_f1, 128),
    "multifieldqa_en": Subset(token_f1, 64),
    "hotpotqa": Subset(token_f1, 32, r"Passage \d+:"),
    "2wikimqa": Subset(token_f1, 32, r"Passage \d+:"),
    "musique": Subset(token_f1, 32, r"Passage \d+:"),
    "qmsum": Subset(rouge_l, 512, system=MEETINGS),
    "trec": Subset(None, 64, "Question:", EXAMPLES, examples=True),
    "triviaqa": Subset(token_f1, 32, "Passage:", EXAMPLES, examples=True),
    "samsum": Subset(rouge_l, 128, "Dialogue:", EXAMPLES, examples=True),
}
"""The subsets that are read. The others are Chinese, or need the whole text: a summary of a report,
a count of its paragraphs, the next line of code."""


class LongBench(PublishedDataset):
    """Tasks with long contexts (Bai et al. 2024), each scored by the authors' kind of metric.

    A folder has ``SUBSET.jsonl``, or ``data/SUBSET.jsonl`` as in the authors' ``data.zip``; all
    known subsets in it are read, or a single file. Contexts are cut into their passages or
    examples, and these into documents of about 2,000 characters. Retrieval searches those of all
    questions.

    The score is F1 for questions, ROUGE-L for summaries (of words as ``rouge_score`` has them; the
    authors' ``rouge`` keeps capitals and punctuation, so that their figures are others), and for
    classes 1 over the number of classes that the answer names if the right one is among them. Of
    subsets with examples, the first line of an answer counts. Scores are reported for each subset,
    too.
    """

    name = "longbench"
    title = "LongBench"
    metrics = ("score",)
    max_tokens = 128
    published = Published(
        home="https://huggingface.co/datasets/THUDM/LongBench (data.zip)",
        files=(*(f"{name}.jsonl" for name in SUBSETS), *(f"data/{name}.jsonl" for name in SUBSETS)),
        entry="_id, dataset, input, context, answers and all_classes",
        every=True,
        hub=Hub("THUDM/LongBench", "test", tuple(SUBSETS)),
    )

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        loaded = super().load(data, documents)
        loaded.max_tokens = max(SUBSETS[question.group].tokens for question in loaded.questions)
        return loaded

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for row in content.rows:
            # Those of LongBench-E are the same tasks.
            name = text_of(row, "dataset").removesuffix("_e")
            if name not in SUBSETS:
                msg = (
                    f"'dataset' must be a subset whose texts can be searched, one of "
                    f"{', '.join(SUBSETS)}, got {name!r}{did_you_mean(name, list(SUBSETS))}"
                )
                raise ValueError(msg)
            answers = texts_of(row, "answers")
            texts: dict[str, str] = {}
            for text in _texts(text_of(row, "context"), SUBSETS[name].begins):
                texts |= passages.add_long(text)
            yield EvalQuestion(
                text_of(row, "_id"),
                text_of(row, "input"),
                answers,
                options=_classes(row, name),
                gold_documents=answering(texts, answers),
                group=name,
            )

    @override
    def prompt(self, question: EvalQuestion, wording: str) -> EvalPrompt:
        subset = SUBSETS[question.group]
        after = wording if subset.examples else f"Question: {wording}\n{self.cue}"
        return EvalPrompt(subset.system, "", after)

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        subset = SUBSETS[question.group]
        text = answer.text.strip()
        if subset.examples:
            text = text.partition("\n")[0].strip()
        if subset.score is None:
            score = max(class_score(text, right, question.options) for right in question.answers)
        else:
            score = subset.score(text, question.answers)
        return Scored({"score": score}, text)


def class_score(text: str, right: str, classes: Sequence[str]) -> float:
    """Score an answer that should name a class, as LongBench does.

    Args:
        text: The answer.
        right: The right class.
        classes: All classes. Those whose names are within the right one's do not count as named.

    Returns:
        1 over the number of classes that the answer names, if the right one is among them; else 0.
    """
    named = [name for name in classes if name in text and (name == right or name not in right)]
    return 1 / len(named) if right in named else 0.0


def _texts(context: str, begins: str) -> list[str]:
    """Cut a context where its passages or examples begin."""
    parts = re.split(rf"^(?={begins})", context, flags=re.MULTILINE) if begins else [context]
    return [part.strip("\n") for part in parts if part.strip()]


def _classes(row: Row, name: str) -> tuple[str, ...]:
    return texts_of(row, "all_classes") if SUBSETS[name].score is None else ()
