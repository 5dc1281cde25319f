"""Messages between the application and the engine's process.

They travel pickled over a private socket pair that only the two processes hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ragcache_integrations.core.generation import FinishReason, SamplingOptions, TokenLogprob, plain
from ragcache_integrations.knowledge_tree.stats import TreeStats

from .settings import CacheSettings

__all__ = [
    "SLOW_DTYPE",
    "Abort",
    "Answer",
    "Control",
    "EngineSettings",
    "FailureKind",
    "Heartbeat",
    "Output",
    "Ready",
    "RequestFailed",
    "Shutdown",
    "StartFailed",
    "Step",
    "Submit",
]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the process needs to start (see :class:`RAGCacheEngine` for the meanings)."""

    model: str
    kv_cache_gib: float | None
    max_model_len: int | None
    dtype: str
    seed: int
    vllm_args: dict[str, Any] = field(default_factory=dict)
    cache: CacheSettings | None = field(default_factory=CacheSettings)
    """``None`` without the knowledge tree."""
    heartbeat_seconds: float = 1.0
    """How often the process says that it lives."""
    folder: str = ""
    """For temporary files; the process removes it where the application is gone."""


class FailureKind(Enum):
    """Why something failed, so that the application can raise the right exception."""

    INVALID = "invalid"
    MODEL_NOT_FOUND = "model not found"
    OUT_OF_MEMORY = "out of memory"
    HOST_TIER = "host tier"
    OTHER = "other"


# To the engine's process.


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a request. ``documents`` are ``(id, first token, token behind the last)``.

    ``emitted`` are tokens of its answer that are known from an attempt before: the answer goes on
    behind them, and only what is new comes back. ``attempt`` counts how often it was submitted.
    """

    request_id: int
    token_ids: list[int]
    options: SamplingOptions
    namespace: str
    documents: tuple[tuple[str, int, int], ...]
    emitted: tuple[int, ...] = ()
    attempt: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespace", plain(self.namespace))
        documents = tuple((plain(one), start, end) for one, start, end in self.documents)
        object.__setattr__(self, "documents", documents)


@dataclass(frozen=True, slots=True)
class Abort:
    """Give these requests up, whatever their state. Unknown ones are ignored.

    ``retract`` where their documents were a wrong guess, which is no access to them; that holds
    for requests that have ended, too.
    """

    request_ids: tuple[int, ...]
    retract: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """A question or an order outside any request, answered by :class:`Answer`."""

    request_id: int
    operation: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Give everything up and end."""


# From the engine's process.


SLOW_DTYPE = (
    "the model is computed in %s, which this CPU has no instructions for: %s takes twice the "
    "memory and reads prompts several times sooner"
)
"""What to tell the user of :attr:`Ready.slow_dtype`: the type, and how to choose another."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded. Lengths are in tokens."""

    max_model_len: int
    total_kv_tokens: int
    block_size: int
    block_bytes: int
    tree_is_off: str | None
    """Why there is no knowledge tree although one was asked for."""
    slow_dtype: str | None
    """The model's numeric type, if this CPU has no instructions for it."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The model could not be loaded; the process ends."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Output:
    """What one step added to one request."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request was refused or broke; nothing more comes for this attempt at it."""

    request_id: int
    kind: FailureKind
    message: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The outputs of one engine step; the tree's counts where a request has ended.

    ``host_failures`` counts the blocks that the host tier failed to copy since the process
    started, ``host_error`` is what it said last.
    """

    outputs: tuple[Output | RequestFailed, ...]
    tree: TreeStats | None = None
    host_failures: int = 0
    host_error: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """These requests are computed from the next step on; they waited before."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The process lives. ``busy_seconds`` is how long it has been at the present step."""

    busy_seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a :class:`Control`."""

    request_id: int
    value: Any
