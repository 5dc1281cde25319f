"""The text that the reader is trained on: passages, and questions that people asked about them.

``python -m reader.training.corpus --data data --extra FOLDER --out corpus.json.gz`` gathers it.
``--data`` holds Natural Questions, PubMedQA and QMSum; ``--extra`` any number of files in SQuAD's
format (``*.json``; ``sources.py`` makes some), in that of QAMR's readable files (``*.tsv``) and
plain English text (``*.txt``). The questions of the bundled sample and their passages are kept out,
and whatever shares a few words in a row with these passages: they are what is reported.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

__all__ = ["Asked", "Corpus", "gather", "load", "nearest", "save"]

SAMPLE = Path(__file__).parents[2] / "ragcache_integrations" / "resources" / "data"
SHORTEST, LONGEST = 200, 1200
"""Characters of a passage cut from running text."""
MEETING_PASSAGES = 20
"""Taken from each meeting: more would be half of all text, and nobody asks about such talk."""
SENTENCES = 4
"""At most in a passage made of sentences that were asked about one by one."""
SHARED = 8
"""Words in a row by which a passage is known for one that is kept out."""
NEAR = 8
"""Neighbours of a passage that are known."""
SAME = 0.6
"""Cosine from which on two passages are one."""
ROWS = 1024
"""Passages that are compared with all others at once."""
VALIDATION = 100
"""Questions of Natural Questions that are kept out beside the reported ones, to look at."""


@dataclass(frozen=True)
class Asked:
    """A question that somebody asked about a passage.

    Attributes:
        text: The question.
        answers: Right answers, as the passage words them; none where it has none.
        passage: Which of the corpus's passages.
    """

    text: str
    answers: tuple[str, ...]
    passage: int


@dataclass
class Corpus:
    """Passages, and questions about some of them.

    Attributes:
        passages: To train on.
        titles: Of the passages; empty where there is none.
        near: Of each passage, those that share most with it, as a search would find them.
        asked: Questions about them.
        validation: Questions about passages that are not trained on, with these passages.
        reported: The same of the bundled sample.
    """

    passages: list[str] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    near: list[list[int]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    validation: list[tuple[Asked, str]] = field(default_factory=list)
    reported: list[tuple[Asked, str]] = field(default_factory=list)

    def add(
        self, passage: str, questions: Iterable[tuple[str, Iterable[str]]] = (), title: str = ""
    ) -> None:
        """Take in a passage and what was asked about it."""
        self.passages.append(passage)
        self.titles.append(title)
        place = len(self.passages) - 1
        self.asked += [Asked(text, tuple(answers), place) for text, answers in questions]


def gather(data: Path, extra: Path | None = None) -> Corpus:
    """Read everything there is.

    Args:
        data: Folder with ``nq``, ``pubmedqa`` and ``qmsum``, each of which may be missing.
        extra: Folder with more.
    """
    corpus = Corpus()
    _natural_questions(corpus, data / "nq")
    for path in sorted((data / "pubmedqa").glob("*.json")):
        for row in _entries(json.loads(path.read_text(encoding="utf-8"))):
            corpus.add(" ".join(_strings(row)))
    for path in sorted((data / "qmsum").glob("*.jsonl.gz")):
        for row in _lines(path):
            said = re.sub(r"\{\w+\}", "", " ".join(_strings(row)))
            for text in itertools.islice(_cut(_running_text(said)), MEETING_PASSAGES):
                corpus.add(text)
    if extra is not None:
        _more(corpus, extra)
    corpus.near = nearest(corpus.passages, NEAR)
    return corpus


def nearest(passages: Sequence[str], count: int) -> list[list[int]]:
    """Of each passage, which others share most with it: rare words count most (tf-idf, cosine).

    Args:
        passages: The passages.
        count: How many others, the nearest first; fewer where fewer share a word.
    """
    words = [re.findall(r"\w+", one.lower()) for one in passages]
    known = {word: place for place, word in enumerate(sorted({w for one in words for w in one}))}
    table = csr_array(
        (
            np.ones(sum(map(len, words)), np.float32),
            [known[word] for one in words for word in one],
            np.cumsum([0, *map(len, words)]),
        ),
        shape=(len(passages), len(known)),
    )
    table.sum_duplicates()
    rarity = np.log(len(passages) / np.bincount(table.indices, minlength=len(known)))
    table.data = np.log1p(table.data) * rarity[table.indices]
    length = np.sqrt(np.add.reduceat(np.append(table.data**2, 0.0), table.indptr[:-1]))
    table.data /= np.repeat(np.maximum(length, 1e-9), np.diff(table.indptr))
    found: list[list[int]] = []
    for begin in range(0, len(passages), ROWS):
        alike = (table[begin : begin + ROWS] @ table.T).tocsr()
        for row, place in enumerate(range(begin, begin + alike.shape[0])):
            span = slice(alike.indptr[row], alike.indptr[row + 1])
            others, scores = alike.indices[span], alike.data[span]
            likeliest = np.argsort(-scores, kind="stable")[: 4 * count]
            found.append(_different(table, place, others[likeliest])[:count])
    return found


def _different(table: csr_array, place: int, others: NDArray[np.int32]) -> list[int]:
    """Those that are not nearly the same passage from another source, nor as one before."""
    kept = [place]
    rows = table[others]
    alike = (rows @ table[[place, *others]].T).toarray()
    columns = [0]
    for row, other in enumerate(others.tolist()):
        if alike[row, columns].max() < SAME:
            kept.append(other)
            columns.append(row + 1)
    return kept[1:]


def _more(corpus: Corpus, folder: Path) -> None:
    found = Corpus()
    for path in sorted(folder.glob("*.json")):
        _squad(found, json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(folder.glob("*.tsv")):
        _meaning_representations(found, path.read_text(encoding="utf-8"))
    for path in sorted(folder.glob("*.txt")):
        for text in _cut(_running_text(path.read_text(encoding="utf-8"))):
            found.add(text)
    kept_out = [*corpus.reported, *corpus.validation]
    questions = {one.text.lower() for one, _ in kept_out}
    runs = {run for _, passage in kept_out for run in _runs(passage)}
    by_passage: dict[int, list[Asked]] = {}
    for one in found.asked:
        by_passage.setdefault(one.passage, []).append(one)
    for place, passage in enumerate(found.passages):
        asked = by_passage.get(place, ())
        if runs.isdisjoint(_runs(passage)) and all(
            one.text.lower() not in questions for one in asked
        ):
            answered = ((one.text, one.answers) for one in asked)
            corpus.add(passage, answered, found.titles[place])


def _runs(passage: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", passage.lower())
    return set(zip(*(words[begin:] for begin in range(SHARED)), strict=False))


def _natural_questions(corpus: Corpus, folder: Path) -> None:
    reported = {row["question"] for row in _lines(SAMPLE / "questions.jsonl.gz")}
    passages = {row["id"]: row for row in _lines(folder / "passages.jsonl.gz")}
    questions = _lines(folder / "questions.jsonl")
    by_passage: dict[str, list[dict[str, Any]]] = {}
    for row in questions:
        by_passage.setdefault(row["passage_id"], []).append(row)
    kept_out = {
        name
        for name, rows in by_passage.items()
        if any(row["question"] in reported for row in rows)
    }
    left = sorted(set(by_passage) - kept_out)
    validation = set(random.Random(1).sample(left, min(VALIDATION, len(left) // 10)))
    for name, row in passages.items():
        text = row["text"]
        asked = [(r["question"], tuple(r["answers"])) for r in by_passage.get(name, ())]
        if name in kept_out or name in validation:
            target = corpus.reported if name in kept_out else corpus.validation
            target += [(Asked(q, answers, -1), text) for q, answers in asked]
        else:
            corpus.add(text, asked, row.get("title", ""))


def _squad(corpus: Corpus, content: dict[str, Any]) -> None:
    known = set(corpus.passages)
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            if paragraph["context"] in known:
                continue
            asked = [
                (one["question"], tuple(dict.fromkeys(a["text"] for a in one["answers"])))
                for one in paragraph["qas"]
                if one["answers"] or one.get("is_impossible")
            ]
            corpus.add(paragraph["context"], asked, article.get("title", ""))


def _meaning_representations(corpus: Corpus, content: str) -> None:
    """Sentences with many questions each, some of which together make a passage."""
    dice = random.Random(len(content))
    parts = [part.strip().splitlines() for part in content.split("\n#")]
    asked = [(lines[1], [re.split(r"\s{2,}|\t", one) for one in lines[2:]]) for lines in parts]
    begin = 0
    while begin < len(asked):
        together = asked[begin : begin + dice.randint(1, SENTENCES)]
        begin += len(together)
        corpus.add(
            " ".join(sentence for sentence, _ in together),
            (
                (question, dict.fromkeys(one for one in answers if one in sentence))
                for sentence, rows in together
                for question, *answers in rows
                if any(one in sentence for one in answers)
            ),
        )


def _running_text(text: str) -> list[str]:
    # WikiText parts words and punctuation, and marks what it left out.
    text = re.sub(r"^\s*=.*=\s*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r" @(.)@ ", r"\1", text.replace("<unk>", ""))
    text = re.sub(r" ([.,;:!?)%]|'\w+\b)", r"\1", text).replace("( ", "(")
    return text.split()


def _cut(words: list[str]) -> Iterator[str]:
    dice = random.Random(len(words))
    begin = 0
    while begin < len(words):
        end, characters, most = begin, 0, dice.randint(SHORTEST, LONGEST)
        while end < len(words) and characters < most:
            characters += len(words[end]) + 1
            end += 1
        if characters >= SHORTEST:
            yield " ".join(words[begin:end])
        begin = end


def _entries(content: Any) -> list[Any]:
    return list(content.values()) if isinstance(content, dict) else list(content)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if " " in value:
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    return [json.loads(line) for line in text.splitlines() if line]


def save(corpus: Corpus, path: Path) -> None:
    """Write a corpus to a file."""
    path.write_bytes(gzip.compress(json.dumps(asdict(corpus)).encode(), mtime=0))


def load(path: Path) -> Corpus:
    """Read what :func:`save` wrote."""
    raw = json.loads(gzip.decompress(path.read_bytes()))

    def asked(row: dict[str, Any]) -> Asked:
        return Asked(row["text"], tuple(row["answers"]), row["passage"])

    return Corpus(
        raw["passages"],
        raw["titles"],
        raw["near"],
        [asked(row) for row in raw["asked"]],
        [(asked(row), text) for row, text in raw["validation"]],
        [(asked(row), text) for row, text in raw["reported"]],
    )


def main() -> None:
    """Gather it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--extra", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    corpus = gather(options.data, options.extra)
    save(corpus, options.out)
    letters = sum(map(len, corpus.passages))
    print(
        f"{len(corpus.passages)} passages, {letters / 1e6:.1f} million characters; "
        f"{len(corpus.asked)} questions about them, "
        f"{sum(not one.answers for one in corpus.asked)} without an answer; "
        f"{len(corpus.validation)} to look at, {len(corpus.reported)} to report"
    )


if __name__ == "__main__":
    main()
