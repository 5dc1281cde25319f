"""LangChain's messages, documents, metadata and errors in this package's terms and back.

Structured output is made of whole answers alone, parsed as they come.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from langchain_core import exceptions as core
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import (
    ToolCallChunk,
    invalid_tool_call,
    tool_call,
    tool_call_chunk,
)
from langchain_core.output_parsers import (
    BaseCumulativeTransformOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
)
from langchain_core.outputs import ChatGeneration
from langchain_core.outputs import Generation as LangChainGeneration
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.json import parse_partial_json
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel
from typing_extensions import override

from ragcache_integrations import errors
from ragcache_integrations.core.generation import Generation, GenerationChunk, TokenLogprob, Usage
from ragcache_integrations.core.prompt import (
    Message,
    Prompt,
    PromptDocument,
    ToolCall,
    ToolCallPiece,
    choice_name,
    join_calls,
    join_pieces,
)
from ragcache_integrations.errors import ConfigurationError, RAGCacheError, ServerResponseError
from ragcache_integrations.llms.openai import REASONING, REFUSAL, noted_reasoning, usage_fields
from ragcache_integrations.llms.structured import (
    RESPONSE_FORMAT,
    call_arguments,
    format_arguments,
    json_so_far,
    whole_json,
)
from ragcache_integrations.prompts.langchain import block_document

__all__ = [
    "StreamedCalls",
    "WholeAnswerParser",
    "called_tools",
    "chat_prompt",
    "end_metadata",
    "generation_info",
    "langchain_errors",
    "logprobs_metadata",
    "own_call",
    "parsed_with_raw",
    "schema_arguments",
    "tool_definition",
    "usage_metadata",
]


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


_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
)

# Roles that no chat template knows, in words that they do.
_ALIASES = {"developer": "system"}

REASONING_FIELD = "reasoning_field"
"""In a message's ``response_metadata``, the server's name for reasoning if it is another."""

_REASONING_BLOCKS = frozenset({"reasoning", "thinking", "redacted_thinking"})

_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "invalid_tool_call", "function_call"})

# LangChain hands these to every model; they say nothing about the answer.
_FRAMEWORK_ARGUMENTS = ("stream", "ls_structured_output_format")


def own_call(call: dict[str, Any]) -> dict[str, Any]:
    """Keep what is ours of a call's arguments, with its documents and tools translated."""
    own = {name: value for name, value in call.items() if name not in _FRAMEWORK_ARGUMENTS}
    if isinstance(own.get(RESPONSE_FORMAT), type):
        own |= schema_arguments(own.pop(RESPONSE_FORMAT), own.get("strict"))
    if isinstance(own.get("documents"), list | tuple):
        own["documents"] = [_document(document) for document in own["documents"]]
    if isinstance(own.get("tools"), list | tuple):
        own["tools"] = [tool_definition(tool) for tool in own["tools"]]
    if "tool_choice" in own:
        own["tool_choice"] = choice_name(own["tool_choice"])
    return own


def _document(document: object) -> object:
    if not isinstance(document, Document):
        return document
    text = document.page_content
    return PromptDocument(text, document.id or "") if text else ""


def chat_prompt(messages: Sequence[BaseMessage], model: str = "") -> Prompt:
    """A conversation.

    Args:
        messages: Its messages.
        model: The name of the model that answers: it gets back what it thought itself, but not
            what another one did, whose fields its server may refuse.

    Raises:
        ConfigurationError: It holds something else than text, or is empty.
    """
    answered = {m.tool_call_id for m in messages if isinstance(m, ToolMessage)}
    return Prompt(messages=tuple(_message(message, answered, model) for message in messages))


def _message(message: BaseMessage, answered: AbstractSet[str], model: str) -> Message:
    if isinstance(message, AIMessage):
        calls = [*_tool_calls(message, answered)]
        parts = _parts(message)
        refusal = message.additional_kwargs.get(REFUSAL)
        if isinstance(refusal, str) and not (calls or any(parts)):
            parts = [refusal]  # all that was said
        return Message(_role(message), parts, tool_calls=calls, **_reasoning(message, model))
    answers = message.tool_call_id if isinstance(message, ToolMessage) else ""
    return Message(_role(message), _parts(message), tool_call_id=answers)


def _reasoning(message: AIMessage, model: str) -> dict[str, str]:
    """What a model thought, as arguments of a message that is sent back to it."""
    metadata = message.response_metadata
    if model and metadata.get("model_name", model) != model:
        return {}
    return noted_reasoning(message.additional_kwargs, metadata.get(REASONING_FIELD))


def end_metadata(answer: Generation | GenerationChunk) -> dict[str, Any]:
    """How an answer ended, for a message's ``response_metadata``.

    A stream has it once: LangChain concatenates such texts when it adds chunks up.
    """
    metadata: dict[str, Any] = {"finish_reason": answer.finish_reason}
    if answer.native_finish_reason:
        metadata["native_finish_reason"] = answer.native_finish_reason
    if answer.reasoning_field not in {"", REASONING}:
        metadata[REASONING_FIELD] = answer.reasoning_field
    return metadata


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return _ALIASES.get(message.role, message.role)
    for kind, role in _ROLES:
        if isinstance(message, kind):
            return role
    raise ConfigurationError(f"messages of type {message.type!r} are not supported")


def _tool_calls(message: AIMessage, answered: AbstractSet[str]) -> Iterator[ToolCall]:
    """The calls of an answer.

    Agents leave out calls whose arguments can't be read. Models expect a result for every call, so
    that such a call is only shown to them if it has one.
    """
    for call in message.tool_calls:
        yield ToolCall(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
    for broken in message.invalid_tool_calls:
        if broken["id"] not in answered:
            continue
        yield ToolCall(broken["id"] or "", broken["name"] or "", broken["args"] or "")


def _parts(message: BaseMessage) -> list[str | PromptDocument]:
    content = message.content
    blocks = [content] if isinstance(content, str) else content
    return [_part(block) for block in blocks if not _is_beside(message, block)]


def _is_beside(message: BaseMessage, block: object) -> bool:
    """Whether a block of an answer is no part of its content.

    What a model thought before it answered is read elsewhere, if its server takes it back, and
    ``tool_calls`` has the calls of tools that some providers write into the content, too.
    """
    if not isinstance(message, AIMessage) or not isinstance(block, dict):
        return False
    return block.get("type") in _REASONING_BLOCKS | _CALL_BLOCKS


def _part(block: str | dict[str, Any]) -> str | PromptDocument:
    if isinstance(block, str):
        return block
    kind, text = block.get("type"), block.get("text")
    if not isinstance(text, str) or kind not in {"text", "text-plain"}:
        msg = f"content blocks must hold text, of type text or text-plain, got type {kind!r}"
        raise ConfigurationError(msg)
    return text if kind == "text" or not text else block_document(text, block)


def schema_arguments(schema: dict[str, Any] | type, strict: bool | None = None) -> dict[str, Any]:
    """What a schema of any kind says, as the arguments ``json_schema`` and ``strict`` of a call.

    Args:
        schema: A pydantic class, a ``TypedDict``, a JSON schema, an OpenAI function or a
            ``response_format``.
        strict: Whether a server must keep to it in its strict mode; ``None`` for what it says.

    Raises:
        ConfigurationError: The schema cannot be read.
    """
    said: dict[str, Any] = {"json_schema": schema}
    if isinstance(schema, dict):
        if "json_schema" in schema:
            said = format_arguments(schema)
        elif {"name", "schema"} <= schema.keys():
            said = {"json_schema": schema["schema"], "strict": schema.get("strict")}
        elif isinstance(schema.get("strict"), bool):
            said["strict"] = schema["strict"]
    strict = said.get("strict") if strict is None else strict
    return {"json_schema": _json_schema(said["json_schema"]), "strict": strict}


def _json_schema(schema: dict[str, Any] | type) -> dict[str, Any]:
    if isinstance(schema, dict) and "title" not in schema and "type" in schema:
        return schema  # a JSON schema; LangChain would insist on a title
    try:
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            return schema.model_json_schema()  # LangChain's form knows no recursion
        return convert_to_json_schema(schema)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"no JSON schema can be made from {schema!r}: {error}") from error


def tool_definition(tool: object, strict: bool | None = None) -> dict[str, Any]:
    """A tool of any kind that LangChain knows, in OpenAI's form.

    Args:
        tool: The tool.
        strict: Whether arguments must satisfy the schema; ``None`` for what the tool says.

    Raises:
        ConfigurationError: LangChain can make no definition of it.
    """
    try:
        definition: dict[str, Any] = convert_to_openai_tool(tool)  # type: ignore[arg-type]  # it checks by itself
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"no tool can be made from {tool!r:.200}: {error}") from error
    function = definition.get("function")
    if strict is None or not isinstance(function, dict):
        return definition
    if function.get("strict", strict) is not strict:
        msg = f"strict={strict}, but {function.get('name')!r} says strict={function['strict']}"
        raise ConfigurationError(msg)
    # LangChain's own strict form makes maps, whose keys are free, objects without properties.
    return {**definition, "function": {**function, "strict": strict}}


def called_tools(calls: Iterable[ToolCall]) -> dict[str, Any]:
    """The calls of an answer as arguments of an ``AIMessage``; some may not be readable."""
    good, broken = [], []
    for call in calls:
        try:
            good.append(tool_call(name=call.name, args=call_arguments(call), id=call.id))
        except errors.StructuredOutputError as error:
            broken.append(
                invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=str(error))
            )
    return {"tool_calls": good, "invalid_tool_calls": broken}


class StreamedCalls:
    """The tool calls of a stream, in pieces that LangChain adds up.

    LangChain mends calls whose JSON is not complete, so that an agent would execute one that was
    cut off, with the arguments that happened to be there. Such calls get an end that cannot be
    mended, which makes them invalid.
    """

    def __init__(self) -> None:
        self._pieces: list[ToolCallPiece] = []

    def add(self, chunk: GenerationChunk) -> list[ToolCallChunk]:
        """The new pieces in a chunk."""
        self._pieces += chunk.tool_calls
        ends = [] if chunk.finish_reason is None else self._ends(chunk.finish_reason)
        # LangChain adds up chunks, but not the pieces within one.
        new = join_pieces((*chunk.tool_calls, *ends))
        return [
            tool_call_chunk(
                name=piece.name or None,
                args=piece.arguments,
                id=piece.id or None,
                index=piece.index,
            )
            for piece in new
        ]

    def _ends(self, reason: str) -> list[ToolCallPiece]:
        return [
            ToolCallPiece(index, _unmendable_end(call.arguments))
            for index, call in enumerate(join_calls(self._pieces, reason))
            if not _is_complete(call)
        ]


def _is_complete(call: ToolCall) -> bool:
    try:
        call_arguments(call)
    except errors.StructuredOutputError:
        return False
    return True


def _unmendable_end(arguments: str) -> str:
    """An end with a bracket that closes nothing: LangChain mends no such JSON."""
    brackets = "]" * (arguments.count("[") + 1)
    # The arguments may break off within a string, or behind a backslash in one.
    ends = (quotes + brackets for quotes in ("", '"', '""'))
    return next((end for end in ends if parse_partial_json(arguments + end) is None), brackets)


def usage_metadata(usage: Usage) -> UsageMetadata | None:
    """An answer's usage as LangChain's type; ``None`` if the server did not report it."""
    if usage.estimated:
        return None
    metadata = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )
    if usage.cached_known:
        metadata["input_token_details"] = InputTokenDetails(cache_read=usage.cached_tokens)
    return metadata


def logprobs_metadata(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities in the form that LangChain's other providers have, OpenAI's."""
    content = [
        {
            "token": token.token,
            "logprob": token.logprob,
            "top_logprobs": [{"token": t.token, "logprob": t.logprob} for t in token.top],
        }
        for token in logprobs
    ]
    return {"logprobs": {"content": content}} if content else {}


def generation_info(answer: Generation | GenerationChunk) -> dict[str, Any]:
    """Metadata of an answer besides its text; the last chunk of a stream has those of its end."""
    info = logprobs_metadata(answer.logprobs)
    if answer.finish_reason is not None:
        info |= end_metadata(answer)
        info |= answer.reuse
        if answer.usage is not None and (usage := usage_fields(answer.usage)):
            info["usage"] = usage
    return info


# This package's errors as LangChain's: each raised one is both. Their names are those of this
# package's own, since tracebacks show them.

FIRST_SERVER_FAILURE = 500


class PromptTooLongError(errors.PromptTooLongError, core.ContextOverflowError):
    pass


class GenerationTimeoutError(errors.GenerationTimeoutError, core.ModelTimeoutError):
    pass


class ServerTimeoutError(errors.ServerTimeoutError, core.ModelTimeoutError):
    pass


class ServerUnreachableError(errors.ServerUnreachableError, core.ModelConnectionError):
    pass


class StructuredOutputError(errors.StructuredOutputError, core.OutputParserException):
    observation = None
    send_to_llm = False

    @property
    def llm_output(self) -> str:  # type: ignore[override]  # LangChain only reads it
        return self.text


class InvalidRequestError(ServerResponseError, core.ModelInvalidRequestError):
    pass


class UnauthenticatedError(ServerResponseError, core.ModelAuthenticationError):
    pass


class PermissionDeniedError(ServerResponseError, core.ModelPermissionDeniedError):
    pass


class ModelNotFoundError(ServerResponseError, core.ModelNotFoundError):
    pass


class RateLimitedError(ServerResponseError, core.ModelRateLimitError):
    pass


class ServerFailedError(ServerResponseError, core.ModelAPIError):
    pass


_BY_TYPE: dict[type[RAGCacheError], type[RAGCacheError]] = {
    errors.PromptTooLongError: PromptTooLongError,
    errors.GenerationTimeoutError: GenerationTimeoutError,
    errors.ServerTimeoutError: ServerTimeoutError,
    errors.ServerUnreachableError: ServerUnreachableError,
    errors.StructuredOutputError: StructuredOutputError,
}

_BY_STATUS: dict[int, type[RAGCacheError]] = {
    400: InvalidRequestError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: ModelNotFoundError,
    422: InvalidRequestError,
    429: RateLimitedError,
}


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Raise what LangChain has a name for under that name too, so that either can be caught."""
    try:
        yield
    except RAGCacheError as error:
        kind = _kind(error)
        if kind is None:
            raise
        both = kind.__new__(kind, *error.args)  # their constructors differ; the state is the same
        both.__dict__.update(vars(error))
        # As if it had been raised in the first place: one traceback, with the same cause.
        raise both.with_traceback(error.__traceback__) from error.__cause__


def _kind(error: RAGCacheError) -> type[RAGCacheError] | None:
    if isinstance(error, ServerResponseError):
        status = error.status_code or 0
        return _BY_STATUS.get(status, ServerFailedError if status >= FIRST_SERVER_FAILURE else None)
    return _BY_TYPE.get(type(error))
