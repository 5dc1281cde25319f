"""TriviaQA: quiz questions over web pages and Wikipedia, with all names of the right answer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from ragcache_integrations.core.files import Row, read_text, reading, text_of
from ragcache_integrations.errors import ConfigurationError

from .answers import score_text
from .base import Answer, EvalQuestion, Scored
from .metrics import exact_match, normalise_trivia_answer, token_f1
from .passages import Passages, answering
from .published import Content, Hub, Published, PublishedDataset
from .sources import some_texts, texts_of

__all__ = ["TriviaQA"]

LARGEST_PAGE = 1 << 24
"""Bytes of a page of the evidence."""


class TriviaQA(PublishedDataset):
    """Questions of quiz sites, with pages that hold an answer (Joshi et al. 2017).

    ``triviaqa-rc.tar.gz`` unpacks into ``qa`` and ``evidence``; the pages are read from the latter
    and cut into documents of about 2,000 characters. Those that hold an alias of the answer word
    for word count as gold documents, since the authors do not say where the answer is. Of a
    verified file, questions and pages that people verified are used.

    Exact match and F1 are those of the authors' script, over all aliases.
    """

    name = "triviaqa"
    title = "TriviaQA"
    metrics = ("exact_match", "f1")
    max_tokens = 32
    published = Published(
        home="https://nlp.cs.washington.edu/triviaqa/ (triviaqa-rc.tar.gz)",
        files=(
            "qa/wikipedia-dev.json",
            "qa/web-dev.json",
            "qa/verified-wikipedia-dev.json",
            "qa/verified-web-dev.json",
        ),
        rows="Data",
        entry="Question, QuestionId, Answer with NormalizedAliases, EntityPages, SearchResults",
        hub=Hub("mandarjoshi/trivia_qa", configurations=("rc.wikipedia",)),
    )

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        verified = content.others.get("VerifiedEval") is True
        evidence = None if content.path is None else _evidence(content.path)
        for row in content.rows:
            if verified and not row.get("QuestionPartOfVerifiedEval"):
                continue
            if evidence is None:
                question, pages = _from_hub(row), _pages_of_hub(row)
            else:
                question, pages = row, _pages(row, evidence, verified=verified)
            answers = _answers(question["Answer"])
            texts: dict[str, str] = {}
            for title, text in pages:
                texts |= passages.add_long(text, title)
            names = (*answers, *some_texts(question["Answer"], "Aliases"))
            yield EvalQuestion(
                text_of(question, "QuestionId"),
                text_of(question, "Question"),
                answers,
                gold_documents=answering(texts, names),
            )

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_text(
            question,
            answer,
            exact_match=partial(exact_match, normalise=normalise_trivia_answer),
            f1=partial(token_f1, normalise=normalise_trivia_answer),
        )


def _answers(answer: Row) -> tuple[str, ...]:
    names = texts_of(answer, "NormalizedAliases")
    return tuple(dict.fromkeys((*names, *some_texts(answer, "HumanAnswers"))))


def _evidence(path: Path) -> Path:
    for folder in (path.parent, path.parent.parent):
        if (folder / "evidence").is_dir():
            return folder / "evidence"
    msg = (
        f"{path} needs the folder 'evidence' next to it or to its folder, which has the pages: "
        "triviaqa-rc.tar.gz has both"
    )
    raise ConfigurationError(msg)


def _pages(row: Row, evidence: Path, *, verified: bool) -> Iterator[tuple[str, str]]:
    """Title and text of the pages of a question."""
    for key, folder in (("EntityPages", "wikipedia"), ("SearchResults", "web")):
        pages = row.get(key, ())
        checked = [page for page in pages if page.get("DocPartOfVerifiedEval")]
        for page in checked if verified and checked else pages:
            path = _within(evidence / folder, text_of(page, "Filename"))
            with reading(str(path)):
                text = read_text(path, LARGEST_PAGE)
            yield text_of(page, "Title", ""), text


def _within(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        msg = f"'Filename' must be a file of {folder.name!r}, got {name!r:.60}"
        raise ValueError(msg)
    return path


def _from_hub(row: Row) -> dict[str, Any]:
    answer = row["answer"]
    return {
        "QuestionId": row["question_id"],
        "Question": row["question"],
        "Answer": {
            "NormalizedAliases": answer["normalized_aliases"],
            "Aliases": answer["aliases"],
        },
    }


def _pages_of_hub(row: Row) -> Iterator[tuple[str, str]]:
    for key, field in (("entity_pages", "wiki_context"), ("search_results", "search_context")):
        pages = row.get(key) or {}
        yield from zip(pages.get("title", ()), pages.get(field, ()), strict=True)
