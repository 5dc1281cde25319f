"""The bundled engine: unmodified vLLM in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Unpack, overload

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable
from ragcache_integrations.core.checks import check_seconds
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.flows import Call, Flow, awhole_output, whole_output
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.generation import Generation, SamplingOptions, Usage
from ragcache_integrations.core.knobs import takes_fields_of
from ragcache_integrations.core.prompt import (
    FOREVER,
    Prompt,
    PromptRenderer,
    RenderedPrompt,
    Rendering,
)
from ragcache_integrations.errors import ModelNotFoundError
from ragcache_integrations.knowledge_tree.snapshot import TreeSnapshot

from .arguments import EngineKnobs, check_installed, engine_settings, with_bundled_model
from .calls import Account, Calls, encoding, submission
from .process import Supervisor, acontrol, control
from .protocol import (
    SLOW_DTYPE,
    CacheSettings,
    EngineCallOptions,
    EngineLoad,
    EngineSettings,
    EngineStats,
    Submit,
)
from .streams import AsyncGenerationStream, GenerationStream

__all__ = ["PREFILL", "RAGCacheEngine", "engine_settings", "load_tokenizer"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")

PREFILL = SamplingOptions(max_tokens=1, tool_choice="none")


_ARGUMENTS = ("revision", "trust_remote_code")

# Of two threads that import transformers at once, one may see half of it.
_LOADING = make_lock()


def load_tokenizer(settings: EngineSettings) -> Any:
    """Load the tokenizer that vLLM will use with these settings.

    Raises:
        ModelNotFoundError: There is none.
    """
    name = settings.vllm_args.get("tokenizer") or settings.model
    arguments = {key: settings.vllm_args[key] for key in _ARGUMENTS if key in settings.vllm_args}
    try:
        with _LOADING:
            transformers = require("transformers", feature="The local engine", extra="vllm")
            return transformers.AutoTokenizer.from_pretrained(name, **arguments)
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotFoundError(f"no tokenizer for the model {name!r}: {error}") from error


_OFF = {
    "tree_is_off": "the knowledge tree is off, documents are cached as vLLM does: %s",
    "reuse_is_off": "documents are not reused anywhere but computed exactly: %s",
    "disk_is_off": "documents are not kept on disk: %s",
}
"""Warnings about what was requested and is not possible, by the field that says why."""


if TYPE_CHECKING:

    def _takes_model_first(
        kind: Callable[P, EngineKnobs],
    ) -> Callable[[object], Callable[Concatenate[Any, str | Path | None, P], None]]: ...
else:
    _takes_model_first = takes_fields_of


class RAGCacheEngine(Rendering, Closeable, AsyncCloseable):
    """A local vLLM engine whose prompts know their documents.

    ::

        with RAGCacheEngine(kv_cache_gib=4) as engine:
            prompt = Prompt.rag("How far away is the moon?", ["The moon is 384,400 km away."])
            print(engine.generate(prompt).text)

    The constructor starts a process that hosts unmodified vLLM with prefix caching on, and returns
    when the model is loaded and warm. One engine serves any number of threads, event loops and
    wrappers. It ends with :meth:`close`, with its ``with`` block, when it is garbage-collected,
    with the interpreter, and when the application is killed.

    When the process dies or hangs, another one replaces it, and requests wait for it. Requests that
    had produced no output restart; the others resume after the last emitted token. Streams neither
    repeat nor lose anything. A greedy answer is the same as in an undisturbed run. At a temperature
    above 0, the rest is sampled again. With a seed, a frequency or presence penalty,
    ``json_schema`` or ``choice``, the answer is computed again from its start, compared with what
    was emitted, and continued from there. If it comes out differently, a seeded answer continues
    with other random numbers, and one bound to a grammar or to such penalties ends with
    :class:`EngineDeadError`.

    Its arguments are the fields of :class:`~ragcache_integrations.engine.arguments.EngineKnobs`;
    only ``model`` may be given without its name.

    Attributes:
        model: Path or name of the model.
        max_model_len: Context window in tokens, prompt and answer together.
        total_kv_tokens: Capacity of the KV cache in tokens, as of the first start.
        block_size: Tokens per block of the KV cache; only whole blocks are reused.
        reuse: ``prefix`` or ``anywhere``, as it was made with.
        link_tokens: As it was made with.
        exact_documents: As it was made with.
        reuse_is_off: Why documents are computed exactly although the engine was made with
            ``reuse="anywhere"``; ``None`` if nothing is wrong.
        disk_is_off: Why documents are not kept on disk although ``disk_cache_gib`` is above 0;
            ``None`` if nothing is wrong.

    Raises:
        ConfigurationError: An argument is out of its range or unknown.
        MissingExtraError: vLLM is not installed.
        ModelNotFoundError: There is no such model, or vLLM cannot load it.
        EngineOutOfMemoryError: Model and KV cache do not fit the memory.
        EngineStartError: The engine did not start for another reason, or not in time.
    """

    takes_reuse = True

    @overload
    @takes_fields_of(EngineKnobs)
    def __init__(self, knobs: EngineKnobs) -> None: ...

    @overload
    @_takes_model_first(EngineKnobs)
    def __init__(self, knobs: EngineKnobs) -> None: ...

    @takes_fields_of(EngineKnobs, "model")  # type: ignore[misc]  # takes both
    def __init__(self, knobs: EngineKnobs) -> None:
        settings = knobs.settings()
        check_installed("The local engine")
        settings = with_bundled_model(settings)
        self.model = settings.model
        cache = settings.cache or CacheSettings()
        self.reuse, self.link_tokens = cache.reuse, cache.link_tokens
        self.exact_documents = cache.exact_documents
        self._process = Supervisor(settings, knobs)
        # Ends the process when this object is collected and when the interpreter exits.
        self._finalizer = weakref.finalize(self, self._process.close)
        try:
            # Loads while the engine does, which takes longer.
            self._renderer = PromptRenderer(load_tokenizer(settings), knobs.chat_template)
            ready = self._process.wait_ready(knobs.startup_timeout)
        except BaseException:
            self._finalizer()
            raise
        self._calls = Calls(self._renderer, cache, knobs.tool_parser, ready.max_model_len)
        self.max_model_len = ready.max_model_len
        self.total_kv_tokens = ready.total_kv_tokens
        self.block_size = ready.block_size
        self.reuse_is_off = ready.reuse_is_off
        self.disk_is_off = ready.disk_is_off
        self._disk_cache_gib = 0.0 if ready.disk_is_off else cache.disk_cache_gib
        self._block_bytes = ready.block_bytes
        for name, words in _OFF.items():
            if (why := getattr(ready, name)) is not None:
                logger.warning(words, why)
        if ready.slow_dtype is not None:
            logger.warning(SLOW_DTYPE, ready.slow_dtype, 'dtype="float32"')

    # Generation

    def generate(
        self,
        prompt: Prompt | RenderedPrompt,
        options: SamplingOptions | None = None,
        **call: Unpack[EngineCallOptions],
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: The prompt, with its documents; or its tokens, such as those of
                ``CompiledSchema.render``.
            options: How to sample; greedy with at most 256 tokens by default.
            namespace: The tenant. KV caches are shared within a namespace and never across.
            timeout: Seconds for the whole answer, after which the request is aborted.
            reuse: ``prefix`` or ``anywhere`` for this request; the engine's own by default.
            link_tokens: The same for this request's link tokens.
            priority: Requests with lower numbers go first, up to ``reorder_window``, and their
                documents are evicted last; 0 by default.
            step: Name of the step of a workflow that the request is. What the prompts of a step
                begin with is learned from them.
            next_steps: Steps that come next, and how many steps are before each: 1 for the one that
                comes after this. Their prompts' beginnings are evicted last, and read back or
                computed before they come, while nobody else waits.

        Raises:
            ConfigurationError: An argument is wrong, or vLLM refuses the request.
            PromptTooLongError: The prompt does not fit the context window.
            EngineClosedError: The engine is closed.
            EngineDeadError: The engine's process ended and is not started again, or the answer
                can't be continued in another one.
            GenerationTimeoutError: The timeout is over, or there was no output for
                ``request_timeout``.
        """
        return self.stream(prompt, options, **call).result()

    async def agenerate(
        self,
        prompt: Prompt | RenderedPrompt,
        options: SamplingOptions | None = None,
        **call: Unpack[EngineCallOptions],
    ) -> Generation:
        """Async version of :meth:`generate`; cancelling it aborts the request."""
        stream = await self.astream(prompt, options, **call)
        return await stream.aresult()

    def stream(
        self,
        prompt: Prompt | RenderedPrompt,
        options: SamplingOptions | None = None,
        **call: Unpack[EngineCallOptions],
    ) -> GenerationStream:
        """Answer a prompt piece by piece; arguments and errors as :meth:`generate`."""
        request = self._request(prompt, options, call)
        return self._start(request, call)

    async def astream(
        self,
        prompt: Prompt | RenderedPrompt,
        options: SamplingOptions | None = None,
        **call: Unpack[EngineCallOptions],
    ) -> AsyncGenerationStream:
        """Async version of :meth:`stream`: ``async for chunk in await engine.astream(prompt)``."""
        return self._astart(await asyncio.to_thread(self._request, prompt, options, call), call)

    def generate_batch(
        self,
        prompts: Iterable[Prompt | RenderedPrompt],
        options: SamplingOptions | None = None,
        **call: Unpack[EngineCallOptions],
    ) -> list[Generation]:
        """Answer several prompts together; the answers come in the order of the prompts.

        When a request fails, the others are aborted and its error is raised.
        """
        self._check(options, call)
        requests = self._requests(prompts, options, call)
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(self._start(request, call)) for request in requests]
            return [stream.result() for stream in streams]

    async def agenerate_batch(
        self,
        prompts: Iterable[Prompt | RenderedPrompt],
        options: SamplingOptions | None = None,
        **call: Unpack[EngineCallOptions],
    ) -> list[Generation]:
        """Async version of :meth:`generate_batch`."""
        self._check(options, call)
        requests = await asyncio.to_thread(self._requests, list(prompts), options, call)
        async with contextlib.AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(self._astart(request, call)) for request in requests
            ]
            return [await stream.aresult() for stream in streams]

    def prefill(self, prompt: Prompt | RenderedPrompt, **call: Unpack[EngineCallOptions]) -> Usage:
        """Compute a prompt's KV cache without returning an answer.

        A later prompt with the same beginning reuses the KV cache of all full blocks. Arguments
        and errors as :meth:`generate`.
        """
        usage = self.generate(prompt, PREFILL, **call).usage
        return Usage(usage.prompt_tokens, 0, usage.cached_tokens)

    async def aprefill(
        self, prompt: Prompt | RenderedPrompt, **call: Unpack[EngineCallOptions]
    ) -> Usage:
        """Async version of :meth:`prefill`; cancelling it aborts the prefill."""
        usage = (await self.agenerate(prompt, PREFILL, **call)).usage
        return Usage(usage.prompt_tokens, 0, usage.cached_tokens)

    def encode(
        self,
        documents: Iterable[Any],
        *,
        show_progress: bool = False,
        **call: Unpack[EngineCallOptions],
    ) -> Usage:
        """Compute documents' KV caches and keep them, to be reused anywhere from now on.

        Needs ``reuse="anywhere"``. A document that is not encoded ahead is computed in its place
        when it is met, and encoded when the engine has nothing else to do. With ``disk_cache_gib``,
        all of them are on disk when this returns; without it those that fit the document cache
        stay, and else the least worth go, by the engine's policy. What is there is not computed
        again, so that an encoding that was broken off resumes. If the model can't do it
        (:attr:`reuse_is_off`), nothing is computed.

        Args:
            documents: Texts, ``PromptDocument``, or documents and nodes of LangChain and
                LlamaIndex, of which the text counts without metadata; or tokens, such as
                ``CompiledSchema.documents``. The same ones are encoded once; empty ones are
                left out.
            show_progress: Show a progress bar on standard error.
            call: As of :meth:`generate`, and so are the errors.

        Returns:
            Their tokens, and how many of these had been computed before.

        Raises:
            DocumentsNotKeptError: The disk is full, or ``disk_cache_gib`` does not hold them all.
                Those that are on disk stay.
        """
        usage: Usage = whole_output(self._encoding(documents, show_progress, call))
        return usage

    async def aencode(
        self,
        documents: Iterable[Any],
        *,
        show_progress: bool = False,
        **call: Unpack[EngineCallOptions],
    ) -> Usage:
        """Async version of :meth:`encode`."""
        usage: Usage = await awhole_output(self._encoding(documents, show_progress, call))
        return usage

    def pin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        **call: Unpack[EngineCallOptions],
    ) -> Usage:
        """Keep documents' KV caches in the GPU under any load.

        A KV cache serves only after the same text, so that all before the documents is kept, too.
        What is missing is computed now. Pinning again sets a new time. :meth:`reset_cache` ends all
        pins; after a restart of the process they are made again. A prompt's question is not kept.

        Args:
            documents: A prompt as it will be asked, or several documents, which
                :meth:`Prompt.rag` puts into one.
            ttl: Seconds; ``None`` until :meth:`unpin`.
            system: System text before the documents, if they are not in a prompt.
            call: As of :meth:`generate`, and so are the errors.

        Returns:
            The prompt's tokens, and how many of these were cached before.

        Raises:
            ConfigurationError: There would be no room for the longest request, of
                ``max_model_len`` tokens, or the tenant's pins would exceed its quota; the message
                says the numbers. Or there are no documents, or there is no knowledge tree.
        """
        request = self._pinning(documents, ttl, system, call)
        return self._start(request, call).result().usage

    async def apin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        **call: Unpack[EngineCallOptions],
    ) -> Usage:
        """Async version of :meth:`pin`."""
        request = await asyncio.to_thread(self._pinning, documents, ttl, system, call)
        return (await self._astart(request, call).aresult()).usage

    def unpin(
        self, documents: Prompt | Iterable[Any], *, system: str = "", namespace: str = ""
    ) -> bool:
        """Let pinned documents be evicted again; arguments as of :meth:`pin`.

        Returns:
            Whether they were pinned at this place.
        """
        return bool(control(self._process, "unpin", self._unpinning(documents, system, namespace)))

    async def aunpin(
        self, documents: Prompt | Iterable[Any], *, system: str = "", namespace: str = ""
    ) -> bool:
        """Async version of :meth:`unpin`."""
        request = await asyncio.to_thread(self._unpinning, documents, system, namespace)
        return bool(await acontrol(self._process, "unpin", request))

    # State

    def load(self) -> EngineLoad:
        """How busy the engine is now."""
        load: EngineLoad = control(self._process, "load")
        return load

    async def aload(self) -> EngineLoad:
        """Async version of :meth:`load`."""
        load: EngineLoad = await acontrol(self._process, "load")
        return load

    def reset_cache(self) -> bool:
        """Empty the KV cache. Documents on disk stay.

        Returns:
            ``False``, and nothing is emptied, while requests are in flight.
        """
        return bool(control(self._process, "reset_cache"))

    async def areset_cache(self) -> bool:
        """Async version of :meth:`reset_cache`."""
        return bool(await acontrol(self._process, "reset_cache"))

    def stats(self) -> EngineStats:
        """What the engine has done so far. Returns immediately, without asking the process."""
        return dataclasses.replace(
            self._process.counters.stats,
            tree=self._process.exchange.tree_stats,
            block_bytes=self._block_bytes,
        )

    def tree(self) -> TreeSnapshot | None:
        """The knowledge tree as it is now; ``None`` where there is none.

        ``print`` it, ``rich.print`` it for colours, or take it apart: it is plain data.
        """
        snapshot: TreeSnapshot | None = control(self._process, "tree")
        return snapshot

    async def atree(self) -> TreeSnapshot | None:
        """Async version of :meth:`tree`."""
        snapshot: TreeSnapshot | None = await acontrol(self._process, "tree")
        return snapshot

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._process.closed

    @property
    def pid(self) -> int:
        """Id of the engine's process; it changes with a restart."""
        return self._process.pid

    def close(self) -> None:
        """End the engine. Requests in flight get :class:`EngineClosedError`. Idempotent.

        The process is gone when the call returns, even if another thread was already closing it.
        """
        self._finalizer()
        self._process.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        await asyncio.to_thread(self.close)

    # Inside

    def _start(self, request: Submit, call: EngineCallOptions) -> GenerationStream:
        return GenerationStream(self, self._process, request, call.get("timeout"))

    def _astart(self, request: Submit, call: EngineCallOptions) -> AsyncGenerationStream:
        return AsyncGenerationStream(self, self._process, request, call.get("timeout"))

    def _check(self, options: SamplingOptions | None, call: EngineCallOptions) -> dict[str, Any]:
        """Check a call, and return the fields of its request but for the prompt's."""
        self._process.check_usable()
        return self._calls.check(options, **call)

    def _request(
        self,
        prompt: Prompt | RenderedPrompt,
        options: SamplingOptions | None,
        call: EngineCallOptions,
    ) -> Submit:
        fields = self._check(options, call)
        tools = self._calls.tool_use(prompt, fields["options"])
        rendered = self._calls.render(prompt, fields["namespace"])
        return submission(rendered, **fields, tools=tools)

    def _requests(
        self,
        prompts: Iterable[Prompt | RenderedPrompt],
        options: SamplingOptions | None,
        call: EngineCallOptions,
    ) -> list[Submit]:
        return [self._request(prompt, options, call) for prompt in prompts]

    def _pinning(
        self, documents: object, ttl: float | None, system: str, call: EngineCallOptions
    ) -> Submit:
        """The request that pins documents."""
        check_seconds("ttl", ttl, also="None for no end")
        fields = self._check(PREFILL, {**call, "reuse": "prefix", "link_tokens": None})
        rendered = self._calls.render_pinned(documents, system, fields["namespace"])
        return submission(rendered, **fields, pin=FOREVER if ttl is None else float(ttl))

    def _unpinning(self, documents: object, system: str, namespace: str) -> Submit:
        """The request that unpins documents, for :func:`control`."""
        self._check(PREFILL, {"namespace": namespace})
        rendered = self._calls.render_pinned(documents, system, namespace)
        return submission(rendered, options=PREFILL, namespace=namespace, pin=0.0)

    def _encoding(
        self,
        documents: Iterable[Any],
        show_progress: bool,
        call: EngineCallOptions,
    ) -> Flow:
        """The flow that encodes documents."""
        fields = self._check(PREFILL, call)
        namespace = fields["namespace"]

        def start(prompt: RenderedPrompt) -> Call:
            request = submission(prompt, **fields, encodes=True)

            async def in_loop() -> AsyncGenerationStream:
                return self._astart(request, call)

            return Call(partial(self._start, request, call), in_loop)

        def count_missing(part: object) -> Call:
            asked = self._process, "count_missing", part
            return Call(
                partial(control, *asked, timeout=None), partial(acontrol, *asked, timeout=None)
            )

        return encoding(
            () if self.reuse_is_off else documents,
            self._calls.render_documents(documents, namespace),
            start,
            count_missing,
            Account(namespace, self._disk_cache_gib, self._block_bytes // self.block_size),
            show_progress=show_progress and not self.reuse_is_off,
        )

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"pid {self.pid}"
        return f"RAGCacheEngine(model={self.model!r}, {state})"
