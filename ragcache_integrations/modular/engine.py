"""A modular model behind the calls that the bundled engine has.

It stands where a :class:`~ragcache_integrations.engine.RAGCacheEngine` could stand, so that an
application can go from exact answers to faster ones by one argument. Its modules are its own:
nothing of them gets into the engine's cache, which stays exact.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.modular.documents import assemble_spans
from ragcache_integrations.modular.generation import Generation, Sampling, SamplingKnobs, Usage
from ragcache_integrations.modular.kv.strategies import Strategy, strategy_of
from ragcache_integrations.modular.layout import Assembly
from ragcache_integrations.modular.model import ModularModel, ModularStats
from ragcache_integrations.modular.streams import AsyncModularStream, ModularStream

__all__ = ["ModularEngine", "Rendered", "Renderer", "Span"]


class Span(Protocol):
    """Where a document stands in a prompt, in tokens; ``end`` is not included."""

    @property
    def id(self) -> str:
        """The document's id, the name of its module."""

    @property
    def start(self) -> int:
        """Its first token."""

    @property
    def end(self) -> int:
        """The token behind its last."""


class Rendered(Protocol):
    """A prompt in tokens."""

    @property
    def token_ids(self) -> Sequence[int]:
        """The whole prompt."""

    @property
    def documents(self) -> Sequence[Span]:
        """Its documents, in order and without overlap."""


class Renderer(Protocol):
    """Renders prompts with a chat template: the engine's ``PromptRenderer`` is one."""

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations are rendered as the model was trained to read them."""

    def render(self, prompt: Any, namespace: str = "") -> Rendered:
        """A prompt in tokens, of a tenant; each document tokenised by itself."""

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, no special token added."""


class ModularEngine:
    """Answers prompts whose documents become modules.

    Args:
        model: The model; it belongs to the caller, who closes it.
        renderer: Turns prompts into tokens, with the model's tokenizer.
        strategy: Chooses which encoded tokens are computed again; ``exact`` is full prefill.

    Raises:
        ConfigurationError: An argument is of the wrong kind or unknown.
    """

    def __init__(
        self, model: ModularModel, renderer: Renderer, *, strategy: str | Strategy = "epic"
    ) -> None:
        if not isinstance(model, ModularModel):
            msg = f"model must be a ModularModel, got {type(model).__name__}"
            raise ConfigurationError(msg)
        self._model = model
        self._renderer = renderer
        self._strategy = strategy_of(strategy)

    @property
    def model(self) -> str:
        """Name or path of the model."""
        return self._model.model

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self._strategy.name

    @property
    def chosen(self) -> Strategy:
        """The strategy with its settings."""
        return self._strategy

    @property
    def modular_model(self) -> ModularModel:
        """The model itself."""
        return self._model

    def with_strategy(self, strategy: str | Strategy) -> ModularEngine:
        """The same model and modules with another strategy.

        Raises:
            ConfigurationError: There is none of that name.
        """
        return ModularEngine(self._model, self._renderer, strategy=strategy)

    @property
    def max_model_len(self) -> int:
        """Positions there are, for prompt and answer together."""
        return self._model.max_model_len

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations are rendered as the model was trained to read them."""
        return self._renderer.has_chat_template

    def assemble(self, prompt: Any, namespace: str = "") -> Assembly:
        """The prompt with its documents as modules; one put together already stays as it is."""
        if isinstance(prompt, Assembly):
            return prompt
        rendered = self._renderer.render(prompt, namespace)
        spans = [(span.id, span.start, span.end) for span in rendered.documents]
        return assemble_spans(rendered.token_ids, spans, movable=self._model.movable)

    def generate(
        self, prompt: Any, options: Any = None, *, namespace: str = "", timeout: float | None = None
    ) -> Generation:
        """Answer a prompt.

        Args:
            prompt: What the renderer takes.
            options: Anything with the fields of the engine's ``SamplingOptions``; what a grammar
                would be needed for is refused.
            namespace: Tenant. Modules are shared within a namespace and never across.
            timeout: Seconds for the whole answer.

        Raises:
            ConfigurationError: An argument is wrong, or an option needs a grammar.
            PromptTooLongError: Prompt and answer reach beyond the model's last position.
            GenerationTimeoutError: The timeout is over.
        """
        with self.stream(prompt, options, namespace=namespace, timeout=timeout) as stream:
            return stream.result()

    async def agenerate(
        self, prompt: Any, options: Any = None, *, namespace: str = "", timeout: float | None = None
    ) -> Generation:
        """The async twin of :meth:`generate`; cancelling it gives the answer up."""
        stream = await self.astream(prompt, options, namespace=namespace, timeout=timeout)
        async with stream:
            return await stream.aresult()

    def stream(
        self,
        prompt: Any,
        options: Any = None,
        *,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
        namespace: str = "",
        timeout: float | None = None,
    ) -> ModularStream:
        """Answer a prompt piece by piece; errors as :meth:`generate`.

        Args:
            prompt: As there.
            options: As there.
            masked: Names of modules that nothing may see; documents' are their ids.
            dropped: Names of modules that are left out altogether.
            namespace: As there.
            timeout: As there.
        """
        return self._model.stream(
            self.assemble(prompt, namespace),
            self._strategy,
            masked=masked,
            dropped=dropped,
            namespace=namespace,
            timeout=timeout,
            **_knobs(options),
        )

    async def astream(
        self,
        prompt: Any,
        options: Any = None,
        *,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
        namespace: str = "",
        timeout: float | None = None,
    ) -> AsyncModularStream:
        """The async twin of :meth:`stream`: ``async for chunk in await engine.astream(prompt)``."""
        assembly = await asyncio.to_thread(self.assemble, prompt, namespace)
        return await self._model.astream(
            assembly,
            self._strategy,
            masked=masked,
            dropped=dropped,
            namespace=namespace,
            timeout=timeout,
            **_knobs(options),
        )

    def generate_batch(
        self,
        prompts: Iterable[Any],
        options: Any = None,
        *,
        namespace: str = "",
        timeout: float | None = None,
    ) -> list[Generation]:
        """Answer several prompts together, in their order."""
        return self._model.generate_batch(
            [self.assemble(prompt, namespace) for prompt in prompts],
            self._strategy,
            namespace=namespace,
            timeout=timeout,
            **_knobs(options),
        )

    async def agenerate_batch(
        self,
        prompts: Iterable[Any],
        options: Any = None,
        *,
        namespace: str = "",
        timeout: float | None = None,
    ) -> list[Generation]:
        """The async twin of :meth:`generate_batch`."""
        listed = list(prompts)
        assemblies = await asyncio.to_thread(
            lambda: [self.assemble(one, namespace) for one in listed]
        )
        return await self._model.agenerate_batch(
            assemblies, self._strategy, namespace=namespace, timeout=timeout, **_knobs(options)
        )

    def prefill(self, prompt: Any, *, namespace: str = "", timeout: float | None = None) -> Usage:
        """Encode a prompt's modules, so that later prompts with some of them start sooner."""
        with self._model.prefill(
            self.assemble(prompt, namespace), self._strategy, namespace=namespace, timeout=timeout
        ) as prefilled:
            return Usage(prefilled.about.prompt_tokens, 0, prefilled.about.cached_tokens)

    async def aprefill(
        self, prompt: Any, *, namespace: str = "", timeout: float | None = None
    ) -> Usage:
        """The async twin of :meth:`prefill`."""
        assembly = await asyncio.to_thread(self.assemble, prompt, namespace)
        with await self._model.aprefill(
            assembly, self._strategy, namespace=namespace, timeout=timeout
        ) as prefilled:
            return Usage(prefilled.about.prompt_tokens, 0, prefilled.about.cached_tokens)

    def render(self, prompt: Any) -> Rendered:
        """The prompt's tokens and where its documents stand."""
        return self._renderer.render(prompt)

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text, no special token added."""
        return self._renderer.tokenize(text)

    def count_tokens(self, text: str) -> int:
        """How many tokens a text has, no special token counted."""
        return len(self.tokenize(text))

    def reset_cache(self) -> bool:
        """Forget all encoded modules that are not in use."""
        self._model.clear()
        return True

    async def areset_cache(self) -> bool:
        """The async twin of :meth:`reset_cache`."""
        return self.reset_cache()

    def stats(self) -> ModularStats:
        """What modules take and how often they were found."""
        return self._model.stats()

    @property
    def closed(self) -> bool:
        """Whether the model was closed."""
        return self._model.closed

    def close(self) -> None:
        """Close the model. Idempotent."""
        self._model.close()

    async def aclose(self) -> None:
        """The async twin of :meth:`close`."""
        await self._model.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ModularEngine(model={self.model!r}, strategy={self.strategy!r})"


def _knobs(options: Any) -> SamplingKnobs:
    """Our arguments from options that have the same fields."""
    if options is None:
        return {}
    for name in ("json_schema", "choice"):
        if getattr(options, name, None):
            msg = f"{name} needs a grammar, which modular attention reuse has none of"
            raise ConfigurationError(msg)
    names = [field.name for field in dataclasses.fields(Sampling)]
    missing = [name for name in names if not hasattr(options, name)]
    if missing:
        msg = f"options must have the fields {', '.join(names)}; there is no {missing[0]}"
        raise ConfigurationError(msg)
    knobs: Any = {name: getattr(options, name) for name in names}
    return knobs  # type: ignore[no-any-return] # the fields of Sampling
