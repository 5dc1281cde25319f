"""Messages between the application and the engine's process.

They travel pickled over a private socket pair that only the two processes hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ragcache_integrations.core.generation import FinishReason, SamplingOptions, TokenLogprob, plain
from ragcache_integrations.core.prompt import ToolCallPiece
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineOutOfMemoryError,
    EngineStartError,
    ModelNotFoundError,
    RAGCacheError,
)
from ragcache_integrations.knowledge_tree.stats import TreeStats

from .settings import CacheSettings

__all__ = [
    "SLOW_DTYPE",
    "START_ERRORS",
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
    "ToolUse",
]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings with which a process starts (see :class:`RAGCacheEngine` for the meanings)."""

    model: str
    kv_cache_gib: float | None
    max_model_len: int | None
    dtype: str
    seed: int
    vllm_args: dict[str, Any] = field(default_factory=dict)
    cache: CacheSettings | None = field(default_factory=CacheSettings)
    """``None`` without the knowledge tree."""
    heartbeat_seconds: float = 1.0
    """Seconds between the process's heartbeats."""
    folder: str = ""
    """Folder of temporary files; the process removes it if the application is gone."""


class FailureKind(Enum):
    """Why something failed, so that the application can raise the right exception."""

    INVALID = "invalid"
    REFUSED = "refused"
    MODEL_NOT_FOUND = "model not found"
    OUT_OF_MEMORY = "out of memory"
    HOST_TIER = "host tier"
    OTHER = "other"


START_ERRORS: dict[FailureKind, type[RAGCacheError]] = {
    FailureKind.INVALID: ConfigurationError,
    FailureKind.MODEL_NOT_FOUND: ModelNotFoundError,
    FailureKind.OUT_OF_MEMORY: EngineOutOfMemoryError,
    FailureKind.OTHER: EngineStartError,
}
"""The exception for each reason for which vLLM does not start."""


# To the engine's process.


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How an answer may call tools.

    Attributes:
        definitions: The tools in OpenAI's form.
        choice: ``auto``, ``required`` or the name of the tool to call.
        parallel: Whether it may call several.
        parser: Name of vLLM's parser for calls that are not forced; empty if it is unknown.
    """

    definitions: tuple[dict[str, Any], ...]
    choice: str
    parallel: bool
    parser: str

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice != "auto"


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a request.

    Attributes:
        request_id: Number of the request.
        token_ids: Tokens of the prompt.
        options: How to sample the answer.
        namespace: The tenant.
        documents: Each document's id, first token, and token after the last.
        emitted: Tokens of the answer that an earlier attempt has produced. The answer resumes after
            them, and only new output is returned.
        attempt: Number of earlier attempts.
        tools: The tools that the answer may call; ``None`` for none.
        link_tokens: First tokens of each document that are computed where the rest is reused at any
            place; ``None`` for an exact answer.
        encodes: Whether its documents are stored, to be reused at any place.
        priority: Requests with lower numbers go first, and keep their documents longer.
        pin: Seconds for which its documents are pinned, 0 to unpin them; ``None`` for neither.
        step: Name of the step of a workflow that it is; empty for none.
        next_steps: Steps that come next, and how many steps are before each.
    """

    request_id: int
    token_ids: list[int]
    options: SamplingOptions
    namespace: str
    documents: tuple[tuple[str, int, int], ...]
    emitted: tuple[int, ...] = ()
    attempt: int = 0
    tools: ToolUse | None = None
    link_tokens: int | None = None
    encodes: bool = False
    priority: int = 0
    pin: float | None = None
    step: str = ""
    next_steps: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespace", plain(self.namespace))
        documents = tuple((plain(name), start, end) for name, start, end in self.documents)
        object.__setattr__(self, "documents", documents)


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort requests.

    Attributes:
        request_ids: Numbers of the requests; unknown ones are ignored.
        retract: Whether their documents were a wrong guess, which does not count as an access. This
            includes requests that have ended.
    """

    request_ids: tuple[int, ...]
    retract: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """A query or command outside any request, answered by :class:`Answer`."""

    request_id: int
    operation: str
    argument: Any = None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Abort everything and end."""


# From the engine's process.


SLOW_DTYPE = (
    "the model is computed in %s, which this CPU has no instructions for: %s takes twice the "
    "memory and reads prompts several times faster"
)
"""The warning about :attr:`Ready.slow_dtype`: the type, and how to choose another one."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded. Lengths are in tokens."""

    max_model_len: int
    total_kv_tokens: int
    block_size: int
    block_bytes: int
    tree_is_off: str | None
    """Why there is no knowledge tree although one was requested."""
    slow_dtype: str | None
    """The model's numeric type, if this CPU has no instructions for it."""
    reuse_is_off: str | None = None
    """Why documents are not reused anywhere although that was requested."""
    disk_is_off: str | None = None
    """Why documents are not kept on disk although that was requested."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The model could not be loaded; the process ends."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Output:
    """New output of one request in one step."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    cached_tokens: int
    attempt: int = 0
    tool_calls: tuple[ToolCallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """An attempt at a request was refused or failed; it has no further output."""

    request_id: int
    kind: FailureKind
    message: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The outputs of one engine step.

    Attributes:
        outputs: New output or failure of each request.
        tree: Counts of the knowledge tree if a request has ended; else ``None``.
        host_failures: Blocks that the host tier has failed to copy since the process started.
        host_error: Its last error message.
    """

    outputs: tuple[Output | RequestFailed, ...]
    tree: TreeStats | None = None
    host_failures: int = 0
    host_error: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """Requests that have waited and are computed from the next step on."""

    request_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The process lives; ``busy_seconds`` is the time that its current step has taken so far."""

    busy_seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a :class:`Control`."""

    request_id: int
    value: Any
