"""Our part of the server's HTTP: one ASGI middleware around vLLM's application.

It refuses requests that vLLM should not see, adds the spans of documents, reports the server's
health, and keeps the log and the metrics. vLLM makes it from its dotted name (``--middleware``), as
the outermost middleware.

A request whose stored KV cache cannot be read back is repeated: vLLM ends it with an error that it
calls retryable, and answers 500. The damaged file is forgotten by then, so the repeated request is
computed and the client notices nothing.

The number of new tenants per minute is limited. Each cache salt has separate KV caches, so a client
that sends a new salt with every request would evict every other tenant's. Refused requests compute
nothing, and do not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ragcache_integrations.core.generation import Usage
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.engine.protocol import SLOW_DTYPE, Counters

from .lifecycle import Lifecycle, State
from .observing import Observer, RequestLog, Send, respond
from .reports import awaited_pin_refusal, metrics_text
from .requests import (
    CHAT_PATH,
    COMPLETION_PATH,
    DocumentReader,
    MarkupGuard,
    OwnFields,
    check_fields,
    check_spans,
    decoded,
    has_grammar,
    is_guarded,
    parse_json,
    pin_ticket,
    read_body,
    refuse_marks,
    with_strict_tools,
)
from .settings import SCHEDULER, TREE_SETTINGS, ServingSettings
from .wire import FACTS_PATH, PROTOCOL, Refused, RequestRefusedError, ServerFacts

__all__ = ["ServingMiddleware", "TenantLimit", "repeat_failed"]


ATTEMPTS = 3
"""Each may meet another damaged file; the files that were met are gone."""


def repeat_failed(engine: Any) -> None:
    """Make vLLM's ``AsyncLLM`` repeat a request that fails before its first output.

    Args:
        engine: The engine client, whose method ``generate`` is replaced.
    """
    generate = engine.generate

    async def repeating(
        prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any]:
        # Prompts of these kinds can be read once, or have a name of their own.
        once = isinstance(prompt, AsyncIterator) or hasattr(prompt, "request_id")
        for attempt in range(1 if once else ATTEMPTS):
            last = once or attempt == ATTEMPTS - 1
            name = f"{request_id}-again-{attempt}" if attempt else request_id
            begun = False
            async with aclosing(generate(prompt, sampling_params, name, **options)) as outputs:
                async for output in outputs:
                    if not begun and not last and _failed(output):
                        break
                    begun = True
                    yield output
                else:
                    return

    engine.generate = repeating


def _failed(output: Any) -> bool:
    return any(choice.finish_reason == "error" for choice in output.outputs)


KNOWN = 65_536
"""Number of tenants that are remembered, the most recent ones."""

MINUTE = 60.0


@dataclass(slots=True)
class _Pending:
    """A new salt of which no request has been served yet.

    Attributes:
        account: Account in whose minute it counts.
        since: When it was admitted, in seconds of the clock.
        requests: Number of unfinished requests with it.
    """

    account: bytes
    since: float
    requests: int = 0


class TenantLimit:
    """Counts the salts that were not seen lately, in a sliding window of a minute.

    Args:
        per_minute: How many are admitted for each account; 0 for no limit.
        known: How many salts are remembered.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, per_minute: int, *, known: int = KNOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._known: Memo[bytes, None] = Memo(known)
        self._pending: dict[bytes, _Pending] = {}
        self._entered: dict[bytes, deque[float]] = {}

    def admit(self, salt: str, account: bytes = b"") -> int | None:
        """Admit a request; every admitted request must be settled.

        Args:
            salt: The request's cache salt.
            account: The account in which a new salt counts, such as the digest of an API key.

        Returns:
            ``None`` if the request is admitted, else whole seconds after which it may be sent
            again.
        """
        key = _key(salt)
        if not self._per_minute or key in self._known:
            return None
        pending = self._pending.get(key)
        if pending is None:
            now = self._clock()
            entered = self._entered.setdefault(account, deque())
            while entered and now - entered[0] >= MINUTE:
                entered.popleft()
            if len(entered) >= self._per_minute:
                return max(1, math.ceil(MINUTE - (now - entered[0])))
            entered.append(now)
            pending = self._pending[key] = _Pending(account, now)
        pending.requests += 1
        return None

    def settle(self, salt: str, *, served: bool) -> None:
        """Settle an admitted request when it ends.

        Args:
            salt: The request's cache salt.
            served: Whether anything may have been computed for it. A new salt for which nothing was
                computed no longer counts.
        """
        if not self._per_minute:
            return
        key = _key(salt)
        pending = self._pending.get(key)
        if pending is not None:
            pending.requests -= 1
        if served:
            self._pending.pop(key, None)
        if served or key in self._known:
            self._known[key] = None  # the latest one now
        elif pending is not None and not pending.requests:
            del self._pending[key]
            entered = self._entered[pending.account]
            if pending.since in entered:  # not yet a minute ago
                entered.remove(pending.since)


def _key(salt: str) -> bytes:
    """A digest of a salt, which may be long and is a secret."""
    return hashlib.blake2b(salt.encode(), digest_size=16).digest()


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/ping", "/version", "/load"})
"""Paths that require no key."""

GENERATING = frozenset({CHAT_PATH, COMPLETION_PATH})

CHATS = frozenset({CHAT_PATH, "/v1/messages"})
"""Paths at which vLLM fails with an internal error if it has no tokenizer; others report it."""

SCALING = frozenset({"/scale_elastic_ep", "/is_scaling_elastic_ep"})
"""Paths that vLLM always has, and at which it fails if there is only one engine."""

CLIENT_ERRORS = range(400, 500)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_LOGGED_PATH_CHARACTERS = 200
_CODING = b"content-encoding"
_RETRY_SECONDS = b"1"


@dataclass(slots=True)
class _Request:
    """A request, and what is read of it.

    Attributes:
        scope: As the server passes it.
        path: Its path, without the server's root path.
        name: Its id.
        raw: The body for vLLM.
        counted: Whether it requests an answer of the model, and is counted.
        body: The client's body, parsed; ``None`` if it is no JSON.
        documents: Number of its documents that have spans.
        hide_usage: Whether a stream's usage was requested here, not by the client.
        grammar: Whether the request has a grammar.
        salt: Its cache salt, which was counted; empty if it has none.
        ticket: Under which the scheduler reports that it can't pin its documents; empty for none.
    """

    scope: Scope
    path: str
    name: str
    raw: bytes = b""
    counted: bool = False
    body: Any = None
    documents: int = 0
    hide_usage: bool = False
    grammar: bool = False
    salt: str = ""
    ticket: str = ""

    @property
    def logged(self) -> dict[str, Any]:
        """What every line of the log says of it."""
        path = self.path[:_LOGGED_PATH_CHARACTERS]
        return {"request_id": self.name, "method": self.scope["method"], "path": path}


class ServingMiddleware:
    """The middleware of ``ragcache serve``; the module says what it does.

    Args:
        app: vLLM's application.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._settings = ServingSettings.from_environment()
        self._log = RequestLog()
        self._lifecycle = Lifecycle(self._settings, self._log)
        self._tenants = TenantLimit(self._settings.new_tenants_per_minute)
        self._counters = Counters()
        self._refused: Refused = Counter()
        self._documents: DocumentReader | None = None
        self._guard: MarkupGuard | None = None
        self._fields = OwnFields(None)
        self._facts = b""
        self._closed: frozenset[str] = frozenset()
        self._keys: list[bytes] = []
        self._tokenizes = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_when_warm(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._start(scope["app"])
            await send(message)

        try:
            await self._app(scope, receive, send_when_warm)
        finally:
            self._lifecycle.stop()

    async def _start(self, app: Any) -> None:
        from ragcache_integrations.engine.serving import _vllm  # noqa: PLC0415 - loaded by now

        state = app.state
        _vllm.bound_connections(app, self._settings, self._refused)

        async def template(body: dict[str, Any]) -> str | None:
            return await _vllm.chat_text(state, body)

        try:
            self._documents = await asyncio.to_thread(
                DocumentReader,
                _vllm.tokenizer_of(state),
                template,
                _vllm.chat_template(state),
                rendered=await _vllm.guard_rendering(state),
            )
        except Exception as error:  # noqa: BLE001 - vLLM has tokenizers of several kinds, or none
            message = f"documents get no spans, this tokenizer cannot be used for them: {error!r}"
            self._log.write("warning", message=message)
            if not state.args.skip_tokenizer_init:
                self._guard = MarkupGuard.of(_vllm.tokenizer_of(state))
        tree = state.args.scheduler_cls == SCHEDULER
        self._fields = OwnFields(state.args.additional_config[TREE_SETTINGS] if tree else None)
        facts = ServerFacts(
            ragcache=metadata.version("ragcache-integrations"),
            protocol=PROTOCOL,
            tokenizer=None if self._documents is None else self._documents.mark,
            knowledge_tree=tree,
            **_vllm.facts_of(state),
        )
        self._facts = facts.model_dump_json().encode()
        self._tokenizes = not state.args.skip_tokenizer_init
        self._closed = frozenset() if state.args.data_parallel_size > 1 else SCALING
        self._keys = [_digest(key.encode()) for key in _vllm.api_keys(state.args)]
        if (slow := _vllm.slow_on_cpu(state.vllm_config.model_config.dtype)) is not None:
            self._log.write("warning", message=SLOW_DTYPE % (slow, "--dtype float32"))
        repeat_failed(state.engine_client)
        await self._lifecycle.start(state, _vllm.warm_up)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        request = _Request(scope, path, _request_id(scope))
        try:
            own = self._own_answer(scope, path)
            if own is not None:
                await respond(send, *own)
            elif path == "/metrics":
                await self._metrics(scope, receive, send)
            else:
                await self._forward(request, receive, send)
        except RequestRefusedError as refusal:
            self._refused[refusal.status] += 1
            why = str(refusal)[:300] if self._settings.log_prompts else None
            self._log.write("request", **request.logged, status=refusal.status, refused=why)
            headers = [*refusal.headers, (b"x-request-id", request.name.encode())]
            await respond(send, refusal.status, refusal.body, headers)

    def _own_answer(self, scope: Scope, path: str) -> tuple[int, bytes] | None:
        """Status and body of an answer that needs no vLLM; ``None`` for other requests."""
        if scope["method"] not in {"GET", "HEAD"}:
            return None
        if path in {"/health", "/ready", "/ping"}:
            state = self._lifecycle.state
            return (200 if state is State.READY else 503), _json({"status": state.value})
        if path == f"/v1{FACTS_PATH}":
            self._check_key(scope)
            return 200, self._facts
        return None

    async def _forward(self, request: _Request, receive: Receive, send: Send) -> None:
        path = request.path
        if request.scope["method"] != "OPTIONS" and path not in OPEN_PATHS:
            self._check_key(request.scope)
        if path in self._closed:
            msg = f"there is one engine here, which cannot scale: {path} is for several engines"
            raise RequestRefusedError(404, msg)
        state = self._lifecycle.state
        if state is not State.READY:
            msg = f"the server is {state.value}: use another one"
            closing = [(b"retry-after", _RETRY_SECONDS), (b"connection", b"close")]
            raise RequestRefusedError(503, msg, closing)
        with self._lifecycle.serving():
            try:
                complete = await self._read(request, receive)
            except asyncio.CancelledError:  # its body may never arrive
                if self._lifecycle.state is State.READY:
                    raise
                msg = "the server has ended: use another one"
                raise RequestRefusedError(503, msg, [(b"connection", b"close")]) from None
            if complete:
                await self._pass_on(request, receive, send)

    async def _pass_on(self, request: _Request, receive: Receive, send: Send) -> None:
        scope = _with_headers(
            request.scope,
            {
                b"content-length": b"%d" % len(request.raw),
                b"x-request-id": request.name.encode(),
            },
            without=_CODING,
        )
        if request.counted:
            self._counters.add(requests=1)
        with awaited_pin_refusal(self._settings.folder, request.ticket) as late_refusal:
            observer = Observer(
                send,
                request.name,
                hide_usage=request.hide_usage,
                grammar=request.grammar,
                late_refusal=late_refusal if request.ticket else None,
            )
            try:
                await self._app(scope, _replaying(request.raw, receive), observer.send)
            except asyncio.CancelledError:
                if self._lifecycle.state is State.READY:
                    raise
                if observer.status is None:  # out of time while draining
                    msg = "the server has ended: use another one"
                    await respond(observer.send, 503, RequestRefusedError(503, msg).body)
            except Exception:
                observer.crashed()
                raise
            finally:
                if request.salt:  # vLLM computes nothing for a request that it refuses
                    served = observer.status not in CLIENT_ERRORS
                    self._tenants.settle(request.salt, served=served)
                self._record(request, observer, observer.usage(scope))

    async def _read(self, request: _Request, receive: Receive) -> bool:
        """Read and check a request; ``False`` if the client has disconnected."""
        scope, path, most = request.scope, request.path, self._settings.max_prompt_bytes
        raw = await read_body(receive, most, _header(scope, b"content-length"))
        if raw is None:
            return False
        codings = b",".join(value for key, value in scope["headers"] if key == _CODING)
        if codings and raw:
            raw = await asyncio.to_thread(decoded, raw, codings, most)
        request.raw = raw
        request.counted = path in GENERATING and scope["method"] == "POST"
        kind = (_header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        if raw and (kind == b"application/json" or kind.endswith(b"+json")):
            request.body = body = parse_json(raw)
            if isinstance(body, dict):
                request.grammar = has_grammar(body)
                prepared, request.documents = await self._prepare(path, body)
                request.salt = self._admit(body.get("cache_salt"), _request_key(scope))
                if prepared is not body:
                    request.raw = _json(prepared)
                    request.ticket = pin_ticket(prepared)
                    added = prepared.get("stream_options") is not body.get("stream_options")
                    request.hide_usage = added
        return True

    async def _prepare(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Check a request, and translate it for vLLM; the number of its documents with spans."""
        check_fields(body)
        if path in CHATS and not self._tokenizes:
            msg = "this server was started without a tokenizer: send tokens to /v1/completions"
            raise RequestRefusedError(400, msg)
        prepared, documents = body, 0
        if self._documents is not None:
            prepared, documents = await self._documents.read(path, body)
        else:
            documents = check_spans(path, body)
            if self._guard is not None and is_guarded(path, body):
                await asyncio.to_thread(self._guard.check, body)
        if path in GENERATING:
            prepared = self._fields.apply(prepared)
        else:
            refuse_marks(body)
        if path == CHAT_PATH:
            prepared = with_strict_tools(prepared)
        options = body.get("stream_options")
        if path in GENERATING and body.get("stream") is True:
            if options is None:
                options = {}
            if isinstance(options, dict) and not options.get("include_usage"):
                prepared = {**prepared, "stream_options": {**options, "include_usage": True}}
        return prepared, documents

    def _admit(self, salt: Any, key: bytes) -> str:
        """Count a request's salt, which is settled once the request has ended."""
        if not isinstance(salt, str) or not salt:
            return ""
        seconds = self._tenants.admit(salt, _digest(key) if self._keys else b"")
        if seconds is not None:
            most = self._settings.new_tenants_per_minute
            msg = f"too many new cache salts: this server accepts {most} a minute"
            raise RequestRefusedError(429, msg, [(b"retry-after", b"%d" % seconds)])
        return salt

    def _record(self, request: _Request, observer: Observer, usage: Usage | None) -> None:
        aborted = not observer.complete
        if request.counted:
            if observer.status != 200 or observer.failed:  # noqa: PLR2004 - HTTP's OK
                self._counters.add(failed_requests=1)
            elif usage is None or aborted:  # vLLM sends an empty answer if the client is gone
                aborted = True
                self._counters.add(aborted_requests=1)
            else:
                self._counters.finished(usage)
        self._log.write(
            "request",
            **request.logged,
            status=observer.status,
            ms=observer.elapsed_ms,
            first_byte_ms=observer.first_byte_ms,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            completion_tokens=None if usage is None else usage.completion_tokens,
            documents=request.documents or None,
            aborted=aborted or None,
            failed=observer.failed or None,
            body=request.body if self._settings.log_prompts else None,
        )

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Append our metrics to vLLM's."""
        collected: list[bytes] = []
        start: MutableMapping[str, Any] = {}

        async def collect(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif message["type"] == "http.response.body":
                collected.append(message.get("body", b""))

        # Only plain text can be continued, not a compressed body or OpenMetrics, which has an end.
        await self._app(
            _with_headers(scope, {b"accept-encoding": b"identity", b"accept": b"text/plain"}),
            receive,
            collect,
        )
        if not start:
            return  # the client is gone, and vLLM gave no answer
        if start["status"] == 200 and scope["method"] == "GET":  # noqa: PLR2004 - HTTP's OK
            counts, refused = self._counters.stats, self._refused.copy()
            collected.append(
                await asyncio.to_thread(metrics_text, counts, self._settings.folder, refused)
            )
        text = b"".join(collected)
        headers = [
            (name, value)
            for name, value in start.get("headers", ())
            if name.lower() != b"content-length"
        ]
        headers.append((b"content-length", b"%d" % len(text)))
        await send({"type": "http.response.start", "status": start["status"], "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def _check_key(self, scope: Scope) -> None:
        if not self._keys:
            return
        digest = _digest(_request_key(scope))
        matches = [hmac.compare_digest(digest, key) for key in self._keys]
        if not any(matches):
            msg = "this server requires a key, in the header Authorization: Bearer KEY"
            raise RequestRefusedError(401, msg, [(b"www-authenticate", b"Bearer")])


def _request_key(scope: Scope) -> bytes:
    """The key of a request; empty if it has none."""
    scheme, _, key = (_header(scope, b"authorization") or b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def _with_headers(scope: Scope, new: dict[bytes, bytes], without: bytes = b"") -> Scope:
    """The request with these headers replaced, and the same state, in which vLLM stores usage."""
    scope.setdefault("state", {})
    old = {*new, without}
    headers = [(name, value) for name, value in scope["headers"] if name not in old]
    return {**scope, "headers": [*headers, *new.items()]}


def _request_id(scope: Scope) -> str:
    client_id = (_header(scope, b"x-request-id") or b"").decode("latin-1")
    return client_id if _REQUEST_ID.fullmatch(client_id) else uuid.uuid4().hex


def _replaying(raw: bytes, receive: Receive) -> Receive:
    """The request's channel, which returns its body first."""
    pending: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": raw, "more_body": False}
    ]

    async def replay() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    return replay


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
