"""Make the bundled sample out of the full Natural Questions selection.

    python tools/samples/make_sample.py SOURCE

SOURCE holds ``passages.jsonl.gz`` and ``questions.jsonl``; ATTRIBUTION.md beside the sample says
where they come from. The same source always gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

NUM_QUESTIONS = 300
NUM_DISTRACTORS = 900
DATA = Path(__file__).parents[2] / "ragcache_integrations" / "resources" / "data"

Row = dict[str, Any]


def shuffled(rows: Iterable[Row], key: str) -> list[Row]:
    """Order rows by a hash of one field: arbitrary, but the same everywhere."""
    return sorted(rows, key=lambda row: hashlib.blake2b(row[key].encode()).digest())


def clean(text: str) -> str:
    """Collapse the white space that was left where references and formulas were cut out."""
    return re.sub(r"\s+", " ", text).strip()


def distinct_passages(rows: Iterable[Row]) -> dict[str, Row]:
    """Passages by id, without those whose text, case aside, another one has already."""
    passages: dict[str, Row] = {}
    seen: set[str] = set()
    for row in rows:
        text = clean(row["text"])
        if text.casefold() not in seen:
            seen.add(text.casefold())
            passages[row["id"]] = {"id": row["id"], "title": clean(row["title"]), "text": text}
    return passages


def select(passages: dict[str, Row], questions: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Questions with a gold passage of their own, and these passages amid the distractors."""
    gold: dict[str, Row] = {}
    for row in shuffled(questions, "question"):
        if row["passage_id"] in passages and len(gold) < NUM_QUESTIONS:
            gold.setdefault(row["passage_id"], row)
    # Passages that answer a question we left out are as good a distractor as any other.
    others = [row for row in shuffled(passages.values(), "id") if row["id"] not in gold]
    chosen = [*(passages[passage_id] for passage_id in gold), *others[:NUM_DISTRACTORS]]
    return shuffled(chosen, "id"), list(gold.values())


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write gzipped JSON lines; no name and no time in the header, for equal bytes."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(lines.encode())


def main() -> None:
    """Read the source folder, write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="folder of the full selection")
    source = parser.parse_args().source
    with gzip.open(source / "passages.jsonl.gz", "rt", encoding="utf-8") as file:
        passages = distinct_passages(map(json.loads, file))
    with (source / "questions.jsonl").open(encoding="utf-8") as file:
        questions = [json.loads(line) for line in file]
    chosen_passages, chosen_questions = select(passages, questions)
    DATA.mkdir(parents=True, exist_ok=True)
    write(DATA / "passages.jsonl.gz", chosen_passages)
    write(DATA / "questions.jsonl.gz", chosen_questions)
    print(f"{len(chosen_questions)} questions, {len(chosen_passages)} passages in {DATA}")


if __name__ == "__main__":
    main()
