"""The modular engine as a backend of the LLM classes: its knobs, and how it is made.

The one place where the bundled engine's renderer and :mod:`.engine` meet, so that a prompt has the
same tokens and the same documents in both. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.prompt import Prompt, PromptRenderer, RenderedPrompt
from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.llms.backend import Backend
from ragcache_integrations.llms.backend_kinds import (
    ENGINE_KNOBS,
    BackendKind,
    Recipe,
    UserBackend,
    exclude,
    is_modular,
)
from ragcache_integrations.llms.knobs import MODULAR, LLMKnobs
from ragcache_modular.kv.strategies import Strategy, strategy_of

if TYPE_CHECKING:
    from ragcache_modular.engine import ModularEngine

__all__ = ["MODULAR_MODEL", "USER_MODULAR", "make_modular_engine"]

DTYPES = ("float32", "bfloat16", "float16")
"""Those of :class:`~ragcache_modular.ModularModel`, which cannot be asked here."""

DEFAULT_STRATEGY = "epic"
GIB = 2**30

_KNOBS = ("model", "dtype", "device", "kv_cache_gib", "policy", "chat_template")
_EXCLUDED = tuple(
    name for name in ("base_url", "max_model_len", "tokenizer", *ENGINE_KNOBS) if name not in _KNOBS
)


class _Modular(BackendKind):
    is_modular = True

    @override
    def view(self, knobs: LLMKnobs) -> Callable[[Any], Backend]:
        return methodcaller("with_strategy", _strategy(knobs))

    @override
    def identity(self, knobs: LLMKnobs) -> dict[str, Any]:
        return {"strategy": repr(_strategy(knobs))}


class ModularModel(_Modular):
    """A model of this process whose documents become modules, loaded at the first call."""

    @override
    def check(self, knobs: LLMKnobs) -> None:
        _strategy(knobs)
        exclude(knobs, f'engine="{MODULAR}"', *_EXCLUDED)
        if knobs.dtype is not None:
            check_choice('with engine="modular", dtype', knobs.dtype, DTYPES)
        engine_settings(knobs.model, kv_cache_gib=knobs.kv_cache_gib, policy=knobs.policy)

    @override
    def make(self, knobs: LLMKnobs) -> Recipe:
        return make_modular_engine, {name: getattr(knobs, name) for name in _KNOBS}


class UserModular(_Modular, UserBackend):
    """A ``ModularEngine`` that the user made."""

    @override
    def check(self, knobs: LLMKnobs) -> None:
        _strategy(knobs)
        super().check(knobs)


def _strategy(knobs: LLMKnobs) -> Strategy:
    """Which tokens of documents are computed again."""
    if knobs.strategy is None and is_modular(knobs.engine):
        engine: Any = knobs.engine
        chosen: Strategy = engine.chosen
        return chosen
    return strategy_of(knobs.strategy or DEFAULT_STRATEGY)


def make_modular_engine(
    model: str | None,
    *,
    dtype: str | None,
    device: str | None,
    kv_cache_gib: float | None,
    policy: str,
    chat_template: str | None,
) -> ModularEngine:
    """Load a model whose documents become modules.

    Args:
        model: Path or hub name; the bundled one if ``None``.
        dtype: Numeric type of weights and KV cache; ``float32`` if ``None``.
        device: The device on which it computes; the CPU if ``None``.
        kv_cache_gib: Memory of the host for encoded documents, in GiB.
        policy: Which documents are evicted first.
        chat_template: A Jinja template to use instead of the model's own.

    Raises:
        ConfigurationError: The model cannot be served with modules.
        MissingExtraError: torch or transformers is not installed.
        ModelNotFoundError: There is no such model.
    """
    for name in ("torch", "transformers"):
        require(name, feature='engine="modular"', package="torch transformers")
    from ragcache_modular import ModularEngine, ModularModel  # noqa: PLC0415 - loads torch

    room = {} if kv_cache_gib is None else {"store_bytes": int(kv_cache_gib * GIB)}
    loaded = ModularModel(
        model or default_model_path(),
        dtype=dtype or DTYPES[0],
        device=device or "cpu",
        policy=policy,
        **room,
    )
    if chat_template is not None:
        loaded.tokenizer.chat_template = chat_template  # schemas are written in it, too
    return ModularEngine(loaded, _Renderer(loaded.tokenizer))


class _Renderer(PromptRenderer):
    """Leaves out documents that can't be modules: without tokens, or with nothing after them."""

    def render(self, prompt: Prompt, namespace: str = "") -> RenderedPrompt:
        rendered = super().render(prompt, namespace)
        length = len(rendered.token_ids)
        spans = tuple(span for span in rendered.documents if span.start < span.end < length)
        return RenderedPrompt(rendered.token_ids, spans)


MODULAR_MODEL, USER_MODULAR = ModularModel(), UserModular()
