"""Passages and questions to learn from, and others that are kept out to choose by.

``python -m reader.teaching.library --data data --extra FOLDER --out FILE`` gathers them, from
Natural Questions, PubMedQA, QMSum and the files that ``sources.py`` brings into one format. Kept
out are the bundled sample's 300 questions with their passages, the passages of
:data:`NATURAL_QUESTIONS` others, and whole pages of SQuAD; with them goes every passage that shares
:data:`SHARED` words in a row with one of them, and every question that is asked there, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ragcache_workbench.evaluation.datasets.published import chunked

from .corpus import Asked, Corpus, nearest, read_lines, read_qamr, read_squad

__all__ = [
    "MEETINGS",
    "SQUAD",
    "STUDIES",
    "Kept",
    "Library",
    "Meeting",
    "Study",
    "chosen",
    "gather",
    "load",
    "parts",
    "save",
    "save_kept",
]

SAMPLE = Path(__file__).parents[2] / "ragcache_integrations" / "resources" / "data"
SHARED = 8
"""Words in a row by which a passage is known for one that is kept out."""
NEAR = 12
"""Neighbours of a passage that are known."""
NATURAL_QUESTIONS = 200
"""Passages of Natural Questions that are kept out to choose by."""
SQUAD_PAGES = 8
"""Share of SQuAD's pages that are kept out, in per cent."""
SQUAD = "squad-pages"
"""File of the pages of SQuAD."""
STUDIES, MEETINGS = 200, 15
"""Of PubMedQA and QMSum that are kept out: the first of each file."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A question that is kept out.

    Attributes:
        text: The question.
        answers: Right answers.
        title: Of the passage that answers; empty where there is none.
        passage: Its text.
        source: File that it is from.
    """

    text: str
    answers: tuple[str, ...]
    title: str
    passage: str
    source: str


@dataclass(frozen=True, slots=True)
class Study:
    """A question of PubMedQA.

    Attributes:
        text: The question.
        paragraphs: Of the abstract.
        conclusion: An answer in sentences.
        decision: yes, no or maybe.
    """

    text: str
    paragraphs: tuple[str, ...]
    conclusion: str
    decision: str


@dataclass(frozen=True, slots=True)
class Meeting:
    """A meeting of QMSum.

    Attributes:
        parts: The transcript, in parts as the evaluation cuts it.
        queries: What was asked, what is answered, and which parts tell.
    """

    parts: tuple[str, ...]
    queries: tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass
class Library:
    """What is learnt from, and what is not.

    Attributes:
        corpus: Passages, their neighbours and questions about them. Nothing is kept out in it.
        sources: File that each passage is from.
        studies: Of PubMedQA.
        meetings: Of QMSum.
        kept: Questions to choose by.
    """

    corpus: Corpus = field(default_factory=Corpus)
    sources: list[str] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


def gather(data: Path, extra: Path) -> Library:
    """Read everything there is.

    Args:
        data: Folder with ``nq``, ``pubmedqa`` and ``qmsum``.
        extra: Folder with files in SQuAD's format (``*.json``), in QAMR's (``*.tsv``), and plain
            text (``*.txt``).
    """
    found = parts(data, extra)
    library = Library()
    library.kept = list(chosen(found))
    reported = _reported()
    never = [
        *(one.passage for one in library.kept),
        *(row["text"] for row in _reported_passages()),
    ]
    runs = {run for passage in never for run in _runs(passage)}
    questions = reported | {one.text.lower() for one in library.kept}
    known: dict[str, int] = {}
    asked_at: set[tuple[int, str]] = set()
    for source, part in found.items():
        by_passage: dict[int, list[Asked]] = {}
        for asked in part.asked:
            by_passage.setdefault(asked.passage, []).append(asked)
        for place, passage in enumerate(part.passages):
            about = by_passage.get(place, [])
            if not runs.isdisjoint(_runs(passage)) or any(
                asked.text.lower() in questions for asked in about
            ):
                continue
            if passage not in known:
                known[passage] = len(library.corpus.passages)
                library.corpus.add(passage, title=part.titles[place])
                library.sources.append(source)
            at = known[passage]
            for asked in about:
                if (at, asked.text.lower()) not in asked_at:
                    asked_at.add((at, asked.text.lower()))
                    library.corpus.asked.append(Asked(asked.text, asked.answers, at))
    library.corpus.near = nearest(library.corpus.passages, NEAR)
    library.studies = list(_studies(data / "pubmedqa" / "pubmedqa.json"))[STUDIES:]
    library.meetings = list(_meetings(data / "qmsum" / "val.jsonl.gz"))[MEETINGS:]
    return library


def parts(data: Path, extra: Path) -> dict[str, Corpus]:
    """Read passages with their questions, by the file that they are from; see :func:`gather`."""
    found = {"nq": _natural_questions(data / "nq")}
    for path in sorted(extra.glob("*.json")):
        found[path.stem] = Corpus()
        read_squad(found[path.stem], json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(extra.glob("*.tsv")):
        found[path.stem] = Corpus()
        read_qamr(found[path.stem], path.read_text(encoding="utf-8"))
    return found


def _reported() -> set[str]:
    """The questions by which models are reported."""
    return {row["question"].lower() for row in read_lines(SAMPLE / "questions.jsonl.gz")}


def _natural_questions(folder: Path) -> Corpus:
    corpus = Corpus()
    asked: dict[str, list[tuple[str, list[str]]]] = {}
    for row in read_lines(folder / "questions.jsonl"):
        asked.setdefault(row["passage_id"], []).append((row["question"], row["answers"]))
    for row in read_lines(folder / "passages.jsonl.gz"):
        corpus.add(row["text"], asked.get(row["id"], ()), row.get("title", ""))
    return corpus


def _reported_passages() -> Iterator[dict[str, Any]]:
    names = {row["passage_id"] for row in read_lines(SAMPLE / "questions.jsonl.gz")}
    return (row for row in read_lines(SAMPLE / "passages.jsonl.gz") if row["id"] in names)


def chosen(found: dict[str, Corpus]) -> Iterator[Kept]:
    """Questions to choose by: of passages, and of pages, drawn at random.

    Args:
        found: What :func:`parts` returns.
    """
    dice = random.Random(1)
    reported = _reported()
    questions = found["nq"]
    never = {asked.passage for asked in questions.asked if asked.text.lower() in reported}
    places = sorted({asked.passage for asked in questions.asked} - never)
    drawn = set(dice.sample(places, min(NATURAL_QUESTIONS, len(places) // 4)))
    yield from _kept(questions, drawn, "nq")
    squad = found.get(SQUAD, Corpus())
    titles = sorted(set(squad.titles))
    pages = set(dice.sample(titles, -(-len(titles) * SQUAD_PAGES // 100)))
    drawn = {place for place, title in enumerate(squad.titles) if title in pages}
    yield from _kept(squad, drawn, SQUAD)


def _kept(corpus: Corpus, places: set[int], source: str) -> Iterator[Kept]:
    for asked in corpus.asked:
        if asked.passage in places:
            yield Kept(
                asked.text,
                asked.answers,
                corpus.titles[asked.passage],
                corpus.passages[asked.passage],
                source,
            )


def _studies(path: Path) -> Iterator[Study]:
    if path.exists():
        for row in json.loads(path.read_text(encoding="utf-8")).values():
            yield Study(
                row["QUESTION"],
                tuple(row["CONTEXTS"]),
                row["LONG_ANSWER"],
                row["final_decision"],
            )


def _meetings(path: Path) -> Iterator[Meeting]:
    for row in read_lines(path):
        turns = [f"{turn['speaker']}: {turn['content']}" for turn in row["meeting_transcripts"]]
        ranges = chunked(turns)
        queries = [*row["general_query_list"], *row["specific_query_list"]]
        yield Meeting(
            tuple("\n".join(turns[first:end]) for first, end in ranges),
            tuple(
                (
                    query["query"],
                    query["answer"],
                    tuple(
                        place
                        for place, (first, end) in enumerate(ranges)
                        if any(
                            int(begin) < end and first <= int(last)
                            for begin, last in query.get("relevant_text_span", ())
                        )
                    ),
                )
                for query in queries
            ),
        )


def _runs(passage: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", passage.lower())
    return set(zip(*(words[begin:] for begin in range(SHARED)), strict=False))


def save(library: Library, path: Path) -> None:
    """Write a library to a file."""
    path.write_bytes(gzip.compress(json.dumps(asdict(library)).encode(), mtime=0))


def load(path: Path) -> Library:
    """Read what :func:`save` wrote."""
    raw = json.loads(gzip.decompress(path.read_bytes()))
    corpus = raw["corpus"]
    return Library(
        Corpus(
            corpus["passages"],
            corpus["titles"],
            corpus["near"],
            [Asked(row["text"], tuple(row["answers"]), row["passage"]) for row in corpus["asked"]],
        ),
        raw["sources"],
        [Study(**(row | {"paragraphs": tuple(row["paragraphs"])})) for row in raw["studies"]],
        [
            Meeting(
                tuple(row["parts"]),
                tuple((query, answer, tuple(parts)) for query, answer, parts in row["queries"]),
            )
            for row in raw["meetings"]
        ],
        [Kept(**(row | {"answers": tuple(row["answers"])})) for row in raw["kept"]],
    )


def save_kept(library: Library, folder: Path) -> None:
    """Write the questions that are kept out as Natural Questions are, for benchmarks.

    Each is asked over all passages of the library, those that are learnt from among them.
    """
    passages = dict.fromkeys((kept.passage, kept.title) for kept in library.kept)
    passages |= dict.fromkeys(zip(library.corpus.passages, library.corpus.titles, strict=True))
    names = {text: f"p{number}" for number, (text, _) in enumerate(passages)}
    rows = [{"id": names[text], "title": title, "text": text} for text, title in passages]
    asked = [
        {"question": kept.text, "answers": kept.answers, "passage_id": names[kept.passage]}
        for kept in library.kept
        if kept.answers
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in (("passages", rows), ("questions", asked)):
        text = "".join(f"{json.dumps(row)}\n" for row in written)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def _counted(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def main() -> None:
    """Gather it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--extra", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kept", type=Path, help="folder for what is kept out, for benchmarks")
    options = parser.parse_args()
    library = gather(options.data, options.extra)
    save(library, options.out)
    if options.kept is not None:
        save_kept(library, options.kept)
    corpus = library.corpus
    print(f"passages: {_counted(library.sources)}")
    print(f"questions: {_counted(library.sources[asked.passage] for asked in corpus.asked)}")
    print(f"kept out to choose by: {_counted(one.source for one in library.kept)}")
    print(f"{len(library.studies)} studies, {len(library.meetings)} meetings")


if __name__ == "__main__":
    main()
