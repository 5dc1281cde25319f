"""Openly licensed questions over passages, brought into SQuAD's format.

``python -m reader.teaching.sources CLONES --out FOLDER`` reads git clones of public repositories,
each in a folder ``OWNER+NAME``; what is missing is left out, and what was taken is printed. Nothing
of it is kept in this repository.

========================================= ============================================ ============
clone                                     what                                         licence
========================================= ============================================ ============
``rajpurkar+SQuAD-explorer``              SQuAD 1.1 and 2.0, the development pages     CC BY-SA 4.0
``modestyachts+squadshifts-website``      SQuADShifts (Miller et al. 2020)             CC BY 4.0
``uwnlp+qamr``                            QAMR (Michael et al. 2018)                   MIT
``nelson-liu+lost-in-the-middle``         Natural Questions with their passages        CC BY-SA 3.0
``google-research-datasets+QED``          QED, Natural Questions explained             CC BY-SA 3.0
``bigai-nlco+RouterLens``                 NQ-Swap (Longpre et al. 2021), some of SQuAD CC BY-SA
========================================= ============================================ ============
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["gather"]

Told = tuple[str, str, str, list[str]]
"""A passage's title and text, a question about it, and its answers: none where it has none."""


def gather(clones: Path, out: Path) -> dict[str, int]:
    """Write what there is.

    Args:
        clones: Folder of the clones.
        out: Folder for the files.

    Returns:
        How many questions each file has.
    """
    out.mkdir(parents=True, exist_ok=True)
    taken: dict[str, int] = {}
    for name, (repository, read) in _SOURCES.items():
        folder = _git_folder(clones / repository)
        if folder is None:
            continue
        told = list(dict.fromkeys((t, p, q, tuple(a)) for t, p, q, a in read(folder)))
        taken[name] = len(told)
        text = json.dumps(_squad(told))
        (out / f"{name}.json").write_text(text, encoding="utf-8")
    folder = _git_folder(clones / "uwnlp+qamr")
    for name in ("dev", "test"):
        if folder is None:
            break
        text = _show(folder, f"HEAD:data/readable/{name}.tsv").decode()
        taken[f"qamr-{name}"] = text.count("?")
        (out / f"qamr-{name}.tsv").write_text(text, encoding="utf-8")
    return taken


def _explorer(folder: Path) -> Iterator[Told]:
    branch = next(
        one for one in ("gh-pages", "origin/gh-pages") if _git(folder, "rev-parse", "-q", one)
    )
    listed = _git(folder, "ls-tree", "-r", "--name-only", branch, "explore").decode().splitlines()
    for name in listed:
        page = _show(folder, f"{branch}:{name}").decode()
        title = html.unescape(Path(name).stem).replace("_", " ")
        for part in page.split('<div class="para-wrap">')[1:]:
            passage = _text(re.search(r"<pre>(.*?)</pre>", part, re.DOTALL))
            for asked in part.split('<div class="qa-wrap"')[1:]:
                question = _text(re.search(r'class="question">(.*?)</strong>', asked, re.DOTALL))
                answers = re.findall(r'class="answer">(.*?)</span>', asked, re.DOTALL)
                told = [html.unescape(one).strip() for one in answers]
                if told or 'class="no-answer"' in asked:
                    yield title, passage, question, list(dict.fromkeys(told))


def _shifts(folder: Path) -> Iterator[Told]:
    for name in ("new_wiki", "reddit", "amazon_reviews"):
        content = json.loads(_show(folder, f"HEAD:datasets/{name}_v1.0.json"))
        for article in content["data"]:
            for one in article["paragraphs"]:
                for asked in one["qas"]:
                    answers = list(dict.fromkeys(a["text"].strip() for a in asked["answers"]))
                    yield "", one["context"].strip(), asked["question"].strip(), answers


def _lost_in_the_middle(folder: Path) -> Iterator[Told]:
    text = gzip.decompress(_show(folder, "HEAD:qa_data/nq-open-oracle.jsonl.gz")).decode()
    for row in map(json.loads, text.splitlines()):
        passage = row["ctxs"][0]
        yield passage["title"], passage["text"], row["question"], row["answers"]


def _qed(folder: Path) -> Iterator[Told]:
    for row in _rows(_show(folder, "HEAD:qed-dev.jsonlines")):
        answers = [span["string"] for spans in row["original_nq_answers"] for span in spans]
        yield (
            row["title_text"],
            _joined(row["paragraph_text"]),
            row["question_text"],
            list(dict.fromkeys(_joined(one) for one in answers)),
        )


def _swapped(folder: Path) -> Iterator[Told]:
    for part in ("train", "dev", "test"):
        for row in json.loads(_show(folder, f"HEAD:data/nq-swap/{part}.json")):
            if row["context"].startswith("<Table>"):
                continue
            passage = _joined(re.sub(r"</?\w+[^>]*>", " ", row["context"]))
            yield "", passage, row["question"], [_joined(row["answer"])]


def _some_of_squad(folder: Path) -> Iterator[Told]:
    for row in json.loads(_show(folder, "HEAD:data/squad/dev.json")):
        yield "", row["context"], row["question"], [row["answer"]]


_SOURCES = {
    "squad-pages": ("rajpurkar+SQuAD-explorer", _explorer),
    "squad-shifts": ("modestyachts+squadshifts-website", _shifts),
    "nq-oracle": ("nelson-liu+lost-in-the-middle", _lost_in_the_middle),
    "qed": ("google-research-datasets+QED", _qed),
    "nq-swap": ("bigai-nlco+RouterLens", _swapped),
    "squad-some": ("bigai-nlco+RouterLens", _some_of_squad),
}


def _squad(told: Iterable[tuple[str, str, str, tuple[str, ...]]]) -> dict[str, Any]:
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for title, passage, question, answers in told:
        asked = {
            "question": question,
            "answers": [{"text": one} for one in answers],
            "is_impossible": not answers,
        }
        articles.setdefault(title, {}).setdefault(passage, []).append(asked)
    return {
        "data": [
            {
                "title": title,
                "paragraphs": [{"context": one, "qas": qas} for one, qas in passages.items()],
            }
            for title, passages in articles.items()
        ]
    }


def _joined(text: str) -> str:
    """Words and punctuation that were parted, put together again."""
    text = re.sub(r"``\s?|\s?''", '"', text)
    text = re.sub(r"\s+([.,;:!?)%\]]|'\w+\b|n't\b)", r"\1", text)
    text = re.sub(r"([(\[$])\s+", r"\1", text)
    text = re.sub(r"(\w) (-|--|\u2013) (\w)", r"\1\2\3", text)
    return " ".join(text.split())


def _text(match: re.Match[str] | None) -> str:
    return html.unescape(match[1]).strip() if match else ""


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    yield from (json.loads(line) for line in content.decode().splitlines() if line)


def _git_folder(clone: Path) -> Path | None:
    places = (clone, clone / ".git", clone / "repo", clone / "repo" / ".git")
    return next((one for one in places if (one / "objects").exists()), None)


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", f"--git-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, check=False).stdout  # noqa: S603 - git


def _show(folder: Path, what: str) -> bytes:
    return _git(folder, "show", what)


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    print(json.dumps(gather(options.clones, options.out)))


if __name__ == "__main__":
    main()
