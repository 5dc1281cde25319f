"""What a user reads is plain English: none of the words that only this house uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT

PACKAGES = (
    *(ROOT / "ragcache_integrations", ROOT / "modular" / "ragcache_modular"),
    ROOT / "workbench" / "ragcache_workbench",
)

WORDS = {
    r"anew": "again",
    r"likewise": "also, the same",
    r"beside": "next to, besides, compared with",
    r"so many": "this many, a number",
    r"behind": "after",
    r"stands?|stood": "is, are, comes",
    r"tells?|told": "says, reports, shows",
    r"by itself": "on its own, automatically",
    r"give[ns]? up": "abort, stop waiting",
    r"go(?:es)? on": "continue, resume",
    r"whoever|whatever|wherever": "a noun",
    r"laxer": "looser",
}
"""Words that are refused, and what to write."""

FINE = (
    r"[Bb]ehind (?:(?:a|an|the|your|another) )?(?:reverse |load )?(?:proxy|router|balancer|nginx)",
    r"\]\([^)]*\)",  # where a link leads
    r"stands? for",
    r"say so if they do not tell",  # a prompt, whose answers were measured as it is
    r"``[^`]*``|`[^`]*`",  # code is code
    r"\btell me\b",  # beginnings of questions
    r"[Ii]f (?:it does|they do) not tell",  # prompts that the bundled reader knows
    r'"[^"]*"',  # quoted words are somebody else's
    r"^ +\w+: ",  # the name of an argument or attribute
)
"""Uses that are plain English."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings and messages of a module, with their lines; or the lines of a page."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        fenced = False
        for number, line in enumerate(content.split("\n"), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced:
                yield number, line
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.split("\n"), node.lineno):
                yield number, line


def refused(path: Path) -> Iterator[str]:
    """Each refused word of a file, with its line and what to write."""
    for number, line in texts(path):
        plain = line
        for fine in FINE:
            plain = re.sub(fine, "", plain)
        for word, better in WORDS.items():
            for match in re.finditer(rf"\b(?:{word})\b", plain, re.IGNORECASE):
                yield f"{path}:{number}: {match[0]!r}, better: {better}"


def test_the_words_are_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Stands behind it.\n\nSo many ``tells``, behind a proxy."""\n')
    found = [place.partition(": ")[2].partition(",")[0] for place in refused(module)]
    assert found == ["'behind'", "'Stands'", "'So many'"]


@pytest.mark.parametrize(
    "path",
    sorted(path for package in PACKAGES for path in package.iterdir() if path.name[:2] != "__"),
    ids=lambda path: path.name,
)
def test_rooms_speak_plain_english(path: Path) -> None:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    places = [place for file in files if file.suffix == ".py" for place in refused(file)]
    assert not places, "\n".join(places)


def test_pages_speak_plain_english() -> None:
    # The pages of benchmarks quote what scripts printed; their own words are in the other file.
    pages = {*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "tools" / "results.toml"}
    pages.difference_update((ROOT / "docs" / "benchmarks").glob("*.md"))
    places = [place for page in sorted(pages) for place in refused(page)]
    assert not places, "\n".join(places)
