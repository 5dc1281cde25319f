"""QMSum: summaries of what a meeting said about a topic, scored by ROUGE-L and F1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from typing_extensions import override

from ragcache_integrations.core.files import Row, read_json_lines, reading, text_of
from ragcache_integrations.errors import ConfigurationError

from .answers import score_text
from .base import BUNDLED, Answer, EvalDataset, EvalDocument, EvalQuestion, Scored
from .metrics import rouge_l, token_f1
from .sources import bundled_rows, find_file, find_folder, hub_name, hub_rows, passage_documents

__all__ = ["QMSum", "chunked"]

CHUNK_CHARACTERS = 2000
"""About 500 tokens."""


class QMSum(EvalDataset):
    """Queries about meetings, answered by summaries (Zhong et al. 2021).

    A folder holds ``val.jsonl``, ``test.jsonl`` or ``train.jsonl``; the first that exists is read.
    Transcripts are cut between turns into documents of about 2,000 characters. Retrieval searches
    those of all meetings, as in RAGServe §7.1: a general query does not say which meeting it means.
    """

    name = "qmsum"
    title = "QMSum"
    metrics = ("rouge_l", "f1")
    max_tokens = 128
    system = (
        "You answer questions about meetings from the parts of their transcripts that you are "
        "given, in a few sentences."
    )

    @classmethod
    @override
    def load(cls, data: str, documents: Path | None = None) -> Self:
        if data == BUNDLED:
            rows, source = bundled_rows("qmsum.jsonl.gz"), "the bundled sample"
        elif (name := hub_name(data, "")) is not None:
            if not name:
                msg = (
                    "the hub has no QMSum in its own format: name a copy with the fields "
                    "meeting_transcripts, general_query_list and specific_query_list as hub:NAME"
                )
                raise ConfigurationError(msg)
            rows, source = hub_rows(name, None, "validation"), f"the hub's {name}"
        else:
            folder = find_folder(data, "qmsum", "*.jsonl*")
            path = find_file(folder, "val.jsonl", "test.jsonl", "train.jsonl")
            rows, source = read_json_lines(path), f"{path.parent.name}/{path.name}"
        with reading(source):
            chunks, questions = _meetings(rows)
        return cls(questions, chunks if documents is None else passage_documents(documents), source)

    @override
    def score(self, question: EvalQuestion, answer: Answer) -> Scored:
        return score_text(question, answer, rouge_l=rouge_l, f1=token_f1)


def chunked(turns: Sequence[str], size: int = CHUNK_CHARACTERS) -> list[tuple[int, int]]:
    """Cut a transcript between turns.

    Args:
        turns: The turns of a meeting.
        size: A chunk ends with the turn that reaches this many characters.

    Returns:
        For each chunk the number of its first turn, and of the first turn after it.
    """
    ranges, start, length = [], 0, 0
    for number, turn in enumerate(turns, start=1):
        length += len(turn) + 1
        if length >= size or number == len(turns):
            ranges.append((start, number))
            start, length = number, 0
    return ranges


def _meetings(rows: Sequence[Row]) -> tuple[list[EvalDocument], list[EvalQuestion]]:
    documents, questions = [], []
    for meeting, row in enumerate(rows):
        turns = [
            f"{text_of(turn, 'speaker')}: {text_of(turn, 'content', '')}"
            for turn in row["meeting_transcripts"]
        ]
        ranges = chunked(turns)
        ids = [f"meeting-{meeting}-{number}" for number in range(len(ranges))]
        documents += [
            EvalDocument(name, "\n".join(turns[first:end]))
            for name, (first, end) in zip(ids, ranges, strict=True)
        ]
        queries = [*row["general_query_list"], *row["specific_query_list"]]
        for number, query in enumerate(queries):
            spans = [
                (int(first), int(last)) for first, last in query.get("relevant_text_span") or ()
            ]
            gold = [
                name
                for name, (first, end) in zip(ids, ranges, strict=True)
                if any(begin < end and last >= first for begin, last in spans)
            ]
            questions.append(
                EvalQuestion(
                    f"qmsum-{meeting}-{number}",
                    text_of(query, "query"),
                    (text_of(query, "answer"),),
                    gold_documents=tuple(gold),
                    group=f"meeting-{meeting}",
                )
            )
    return documents, questions
