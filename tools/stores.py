"""Writes the table of vector stores into docs/stores.md, from the files of their kinds.

With ``--check`` it only says whether it is up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ragcache_integrations.retrievers.stores import (
    LANGCHAIN_KINDS,
    LLAMA_INDEX_KINDS,
    StoreKind,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "stores.md"
MARKS = "<!-- table: tools/stores.py -->", "<!-- end of table -->"
HEAD = ("store", "framework", "class", "re-ranked", "vectors on a miss", "proofs", "tested with")
PROOFS = {
    "known": "where a search goes over all documents",
    "exhaustive": "with `version=` or `sole_writer=True`; a search uses no index then",
    "flat": "with a FLAT index, and `version=` or `sole_writer=True`",
    "declared": "with `exact_search=True`, and `version=` or `sole_writer=True`",
    "no": "no: it walks a graph",
}


def versions() -> dict[str, str]:
    """Return the versions that the tests run with, by distribution."""
    lines = (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def rows() -> Iterator[Sequence[str]]:
    """Yield the rows of the table."""
    tested = versions()
    frameworks = (("LangChain", LANGCHAIN_KINDS), ("LlamaIndex", LLAMA_INDEX_KINDS))
    pairs = [(framework, kind) for framework, kinds in frameworks for kind in kinds]
    names = list(dict.fromkeys(kind.name for _, kind in pairs))
    for framework, kind in sorted(pairs, key=lambda pair: names.index(pair[1].name)):
        yield (
            kind.name,
            framework,
            ", ".join(f"`{name.rpartition('.')[2]}`" for name in kind.classes),
            "yes",
            _vectors(kind),
            PROOFS[kind.proofs],
            f"`{kind.distribution}` {tested[kind.distribution]}",
        )
    yield ("any other", "both", "", "with `vectors=`", "", "no", "")


def _vectors(kind: StoreKind) -> str:
    if kind.vectors_come_along:
        return "come with the search"
    return "in this process" if kind.proofs == "known" else "one call more, by id"


def main() -> None:
    """Write the table, or compare it."""
    begin, end = MARKS
    table = [HEAD, tuple("---" for _ in HEAD), *rows()]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    text = PAGE.read_text(encoding="utf-8")
    written = re.sub(
        f"{re.escape(begin)}.*{re.escape(end)}",
        lambda _: f"{begin}\n{lines}\n{end}",
        text,
        flags=re.DOTALL,
    )
    if "--check" in sys.argv[1:]:
        if written != text:
            sys.exit(f"{PAGE.name} is out of date: run python tools/stores.py")
        return
    PAGE.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
