"""A modular model with the methods of the bundled engine.

It can replace a :class:`~ragcache_integrations.engine.RAGCacheEngine`, so that an application can
switch from exact answers to faster ones with a single argument. Its modules are separate: they
never enter the engine's cache, which stays exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeAlias, Unpack

from ragcache_integrations.core.blocks import Closeable
from ragcache_integrations.core.generation import CallOptions, Sampling, SamplingOptions, Usage
from ragcache_integrations.core.prompt import Prompt, PromptRenderer, Rendering
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.pml import Assembly
from ragcache_modular.kv.strategies import Strategy, strategy_of

from .answers import AsyncModularStream, ModularStream
from .documents import assemble_spans
from .generation import (
    SAMPLING_NAMES,
    ModularGeneration,
    PromptKnobs,
    SamplingKnobs,
)
from .model import ModularModel, ModularStats

__all__ = ["ModularEngine"]

AnyPrompt: TypeAlias = Prompt | Assembly
"""A prompt with documents, or an assembled prompt."""


class ModularEngine(Rendering, Closeable):
    """Answers prompts whose documents become modules.

    Use it like the bundled engine::

        engine = ModularEngine(model, PromptRenderer(model.tokenizer), strategy="cacheblend")
        answer = engine.generate(Prompt.rag("How high is the tower?", documents))

    Args:
        model: The model; :meth:`close` closes it, too.
        renderer: Turns prompts into tokens, with the model's tokenizer.
        strategy: Chooses which encoded tokens are computed again; ``exact`` is full prefill.

    Attributes:
        modular_model: The model itself.
        chosen: The strategy with its settings.

    Raises:
        ConfigurationError: An argument is of the wrong type or unknown.
    """

    def __init__(
        self, model: ModularModel, renderer: PromptRenderer, *, strategy: str | Strategy = "epic"
    ) -> None:
        if not isinstance(model, ModularModel):
            raise ConfigurationError(f"model must be a ModularModel, got {type(model).__name__}")
        self.modular_model = model
        self.chosen = strategy_of(strategy)
        self._renderer = renderer

    @property
    def model(self) -> str:
        """Name or path of the model."""
        return self.modular_model.model

    @property
    def supports_tools(self) -> bool:
        """``False``: there is no grammar, and nothing reads calls in an answer."""
        return False

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self.chosen.name

    def with_strategy(self, strategy: str | Strategy) -> ModularEngine:
        """The same model and modules with another strategy.

        Raises:
            ConfigurationError: There is no strategy of that name.
        """
        return ModularEngine(self.modular_model, self._renderer, strategy=strategy)

    @property
    def max_model_len(self) -> int:
        """Number of positions, for prompt and answer together."""
        return self.modular_model.max_model_len

    def assemble(self, prompt: AnyPrompt, namespace: str = "") -> Assembly:
        """The prompt with its documents as modules; an assembled prompt is returned unchanged."""
        if isinstance(prompt, Assembly):
            return prompt
        rendered = self._renderer.render(prompt, namespace)
        spans = [(span.id, span.start, span.end) for span in rendered.documents]
        return assemble_spans(rendered.token_ids, spans, movable=self.modular_model.movable)

    def generate(
        self,
        prompt: AnyPrompt,
        options: Sampling | None = None,
        **call: Unpack[CallOptions],
    ) -> ModularGeneration:
        """Answer a prompt.

        Args:
            prompt: The prompt.
            options: How tokens are chosen; defaults where ``None``. Options that need a grammar are
                refused.
            **call: ``namespace``, the tenant: modules are shared within a namespace and never
                across namespaces; ``timeout``, seconds for the whole answer.

        Raises:
            ConfigurationError: An argument is wrong, or an option needs a grammar.
            PromptTooLongError: Prompt and answer reach beyond the model's last position.
            GenerationTimeoutError: The timeout has passed.
        """
        with self.stream(prompt, options, **call) as stream:
            return stream.result()

    async def agenerate(
        self,
        prompt: AnyPrompt,
        options: Sampling | None = None,
        **call: Unpack[CallOptions],
    ) -> ModularGeneration:
        """Async version of :meth:`generate`; cancelling it aborts the answer."""
        async with await self.astream(prompt, options, **call) as stream:
            return await stream.aresult()

    def stream(
        self,
        prompt: AnyPrompt,
        options: Sampling | None = None,
        **call: Unpack[PromptKnobs],
    ) -> ModularStream:
        """Answer a prompt piece by piece; errors as in :meth:`generate`.

        Args:
            prompt: The prompt.
            options: How tokens are chosen; defaults where ``None``.
            **call: As in :meth:`generate`, and ``masked`` and ``dropped``: names of modules that
                other tokens must not see, or that are left out. Documents are named by their ids.
        """
        assembly = self.assemble(prompt, call.get("namespace", ""))
        return self.modular_model.stream(assembly, self.chosen, **call, **_knobs(options))

    async def astream(
        self,
        prompt: AnyPrompt,
        options: Sampling | None = None,
        **call: Unpack[PromptKnobs],
    ) -> AsyncModularStream:
        """Async version of :meth:`stream`: ``async for chunk in await engine.astream(prompt)``."""
        assembly = await asyncio.to_thread(self.assemble, prompt, call.get("namespace", ""))
        return await self.modular_model.astream(assembly, self.chosen, **call, **_knobs(options))

    def generate_batch(
        self,
        prompts: Iterable[AnyPrompt],
        options: Sampling | None = None,
        **call: Unpack[CallOptions],
    ) -> list[ModularGeneration]:
        """Answer several prompts together, in their order."""
        assemblies = self._assemble_all(prompts, call.get("namespace", ""))
        return self.modular_model.generate_batch(assemblies, self.chosen, **call, **_knobs(options))

    async def agenerate_batch(
        self,
        prompts: Iterable[AnyPrompt],
        options: Sampling | None = None,
        **call: Unpack[CallOptions],
    ) -> list[ModularGeneration]:
        """Async version of :meth:`generate_batch`."""
        listed = list(prompts)
        assemblies = await asyncio.to_thread(self._assemble_all, listed, call.get("namespace", ""))
        return await self.modular_model.agenerate_batch(
            assemblies, self.chosen, **call, **_knobs(options)
        )

    def prefill(self, prompt: AnyPrompt, **call: Unpack[CallOptions]) -> Usage:
        """Encode a prompt's modules, so that later prompts with some of them start sooner."""
        assembly = self.assemble(prompt, call.get("namespace", ""))
        with self.modular_model.prefill(assembly, self.chosen, **call) as prefilled:
            return Usage(prefilled.about.prompt_tokens, 0, prefilled.about.cached_tokens)

    async def aprefill(self, prompt: AnyPrompt, **call: Unpack[CallOptions]) -> Usage:
        """Async version of :meth:`prefill`."""
        assembly = await asyncio.to_thread(self.assemble, prompt, call.get("namespace", ""))
        with await self.modular_model.aprefill(assembly, self.chosen, **call) as prefilled:
            return Usage(prefilled.about.prompt_tokens, 0, prefilled.about.cached_tokens)

    def reset_cache(self) -> bool:
        """Drop all encoded modules that are not in use."""
        self.modular_model.clear()
        return True

    async def areset_cache(self) -> bool:
        """Async version of :meth:`reset_cache`."""
        return self.reset_cache()

    def stats(self) -> ModularStats:
        """Memory of the encoded modules, and how often they were reused."""
        return self.modular_model.stats()

    @property
    def closed(self) -> bool:
        """Whether the model was closed."""
        return self.modular_model.closed

    def close(self) -> None:
        """Close the model. Idempotent."""
        self.modular_model.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        await self.modular_model.aclose()

    def __repr__(self) -> str:
        return f"ModularEngine(model={self.model!r}, strategy={self.strategy!r})"

    def _assemble_all(self, prompts: Iterable[AnyPrompt], namespace: str) -> list[Assembly]:
        return [self.assemble(prompt, namespace) for prompt in prompts]


def _knobs(options: Sampling | None) -> SamplingKnobs:
    """The options as arguments of the model's methods."""
    if options is None:
        return {}
    if not isinstance(options, Sampling):
        raise ConfigurationError(f"options must be SamplingOptions, got {type(options).__name__}")
    if isinstance(options, SamplingOptions) and options.needs_grammar:
        name = "choice" if options.choice else "json_schema"
        msg = f"{name} needs a grammar, which modular attention reuse does not support"
        raise ConfigurationError(msg)
    knobs: Any = {name: getattr(options, name) for name in SAMPLING_NAMES}
    return knobs  # type: ignore[no-any-return] # the fields of Sampling
