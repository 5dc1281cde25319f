"""Recorded results of benchmarks, and the pages that show them.

``docs/results`` has a JSON file for each command: what it printed, with date and machine. The pages
``docs/benchmarks/*.md``, and ``docs/benchmarks.md`` that lists them, are written from these files
and from ``tools/results.toml``, which has the parts, titles and sentences. ``python
tools/results.py`` writes them; with ``--check`` it only says whether they are out of date.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PARTS = PAGE.with_suffix("")
WORDS = ROOT / "tools" / "results.toml"

HEAD = """# Benchmarks

What the scripts in `benchmarks/` and `tools/gpu/` printed, losses included. Each section has the
command that prints it again, the machine, and a link to the full output with its JSON. Brackets are
95 % confidence intervals. Unless a section names a GPU or
the bundled reader, the runs were on 2 CPU cores, and models had random weights: times and hit rates
are meaningful, answers are not.

[Run the benchmarks](howto/run_benchmarks.md) says what each script compares. `make bench` repeats
their quick runs and lists what got worse. The pages are written by `python tools/results.py`; no
number is typed in by hand.

| part | results |
| :-- | :-- |
"""
OTHERS = "Others"
LONGEST_NAME = 60
PAIR = 2
LEAST_PAIRS = 3
"""So many lines of a name and a value make a table."""

MOST_TABLES = 3
MOST_ROWS = 12
MOST_LINES = 4
"""What a section shows before it folds the rest."""

LONGEST_LINE = 200
"""Characters of a printed line that the page shows; the JSON file has the rest."""


Columns = Sequence[list[str]]


@dataclass(frozen=True)
class Result:
    """What a command printed.

    Attributes:
        command: The command.
        place: Date, machine and versions.
        output: What it printed, without the JSON object in the last line; or the page of tables
            that it wrote, in Markdown, which begins with a title.
        found: The JSON object; ``None`` if there was none.
        note: What else a reader has to know.
    """

    command: str
    place: str
    output: str
    found: Any = None
    note: str = ""

    @classmethod
    def of(cls, command: str, place: str, printed: str, note: str = "") -> Self:
        """Take what a command printed apart."""
        output, _, last = printed.rpartition("\n")
        if not last.startswith("{"):
            return cls(command, place, printed, None, note)
        return cls(command, place, output, json.loads(last), note)

    @property
    def name(self) -> str:
        """Name of its file, without the ending."""
        words = re.sub(r"[^\w.]+", "-", self.command.partition(" ")[2]).strip("-")
        words = re.sub(r"^(?:benchmarks|tools)-|\.py(?=-|$)", "", words)
        if len(words) <= LONGEST_NAME:
            return words
        return (
            f"{words[:LONGEST_NAME]}-{hashlib.blake2b(words.encode(), digest_size=3).hexdigest()}"
        )

    def save(self, folder: Path) -> None:
        """Write it into its file."""
        content = {"command": self.command, "place": self.place, "note": self.note}
        text = json.dumps(content | {"output": self.output.split("\n")}, indent=1)
        found = json.dumps(self.found)
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(f'{text[:-2]},\n "result": {found}\n}}\n', encoding="utf-8")


def saved(folder: Path) -> dict[str, Result]:
    """Return the results in a folder, by command."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        results[content["command"]] = Result(
            content["command"],
            content["place"],
            "\n".join(content["output"]),
            content["result"],
            content["note"],
        )
    return results


def read_words() -> dict[str, Any]:
    """Return the parts of the page, with titles and sentences."""
    return tomllib.loads(WORDS.read_text(encoding="utf-8"))


def link(command: str) -> str:
    """Return a link to the section of a command, from another page."""
    for part in read_words()["part"]:
        for entry in part["result"]:
            if entry["command"] == command:
                return _link(part["title"], entry["title"])
    raise LookupError(f"tools/results.toml has no title for {command}")


def _link(part: str, title: str) -> str:
    anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    return f"[{title}]({PARTS.name}/{_file(part)}#{anchor})"


def _file(part: str) -> str:
    return f"{part.lower().replace(' ', '_')}.md"


def pages(results: Mapping[str, Result], words: Mapping[str, Any]) -> dict[Path, str]:
    """Return the pages, by where they are: the list, and one for each part.

    Args:
        results: The results, by command.
        words: The parts: title and results, which have a command, a title, a sentence and maybe
            columns. Results that are in no part are in one of their own, under their commands.
    """
    left = dict(results)
    found, rows = {}, []
    for part in words["part"]:
        shown = [entry for entry in part["result"] if entry["command"] in left]
        lines, links = [f"# Benchmarks: {part['title']}\n"], []
        for entry in shown:
            result = left.pop(entry["command"])
            links.append(_link(part["title"], entry["title"]))
            lines += [f"## {entry['title']}\n", f"{entry['sentence']}\n"]
            lines += _section(result, entry.get("columns", ()))
        if shown:
            found[PARTS / _file(part["title"])] = _joined(lines)
            rows.append(f"| {part['title']} | {'<br>'.join(links)} |")
    if left:
        lines = [f"# Benchmarks: {OTHERS}\n"]
        for result in left.values():
            lines += [f"## `{result.command}`\n", *_section(result)]
        found[PARTS / _file(OTHERS)] = _joined(lines)
        rows.append(f"| {OTHERS} | [{OTHERS}]({PARTS.name}/{_file(OTHERS)}) |")
    contents = "\n".join(["```{toctree}", ":hidden:", "", *_names(found), "```"])
    return {PAGE: _joined([HEAD + "\n".join(rows), "", contents]), **found}


def _names(found: Iterable[Path]) -> Iterator[str]:
    return (str(path.relative_to(PAGE.parent).with_suffix("")) for path in found)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _section(result: Result, columns: Columns = ()) -> Iterator[str]:
    yield f"```sh\n{result.command}\n```\n"
    if result.output.startswith("# "):
        yield (
            re.sub(r"^#", "##", result.output.partition("\n")[2].strip(), flags=re.MULTILINE) + "\n"
        )
    else:
        yield from blocks(result.output, columns)
    note = f" {result.note}" if result.note else ""
    yield f"{result.place}.{note} [Full output](../results/{result.name}.json).\n"


def blocks(output: str, columns: Columns = ()) -> Iterator[str]:
    """Return Markdown for what a command printed: tables where columns are aligned, else text.

    Args:
        output: What it printed.
        columns: Titles of columns, for tables that were printed without any.
    """
    plain: list[str] = []
    tables = 0
    rows = [_cells(line) for line in output.split("\n")]
    lines = iter(enumerate(zip(output.split("\n"), rows, strict=True)))
    for number, (line, cells) in lines:
        length = _length_of_table(rows, number)
        if not length:
            plain.append(line)
            continue
        caption = plain.pop() if plain and plain[-1].strip() else ""
        yield from _text(plain)
        plain = []
        below = [row for _, (_, row) in itertools.islice(lines, length - 1)]
        if _is_head(rows, number):
            head = cells
        else:
            head = next((titles for titles in columns if len(titles) == len(cells)), [])
            below = [cells, *below]
        tables += 1
        folded = tables > MOST_TABLES or len(below) > MOST_ROWS
        yield from _titled(caption, _table(head, below), folded=folded)
    yield from _text(plain)


def _titled(title: str, text: str, *, folded: bool) -> Iterator[str]:
    title = _escaped(" ".join(title.split()))
    if folded:
        yield f"<details><summary>{title or 'Table'}</summary>\n\n{text}\n</details>\n"
    else:
        yield from ([f"{title}\n"] if title else [])
        yield text


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip()) if line.strip() else []


def _is_number(cell: str) -> bool:
    return re.match(r"[-+]?\d|-$", cell) is not None


def _is_head(rows: Sequence[list[str]], number: int) -> bool:
    """Whether a row is the first of a table and has its titles."""
    if len(rows[number]) == PAIR:
        # Names and values have no titles, unless a column of labels or more follows.
        return len(rows[number]) < len([*rows, []][number + 1])
    begins = number == 0 or len(rows[number - 1]) <= 1
    return begins or not all(map(_is_number, rows[number][1:]))


def _length_of_table(rows: Sequence[list[str]], number: int) -> int:
    """How many lines the table has that begins in a line; 0 if none does."""
    width, below = len(rows[number]), rows[number + 1 :]
    if below and _is_head(rows, number) and len(below[0]) == width + 1:
        width += 1  # the column of labels has no title
    length = 1 + sum(1 for _ in itertools.takewhile(lambda row: len(row) == width, below))
    if width == PAIR:
        return length if length >= LEAST_PAIRS else 0
    alone = length == 1 and not all(map(_is_number, rows[number][1:]))
    return 0 if width < PAIR or alone else length


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    width = len(rows[0]) if rows else len(head)
    heads = [*[""] * (width - len(head)), *head]
    ends = [all(_is_number(row[column]) for row in rows) for column in range(width)]
    # Intervals and units stay on a line with their numbers.
    kept = [
        [cell.replace(" ", "\N{NO-BREAK SPACE}") if _is_number(cell) else cell for cell in row]
        for row in rows
    ]
    lines = [heads, ["--:" if numbers else ":--" for numbers in ends], *kept]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines) + "\n"


def _text(lines: Sequence[str]) -> Iterator[str]:
    kept = [
        line[:LONGEST_LINE] + "…" * (len(line) > LONGEST_LINE) for line in lines if line.strip()
    ]
    if kept:
        text = "```text\n" + "\n".join(kept) + "\n```\n"
        yield from _titled(
            f"{len(kept)} lines" * (len(kept) > MOST_LINES), text, folded=len(kept) > MOST_LINES
        )


def _escaped(text: str) -> str:
    return re.sub(r"([\\|<>$*`])", r"\\\1", text)


def write_pages() -> None:
    """Write the pages from the recorded results, and remove those of parts that are gone."""
    PARTS.mkdir(exist_ok=True)
    current = pages(saved(FOLDER), read_words())
    for path in set(PARTS.glob("*.md")).difference(current):
        path.unlink()
    for path, text in current.items():
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Write the pages, or check them; the exit status."""
    if "--check" not in sys.argv[1:]:
        write_pages()
        return 0
    current = pages(saved(FOLDER), read_words())
    there = {path: path.read_text(encoding="utf-8") for path in (PAGE, *PARTS.glob("*.md"))}
    if there != current:
        print(f"{PAGE.name} or a page of it is out of date: run `python tools/results.py`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
