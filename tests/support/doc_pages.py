"""README.md and docs/ taken apart, for the tests that hold them to what there is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONTINUES = "<!-- continues -->"
NOT_RUN = "<!-- not run: "

_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[^\s`]*)[^`]*$")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Path from the repository's root.
        line: Where its text begins, from 1.
        language: As the fence says.
        mark: The line in front of the fence.
        text: What stands in it.
    """

    page: str
    line: int
    language: str
    mark: str
    text: str


@dataclass(frozen=True)
class Span:
    """Inline code, with its line from 1."""

    page: str
    line: int
    text: str


@dataclass(frozen=True)
class Page:
    """A page: its blocks, and what stands between them by line, empty within a block."""

    name: str
    blocks: tuple[Block, ...]
    prose: tuple[str, ...]

    @property
    def spans(self) -> list[Span]:
        """Inline code; it may run over the end of a line."""
        text = "\n".join(self.prose)
        return [
            Span(self.name, text.count("\n", 0, match.start()) + 1, " ".join(match[1].split()))
            for paragraph in re.finditer(r"(?:[^\n]+\n?)+", text)
            for match in _SPAN.finditer(text, paragraph.start(), paragraph.end())
        ]


@cache
def pages() -> tuple[Page, ...]:
    """Every page, README.md first."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(_taken_apart(path) for path in paths)


def blocks(*languages: str) -> list[Block]:
    """The blocks of these languages on all pages."""
    return [block for page in pages() for block in page.blocks if block.language in languages]


def _taken_apart(path: Path) -> Page:
    name = path.relative_to(ROOT).as_posix()
    found: list[Block] = []
    prose: list[str] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if opened is None:
            prose.append(lines[number])
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != opened["fence"]:
            end += 1
        text = "".join(f"{line}\n" for line in lines[number + 1 : end])
        mark = lines[number - 1].strip() if number else ""
        found.append(Block(name, number + 2, opened["language"], mark, text))
        prose += [""] * (end + 1 - number)
        number = end + 1
    return Page(name, tuple(found), tuple(prose))
