"""Data sets whose answers are texts: of several documents, of long ones, or of meetings."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from ragcache_integrations.adaptive.synthesis import found_nothing
from ragcache_integrations.core.checks import did_you_mean
from ragcache_integrations.core.files import Row, read_json_lines, read_text, reading, text_of
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_questions

from .base import SYSTEM, Answer, EvalDocument, EvalPrompt, EvalQuestion, Scored
from .metrics import (
    exact_match,
    normalise_answer,
    normalise_trivia_answer,
    rouge_l,
    token_f1,
    token_f1_or_empty,
    token_f1_or_yes_no,
)
from .published import (
    Content,
    Passages,
    PublishedDataset,
    answering,
    chunked,
    passages_in,
    sample_passages,
    some_texts,
    texts_of,
)

__all__ = [
    "SUBSETS",
    "HotpotQA",
    "LongBench",
    "MuSiQue",
    "NaturalQuestions",
    "QMSum",
    "SQuAD",
    "Subset",
    "TriviaQA",
    "TwoWikiMultihopQA",
    "class_score",
]

ALIASES = "id_aliases.json"
LARGEST_PAGE = 1 << 24
"""Bytes of a page of TriviaQA's evidence."""

UNANSWERABLE = ("",)
"""The right answer where there is none, as in SQuAD's evaluate-v2.0."""

_NO_ANSWER = re.compile(
    r"\b(?:do(?:es)? not|don't|doesn't) (?:say|state|mention|contain|provide|specify|answer)\b"
    r"|\bno (?:answer|information)\b|\b(?:cannot|can't) be (?:answered|determined)\b"
    r"|\bunanswerable\b",
    re.IGNORECASE,
)
"""How models say that the documents do not have the answer, besides what we ask them to say."""

MEETINGS = (
    "You answer questions about meetings from parts of their transcripts, in a few sentences."
)
EXAMPLES = "You are given examples. Complete the last text as they do, with nothing else."


class NaturalQuestions(PublishedDataset):
    """Questions that people asked a search engine (Kwiatkowski et al. 2019).

    A folder holds ``questions.jsonl`` (``question``, ``answers``, ``passage_id``) and
    ``passages.jsonl`` (``id``, ``title``, ``text``), also as ``.gz``. The hub's NQ-open has no
    passages: the bundled ones are used unless ``documents`` has others.
    """

    name = "nq"
    title = "Natural Questions"
    metrics = ("exact_match", "f1")
    scoring = (exact_match, token_f1)
    max_tokens = 32  # enough for 99 % of the answers (RAGCache §7)
    named_by_folder = True

    @classmethod
    @override
    def bundled(cls) -> list[Row]:
        return [asdict(question) | {"question": question.text} for question in load_questions()]

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for number, row in enumerate(content.rows):
            yield EvalQuestion(
                f"nq-{number}",
                text_of(row, "question"),
                texts_of(row, "answers" if "answers" in row else "answer"),
                gold_documents=(row["passage_id"],) if row.get("passage_id") else (),
            )

    @classmethod
    @override
    def documents_beside(cls, path: Path | None) -> Sequence[EvalDocument]:
        if path is None:
            return sample_passages()
        beside = passages_in(path.parent)
        if beside is None:
            raise ConfigurationError(f"{path.parent} must hold passages.jsonl, also as .gz")
        return beside


class SQuAD(PublishedDataset):
    """Questions that people wrote about a paragraph (Rajpurkar et al. 2016 and 2018).

    Each paragraph of the file is a document, after the title of its article. The right answer to
    an unanswerable question of SQuAD 2.0 is an empty one: so is an answer that says that the
    documents do not have it. Scores are also reported for the two kinds of questions separately.
    """

    name = "squad"
    title = "SQuAD"
    metrics = ("exact_match", "f1")
    scoring = (exact_match, token_f1_or_empty)
    max_tokens = 32

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for article in content.rows:
            title = text_of(article, "title", "").replace("_", " ")
            for paragraph in _paragraphs_of(article):
                document = passages.add(text_of(paragraph, "context"), title)
                for row in paragraph["qas"]:
                    answers = _squad_answers(row)
                    yield EvalQuestion(
                        text_of(row, "id"),
                        text_of(row, "question"),
                        answers,
                        # Of an unanswerable question, the paragraph that it was written about.
                        gold_documents=(document,),
                        group="unanswerable" if answers == UNANSWERABLE else "answerable",
                    )

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        declined = found_nothing(answer.text) or _NO_ANSWER.search(answer.text)
        return super().score(question, replace(answer, text="") if declined else answer)


def _paragraphs_of(article: Row) -> list[Row]:
    """Paragraphs of an article; on the hub, an entry is a single question."""
    if "paragraphs" in article:
        paragraphs: list[Row] = article["paragraphs"]
        return paragraphs
    answers = [{"text": text} for text in article["answers"]["text"]]
    return [{"context": article["context"], "qas": [article | {"answers": answers}]}]


def _squad_answers(row: Row) -> tuple[str, ...]:
    # Not by is_impossible: evaluate-v2.0 calls a question unanswerable that has no answers.
    texts = dict.fromkeys(text_of(answer, "text") for answer in row["answers"])
    # SQuAD's evaluate-v2.0 also leaves out answers that have no words in normal form.
    return tuple(text for text in texts if normalise_answer(text)) or UNANSWERABLE


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
    scoring = (
        partial(exact_match, normalise=normalise_trivia_answer),
        partial(token_f1, normalise=normalise_trivia_answer),
    )
    max_tokens = 32

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


def _answers(answer: Row) -> tuple[str, ...]:
    names = texts_of(answer, "NormalizedAliases")
    return tuple(dict.fromkeys((*names, *some_texts(answer, "HumanAnswers"))))


def _evidence(path: Path) -> Path:
    for folder in (path.parent, path.parent.parent):
        if (folder / "evidence").is_dir():
            return folder / "evidence"
    raise ConfigurationError(
        f"{path} needs the folder 'evidence' next to it or to its folder, which has the pages: "
        "triviaqa-rc.tar.gz has both"
    )


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
        raise ValueError(f"'Filename' must be a file of {folder.name!r}, got {name!r:.60}")
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


class _MultiHop(PublishedDataset):
    """Questions with paragraphs of their own, some of which are marked as needed.

    Retrieval searches the paragraphs of all questions together.
    """

    metrics = ("exact_match", "f1")
    max_tokens = 32

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        aliases = cls._aliases(content.path)
        for row in content.rows:
            if row.get("answerable") is False:
                continue
            gold = [
                (passages.add(text, title), needed) for title, text, needed in cls._paragraphs(row)
            ]
            answers = (text_of(row, "answer"), *some_texts(row, "answer_aliases"))
            answers += aliases.get(str(row.get("answer_id")), ())
            yield EvalQuestion(
                text_of(row, "_id" if "_id" in row else "id"),
                text_of(row, "question"),
                tuple(dict.fromkeys(answers)),
                gold_documents=tuple(dict.fromkeys(name for name, needed in gold if needed)),
                group=cls._group(row),
            )

    @classmethod
    def _aliases(cls, path: Path | None) -> dict[str, tuple[str, ...]]:
        """Return other names of right answers, by their ids."""
        del path
        return {}

    @classmethod
    @abstractmethod
    def _paragraphs(cls, row: Row) -> Iterator[tuple[str, str, bool]]:
        """Return title and text of each paragraph, and whether it is needed."""

    @classmethod
    def _group(cls, row: Row) -> str:
        return text_of(row, "type", "")


class HotpotQA(_MultiHop):
    """Questions on two paragraphs of Wikipedia among ten (Yang et al. 2018).

    Exact match and F1 of the answer are those of the authors' script, in which yes and no equal
    only themselves. Its scores of supporting facts need a model that names them, and are left out.
    """

    name = "hotpotqa"
    title = "HotpotQA"
    scoring = (exact_match, token_f1_or_yes_no)

    @classmethod
    @override
    def _paragraphs(cls, row: Row) -> Iterator[tuple[str, str, bool]]:
        context, facts = row["context"], row["supporting_facts"]
        if isinstance(context, dict):  # on the hub
            sentences = context["sentences"] if "sentences" in context else context["content"]
            context = zip(context["title"], sentences, strict=True)
            facts = [[title] for title in facts["title"]]
        needed = {fact[0] for fact in facts}
        for title, sentences in context:
            # Sentences of HotpotQA begin with their space, those of 2WikiMultihopQA do not.
            text = " ".join(sentence.strip() for sentence in sentences)
            if text:
                yield title, text, title in needed


class TwoWikiMultihopQA(HotpotQA):
    """Questions on two to four paragraphs of Wikipedia (Ho et al. 2020), as HotpotQA's.

    With the authors' ``id_aliases.json`` next to the file, other names of an answer count, as in
    their evaluate_v1.1.
    """

    name = "2wikimultihopqa"
    title = "2WikiMultihopQA"

    @classmethod
    @override
    def _aliases(cls, path: Path | None) -> dict[str, tuple[str, ...]]:
        file = None if path is None else path.parent / ALIASES
        if file is None or not file.is_file():
            return {}
        with reading(str(file), "lines with Q_id, aliases and demonyms"):
            return {
                text_of(row, "Q_id"): (*some_texts(row, "aliases"), *some_texts(row, "demonyms"))
                for row in read_json_lines(file)
            }


class MuSiQue(_MultiHop):
    """Questions on two to four paragraphs among twenty (Trivedi et al. 2022).

    Unanswerable questions of MuSiQue-Full are left out: each lacks a paragraph that another
    question has, so a search over the paragraphs of all questions could answer it. Exact match and
    F1 are those of the authors' script, over the answer and its aliases.
    """

    name = "musique"
    title = "MuSiQue"
    scoring = (exact_match, token_f1_or_empty)

    @classmethod
    @override
    def _paragraphs(cls, row: Row) -> Iterator[tuple[str, str, bool]]:
        for paragraph in row["paragraphs"]:
            yield (
                text_of(paragraph, "title", ""),
                text_of(paragraph, "paragraph_text"),
                paragraph["is_supporting"] is True,
            )

    @classmethod
    @override
    def _group(cls, row: Row) -> str:
        # An id begins with the number of hops and their kind, such as 3hop1__.
        return text_of(row, "id").partition("__")[0]


@dataclass(frozen=True, slots=True)
class Subset:
    """A task of LongBench.

    Attributes:
        score: Scores an answer by the right answers; ``None`` for a choice among classes.
        tokens: The most tokens of an answer, as in the authors' configuration.
        begins: How each text of a context begins, as a regular expression; empty if it is one text.
        system: The system's turn.
        examples: Whether the texts are solved examples, and the question is laid out as they are.
    """

    score: Callable[[str, Sequence[str]], float] | None
    tokens: int
    begins: str = ""
    system: str = SYSTEM
    examples: bool = False


SUBSETS: dict[str, Subset] = {
    "narrativeqa": Subset(token_f1, 128),
    "qasper": Subset(token_f1, 128),
    "multifieldqa_en": Subset(token_f1, 64),
    "hotpotqa": Subset(token_f1, 32, r"Passage \d+:"),
    "2wikimqa": Subset(token_f1, 32, r"Passage \d+:"),
    "musique": Subset(token_f1, 32, r"Passage \d+:"),
    "qmsum": Subset(rouge_l, 512, system=MEETINGS),
    "trec": Subset(None, 64, "Question:", EXAMPLES, examples=True),
    "triviaqa": Subset(token_f1, 32, "Passage:", EXAMPLES, examples=True),
    "samsum": Subset(rouge_l, 128, "Dialogue:", EXAMPLES, examples=True),
}
"""The subsets that are read. The others are Chinese, or need the whole text: a summary of a report,
a count of its paragraphs, the next line of code."""


class LongBench(PublishedDataset):
    """Tasks with long contexts (Bai et al. 2024), each scored by the authors' kind of metric.

    A folder has ``SUBSET.jsonl``, or ``data/SUBSET.jsonl`` as in the authors' ``data.zip``; all
    known subsets in it are read, or a single file. Contexts are cut into their passages or
    examples, and these into documents of about 2,000 characters. Retrieval searches those of all
    questions.

    The score is F1 for questions, ROUGE-L for summaries (of words as ``rouge_score`` has them; the
    authors' ``rouge`` keeps capitals and punctuation, so that their figures are others), and for
    classes 1 over the number of classes that the answer names if the right one is among them. Of
    subsets with examples, the first line of an answer counts. Scores are reported for each subset,
    too.
    """

    name = "longbench"
    title = "LongBench"
    metrics = ("score",)
    max_tokens = 128

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        loaded = super().load(data, documents)
        loaded.max_tokens = max(SUBSETS[question.group].tokens for question in loaded.questions)
        return loaded

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for row in content.rows:
            # Those of LongBench-E are the same tasks.
            name = text_of(row, "dataset").removesuffix("_e")
            if name not in SUBSETS:
                raise ValueError(
                    f"'dataset' must be a subset whose texts can be searched, one of "
                    f"{', '.join(SUBSETS)}, got {name!r}{did_you_mean(name, list(SUBSETS))}"
                )
            answers = texts_of(row, "answers")
            texts: dict[str, str] = {}
            for text in _parts(text_of(row, "context"), SUBSETS[name].begins):
                texts |= passages.add_long(text)
            yield EvalQuestion(
                text_of(row, "_id"),
                text_of(row, "input"),
                answers,
                options=texts_of(row, "all_classes") if SUBSETS[name].score is None else (),
                gold_documents=answering(texts, answers),
                group=name,
            )

    @override
    def prompt(self, question: EvalQuestion, wording: str) -> EvalPrompt:
        subset = SUBSETS[question.group]
        after = wording if subset.examples else f"Question: {wording}\n{self.cue}"
        return EvalPrompt(subset.system, "", after)

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        subset = SUBSETS[question.group]
        text = answer.text.strip()
        if subset.examples:
            text = text.partition("\n")[0].strip()
        if subset.score is None:
            score = max(class_score(text, right, question.options) for right in question.answers)
        else:
            score = subset.score(text, question.answers)
        return Scored({"score": score}, text)


def class_score(text: str, right: str, classes: Sequence[str]) -> float:
    """Score an answer that should name a class, as LongBench does.

    Args:
        text: The answer.
        right: The right class.
        classes: All classes. Those whose names are within the right one's do not count as named.

    Returns:
        1 over the number of classes that the answer names, if the right one is among them; else 0.
    """
    named = [name for name in classes if name in text and (name == right or name not in right)]
    return 1 / len(named) if right in named else 0.0


def _parts(context: str, begins: str) -> list[str]:
    """Cut a context where its passages or examples begin."""
    parts = re.split(rf"^(?={begins})", context, flags=re.MULTILINE) if begins else [context]
    return [part.strip("\n") for part in parts if part.strip()]


class QMSum(PublishedDataset):
    """Queries about meetings, answered by summaries (Zhong et al. 2021).

    A folder holds ``val.jsonl``, ``test.jsonl`` or ``train.jsonl``; the first that exists is read.
    Transcripts are cut between turns into documents of about 2,000 characters. Retrieval searches
    those of all meetings, as in RAGServe §7.1: a general query does not say which meeting it means.
    """

    name = "qmsum"
    title = "QMSum"
    metrics = ("rouge_l", "f1")
    scoring = (rouge_l, token_f1)
    max_tokens = 128
    system = (
        "You answer questions about meetings from the parts of their transcripts that you are "
        "given, in a few sentences."
    )
    named_by_folder = True

    @classmethod
    @override
    def questions_of(cls, content: Content, passages: Passages) -> Iterator[EvalQuestion]:
        for meeting, row in enumerate(content.rows):
            turns = [
                f"{text_of(turn, 'speaker')}: {text_of(turn, 'content', '')}"
                for turn in row["meeting_transcripts"]
            ]
            chunks = [
                (
                    passages.add("\n".join(turns[first:end]), name=f"meeting-{meeting}-{number}"),
                    range(first, end),
                )
                for number, (first, end) in enumerate(chunked(turns))
            ]
            queries = [*row["general_query_list"], *row["specific_query_list"]]
            for number, query in enumerate(queries):
                spans = [
                    (int(first), int(last)) for first, last in query.get("relevant_text_span") or ()
                ]
                gold = [
                    name
                    for name, turns_of in chunks
                    if any(
                        first < turns_of.stop and last >= turns_of.start for first, last in spans
                    )
                ]
                yield EvalQuestion(
                    f"qmsum-{meeting}-{number}",
                    text_of(query, "query"),
                    (text_of(query, "answer"),),
                    gold_documents=tuple(dict.fromkeys(gold)),
                    group=f"meeting-{meeting}",
                )
