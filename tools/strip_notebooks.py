"""Removes from the notebooks in examples/ what running them leaves behind: outputs and the like.

With ``--check`` it only says whether there is anything to remove.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat

EXAMPLES = Path(__file__).parents[1] / "examples"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def stripped(text: str) -> str:
    """A notebook without outputs, execution counts and metadata of cells, as JSON."""
    notebook = nbformat.reads(text, as_version=4)
    notebook.metadata = METADATA
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    written: str = nbformat.writes(notebook)
    return written.rstrip("\n") + "\n"


def main() -> int:
    """Strip them all, or check."""
    found = 0
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        clean = stripped(text)
        if clean == text:
            continue
        found += 1
        print(path.name)
        if "--check" not in sys.argv:
            path.write_text(clean, encoding="utf-8")
    return int("--check" in sys.argv and found > 0)


if __name__ == "__main__":
    sys.exit(main())
