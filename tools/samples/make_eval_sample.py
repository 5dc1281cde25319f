"""Make the evaluation's bundled sample out of the full data sets.

    python tools/samples/make_eval_sample.py SOURCE

SOURCE holds ``mmlu/SUBJECT_{dev,test}.csv``, ``pubmedqa/pubmedqa.json``, ``qmsum/val.jsonl.gz``,
``squad/dev-v2.0.json`` and ``tatqa/tatqa_dataset_dev.json``, or some of them; ATTRIBUTION.md beside
the sample says where they come from. The same source always gives the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHOTS = 5
TEST_QUESTIONS = 10
PUBMEDQA_QUESTIONS = 60
MEETINGS = 2
REPORTS = 40
ARTICLES = ("Black_Death", "Prime_number")
"""Articles of SQuAD that the bundled reader has not learnt from."""
PARAGRAPHS = 20
"""Of each article."""
DATA = Path(__file__).parents[2] / "workbench" / "ragcache_workbench" / "evaluation" / "data"

Row = dict[str, Any]


def shuffled(rows: Iterable[Row], key: str) -> list[Row]:
    """Order rows by a hash of one field: arbitrary, but the same everywhere."""
    return sorted(rows, key=lambda row: hashlib.blake2b(str(row[key]).encode()).digest())


def mmlu(source: Path) -> list[Row]:
    """The examples of every subject, and a few of its questions."""
    rows: list[Row] = []
    for path in sorted(source.glob("*_test.csv")):
        subject = path.name.removesuffix("_test.csv")
        for split, count in (("dev", SHOTS), ("test", TEST_QUESTIONS)):
            with (source / f"{subject}_{split}.csv").open(encoding="utf-8", newline="") as file:
                found = [
                    {"subject": subject, "split": split, "cells": cells}
                    for cells in csv.reader(file)
                ]
            rows += found[:count] if split == "dev" else shuffled(found, "cells")[:count]
    return rows


def pubmedqa(source: Path) -> list[Row]:
    """A few questions with their abstracts."""
    entries = json.loads((source / "pubmedqa.json").read_text(encoding="utf-8"))
    kept = ("QUESTION", "CONTEXTS", "final_decision")
    rows = [{"id": key, **{name: entry[name] for name in kept}} for key, entry in entries.items()]
    return shuffled(rows, "id")[:PUBMEDQA_QUESTIONS]


def qmsum(source: Path) -> list[Row]:
    """The shortest meetings, whole."""
    with gzip.open(source / "val.jsonl.gz", "rt", encoding="utf-8") as file:
        rows: list[Row] = [json.loads(line) for line in file]
    kept = ("general_query_list", "specific_query_list", "meeting_transcripts")
    by_length = sorted(rows, key=lambda row: len(json.dumps(row)))
    return [{name: row[name] for name in kept} for row in by_length[:MEETINGS]]


def squad(source: Path) -> list[Row]:
    """The first paragraphs of some articles, with all their questions."""
    articles = json.loads((source / "dev-v2.0.json").read_text(encoding="utf-8"))["data"]
    return [
        {
            "title": article["title"],
            "paragraphs": [
                {
                    "context": paragraph["context"],
                    "qas": [_question(row) for row in paragraph["qas"]],
                }
                for paragraph in article["paragraphs"][:PARAGRAPHS]
            ],
        }
        for article in sorted(articles, key=lambda article: str(article["title"]))
        if article["title"] in ARTICLES
    ]


def _question(row: Row) -> Row:
    answers = dict.fromkeys(answer["text"] for answer in row["answers"])
    return {
        "id": row["id"],
        "question": row["question"],
        "answers": [{"text": text} for text in answers],
        "is_impossible": row["is_impossible"],
    }


def tatqa(source: Path) -> list[Row]:
    """A few tables with their paragraphs and questions."""
    reports = json.loads((source / "tatqa_dataset_dev.json").read_text(encoding="utf-8"))
    return shuffled(reports, "table")[:REPORTS]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write gzipped JSON lines; no name and no time in the header, for equal bytes."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(lines.encode())


def main() -> None:
    """Read the source folder, write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="folder of the full data sets")
    source = parser.parse_args().source
    DATA.mkdir(parents=True, exist_ok=True)
    for make in (mmlu, pubmedqa, qmsum, squad, tatqa):
        if not (source / make.__name__).is_dir():
            continue
        rows = make(source / make.__name__)
        write(DATA / f"{make.__name__}.jsonl.gz", rows)
        print(f"{make.__name__}: {len(rows)} rows in {DATA}")


if __name__ == "__main__":
    main()
