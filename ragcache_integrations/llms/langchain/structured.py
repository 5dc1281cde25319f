"""Structured output for LangChain: whole answers alone, parsed as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from operator import itemgetter
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import (
    BaseCumulativeTransformOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
)
from langchain_core.outputs import ChatGeneration
from langchain_core.outputs import Generation as LangChainGeneration
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass
from typing_extensions import override

from ragcache_integrations.llms.structured import json_so_far, whole_json

from .errors import langchain_errors
from .translation import REFUSAL

__all__ = ["WholeAnswerParser", "parsed_with_raw"]

Piece = str | BaseMessage


def parsed_with_raw(
    model: Runnable[Any, Any], parser: WholeAnswerParser
) -> Runnable[Any, dict[str, Any]]:
    """Both the model's message and what the parser makes of it, or the parser's error."""
    parsed = RunnablePassthrough.assign(
        parsed=itemgetter("raw") | parser, parsing_error=lambda _: None
    )
    unparsed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([unparsed], exception_key="parsing_error")


class WholeAnswerParser(BaseCumulativeTransformOutputParser[Any]):
    """Takes whole answers alone: LangChain's own parsers would mend one that was cut off."""

    inner: JsonOutputParser
    max_tokens: int | None

    @classmethod
    def of(cls, schema: dict[str, Any] | type, max_tokens: int | None) -> WholeAnswerParser:
        """The parser for a schema: a pydantic class gives its objects, any other plain JSON."""
        typed = isinstance(schema, type) and is_basemodel_subclass(schema)
        inner = PydanticOutputParser(pydantic_object=schema) if typed else JsonOutputParser()
        return cls(inner=inner, max_tokens=max_tokens)

    @override
    def parse_result(self, result: list[LangChainGeneration], *, partial: bool = False) -> Any:
        answer = result[0]
        if partial:
            text = json_so_far(answer.text)
        else:
            with langchain_errors():
                text = whole_json(
                    answer.text, _finish_reason(answer), self.max_tokens, _refusal(answer)
                )
        return self.inner.parse_result([LangChainGeneration(text=text)], partial=partial)

    @override
    def parse(self, text: str) -> Any:
        return self.parse_result([LangChainGeneration(text=text)])

    # LangChain's own parsers end a stream with what they could make of its parts.

    @override
    def _transform(self, input: Iterator[Piece]) -> Iterator[Any]:
        pieces: list[Piece] = []
        parsed = None
        for parsed in super()._transform(_noted(input, pieces)):
            yield parsed
        whole = self.parse_result([_joined(pieces)])
        if whole != parsed:
            yield whole

    @override
    async def _atransform(self, input: AsyncIterator[Piece]) -> AsyncIterator[Any]:
        pieces: list[Piece] = []
        parsed = None
        async for parsed in super()._atransform(_anoted(input, pieces)):
            yield parsed
        whole = self.parse_result([_joined(pieces)])
        if whole != parsed:
            yield whole

    @property
    @override
    def OutputType(self) -> Any:
        return self.inner.OutputType


def _noted(pieces: Iterator[Piece], notes: list[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        notes.append(piece)
        yield piece


async def _anoted(pieces: AsyncIterator[Piece], notes: list[Piece]) -> AsyncIterator[Piece]:
    async for piece in pieces:
        notes.append(piece)
        yield piece


def _finish_reason(answer: LangChainGeneration) -> str | None:
    if not isinstance(answer, ChatGeneration):
        return None
    reason = answer.message.response_metadata.get("finish_reason")
    return None if reason is None else str(reason)


def _refusal(answer: LangChainGeneration) -> str:
    if not isinstance(answer, ChatGeneration):
        return ""
    return str(answer.message.additional_kwargs.get(REFUSAL) or "")


def _joined(pieces: list[Piece]) -> LangChainGeneration:
    """An answer of which all pieces have come."""
    text = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
    metadata: dict[str, Any] = {}
    refusal = ""
    for piece in pieces:
        if not isinstance(piece, str):
            metadata |= piece.response_metadata
            refusal += piece.additional_kwargs.get(REFUSAL) or ""
    extras = {REFUSAL: refusal}
    return ChatGeneration(
        message=AIMessage(text, response_metadata=metadata, additional_kwargs=extras)
    )
