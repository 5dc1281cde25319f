"""A table of the model card from answers to kept-out questions.

``python -m reader.teaching.tabulate ANSWERS... --out reader/figures/kept_out.json`` reads what
``reader.teaching.kept_out`` wrote. Every way of reading is compared with the first one, by
pairs of answers to the same question.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_workbench.evaluation.datasets.metrics import exact_match, token_f1
from ragcache_workbench.evaluation.scores import bootstrap_interval

__all__ = ["table"]

GROUPS = {"nq": "Natural Questions", "squad": "SQuAD", "": "both"}
COMMAND = "python -m reader.teaching.kept_out"
NOT_WAYS = {"question", "source", "answers"}
TITLE = (
    "Kept-out questions over the five passages that a search finds, by which the weights were "
    'chosen; "links" is block by block with that many link tokens, "1 exact" where the first '
    "passage is read as in reading all at once, and the last column is the difference from that"
)


def table(answered: Sequence[dict[str, Any]], model: str) -> dict[str, Any]:
    """The table as ``tools/reader_card.py`` reads it.

    Args:
        answered: For each question its ``source``, right ``answers``, and the answer in each way.
        model: Name of the model's folder.
    """
    ways = [name for name in answered[0] if name not in NOT_WAYS]
    rows = []
    for source, group in GROUPS.items():
        asked = [question for question in answered if question["source"].startswith(source)]
        if not asked:
            continue
        scores = {
            way: {
                "F1": [token_f1(question[way], tuple(question["answers"])) for question in asked],
                "exact": [
                    float(exact_match(question[way], tuple(question["answers"])))
                    for question in asked
                ],
            }
            for way in ways
        }
        usual = np.array(scores[ways[0]]["F1"])
        for way, found in scores.items():
            if way != ways[0]:
                found["F1 less"] = list(np.array(found["F1"]) - usual)
            rows.append(
                {
                    "read": f"{group}, {way}",
                    "questions": len(asked),
                    "scores": {
                        name: bootstrap_interval(np.mean, [values]).as_list(4)
                        for name, values in found.items()
                    },
                }
            )
    return {"title": TITLE, "command": COMMAND, "model": model, "rows": rows}


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    answered = [
        json.loads(line) for path in options.answers for line in path.read_text().splitlines()
    ]
    content = json.dumps(table(answered, default_model_path().name), indent=1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
