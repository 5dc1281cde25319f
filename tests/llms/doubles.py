"""What the tests of the LLM classes share: a scripted server, and a recording engine."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from transformers import AutoTokenizer

from ragcache_integrations.core.prompt import PromptRenderer
from ragcache_integrations.engine import (
    Generation,
    GenerationChunk,
    Prompt,
    RAGCacheEngine,
    Usage,
)
from ragcache_integrations.engine.tiny_model import default_model_path

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 8},
}


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    path: str
    headers: Message
    body: dict[str, Any]
    peer: tuple[str, int]


class Exchange(BaseHTTPRequestHandler):
    """One request and the means to answer it, well or badly."""

    protocol_version = "HTTP/1.1"
    server: StubServer

    def do_GET(self) -> None:
        if self.path.endswith("/ragcache"):
            self._introduce()
        else:
            self._handle({})

    def do_POST(self) -> None:
        self._handle(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _introduce(self) -> None:
        """Say what the server is; most know nothing of documents."""
        self.server.introductions.append(self.headers)
        introduce = self.server.introduce
        if introduce is None:
            self.send({"detail": "Not Found"}, 404)
        else:
            introduce(self)

    def _handle(self, body: dict[str, Any]) -> None:
        self.body = body
        self.server.seen.append(Seen(self.path, self.headers, body, self.client_address))
        self.server.asked.set()
        try:
            self.server.reply(self)
        except (BrokenPipeError, ConnectionResetError):
            self.server.disconnected.set()
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Print nothing."""

    @property
    def chat(self) -> bool:
        return self.path.endswith("/chat/completions")

    def send(self, content: bytes | str | object, status: int = 200, kind: str = "json") -> None:
        if not isinstance(content, bytes | str):
            content = json.dumps(content)
        data = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        self.send_header("Content-Type", {"json": "application/json"}.get(kind, f"text/{kind}"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def start_events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_event(self, data: str | object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def hang(self) -> None:
        self.server.released.wait(30)
        self.close_connection = True

    def break_off(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def choice(self, text: str, **more: Any) -> dict[str, Any]:
        """A choice in the form that was asked for."""
        if not self.chat:
            return {"index": 0, "text": text, **more}
        holder = "delta" if self.body.get("stream") else "message"
        return {"index": 0, holder: {"role": "assistant", "content": text}, **more}

    def logprobs(self, tokens: list[str]) -> Any:
        asked = self.body.get("logprobs")
        if asked is None or asked is False:
            return None
        if not self.chat:
            return {
                "tokens": tokens,
                "token_logprobs": [-0.5] * len(tokens),
                "top_logprobs": [{token: -0.5, "other": -1.5} for token in tokens],
            }
        top = [{"token": "other", "logprob": -1.5}]
        return {
            "content": [
                {
                    "token": token,
                    "logprob": -0.5,
                    "top_logprobs": [{"token": token, "logprob": -0.5}, *top],
                }
                for token in tokens
            ]
        }


def answer(exchange: Exchange, *words: str, usage: dict[str, Any] | None = USAGE) -> None:
    """Answer as the protocol wants it, whole or word by word."""
    if not exchange.body.get("stream"):
        choice = exchange.choice(
            "".join(words), finish_reason="stop", logprobs=exchange.logprobs(list(words))
        )
        exchange.send({"choices": [choice], **({"usage": usage} if usage else {})})
        return
    exchange.start_events()
    if exchange.chat:
        exchange.send_event({"choices": [exchange.choice("")]})
    for word in words:
        choice = exchange.choice(word, logprobs=exchange.logprobs([word]))
        exchange.send_event({"choices": [choice]})
    exchange.send_event({"choices": [exchange.choice("", finish_reason="stop")]})
    if usage and exchange.body.get("stream_options", {}).get("include_usage"):
        exchange.send_event({"choices": [], "usage": usage})
    exchange.send_event("[DONE]")


class StubServer(ThreadingHTTPServer):
    """Answers every request with :attr:`reply` and remembers it."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.reply: Callable[[Exchange], None] = lambda exchange: answer(
            exchange, "Cats ", "purr", "."
        )
        self.introduce: Callable[[Exchange], None] | None = None
        self.introductions: list[Message] = []
        self.seen: list[Seen] = []
        self.asked = threading.Event()
        self.released = threading.Event()
        self.disconnected = threading.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of these tests."""


class Recorder:
    """The real engine, remembering what it was asked."""

    def __init__(self, engine: RAGCacheEngine) -> None:
        self._engine = engine
        self.prompts: list[Prompt] = []
        self.calls: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompt: Prompt, **call: Any) -> Generation:
        self.prompts.append(prompt)
        self.calls.append(call)
        return self._engine.generate(prompt, **call)

    def generate_batch(self, prompts: list[Prompt], **call: Any) -> list[Generation]:
        self.prompts += prompts
        self.calls.append(call)
        return self._engine.generate_batch(prompts, **call)


class Tokenising:
    """Tokenises prompts as the engine does, remembers them, and answers a word without a model."""

    model = "tokenising"
    max_model_len = 32768
    has_chat_template = True
    supports_tools = False

    def __init__(self) -> None:
        self._renderer = PromptRenderer(AutoTokenizer.from_pretrained(default_model_path()))
        self._lock = threading.Lock()
        self.prompts: list[Prompt] = []

    def generate(self, prompt: Prompt, options: Any = None, **call: Any) -> Generation:
        with self._lock:
            self.prompts.append(prompt)
            tokens = len(self._renderer.render(prompt, call.get("namespace", "")).token_ids)
        return Generation("Yes.", (1,), "stop", Usage(tokens, 1, 0), ())

    async def agenerate(self, prompt: Prompt, options: Any = None, **call: Any) -> Generation:
        await asyncio.sleep(0)
        return self.generate(prompt, options, **call)

    def generate_batch(self, prompts: list[Prompt], *call: Any, **more: Any) -> list[Generation]:
        return [self.generate(prompt, *call, **more) for prompt in prompts]

    async def agenerate_batch(
        self, prompts: list[Prompt], *call: Any, **more: Any
    ) -> list[Generation]:
        return [await self.agenerate(prompt, *call, **more) for prompt in prompts]

    def stream(self, prompt: Prompt, *call: Any, **more: Any) -> Iterator[GenerationChunk]:
        answer = self.generate(prompt, *call, **more)
        yield GenerationChunk(answer.text, (1,), (), "stop", answer.usage)

    async def astream(
        self, prompt: Prompt, *call: Any, **more: Any
    ) -> AsyncIterator[GenerationChunk]:
        async def chunks() -> AsyncIterator[GenerationChunk]:
            for chunk in self.stream(prompt, *call, **more):
                yield chunk

        return chunks()

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def tokenize(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def close(self) -> None:
        """There is nothing to give back."""

    async def aclose(self) -> None:
        """There is nothing to give back."""
