"""The modular engine behind the LLM classes: how it is made, and what its answers say of it.

The one place where the bundled engine's renderer and :mod:`ragcache_integrations.modular` meet, so
that a prompt has the same tokens and the same documents in both. Importing this loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.core.rendering import PromptRenderer, RenderedPrompt
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from ragcache_integrations.modular.engine import ModularEngine

__all__ = [
    "MODULAR",
    "check_modular_dtype",
    "is_modular",
    "make_modular_engine",
]

MODULAR = "modular"
"""What the knob ``engine`` is set to."""

DTYPES = ("float32", "bfloat16", "float16")
"""Those of :class:`~ragcache_integrations.modular.ModularModel`, which cannot be asked here."""

GIB = 2**30


def is_modular(engine: object) -> TypeGuard[ModularEngine]:
    """Whether it is an engine whose documents are modules, and not the name of one."""
    return hasattr(engine, "with_strategy")


def check_modular_dtype(dtype: str | None) -> None:
    """Refuse a numeric type that the modular engine does not have.

    Raises:
        ConfigurationError: It has none of that name.
    """
    if dtype is not None and dtype not in DTYPES:
        msg = f'with engine="modular", dtype must be one of {", ".join(DTYPES)}, got {dtype!r}'
        raise ConfigurationError(msg)


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
        model: Path or hub name; the bundled one where ``None``.
        dtype: ``float32`` where ``None``.
        device: Where it computes; the CPU where ``None``.
        kv_cache_gib: Room for encoded documents in the host's memory.
        policy: What goes first.
        chat_template: Used instead of the model's own.

    Raises:
        ConfigurationError: The model cannot be served so.
        MissingExtraError: torch or transformers is not installed.
        ModelNotFoundError: There is no such model.
    """
    for name in ("torch", "transformers"):
        require(name, feature='engine="modular"', extra="modular")
    from ragcache_integrations.modular import ModularEngine, ModularModel  # noqa: PLC0415 - torch

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
    """Leaves out what is no module: a document without tokens, or with nothing behind it."""

    def render(self, prompt: Prompt, namespace: str = "") -> RenderedPrompt:
        rendered = super().render(prompt, namespace)
        length = len(rendered.token_ids)
        spans = tuple(span for span in rendered.documents if span.start < span.end < length)
        return RenderedPrompt(rendered.token_ids, spans)
