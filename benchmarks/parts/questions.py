"""Real questions and passages for the query cache's benchmark.

Without a folder, the bundled sample of Natural Questions. With one, the passages and questions of
its ``nq`` and ``pubmedqa``; each paragraph of a PubMedQA abstract is a passage.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_passages, load_questions

__all__ = ["Corpus", "Question", "load_corpus"]


@dataclass(frozen=True, slots=True)
class Question:
    """A question that somebody asked.

    Attributes:
        text: The question.
        entity: What it is about, as it stands in the question; empty where that is not known.
    """

    text: str
    entity: str = ""


@dataclass(frozen=True)
class Corpus:
    """Passages, and questions by data set. No two texts of a kind are the same.

    Attributes:
        passages: Texts of all passages.
        titles: Titles of the articles that passages are from.
        questions: Questions by the name of their data set, ``nq`` or ``pubmedqa``.
    """

    passages: tuple[str, ...]
    titles: tuple[str, ...]
    questions: dict[str, tuple[Question, ...]]


def load_corpus(folder: Path | None = None, *, passages: int | None = None) -> Corpus:
    """Read the passages and questions.

    Args:
        folder: Holds ``nq`` and ``pubmedqa``; ``None`` for the bundled sample.
        passages: Keep so many passages, and the questions whose own passage is among them.

    Raises:
        ConfigurationError: A file cannot be read, or is not in its data set's format.
    """
    if folder is None:
        kept = load_passages()[:passages]
        titles = {one.id: one.title for one in kept}
        texts = [f"{one.title}\n{one.text}" for one in kept]
        asked = [
            _about(one.text, [titles[one.passage_id]])
            for one in load_questions()
            if one.passage_id in titles
        ]
        return _corpus(texts, list(titles.values()), {"nq": asked})
    try:
        return _read(folder, passages)
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        msg = f"{folder} must hold nq/ and pubmedqa/ in their own formats: {error!r}"
        raise ConfigurationError(msg) from error


def _read(folder: Path, passages: int | None) -> Corpus:
    texts, titles = [], {}
    for row in _rows(gzip.decompress((folder / "nq" / "passages.jsonl.gz").read_bytes())):
        titles[row["id"]] = row["title"]
        texts.append(f"{row['title']}\n{row['text']}")
    nq = [
        _about(row["question"], [titles[row["passage_id"]]])
        for row in _rows((folder / "nq" / "questions.jsonl").read_bytes())
    ]
    pubmedqa = []
    entries = json.loads((folder / "pubmedqa" / "pubmedqa.json").read_bytes())
    for entry in entries.values():
        texts += entry["CONTEXTS"]
        pubmedqa.append(_about(entry["QUESTION"], entry["MESHES"]))
    return _corpus(texts[:passages], list(titles.values()), {"nq": nq, "pubmedqa": pubmedqa})


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    # Not splitlines(): it also splits at characters that JSON may hold as they are.
    return (json.loads(line) for line in content.decode().split("\n") if line.strip())


def _about(text: str, names: list[str]) -> Question:
    """The question with the longest of the names that it mentions, written as it does."""
    for name in sorted(names, key=len, reverse=True):
        # "Staind (album)" is asked for as "staind".
        bare = re.sub(r"\s*\(.*\)$", "", name)
        found = re.search(rf"\b{re.escape(bare)}\b", text, re.IGNORECASE) if bare else None
        if found:
            return Question(text, found[0])
    return Question(text)


def _corpus(texts: list[str], titles: list[str], questions: dict[str, list[Question]]) -> Corpus:
    return Corpus(
        passages=tuple(dict.fromkeys(texts)),
        titles=tuple(dict.fromkeys(titles)),
        questions={
            name: tuple({one.text.casefold(): one for one in asked}.values())
            for name, asked in questions.items()
        },
    )
