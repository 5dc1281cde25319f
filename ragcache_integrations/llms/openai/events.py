"""Server-sent events, as servers of the OpenAI protocol really send them.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import codecs
import math
import time
from collections.abc import Iterator
from io import IncrementalNewlineDecoder, StringIO

from ragcache_integrations.core.generation import GenerationChunk

from .answers import AnswerError, AnswerParser

__all__ = ["EventReader", "StreamParser"]

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
            msg = "its answer broke off before its end"
            raise AnswerError(msg)
        self._parser.check_answered()

    def _read(self, events: Iterator[tuple[str, str]]) -> Iterator[GenerationChunk]:
        for name, data in events:
            chunk = self._parser.read_event(name, data)
            if chunk != _NOTHING:
                yield chunk
