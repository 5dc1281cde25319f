"""The record of each question: raw facts from which all figures are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

__all__ = ["Number", "Pending", "Record", "Share", "Whole", "reason"]

_LONGEST_REASON = 500  # characters, as it may repeat what a file holds

# Limits keep sums, means and milliseconds finite, whatever a file holds.
Whole = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
# Over 30 years.
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A question and its answer. All times are in seconds.

    Attributes:
        number: Its position in the stream, from 0.
        question: Id of the question in the data set.
        text: Its wording.
        session: 1 for the first process of the run, 2 for the first that resumed it, and so on.
        sequence: Its position in the order in which documents arrived, from 0.
        documents: Ids of the documents that were retrieved, best first.
        hit: Whether the query cache answered; ``None`` if there is none.
        shared: Whether a concurrent search for the same question answered.
        distance: On a hit, the distance to the question whose entry answered.
        recall_bound: On a hit, the recall that is proven, 0 to 1; ``None`` if none is.
        configuration: The method, the number of chunks and the words of summaries, if they were
            chosen for this question, such as ``map_reduce 3 50``; else empty.
        answer: The model's answer.
        likeliest: Log-probabilities of the likeliest first tokens, for questions with options.
        error: The error of this question; empty if there was none.
        prompt_tokens: Length of all prompts; ``None`` if the model does not report it.
        cached_tokens: Prompt tokens whose KV cache was reused.
        output_tokens: Length of all answers.
        embedding_seconds: Time to embed it; ``None`` if unknown.
        retrieval_seconds: Time in the retriever, including the embedding.
        model_ttft_seconds: From the call of the model to the first token.
        ttft_seconds: From the question's arrival to the first token.
        end_to_end_seconds: From the question's arrival to the last token.
        tpot_seconds: Time per output token after the first; ``None`` for fewer than two tokens, and
            for an answer of several calls.
        prompt: Digest of all on which the answer depends apart from the model, if equal prompts are
            answered once; else empty.
        reused: Whether the answer is that of an equal prompt before, as ``answer_once`` has it. It
            has neither tokens nor times of an answer.
        disturbed: Whether its times do not count, since it was interrupted with the run, or waited
            for a checkpoint to be written.
    """

    number: Whole
    question: str
    text: str
    session: Annotated[int, Field(ge=1)]
    sequence: Whole
    documents: tuple[str, ...] = ()
    hit: bool | None = None
    shared: bool = False
    distance: FiniteFloat | None = None
    recall_bound: Annotated[float, Field(ge=0, le=1)] | None = None
    configuration: str = ""
    answer: str = ""
    likeliest: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    prompt_tokens: Whole | None = None
    cached_tokens: Whole | None = None
    output_tokens: Whole | None = None
    embedding_seconds: Seconds | None = None
    retrieval_seconds: Seconds = 0.0
    model_ttft_seconds: Seconds | None = None
    ttft_seconds: Seconds | None = None
    end_to_end_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None
    prompt: str = ""
    reused: bool = False
    disturbed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    @staticmethod
    def from_json(line: bytes) -> Record:
        """Read a line of JSON from :meth:`as_dict`; fields of later versions are ignored.

        Raises:
            ValueError: It is no record, or a field has another type or is out of its range.
        """
        return _records().validate_json(line, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A question whose documents have arrived and whose answer has not.

    The query cache has an entry for it already: if it were asked again, that would be a hit.

    Attributes:
        number: Its position in the stream, from 0.
        sequence: Its position in the order in which documents arrived, from 0.
        documents: Ids and texts of the documents, best first.
        noted: Facts of the query cache, by the record's names.
        retrieval_seconds: Time in the retriever, including the embedding.
    """

    number: Whole
    sequence: Whole
    documents: tuple[tuple[str, str], ...]
    noted: Mapping[str, Any]
    retrieval_seconds: Seconds

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


@cache
def _records() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def reason(error: Exception) -> str:
    """Return in one short line why something cannot be read."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = f"{where}: {first['msg']}" if where else first["msg"]
    else:
        text = repr(error)
    return text[:_LONGEST_REASON]
