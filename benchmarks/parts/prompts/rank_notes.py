"""Questions over passages in another order than relevance, with and without a note of the ranking.

ContextPilot (https://arxiv.org/abs/2511.03475, section 5) reorders documents for the KV cache and
tells the model their original ranking in a line after them. It numbers the documents; here the line
names them by place or by title, since a number inside a document would be another text for every
order.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parts.prompts.answer_file import Answers
from parts.stats.tables import Cell, print_table
from parts.traffic.embedded import Embedder
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.engine import Prompt
from ragcache_workbench.evaluation.datasets import Answer, EvalQuestion, load_dataset
from ragcache_workbench.evaluation.scores import bootstrap_interval

__all__ = ["compare_notes"]

K = 5
BATCH = 8
SYSTEM = (
    "You answer questions from the passages that you are given. "
    "Keep to what they say, in a few words; say so if they do not tell."
)
RELEVANCE, MOVED = "by relevance", "moved"
PLACES, TITLES = "moved, ranking by place", "moved, ranking by title"

Note = Callable[[Sequence[PromptDocument], Sequence[PromptDocument]], str]


def _by_place(ranked: Sequence[PromptDocument], shown: Sequence[PromptDocument]) -> str:
    places = ", ".join(str(shown.index(document) + 1) for document in ranked)
    return f"The passages above by relevance, the most relevant first: {places}.\n"


def _by_title(ranked: Sequence[PromptDocument], shown: Sequence[PromptDocument]) -> str:
    del shown
    titles = "; ".join(f'"{document.text.split(chr(10), 1)[0]}"' for document in ranked)
    return f"The passages above by relevance, the most relevant first: {titles}.\n"


NOTES: dict[str, Note] = {PLACES: _by_place, TITLES: _by_title}


def compare_notes(data: str, questions: int, answers: Answers) -> dict[str, Any]:
    """Return F1 by way, and the paired differences.

    Args:
        data: Folder of Natural Questions, or ``bundled``.
        questions: How many, drawn at random.
        answers: Answers the prompts.
    """
    nq = load_dataset("nq", data)
    sample = nq.sampled(min(questions, len(nq.questions)), 0)
    embed = Embedder(show_progress=True)
    passages = embed([document.text for document in nq.documents])
    scores = embed([question.text for question in sample]) @ passages.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    rng = np.random.default_rng(0)
    f1: dict[str, list[float]] = {way: [] for way in (RELEVANCE, MOVED, *NOTES)}
    for begin in range(0, len(sample), BATCH):
        batch = sample[begin : begin + BATCH]
        found = [
            [PromptDocument(nq.documents[place].text) for place in row]
            for row in best[begin : begin + BATCH]
        ]
        # As a cache has them: by where they were first needed, which nobody's relevance decides.
        shown = [[ranked[place] for place in rng.permutation(len(ranked))] for ranked in found]
        prompts = {
            RELEVANCE: [_prompt(q, ranked) for q, ranked in zip(batch, found, strict=True)],
            MOVED: [_prompt(q, moved) for q, moved in zip(batch, shown, strict=True)],
        }
        for way, note in NOTES.items():
            prompts[way] = [
                _prompt(question, moved, note(ranked, moved))
                for question, ranked, moved in zip(batch, found, shown, strict=True)
            ]
        for way, asked in prompts.items():
            for question, text in zip(batch, answers.ask(asked), strict=True):
                f1[way].append(nq.score(question, Answer(text)).scores["f1"])
        if begin // BATCH % 10 == 0:
            print(f"{begin + len(batch)} of {len(sample)} questions", flush=True)
    return _table(f1)


def _prompt(question: EvalQuestion, documents: Sequence[PromptDocument], note: str = "") -> Prompt:
    return Prompt.rag(f"{note}Question: {question.text}\nAnswer:", documents, system=SYSTEM)


def _table(f1: dict[str, list[float]]) -> dict[str, Any]:
    def interval(values: Any) -> Any:
        return bootstrap_interval(np.mean, [values])

    rows: list[list[Cell]] = []
    result: dict[str, Any] = {"questions": len(f1[MOVED])}
    for way, values in f1.items():
        less = interval(np.subtract(values, f1[MOVED])) if way != MOVED else None
        rows.append([way, len(values), str(interval(values)), "-" if less is None else str(less)])
        result[way] = {"f1": round(statistics.fmean(values), 4)}
        if less is not None:
            result[way]["less_moved"] = less.as_list(4)
    print_table(
        "F1 over five passages", ["passages", "questions", "F1", "less moved without a note"], rows
    )
    return {"rank_note": result}
