"""Any server that speaks the OpenAI protocol, in place of the local engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

from pydantic import BaseModel, SecretStr, ValidationError

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.flows import Call, Flow, awhole_output, in_thread, whole_output
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import (
    FinishReason,
    Generation,
    GenerationChunk,
    SamplingOptions,
    Usage,
)
from ragcache_integrations.core.prompt import Prompt, PromptRenderer, join_calls
from ragcache_integrations.core.threads import map_in_threads
from ragcache_integrations.engine.serving import ServerFacts, tokenizer_mark
from ragcache_integrations.errors import (
    ConfigurationError,
    ServerError,
)

from .answers import AnswerParser, StreamParser
from .clients import Handshake, OpenAIClients
from .wire import Request, ServerCallOptions, build_request, require_unicode

__all__ = ["OpenAIServer", "TokenCounter"]

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT_WINDOW = 4096
BATCH_THREADS = 16
BYTES_PER_TOKEN = 4
FALLBACK_ENCODING = "o200k_base"


class OpenAIServer:
    """A model on an OpenAI-compatible server, such as ``vllm serve``.

    ::

        server = OpenAIServer("http://localhost:8000/v1", "my-model")
        print(server.generate(Prompt.rag("How far away is the moon?")).text)

    A conversation goes to ``/chat/completions``, raw text to ``/completions``. ``ragcache serve``
    gets documents as documents, so that their KV caches are kept by document, and raw text as
    tokens if the model's tokenizer is known and is the server's. Any other server gets text, and no
    steps of workflows, on which no answer depends. Which server it is, is asked once, before the
    first request with documents. A namespace is sent as vLLM's ``cache_salt``. Thread-safe, and
    usable from any number of event loops.

    Args:
        base_url: Address of the server, with its ``/v1``.
        model: The name under which it serves the model.
        api_key: The server's key, if it requires one; none is read from the environment.
        default_headers: HTTP headers for every request.
        max_model_len: Context window in tokens, for a server that does not report it.
        tokenizer: Path or hub name of the model's tokenizer; tiktoken counts where ``None``. Raw
            text with documents is sent to ``ragcache serve`` in its tokens.
        max_retries: How often a request is tried again after a failure that may pass.

    Attributes:
        base_url: As above.
        model: As above.

    Raises:
        MissingExtraError: The ``openai`` package is not installed.
    """

    has_chat_template = True
    supports_tools = True  # unless the server refuses them
    takes_headers = True
    takes_reuse = True

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        default_headers: Mapping[str, str] | None = None,
        max_model_len: int | None = None,
        tokenizer: str | None = None,
        max_retries: int = 2,
    ) -> None:
        if not base_url.startswith(("http://", "https://")) or not model:
            msg = f"base_url must be an http address and model a name, got {base_url!r}, {model!r}"
            raise ConfigurationError(msg)
        self.base_url = base_url
        self.model = model
        self._max_model_len = max_model_len
        self._clients = OpenAIClients(base_url, api_key, max_retries, default_headers)
        self._handshake = Handshake(self._clients, base_url)
        self._tokenizer = tokenizer
        self._lock = make_lock()
        self._loaded = tokenizer is None
        self._renderer: PromptRenderer | None = None
        self._tokens = TokenCounter(model, tokenizer)
        self._warned_of_usage = False

    @property
    def max_model_len(self) -> int:
        """The context window in tokens.

        The argument; else the value in the server's ``/models`` (vLLM's has one), which is read
        once; else 4096, with a logged warning.
        """
        if self._max_model_len is None:
            self._max_model_len = self._ask_context_window()
        return self._max_model_len

    def generate(
        self,
        prompt: Prompt,
        options: SamplingOptions | None = None,
        **call: Unpack[ServerCallOptions],
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: The prompt, with its documents.
            options: How to sample; the defaults of :class:`SamplingOptions` if ``None``.
            **call: See :class:`ServerCallOptions`.

        Raises:
            ServerUnreachableError: The server refused the connection, or broke it.
            ServerTimeoutError: The server did not answer in time.
            ServerResponseError: The server refused the request, or its answer makes no sense.
            PromptTooLongError: The prompt exceeds the context window.
            ConfigurationError: The prompt holds text that is no valid Unicode.
            EngineClosedError: This object was closed.
        """
        answer: Generation = whole_output(self._answered(prompt, options, call))
        return answer

    async def agenerate(
        self,
        prompt: Prompt,
        options: SamplingOptions | None = None,
        **call: Unpack[ServerCallOptions],
    ) -> Generation:
        """Async version of :meth:`generate`."""
        answer: Generation = await awhole_output(self._answered(prompt, options, call))
        return answer

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        options: SamplingOptions | None = None,
        **call: Unpack[ServerCallOptions],
    ) -> list[Generation]:
        """Answer several prompts at once, in their order; raises as :meth:`generate` does."""
        generate = partial(self.generate, options=options, **call)
        # In copies of the caller's context, by which tracing finds the request around this.
        return map_in_threads(generate, prompts, BATCH_THREADS)

    async def agenerate_batch(
        self,
        prompts: Sequence[Prompt],
        options: SamplingOptions | None = None,
        **call: Unpack[ServerCallOptions],
    ) -> list[Generation]:
        """Async version of :meth:`generate_batch`."""
        tasks = [
            asyncio.ensure_future(self.agenerate(prompt, options, **call)) for prompt in prompts
        ]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def stream(
        self,
        prompt: Prompt,
        options: SamplingOptions | None = None,
        **call: Unpack[ServerCallOptions],
    ) -> Generator[GenerationChunk]:
        """Answer a prompt chunk by chunk; closing the iterator aborts the request.

        Arguments and errors as for :meth:`generate`, the errors while iterating. The stream as a
        whole must end within the timeout.
        """
        parser = AnswerParser(options or SamplingOptions())
        request = whole_output(self._built(prompt, parser.options, call))
        return self._stream(request.streaming(), parser)

    async def astream(
        self,
        prompt: Prompt,
        options: SamplingOptions | None = None,
        **call: Unpack[ServerCallOptions],
    ) -> AsyncGenerator[GenerationChunk]:
        """Async version of :meth:`stream`."""
        parser = AnswerParser(options or SamplingOptions())
        request = await awhole_output(self._built(prompt, parser.options, call))
        return self._astream(request.streaming(), parser)

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text; see :class:`TokenCounter` for how exactly."""
        return self._tokens.count(text)

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens.

        Raises:
            ConfigurationError: No tokenizer is at hand.
        """
        return self._tokens.encode(text)

    def close(self) -> None:
        """Close all connections; further calls raise :class:`EngineClosedError`."""
        self._clients.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        await self._clients.aclose()

    def _answered(
        self, prompt: Prompt, options: SamplingOptions | None, call: ServerCallOptions
    ) -> Flow:
        parser = AnswerParser(options or SamplingOptions())
        request = yield from self._build(prompt, parser.options, call)
        with self._clients.errors_in_words(request.timeout):
            client = yield Call(self._clients.get, self._clients.aget)
            post = partial(client.post, **_posted(request))
            chunk = parser.read_whole((yield Call(post, post)))
        reason, usage = yield Call(
            partial(self._end, parser, request), partial(self._aend, parser, request)
        )
        yield Generation(
            chunk.text,
            (),
            reason,
            usage,
            chunk.logprobs,
            join_calls(chunk.tool_calls, reason),
            chunk.reasoning,
            chunk.reasoning_field,
            chunk.refusal,
            parser.native_finish_reason,
        )

    def _built(self, prompt: Prompt, options: SamplingOptions, call: ServerCallOptions) -> Flow:
        yield (yield from self._build(prompt, options, call))

    def _build(
        self, prompt: Prompt, options: SamplingOptions, call: ServerCallOptions
    ) -> Generator[Call, Any, Request]:
        """Translate a request for the server.

        Raises:
            ConfigurationError: The prompt holds text that is no valid Unicode, or the server is to
                reuse documents in a way that it does not know.
        """
        facts = None
        if prompt.documents or call.get("step"):  # else it does not depend on what the server is
            facts = yield from self._handshake.ask(call.get("timeout"))
        build = partial(self._request, prompt, options, facts, **call)
        if facts is None or self._tokenizer is None:
            return build()
        request: Request = yield in_thread(build)
        return request

    def _request(
        self,
        prompt: Prompt,
        options: SamplingOptions,
        facts: ServerFacts | None,
        *,
        namespace: str = "",
        timeout: float | None = None,
        headers: Mapping[str, SecretStr] | None = None,
        reuse: str | None = None,
        link_tokens: int | None = None,
        priority: int | None = None,
        step: str = "",
        next_steps: Mapping[str, int] | None = None,
    ) -> Request:
        chosen: dict[str, Any] = {"reuse": reuse, "link_tokens": link_tokens}
        fields = {name: value for name, value in chosen.items() if value is not None}
        if facts is None and fields and prompt.documents:
            msg = f"{' and '.join(fields)} are for `ragcache serve`, which does not answer there"
            raise ConfigurationError(msg)
        rendered = None
        if facts is not None and prompt.documents and prompt.parts:
            renderer = self._renderer_of(facts)
            rendered = None if renderer is None else renderer.render(prompt, namespace)
        request = build_request(
            self.model,
            prompt,
            options,
            namespace,
            documents=facts is not None,
            rendered=rendered,
        )
        if facts is None:
            fields = {}
        elif step:
            fields |= {"step": step, "next_steps": dict(next_steps or {})}
        if priority is not None:
            fields["priority"] = priority  # vLLM's own field
        if fields:
            request = replace(request, body={**request.body, **fields})
        return replace(request.with_headers(headers), timeout=timeout)

    def _renderer_of(self, facts: ServerFacts) -> PromptRenderer | None:
        with self._lock:
            if not self._loaded:
                self._loaded = True
                self._renderer = self._load(facts)
            return self._renderer

    def _load(self, facts: ServerFacts) -> PromptRenderer | None:
        try:
            renderer = PromptRenderer(_own_tokenizer(self._tokenizer))
        except (ImportError, OSError, ValueError):
            return None  # counting tokens will tell
        if tokenizer_mark(renderer.tokenize) == facts.tokenizer:
            return renderer
        logger.warning(
            "the tokenizer %r is not the server's: its tokens are not sent", self._tokenizer
        )
        return None

    def _stream(self, request: Request, parser: AnswerParser) -> Generator[GenerationChunk]:
        reader = StreamParser(parser, request.timeout)
        with self._clients.errors_in_words(request.timeout):
            kind, _ = self._clients.stream_types
            posted = {**_posted(request), "stream": True, "stream_cls": kind}
            with self._clients.get().post(**posted) as events:
                for data in events.response.iter_bytes():
                    yield from reader.feed(data)
                    if reader.done:
                        break
                yield from reader.finish()
        yield _last_chunk(parser, *self._end(parser, request))

    async def _astream(
        self, request: Request, parser: AnswerParser
    ) -> AsyncGenerator[GenerationChunk]:
        reader = StreamParser(parser, request.timeout)
        with self._clients.errors_in_words(request.timeout):
            _, kind = self._clients.stream_types
            client = await self._clients.aget()
            posted = {**_posted(request), "stream": True, "stream_cls": kind}
            async with await client.post(**posted) as events:
                async for data in events.response.aiter_bytes():
                    for chunk in reader.feed(data):
                        yield chunk
                    if reader.done:
                        break
                for chunk in reader.finish():
                    yield chunk
        yield _last_chunk(parser, *await self._aend(parser, request))

    def _end(self, parser: AnswerParser, request: Request) -> tuple[FinishReason, Usage]:
        usage = parser.usage or self._counted_usage(parser, request)
        return parser.finish_reason or "unknown", usage

    async def _aend(self, parser: AnswerParser, request: Request) -> tuple[FinishReason, Usage]:
        if parser.usage is None:  # counting may load a tokenizer
            return await asyncio.to_thread(self._end, parser, request)
        return self._end(parser, request)

    def _counted_usage(self, parser: AnswerParser, request: Request) -> Usage:
        if not self._warned_of_usage:
            self._warned_of_usage = True
            logger.warning(
                "the server at %s reports no usage: tokens are counted here, the chat template's "
                "left out, and cached ones are unknown",
                self.base_url,
            )
        return Usage(
            prompt_tokens=self.count_tokens(request.prompt_text),
            completion_tokens=self.count_tokens(parser.written),
            cached_tokens=0,
            estimated=True,
            cached_known=False,
        )

    def _ask_context_window(self) -> int:
        try:
            with self._clients.errors_in_words():
                answer = self._clients.get().get("/models", cast_to=object)
                models = _Models.model_validate(answer).data
        except (ServerError, ValidationError) as error:
            logger.warning("%s", error)
            models = []
        for model in models:
            if model.id == self.model and model.max_model_len is not None:
                return model.max_model_len
        logger.warning(
            "the server at %s does not report the context window of %r: %d tokens are assumed; "
            "set it with max_model_len=",
            self.base_url,
            self.model,
            DEFAULT_CONTEXT_WINDOW,
        )
        return DEFAULT_CONTEXT_WINDOW


class _Model(BaseModel):
    id: str
    max_model_len: int | None = None


class _Models(BaseModel):
    data: list[_Model]


def _last_chunk(parser: AnswerParser, reason: FinishReason, usage: Usage) -> GenerationChunk:
    """The end of a stream."""
    return GenerationChunk(
        "",
        finish_reason=reason,
        usage=usage,
        reasoning_field=parser.reasoning_field,
        native_finish_reason=parser.native_finish_reason,
    )


def _posted(request: Request) -> dict[str, Any]:
    """Arguments of the client's method ``post``."""
    timeout = {} if request.timeout is None else {"timeout": request.timeout}
    options = {"headers": request.headers, **timeout}
    return {"path": request.path, "cast_to": object, "body": request.body, "options": options}


def _own_tokenizer(name: str | None) -> Any:
    """Load a model's own tokenizer.

    Raises:
        ConfigurationError: It can't be loaded.
        MissingExtraError: ``transformers`` is not installed.
    """
    feature = "counting tokens with tokenizer="
    transformers = require("transformers", feature=feature, extra="tokenizer")
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no tokenizer can be loaded from {name!r}: {error}") from error


class TokenCounter:
    """Counts with the model's own tokenizer, else with tiktoken, else by length.

    tiktoken knows the encodings of OpenAI's models; for others its newest one is an approximation.
    It fetches an encoding when it is first used. If it can't, or is not installed, one token is
    assumed for four bytes of UTF-8. A warning is logged once if counts are not exact.

    Args:
        model: Name of the model, by which tiktoken picks the encoding.
        tokenizer: Path or hub name of the model's own tokenizer, if known.
    """

    def __init__(self, model: str, tokenizer: str | None = None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._lock = make_lock()
        self._loaded = False
        self._encode: Callable[[str], list[int]] | None = None

    def count(self, text: str) -> int:
        """Count the tokens of a text, without special tokens.

        Raises:
            ConfigurationError: The tokenizer asked for can't be loaded, or the text is no valid
                Unicode.
            MissingExtraError: A tokenizer was asked for and ``transformers`` is not installed.
        """
        encode = self._encoder()
        if encode is not None:
            return len(encode(require_unicode(text)))
        return -(-len(require_unicode(text).encode()) // BYTES_PER_TOKEN)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens.

        Raises:
            ConfigurationError: No tokenizer is at hand, the one asked for can't be loaded, or
                the text is no valid Unicode.
            MissingExtraError: A tokenizer was asked for and ``transformers`` is not installed.
        """
        encode = self._encoder()
        if encode is None:
            msg = f"no tokenizer is at hand for {self._model!r}: name its own with tokenizer="
            raise ConfigurationError(msg)
        return encode(require_unicode(text))

    def _encoder(self) -> Callable[[str], list[int]] | None:
        with self._lock:
            if not self._loaded:
                self._encode = (
                    self._tiktoken() if self._tokenizer is None else self._own(self._tokenizer)
                )
                self._loaded = True
            return self._encode

    def _own(self, name: str) -> Callable[[str], list[int]]:
        tokenizer = _own_tokenizer(name)

        def encode(text: str) -> list[int]:
            with self._lock:  # it keeps settings between calls, so one at a time
                return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))

        return encode

    def _tiktoken(self) -> Callable[[str], list[int]] | None:
        try:
            tiktoken = require("tiktoken", feature="counting tokens", extra="openai")
            try:
                encoding: Any = tiktoken.encoding_for_model(self._model)
            except KeyError:
                encoding = tiktoken.get_encoding(FALLBACK_ENCODING)
                logger.warning(
                    "tiktoken does not know %r: its tokens are counted as %s would, "
                    "approximately; name the model's own with tokenizer=",
                    self._model,
                    FALLBACK_ENCODING,
                )
        except (ImportError, OSError, ValueError) as error:
            logger.warning(
                "tiktoken can't give an encoding for %r (%s: %s): tokens are counted as a "
                "%dth of the text's bytes; name the model's own with tokenizer=",
                self._model,
                type(error).__name__,
                error,
                BYTES_PER_TOKEN,
            )
            return None
        return lambda text: list(encoding.encode(text, disallowed_special=()))
