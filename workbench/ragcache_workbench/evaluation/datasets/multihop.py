"""HotpotQA, 2WikiMultihopQA and MuSiQue: questions that need several documents each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from ragcache_integrations.core.files import Row, read_json_lines, reading, text_of

from .answers import score_text
from .base import Answer, EvalQuestion, Scored
from .metrics import exact_match, token_f1_or_empty, token_f1_or_yes_no
from .passages import Passages
from .published import Content, Hub, Published, PublishedDataset
from .sources import some_texts

__all__ = ["HotpotQA", "MuSiQue", "TwoWikiMultihopQA"]

ALIASES = "id_aliases.json"


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
    published = Published(
        home="https://hotpotqa.github.io/ (CC BY-SA 4.0)",
        files=(
            "hotpot_dev_distractor_v1.json",
            "hotpot_dev_fullwiki_v1.json",
            "hotpot_train_v1.1.json",
        ),
        entry="_id, question, answer, supporting_facts, and context: titles with sentences",
        hub=Hub("hotpotqa/hotpot_qa", configurations=("distractor",)),
    )

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

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_text(question, answer, exact_match=exact_match, f1=token_f1_or_yes_no)


class TwoWikiMultihopQA(HotpotQA):
    """Questions on two to four paragraphs of Wikipedia (Ho et al. 2020), as HotpotQA's.

    With the authors' ``id_aliases.json`` next to the file, other names of an answer count, as in
    their evaluate_v1.1.
    """

    name = "2wikimultihopqa"
    title = "2WikiMultihopQA"
    published = Published(
        home="https://github.com/Alab-NII/2wikimultihop",
        files=("dev.json", "train.json"),
        entry="_id, question, answer, supporting_facts, and context: titles with sentences",
    )

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
    published = Published(
        home="https://github.com/StonyBrookNLP/musique (CC BY 4.0)",
        files=(
            "musique_ans_v1.0_dev.jsonl",
            "musique_full_v1.0_dev.jsonl",
            "musique_ans_v1.0_train.jsonl",
        ),
        entry="id, question, answer, answer_aliases, and paragraphs with title and paragraph_text",
        hub=Hub("dgslibisey/MuSiQue"),
    )

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

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_text(question, answer, exact_match=exact_match, f1=token_f1_or_empty)
