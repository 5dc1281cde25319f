"""Writes the figures of the reader's model card from what evaluations wrote.

    python tools/reader_card.py [--check]

Each file of ``reader/figures/`` is a table: its ``title``, the ``command`` that writes it, the
``model`` that was measured, by the name of its folder in the cache, and ``rows`` of what was
``read``, how many ``questions``, and ``scores`` by name, each a value with the ends of its
interval; ``answers``, if there are any, are shown below. With ``--check`` it writes nothing and
fails where the card is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CARD = ROOT / "reader" / "README.md"
FIGURES = ROOT / "reader" / "figures"
BEGIN, END = "<!-- figures: tools/reader_card.py -->", "<!-- end of figures -->"
NONE = "None are recorded yet."


def text() -> str:
    """What the card should contain."""
    files = sorted(FIGURES.glob("*.json"))
    tables = [table(json.loads(path.read_text(encoding="utf-8"))) for path in files]
    words = "\n\n".join(tables) or NONE
    before, _, rest = CARD.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{words}\n{END}{after}"


def table(found: dict[str, Any]) -> str:
    """The table of one evaluation, and some of its answers."""
    names = list(dict.fromkeys(name for row in found["rows"] for name in row["scores"]))
    lines = [f"{found['title']} (`{found['command']}`):", ""]
    lines += [_line(["read", "questions", *names]), _line(["---"] * (2 + len(names)))]
    for row in found["rows"]:
        scores = [_score(row["scores"].get(name)) for name in names]
        lines.append(_line([row["read"], f"{row['questions']:,}", *scores]))
    if found.get("answers"):
        lines += ["", f"{len(found['answers'])} of the first row's answers, drawn at random:", ""]
        lines += [_line(["question", "answer", "right"]), _line(["---"] * 3)]
        lines += [
            _line([_cell(question), _cell(said), _cell("; ".join(right))])
            for question, said, right in found["answers"]
        ]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _score(ends: list[float] | None) -> str:
    return "" if ends is None else "{:.3f} [{:.3f}, {:.3f}]".format(*ends)


def _cell(words: str) -> str:
    """What a model wrote, as text that means nothing to Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(words.split()))


def main() -> int:
    """Write the card, or compare it; the exit status is 1 where it is out of date."""
    new = text()
    if "--check" not in sys.argv[1:]:
        CARD.write_text(new, encoding="utf-8")
        return 0
    if CARD.read_text(encoding="utf-8") == new:
        return 0
    print(f"{CARD.relative_to(ROOT)} is out of date: run tools/reader_card.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
