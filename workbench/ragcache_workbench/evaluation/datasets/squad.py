"""SQuAD 1.1 and 2.0: questions on paragraphs of Wikipedia, some of which nothing answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from typing_extensions import override

from ragcache_integrations.adaptive.synthesis import found_nothing
from ragcache_integrations.core.files import Row, text_of

from .answers import score_text
from .base import Answer, EvalQuestion, Scored
from .metrics import exact_match, normalise_answer, token_f1_or_empty
from .passages import Passages
from .published import Content, Hub, Published, PublishedDataset

__all__ = ["SQuAD"]

UNANSWERABLE = ("",)
"""The right answer where there is none, as in SQuAD's evaluate-v2.0."""

_NO_ANSWER = re.compile(
    r"\b(?:do(?:es)? not|don't|doesn't) (?:say|state|mention|contain|provide|specify|answer)\b"
    r"|\bno (?:answer|information)\b|\b(?:cannot|can't) be (?:answered|determined)\b"
    r"|\bunanswerable\b",
    re.IGNORECASE,
)
"""How models say that the documents do not have the answer, besides what we ask them to say."""


class SQuAD(PublishedDataset):
    """Questions that people wrote about a paragraph (Rajpurkar et al. 2016 and 2018).

    Each paragraph of the file is a document, after the title of its article. The right answer to
    an unanswerable question of SQuAD 2.0 is an empty one: so is an answer that says that the
    documents do not have it. Scores are also reported for the two kinds of questions separately.
    """

    name = "squad"
    title = "SQuAD"
    metrics = ("exact_match", "f1")
    max_tokens = 32
    published = Published(
        home="https://rajpurkar.github.io/SQuAD-explorer/ (CC BY-SA 4.0)",
        files=("dev-v2.0.json", "dev-v1.1.json", "train-v2.0.json", "train-v1.1.json"),
        rows="data",
        entry="title and paragraphs, each with context and qas",
        hub=Hub("rajpurkar/squad_v2"),
        bundled="squad.jsonl.gz",
    )

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for article in content.rows:
            title = text_of(article, "title", "").replace("_", " ")
            for paragraph in _paragraphs(article):
                document = passages.add(text_of(paragraph, "context"), title)
                for row in paragraph["qas"]:
                    answers = _answers(row)
                    yield EvalQuestion(
                        text_of(row, "id"),
                        text_of(row, "question"),
                        answers,
                        # Of an unanswerable question, the paragraph that it was written about.
                        gold_documents=(document,),
                        group="unanswerable" if answers == UNANSWERABLE else "answerable",
                    )

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        declined = found_nothing(answer.text) or _NO_ANSWER.search(answer.text)
        said = replace(answer, text="") if declined else answer
        return score_text(question, said, exact_match=exact_match, f1=token_f1_or_empty)


def _paragraphs(article: Row) -> list[Row]:
    """Paragraphs of an article; on the hub, an entry is a single question."""
    if "paragraphs" in article:
        paragraphs: list[Row] = article["paragraphs"]
        return paragraphs
    answers = [{"text": text} for text in article["answers"]["text"]]
    return [{"context": article["context"], "qas": [article | {"answers": answers}]}]


def _answers(row: Row) -> tuple[str, ...]:
    # Not by is_impossible: evaluate-v2.0 calls a question unanswerable that has no answers.
    texts = dict.fromkeys(text_of(answer, "text") for answer in row["answers"])
    # SQuAD's evaluate-v2.0 also leaves out answers that have no words in normal form.
    return tuple(text for text in texts if normalise_answer(text)) or UNANSWERABLE
