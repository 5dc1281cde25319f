"""Real questions and passages for the query cache's benchmark.

Without a folder, the bundled sample of Natural Questions. With one, the passages and questions of
its ``nq`` and ``pubmedqa``; each paragraph of a PubMedQA abstract is a passage.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
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
        passage: A passage that answers it, or a part of one; empty where that is not known.
    """

    text: str
    entity: str = ""
    passage: str = ""


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


def load_corpus(folder: Path | None = None) -> Corpus:
    """Read the passages and questions.

    Args:
        folder: Holds ``nq`` and ``pubmedqa``; ``None`` for the bundled sample.

    Raises:
        ConfigurationError: A file cannot be read, or is not in its data set's format.
    """
    if folder is None:
        passages = {
            passage.id: (passage.title, f"{passage.title}\n{passage.text}")
            for passage in load_passages()
        }
        asked = [
            _about(
                question.text, [passages[question.passage_id][0]], passages[question.passage_id][1]
            )
            for question in load_questions()
        ]
        return _corpus([text for _, text in passages.values()], passages.values(), {"nq": asked})
    try:
        return _read(folder)
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        msg = f"{folder} must hold nq/ and pubmedqa/ in their own formats: {error!r}"
        raise ConfigurationError(msg) from error


def _read(folder: Path) -> Corpus:
    passages = {
        row["id"]: (row["title"], f"{row['title']}\n{row['text']}")
        for row in _rows(gzip.decompress((folder / "nq" / "passages.jsonl.gz").read_bytes()))
    }
    nq = [
        _about(row["question"], [passages[row["passage_id"]][0]], passages[row["passage_id"]][1])
        for row in _rows((folder / "nq" / "questions.jsonl").read_bytes())
    ]
    texts = [text for _, text in passages.values()]
    pubmedqa = []
    entries = json.loads((folder / "pubmedqa" / "pubmedqa.json").read_bytes())
    for entry in entries.values():
        texts += entry["CONTEXTS"]
        pubmedqa.append(_about(entry["QUESTION"], entry["MESHES"], entry["CONTEXTS"][0]))
    return _corpus(texts, passages.values(), {"nq": nq, "pubmedqa": pubmedqa})


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    # Not splitlines(): it also splits at characters that JSON may hold as they are.
    return (json.loads(line) for line in content.decode().split("\n") if line.strip())


def _about(text: str, names: list[str], passage: str) -> Question:
    """The question with its passage and the longest of the names in it, written as it does."""
    for name in sorted(names, key=len, reverse=True):
        # "Staind (album)" is asked for as "staind".
        bare = re.sub(r"\s*\(.*\)$", "", name)
        found = re.search(rf"\b{re.escape(bare)}\b", text, re.IGNORECASE) if bare else None
        if found:
            return Question(text, found[0], passage)
    return Question(text, passage=passage)


def _corpus(
    texts: Iterable[str],
    titled: Iterable[tuple[str, str]],
    questions: dict[str, list[Question]],
) -> Corpus:
    return Corpus(
        passages=tuple(dict.fromkeys(texts)),
        titles=tuple(dict.fromkeys(title for title, _ in titled)),
        questions={
            name: tuple({one.text.casefold(): one for one in asked}.values())
            for name, asked in questions.items()
        },
    )
