"""What servers of the OpenAI protocol answer, in our words.

Servers and gateways differ in what they leave out, fill with nulls or add, so an answer is read
liberally: fields that are missing, unknown or of another type cost no more than what they would
have said. Nothing is made up for them: usage that makes no sense is unknown. What holds no answer
is an :class:`AnswerError` with the server's own message, never an attribute error somewhere later.

Source: https://platform.openai.com/docs/api-reference/chat and .../completions.
Streams are server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import codecs
import json
import math
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from io import IncrementalNewlineDecoder, StringIO
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from ragcache_integrations.core.generation import (
    FinishReason,
    GenerationChunk,
    SamplingOptions,
    TokenLogprob,
    Usage,
)
from ragcache_integrations.core.prompt import ToolCallPiece, new_call_id

__all__ = [
    "WORDS",
    "AnswerError",
    "AnswerParser",
    "EventReader",
    "StreamParser",
    "error_labels",
    "failure_message",
    "shortened",
]


MAX_EVENT_CHARACTERS = 4 * 2**20
MAX_STRAY_CHARACTERS = 16 * 2**20
DONE = "[DONE]"
_NOTHING = GenerationChunk("")
FIELDS = ("data", "event", "id", "retry", "")  # a comment is a field without a name


class EventReader:
    """Reads a stream piece by piece, without I/O.

    Beyond the protocol: an event that no blank line ends counts when the stream ends, and lines
    that belong to no event are kept, since a server may answer with a page or one JSON object
    instead of a stream.

    Attributes:
        done: Whether the server said that the stream is complete.
        stray: Lines that belong to no event.
    """

    def __init__(self) -> None:
        self.done = False
        self.stray: list[str] = []
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._decoder = IncrementalNewlineDecoder(decoder, translate=True)
        # An unfinished line, which is copied once: a server may send it byte by byte.
        self._rest = StringIO()
        self._name = ""
        self._data: list[str] = []
        self._kept = 0
        self._strayed = 0

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Yield the events, type and data, that are complete by now.

        Raises:
            AnswerError: An event is longer than 4 MiB, or what is no event than 16 MiB.
            UnicodeDecodeError: The bytes are no UTF-8.
        """
        yield from self._read(self._decoder.decode(data))

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yield the event that the end of the stream completes, if any; raises as :meth:`feed`."""
        yield from self._read(self._decoder.decode(b"", final=True) + "\n\n")

    def _read(self, text: str) -> Iterator[tuple[str, str]]:
        *lines, rest = text.split("\n")
        if lines:
            lines[0] = self._rest.getvalue() + lines[0]
            self._rest = StringIO()
        self._rest.write(rest)
        for line in lines:
            if self.done:
                return
            self._kept += len(line)
            self._check(self._kept)
            if line:
                self._take(line)
            elif self._data or self._name:
                yield from self._end()
        self._check(self._kept + self._rest.tell())

    def _take(self, line: str) -> None:
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if name not in FIELDS or not (colon or name):
            self._stray(line)
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        else:
            self._kept -= len(line)

    def _stray(self, line: str) -> None:
        self._kept -= len(line)
        self._strayed += len(line)
        if self._strayed > MAX_STRAY_CHARACTERS:
            msg = f"what it sent is no stream of events, and longer than {MAX_STRAY_CHARACTERS}"
            raise AnswerError(msg)
        self.stray.append(line)

    def _end(self) -> Iterator[tuple[str, str]]:
        name, data = self._name, "\n".join(self._data)
        self._name, self._data, self._kept = "", [], 0
        if data.strip().startswith(DONE):
            self.done = True
        else:
            yield name, data

    def _check(self, length: int) -> None:
        if length > MAX_EVENT_CHARACTERS:
            msg = f"an event of its stream is longer than {MAX_EVENT_CHARACTERS} characters"
            raise AnswerError(msg)


class StreamParser:
    """Reads an answer from the bytes of a stream, without I/O.

    Args:
        parser: Reads the events, and remembers how the answer ended.
        timeout: Seconds until the stream must have ended, ``None`` for no limit. Silence ends by
            the transport's own timeout; this ends a stream that keeps sending.
    """

    def __init__(self, parser: AnswerParser, timeout: float | None = None) -> None:
        self._parser = parser
        self._end = math.inf if timeout is None else time.monotonic() + timeout
        self._events = EventReader()

    @property
    def done(self) -> bool:
        """Whether the server said that the stream is complete."""
        return self._events.done

    def feed(self, data: bytes) -> Iterator[GenerationChunk]:
        """Yield what the bytes add to the answer.

        Raises:
            AnswerError: The bytes hold an error, or no part of an answer.
            TimeoutError: The timeout is over.
            UnicodeDecodeError: The bytes are no UTF-8.
        """
        if time.monotonic() > self._end:
            raise TimeoutError
        yield from self._read(self._events.feed(data))

    def finish(self) -> Iterator[GenerationChunk]:
        """Yield what the end of the stream adds; raises as :meth:`feed`, and where it broke off."""
        if not self.done:
            yield from self._read(self._events.finish())
        stray = "\n".join(self._events.stray)
        if stray and not self._parser.answered:
            yield self._parser.read_whole(stray)  # one JSON object, an error or a page
        elif self._parser.finish_reason is None and not self.done:
            raise AnswerError("its answer broke off before its end")
        self._parser.check_answered()

    def _read(self, events: Iterator[tuple[str, str]]) -> Iterator[GenerationChunk]:
        for name, data in events:
            chunk = self._parser.read_event(name, data)
            if chunk != _NOTHING:
                yield chunk


UNKNOWN_TOKEN_ID = -1
MAX_SHOWN_CHARACTERS = 500
MAX_TOKENS_TOLD = 2**53  # beyond it JSON numbers are not exact
ERROR_STATUS = 400
MAX_STATUS = 599

WORDS: dict[str, list[str]] = tomllib.loads(
    files(__package__).joinpath("words.toml").read_text("utf-8")
)
"""Words of servers for how an answer ended, and for why there is none; see the file."""


class AnswerError(ValueError):
    """A server's message is no answer.

    Attributes:
        status_code: The HTTP status in the message's body; ``None`` if it has none.
        labels: The error's code and type, where it has some.
    """

    def __init__(self, message: str, status_code: int | None = None, labels: str = "") -> None:
        super().__init__(message)
        self.status_code = status_code
        self.labels = labels


@dataclass(slots=True)
class AnswerParser:
    """Reads one answer, whole or in pieces, and remembers how it ended.

    Attributes:
        options: How the answer is generated; they limit the alternatives of a token.
        answered: Whether any part of the answer has arrived.
        finish_reason: Why the answer ended; ``None`` until the server reports it.
        native_finish_reason: The server's own word for that, where it says more than ours.
        reasoning_field: The field in which the server reports reasoning; empty until it does.
        usage: The answer's usage; ``None`` until the server reports it.
    """

    options: SamplingOptions
    answered: bool = False
    finish_reason: FinishReason | None = None
    native_finish_reason: str = ""
    reasoning_field: str = ""
    usage: Usage | None = None
    _other_texts: list[str] = field(default_factory=list)  # what was written besides the text
    _texts: list[str] = field(default_factory=list)
    _calls: list[tuple[object, str]] = field(default_factory=list)  # the server's indices and ids
    _pieces: list[ToolCallPiece] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The answer so far, without its tool calls."""
        return "".join(self._texts)

    @property
    def written(self) -> str:
        """What the model wrote so far, with names and arguments of the tools that it calls."""
        calls = "".join(piece.name + piece.arguments for piece in self._pieces)
        return "".join(self._other_texts) + self.text + calls

    def read(self, data: object) -> GenerationChunk:
        """Read what the server sent; how it ended and what it took are kept, not passed on.

        Args:
            data: A JSON value, or the text of one.

        Raises:
            AnswerError: It is no answer, or the message of a failure.
        """
        answer = _object(data)
        _raise_error(answer)
        choice = _first_choice(answer)
        if choice is not None:
            _raise_error(choice)
        elif not answer.get("usage"):
            _raise_message(answer)
        self.usage = _usage(answer, choice) or self.usage
        if choice is None:
            return GenerationChunk("")
        text = _new_text(choice)
        calls = self._new_calls(choice)
        self.answered = True
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._end(reason)
        message = _message(choice)
        reasoning, refusal = self._new_reasoning(message), _refusal(message)
        self._other_texts += [reasoning, refusal]
        self._texts.append(text)
        self._pieces += calls
        return GenerationChunk(
            text,
            logprobs=self._logprobs(choice.get("logprobs")),
            tool_calls=calls,
            reasoning=reasoning,
            reasoning_field=self.reasoning_field if reasoning else "",
            refusal=refusal,
        )

    def read_whole(self, data: object) -> GenerationChunk:
        """Read an answer that comes in one piece; arguments and errors as for :meth:`read`."""
        chunk = self.read(data)
        self.check_answered(data)
        return chunk

    def check_answered(self, data: object = "") -> None:
        """Check that some part of the answer has arrived.

        Args:
            data: The server's message, for the error.

        Raises:
            AnswerError: No part has arrived.
        """
        if not self.answered:
            _refuse("there is no answer in what it sent", data)

    def read_event(self, name: str, data: str) -> GenerationChunk:
        """Read an event of a stream; arguments beyond its data and errors as for :meth:`read`.

        Args:
            name: The event's type, empty where it has none.
            data: Its data, empty to keep the connection alive.
        """
        if not data.strip():
            return GenerationChunk("")
        if name == "error":
            raise AnswerError(shortened(failure_message(_parsed(data)) or data))
        return self.read(data)

    def _end(self, reason: str) -> None:
        self.finish_reason = _finish_reason(reason, calls=bool(self._calls))
        cut_off = self.finish_reason in {"content_filter", "abort"}
        self.native_finish_reason = reason if cut_off and reason != self.finish_reason else ""

    def _new_reasoning(self, message: Mapping[str, Any]) -> str:
        """What the model thought, from a field of its own or from parts of the content."""
        for name in WORDS["reasoning_fields"]:
            if text := _string(message.get(name)):
                self.reasoning_field = name
                return text
        return "".join(map(_part_thought, _parts(message)))

    def _new_calls(self, choice: Mapping[str, Any]) -> tuple[ToolCallPiece, ...]:
        message = _message(choice)
        calls, function = message.get("tool_calls"), message.get("function_call")
        if not calls and isinstance(function, Mapping) and (function.get("name") or self._calls):
            calls = [{"index": 0, "function": function}]  # the protocol before it had tools
        if calls is None:
            return ()
        if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
            _refuse("its tool calls make no sense", calls)
        return tuple(map(self._piece, calls))

    def _piece(self, call: Mapping[str, Any]) -> ToolCallPiece:
        """A call or a piece of one; servers that send whole calls give them no index."""
        function, id_ = _mapping(call.get("function")), _string(call.get("id"))
        arguments, name, index = function.get("arguments"), function.get("name"), call.get("index")
        written = arguments if isinstance(arguments, str | None) else _dumped(arguments)
        known = self._known_call(index, id_, begins=bool(name))
        if known is not None:
            return ToolCallPiece(known, written or "")
        if not isinstance(name, str) or not name:
            _refuse("its tool call names no tool", call)
        self._calls.append((index, id_))
        return ToolCallPiece(len(self._calls) - 1, written or "", id_ or new_call_id(), name)

    def _known_call(self, index: object, id_: str, *, begins: bool) -> int | None:
        """The call that a piece continues; ``None`` if it begins one.

        Some servers repeat name and id with every piece, and some give all calls the same index.
        """
        if index is None:
            return len(self._calls) - 1 if not begins and self._calls else None
        for at, (known_index, known_id) in reversed([*enumerate(self._calls)]):
            if known_index == index:
                return None if begins and id_ and known_id and id_ != known_id else at
        return None

    def _logprobs(self, data: object) -> tuple[TokenLogprob, ...]:
        if data is None or self.options.logprobs is None:
            return ()
        try:
            wire = _Logprobs.model_validate(data)
        except ValidationError:
            return ()  # the text is good without them
        count = self.options.logprobs
        if wire.content is not None:
            return tuple(
                _token(token.token, token.logprob, [(t.token, t.logprob) for t in top], count)
                for token in wire.content
                for top in [token.top_logprobs or []]
            )
        tops = wire.top_logprobs or [None] * len(wire.tokens)
        return tuple(
            _token(token, logprob, list((top or {}).items()), count)
            for token, logprob, top in zip(wire.tokens, wire.token_logprobs, tops, strict=False)
            if logprob is not None
        )


def failure_message(body: object) -> str | None:
    """The message of an error in any of the forms that servers use; ``None`` if there is none.

    The forms: ``{"error": {"message": ...}}`` (OpenAI), ``{"error": ...}``, ``{"object": "error",
    "message": ...}`` (vLLM), ``{"detail": ...}`` (FastAPI), ``{"message": ...}`` and plain text.
    """
    if isinstance(body, str):
        return body.strip() or None
    if not isinstance(body, Mapping):
        return None
    for name in ("error", "message", "detail", "msg"):
        value = body.get(name)
        if value:
            return failure_message(value) or _dumped(value)
    return None


def shortened(text: str) -> str:
    """A server's text on one line, bounded, since it may be a whole page."""
    line = " ".join(text[: 8 * MAX_SHOWN_CHARACTERS].split())
    cut = len(line) > MAX_SHOWN_CHARACTERS or len(text) > 8 * MAX_SHOWN_CHARACTERS
    return f"{line[:MAX_SHOWN_CHARACTERS]}..." if cut else line


def _dumped(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(type(value))


def _refuse(problem: str, sent: object) -> NoReturn:
    raise AnswerError(f"{problem}: {shortened(sent if isinstance(sent, str) else _dumped(sent))}")


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _parts(message: Mapping[str, Any]) -> list[Any]:
    """The parts of a message's content, if it comes in parts."""
    content = message.get("content")
    return content if isinstance(content, list) else []


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _object(data: object) -> Mapping[str, Any]:
    value = _parsed(data) if isinstance(data, str) else data
    if isinstance(value, Mapping):
        return value
    _refuse("its answer is no JSON object", value)


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The choice that answers; only one is ever requested."""
    choices = answer.get("choices")
    if choices is None or choices == []:
        return None
    if isinstance(choices, list) and isinstance(choices[0], Mapping):
        return choices[0]
    _refuse("its choices make no sense", choices)


def _raise_error(holder: Mapping[str, Any]) -> None:
    error = holder.get("error")
    if error:
        message = shortened(failure_message(error) or _dumped(error))
        raise AnswerError(message, _status(error), error_labels(error))


def _raise_message(answer: Mapping[str, Any]) -> None:
    """Raise what was sent where an answer should be, unless it is a sign of life in a stream."""
    message = failure_message(answer)
    if message is not None:
        raise AnswerError(shortened(message), _status(answer), error_labels(answer))


def error_labels(body: object) -> str:
    """The code and the type of an error, by which servers name its kind; empty for none."""
    if not isinstance(body, Mapping):
        return ""
    labels = [body.get(name) for name in ("code", "type", "error_type")]
    inner = error_labels(body.get("error"))
    return " ".join([*(label for label in labels if isinstance(label, str)), inner]).strip()


def _status(error: object) -> int | None:
    code = error.get("code") if isinstance(error, Mapping) else None
    known = isinstance(code, int) and ERROR_STATUS <= code <= MAX_STATUS
    return code if known else None


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message of a choice, or what a stream adds to it; empty for a text."""
    return _mapping(choice.get("message") or choice.get("delta"))


def _new_text(choice: Mapping[str, Any]) -> str:
    for name in ("message", "delta"):
        holder = choice.get(name)
        if isinstance(holder, Mapping):
            return _text(holder.get("content"))
        if holder is not None:
            _refuse(f"its {name} makes no sense", holder)
    if "text" not in choice and "finish_reason" not in choice:
        _refuse("its choice holds no answer", choice)
    return _text(choice.get("text"))


def _text(content: object) -> str:
    """The text of a content, which some servers send in parts; thoughts are no part of it."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_part_text, content))
    _refuse("its content is no text", content)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        if isinstance(part.get("text"), str):
            return str(part["text"])
        if _is_hidden(part) or part.get("type") == "refusal":
            return ""
    _refuse("its content holds something else than text", part)


def _is_hidden(part: Mapping[str, Any]) -> bool:
    return _string(part.get("type")) in WORDS["hidden_parts"]


def _refusal(message: Mapping[str, Any]) -> str:
    """Why the model does not answer, from a field of its own or from parts of the content."""
    holders = (message, *map(_mapping, _parts(message)))
    return "".join(_string(holder.get("refusal")) for holder in holders)


def _part_thought(part: object) -> str:
    """The text of a part that holds thoughts, itself or in parts, as Mistral has it."""
    part = _mapping(part)
    if not _is_hidden(part) or isinstance(part.get("text"), str):
        return ""
    thought = part.get("thinking", part.get("reasoning"))
    if isinstance(thought, list):
        return "".join(_string(_mapping(inner).get("text")) for inner in thought)
    return _string(thought)


def _usage(answer: Mapping[str, Any], choice: Mapping[str, Any] | None) -> Usage | None:
    """The usage in an answer, which some servers report in the choice or in an extension."""
    for holder in (answer, choice, answer.get("x_groq")):
        wire = _mapping(_mapping(holder).get("usage"))
        prompt = _first_count(wire.get("prompt_tokens"), wire.get("input_tokens"))
        completion = _first_count(wire.get("completion_tokens"), wire.get("output_tokens"))
        if prompt is not None and completion is not None:
            cached = _cached(wire)
            known = cached is not None and cached <= prompt
            return Usage(prompt, completion, (cached or 0) if known else 0, cached_known=known)
    return None


def _cached(wire: Mapping[str, Any]) -> int | None:
    details = [_mapping(wire.get(f"{name}_tokens_details")) for name in ("prompt", "input")]
    counts = (detail.get("cached_tokens") for detail in details)
    return _first_count(*counts, wire.get("cached_tokens"), wire.get("prompt_cache_hit_tokens"))


def _first_count(*values: object) -> int | None:
    return next((count for count in map(_count, values) if count is not None), None)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= MAX_TOKENS_TOLD and value == int(value) else None


def _finish_reason(reason: str, *, calls: bool) -> FinishReason:
    """How an answer ended, in our words; servers name natural ends freely.

    Args:
        reason: What the server says, in any case of letters.
        calls: Whether the answer calls tools.
    """
    word = reason.lower()
    if word in WORDS["cut_short"]:
        return "length"
    if word in WORDS["filtered"]:
        return "content_filter"
    if word in WORDS["aborted"]:
        return "abort"
    return "tool_calls" if calls else "stop"


class _Alternative(BaseModel):
    token: str
    logprob: float


class _ChatToken(_Alternative):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(BaseModel):
    """Both forms: chat's ``content``, and the parallel lists of completions."""

    content: list[_ChatToken] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


def _token(
    token: str, logprob: float, alternatives: Sequence[tuple[str, float]], count: int
) -> TokenLogprob:
    best = sorted(alternatives, key=lambda alternative: -alternative[1])[:count]
    top = tuple(TokenLogprob(text, UNKNOWN_TOKEN_ID, value) for text, value in best)
    return TokenLogprob(token, UNKNOWN_TOKEN_ID, logprob, top)
