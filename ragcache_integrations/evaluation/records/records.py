"""What is recorded of each question: raw facts, from which everything else is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

__all__ = ["Pending", "Record", "Whole", "reason"]

_LONGEST_REASON = 500  # characters, as it may repeat what a file holds

Whole = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One question and what became of it. All times are in seconds.

    Attributes:
        number: Its place in the stream.
        question: Id of the question that it is, or is a rephrasing of.
        text: How it was asked.
        session: 1 for the first process of the run, 2 for the one that went on after a break.
        sequence: Its place in the order in which documents arrived.
        documents: Ids of what was retrieved, best first.
        hit: Whether the query cache answered; ``None`` where there is none.
        shared: Whether the search of an equal question, asked at the same time, answered.
        distance: On a hit, to the question that it was answered from.
        recall_bound: On a hit, the recall that is proven; ``None`` where nothing is.
        configuration: How many documents were read by which method, where that was chosen for
            this question: ``map_reduce 3 50`` for three of them with summaries of 50 words.
        answer: What the model said.
        likeliest: Log-probabilities of the likeliest first tokens, where options were to choose.
        error: What went wrong with this question; empty where nothing did.
        prompt_tokens: Length of all prompts; ``None`` where the model does not tell.
        cached_tokens: Those of them whose KV cache was reused.
        output_tokens: Length of all answers.
        embedding_seconds: Time to embed it; ``None`` where that is not known.
        retrieval_seconds: Time in the retriever, embedding included.
        model_ttft_seconds: From the call of the model to the first token.
        ttft_seconds: From the question's arrival to the first token.
        end_to_end_seconds: From the question's arrival to the last token.
        tpot_seconds: Time per output token after the first; ``None`` for fewer than two tokens, and
            where several calls had a part in the answer.
        disturbed: Its times say nothing: it was under way when the run broke off, or waited for a
            checkpoint to be written.
    """

    number: Whole
    question: str
    text: str
    session: Annotated[int, Field(ge=1)]
    sequence: Whole
    documents: tuple[str, ...] = ()
    hit: bool | None = None
    shared: bool = False
    distance: float | None = None
    recall_bound: float | None = None
    configuration: str = ""
    answer: str = ""
    likeliest: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    prompt_tokens: Whole | None = None
    cached_tokens: Whole | None = None
    output_tokens: Whole | None = None
    embedding_seconds: float | None = None
    retrieval_seconds: float = 0.0
    model_ttft_seconds: float | None = None
    ttft_seconds: float | None = None
    end_to_end_seconds: float | None = None
    tpot_seconds: float | None = None
    disturbed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def from_json(line: bytes) -> Record:
        """Read :meth:`as_dict` as JSON; unknown fields of later versions are left out.

        Raises:
            ValueError: It is something else, or a field is of another type or out of its range.
        """
        return _records().validate_json(line, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A question whose documents have arrived and whose answer has not.

    The query cache knows of it already: asked again, it would be a hit that never was.

    Attributes:
        number: Its place in the stream.
        sequence: As in the record.
        documents: Ids and texts, best first.
        noted: What was noted of the retrieval, by the record's names.
        retrieval_seconds: As in the record.
    """

    number: Whole
    sequence: Whole
    documents: tuple[tuple[str, str], ...]
    noted: Mapping[str, Any]
    retrieval_seconds: Seconds

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@cache
def _records() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def reason(error: Exception) -> str:
    """Say in a line, and no longer than is of use, why something cannot be read."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
    else:
        text = repr(error)
    return text[:_LONGEST_REASON]
