"""The tokenizer of an engine's model, loaded in the application."""

from __future__ import annotations

from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ModelNotFoundError

from .protocol import EngineSettings

__all__ = ["load_tokenizer"]

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
        msg = f"no tokenizer for the model {name!r}: {error}"
        raise ModelNotFoundError(msg) from error
