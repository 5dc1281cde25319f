"""Figures of the default model on SQuAD, PubMedQA and QMSum, on what it did not learn from.

``python -m reader.teaching.other_sets --data data --extra FOLDER --out FOLDER`` writes what
:mod:`reader.teaching.library` kept out as files of the three data sets, asks 100 questions of each
by ``ragcache_workbench.evaluation``, over all their documents, and writes
``reader/figures/other_sets.json``. A run that was broken off goes on. By SQuAD's pages the weights
were chosen; PubMedQA's and QMSum's questions were never looked at.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_workbench.evaluation import EvalDataset, EvalRun, evaluate, load_dataset
from ragcache_workbench.evaluation.datasets.metrics import rouge_l
from ragcache_workbench.evaluation.scores import bootstrap_interval

from .corpus import read_lines
from .library import MEETINGS, SQUAD, STUDIES, chosen, parts

__all__ = ["PASSAGES", "first_sentences", "rows_of", "write_kept_out"]

FIGURES = Path(__file__).parents[1] / "figures" / "other_sets.json"
QUESTIONS = 100
PASSAGES = {"squad": 5, "pubmedqa": 5, "qmsum": 3}
"""Documents that are retrieved; those of QMSum are four times as long as a passage."""
COMMAND = "python -m reader.teaching.other_sets"
TITLE = (
    "Kept-out questions of other data sets over what a search finds among all their documents "
    "(five passages, three parts of meetings), answered by the evaluation; the weights were chosen "
    'by the pages of SQuAD, nothing by the others. "more" is the difference from the row below: '
    "PubMedQA's most frequent answer, the first sentences of the documents of QMSum"
)


def write_kept_out(data: Path, extra: Path, out: Path) -> None:
    """Write what was kept out as files of the data sets, with all documents of SQuAD's pages.

    Args:
        data: Folder with ``nq``, ``pubmedqa`` and ``qmsum``.
        extra: Folder that :mod:`reader.teaching.sources` wrote.
        out: Folder for ``squad``, ``pubmedqa`` and ``qmsum``.
    """
    kept = {question.title for question in chosen(parts(data, extra)) if question.source == SQUAD}
    articles = json.loads((extra / f"{SQUAD}.json").read_text(encoding="utf-8"))["data"]
    for number, article in enumerate(articles):
        for place, paragraph in enumerate(article["paragraphs"]):
            rows = paragraph["qas"] if article["title"] in kept else []
            paragraph["qas"] = [
                row | {"id": f"{number}-{place}-{at}"} for at, row in enumerate(rows)
            ]
    studies = json.loads((data / "pubmedqa" / "pubmedqa.json").read_text(encoding="utf-8"))
    meetings = read_lines(data / "qmsum" / "val.jsonl.gz")[:MEETINGS]
    texts = {
        "squad/dev-v2.0.json": json.dumps({"data": articles}),
        "pubmedqa/pubmedqa.json": json.dumps(dict(list(studies.items())[:STUDIES])),
        "qmsum/val.jsonl": "".join(f"{json.dumps(row)}\n" for row in meetings),
    }
    for name, text in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")


def first_sentences(texts: Sequence[str]) -> str:
    """The first sentence of each text."""
    return " ".join(re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0] for text in texts)


def rows_of(dataset: EvalDataset, run: EvalRun) -> list[dict[str, Any]]:
    """Rows of the model card's table, as ``tools/reader_card.py`` reads them.

    Args:
        dataset: The data set.
        run: Answers to some of its questions.
    """
    questions = {question.id: question for question in dataset.questions}
    scores = list(run.scores)
    if dataset.name == "squad":
        names = {"f1": "F1", "exact_match": "exact"}
        groups = {"": "SQuAD 1.1 and 2.0", "answerable": "that have an answer"}
        groups["unanswerable"] = "that have none"
        return [
            _row(
                words if not group else f"SQuAD, {words}",
                {
                    names[name]: [
                        score.scores[name] for score in scores if group in {"", score.group}
                    ]
                    for name in names
                },
            )
            for group, words in groups.items()
        ]
    if dataset.name == "pubmedqa":
        own = np.array([score.scores["accuracy"] for score in scores])
        right = [questions[score.question].answers[0] for score in scores]
        usual, _ = Counter(right).most_common(1)[0]
        other = np.array([float(answer == usual) for answer in right])
        title, name, words = "PubMedQA", "accuracy", f"always {usual}"
    else:
        texts = {document.id: document.text for document in dataset.documents}
        own = np.array([score.scores["rouge_l"] for score in scores])
        other = np.array(
            [
                rouge_l(
                    first_sentences([texts[name] for name in record.documents]),
                    questions[record.question].answers,
                )
                for record in run.records
            ]
        )
        title, name, words = "QMSum", "ROUGE-L", "first sentences"
    return [
        _row(title, {name: own, "more": own - other}),
        _row(f"{title}, {words}", {name: other}),
    ]


def _row(words: str, scores: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "read": words,
        "questions": len(next(iter(scores.values()))),
        "scores": {
            name: bootstrap_interval(np.mean, [values]).as_list(4)
            for name, values in scores.items()
        },
    }


def main() -> None:
    """Ask, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--extra", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for files and runs")
    options = parser.parse_args()
    if not (options.out / "qmsum").is_dir():
        write_kept_out(options.data, options.extra, options.out)
    rows = []
    for name, passages in PASSAGES.items():
        data = options.out / name
        run = evaluate(
            name,
            data=str(data),
            sample=QUESTIONS,
            corpus="all",
            retriever="plain",
            k=passages,
            out=options.out / "runs",
            show_progress=True,
        )
        rows += rows_of(load_dataset(name, data), run)
    model = default_model_path().name
    table = {"title": TITLE, "command": COMMAND, "model": model, "rows": rows}
    FIGURES.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
