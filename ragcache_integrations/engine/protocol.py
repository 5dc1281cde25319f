"""The settings, messages and counts that the application and the engine's process exchange.

Messages travel pickled over a private socket pair that only the two processes hold.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, model_validator

from ragcache_integrations.core.checks import (
    check_choice,
    check_int,
    check_number,
    check_seconds,
    or_none,
)
from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.core.generation import (
    CallOptions,
    FinishReason,
    SamplingOptions,
    TokenLogprob,
    Usage,
    plain,
)
from ragcache_integrations.core.knobs import CheckedSettings, Count, checked, unless_none
from ragcache_integrations.core.prompt import ToolCallPiece
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineOutOfMemoryError,
    EngineStartError,
    ModelNotFoundError,
    RAGCacheError,
)
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY, POLICIES
from ragcache_integrations.knowledge_tree.shares import check_quotas
from ragcache_integrations.knowledge_tree.stats import TreeStats

__all__ = [
    "DOCUMENT_DTYPES",
    "DTYPES",
    "KEY_BYTES",
    "MOST_LINK_TOKENS",
    "MOST_URGENT",
    "REUSES",
    "SLOW_DTYPE",
    "START_ERRORS",
    "Abort",
    "Answer",
    "Begun",
    "CacheSettings",
    "Control",
    "Counters",
    "EngineCallOptions",
    "EngineLoad",
    "EngineSettings",
    "EngineStats",
    "FailureKind",
    "FaultSettings",
    "Heartbeat",
    "Output",
    "Ready",
    "RequestFailed",
    "Shutdown",
    "StartFailed",
    "Step",
    "Submit",
    "ToolUse",
    "TreeKnobs",
    "backoff_seconds",
    "document_key",
    "heartbeat_seconds",
    "path_to_text",
]


KEY_BYTES = 20


def document_key(salt: str, token_ids: Sequence[int]) -> bytes:
    """Hash of a document's tokens and its tenant, so tenants never share keys."""
    tokens = array("I", [len(token_ids), *token_ids]).tobytes()
    content = hashlib.blake2b(tokens, digest_size=KEY_BYTES)
    content.update(salt.encode("utf-8", "surrogatepass"))  # it may hold any character
    return content.digest()


FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
HEARTBEATS = 4
"""A process that misses this many in a row counts as hung; at most one a second is sent."""


Limit = Annotated[float | None, checked(check_seconds, also="None for no limit")]
Size = Annotated[float, checked(check_number, 0)]


class FaultSettings(CheckedSettings):
    """What happens if the engine's process fails.

    Attributes:
        max_restarts: How many times in a row a process that died is replaced; afterwards every
            request gets :class:`EngineDeadError`. 0 for no restart.
        restart_window: Seconds after which a process that is alive resets the count of restarts.
        rewarm_tokens: Tokens of the most common first documents, the text before them first, that
            are computed again after a restart before requests resume, for at most ten seconds; 0
            for none.
        hang_timeout: Seconds without a heartbeat after which the process counts as hung and is
            replaced; while it loads, seconds that it may be stopped. ``None`` for no limit.
        step_timeout: Seconds that a single step of the model may take before the process counts as
            hung; ``None`` for no limit. Raise it if a chunk of ``max_num_batched_tokens`` takes
            minutes.
        request_timeout: Seconds without output, the wait in the queue included, after which a
            request is retried; ``None`` for no limit.
        max_retries: How often a request is retried that failed or produced no output, each time
            after twice the pause.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    max_restarts: Count = 5
    restart_window: Annotated[float, checked(check_number, 0, unit="seconds")] = 60.0
    rewarm_tokens: Count = 8192
    hang_timeout: Limit = 20.0
    step_timeout: Limit = 600.0
    request_timeout: Limit = None
    max_retries: Count = 2


def heartbeat_seconds(hang_timeout: float | None) -> float:
    """Seconds between the heartbeats that a process must send."""
    return min(1.0, (hang_timeout or HEARTBEATS) / HEARTBEATS)


def backoff_seconds(tries: int) -> float:
    """Seconds to wait before the next attempt: twice as long after each failure.

    Args:
        tries: Number of failed attempts, at least 1.
    """
    doublings = min(tries - 1, 16)  # far beyond the longest
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * float(1 << doublings))


DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")
REUSES = ("prefix", "anywhere")
DOCUMENT_DTYPES = ("raw", "int8", "int8-int4")
MOST_LINK_TOKENS = 1 << 20
"""More than any document has. vLLM refuses requests with numbers that don't fit 64 bits."""
MOST_URGENT = 1 << 31
"""Priorities of requests go from this number, negated, to this number."""


def _or_none(meaning: str) -> BeforeValidator:
    return checked(or_none(check_int), 1, also=f"None for {meaning}")


def path_to_text(path: object) -> object:
    """Return a path as a string; other values as they are."""
    return str(path) if isinstance(path, Path) else path


class TreeKnobs(BaseModel):
    """Which documents' KV caches are kept, where, and how they are reused.

    Engines, LLM classes and ``ragcache serve`` have these knobs.

    Attributes:
        policy: Which documents are evicted first: ``lrfu`` (by frequency, recency and the time to
            compute it again), ``pgdsf`` (the same by RAGCache's formula), ``gdsf``, ``lru`` or
            ``lfu``.
        host_cache_gib: Memory of the host to which evicted documents are copied, in GiB; 0 for
            none. On a CPU it is added to ``kv_cache_gib``.
        reorder_window: How often each waiting request may be overtaken by requests whose documents
            are cached; ``None`` for the order of arrival.
        cache_depth: How many of a request's first documents are kept, because the orders of many
            documents hardly ever repeat; ``None`` for all.
        frequency_window: Seconds for which ``pgdsf``, ``gdsf`` and ``lfu`` count a request of a
            document; ``None`` for ever. ``lrfu`` tunes itself.
        reuse: ``prefix`` reuses a document's KV cache after the same text, which is exact;
            ``anywhere`` at every place of every prompt, which is an approximation: a document does
            not see those before it, but for its first tokens. A request to ``ragcache serve`` may
            say which.
        link_tokens: How many first tokens of each document are computed in place with
            ``reuse="anywhere"``: more cost time and come closer to exact answers.
        exact_documents: How many documents at the beginning of each prompt are exact all the same
            with ``reuse="anywhere"``: read from an exact KV cache, or computed. One costs as much
            time as computing a document, and answers come closer to exact ones.
        document_cache_gib: Memory of the host for documents that are reused anywhere, in GiB.
        document_dtype: How the keys and values of these documents are kept, in memory and on disk:
            ``int8``, whose loss can't be measured, in a quarter of float32's bytes; ``int8-int4``,
            with 4 bits for values, in a fifth; ``raw``, as they were computed.
        disk_cache_gib: Room on disk for documents, the tree's and those that are reused anywhere,
            in GiB: they survive restarts, and those that the memory has no room for are read from
            there; 0 for none.
        disk_cache_dir: Folder in which they are kept, for any number of models and engines;
            ``None`` for the user's cache folder.
        quotas: Part of the KV cache, above 0 and at most 1, that belongs to each of some tenants,
            such as ``{"a": 0.3}``. All other tenants have the rest together. A tenant that stays
            within its part loses nothing to others; what it does not use is lent.
    """

    policy: Annotated[str, checked(check_choice, tuple(POLICIES))] = DEFAULT_POLICY
    host_cache_gib: Size = 0.0
    reorder_window: Annotated[int | None, _or_none("the order of arrival")] = 32
    cache_depth: Annotated[int | None, _or_none("all documents")] = None
    frequency_window: Annotated[float | None, checked(check_seconds, also="None for all time")] = (
        None
    )
    reuse: Annotated[str, checked(check_choice, REUSES)] = "prefix"
    link_tokens: Annotated[int, checked(check_int, 0, MOST_LINK_TOKENS)] = 16
    exact_documents: Count = 0
    document_cache_gib: Annotated[float, checked(check_number, 0, above=True)] = 1.0
    document_dtype: Annotated[str, checked(check_choice, DOCUMENT_DTYPES)] = "int8"
    disk_cache_gib: Size = 0.0
    disk_cache_dir: Annotated[str | Path | None, BeforeValidator(path_to_text)] = None
    quotas: Annotated[Mapping[str, float] | None, unless_none(check_quotas)] = None


class CacheSettings(CheckedSettings, TreeKnobs):
    """Plain values only, because they pass through vLLM's own configuration.

    Attributes:
        prefill_profile: A measured prefill cost model, as plain data.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    prefill_profile: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_folder(self) -> Self:
        folder = self.disk_cache_dir
        if folder is not None and not (folder and self.disk_cache_gib):
            raise ConfigurationError(
                "disk_cache_dir must be a folder, or None, and needs disk_cache_gib above 0, got "
                f"{folder!r} and {self.disk_cache_gib}"
            )
        return self


class EngineCallOptions(CallOptions, total=False):
    """What a call of the local engine takes besides.

    Attributes:
        reuse: ``prefix``, which is exact, or ``anywhere``; the engine's own by default.
        link_tokens: First tokens of each document that are computed where the rest is reused
            anywhere; the engine's own by default.
        priority: Requests with lower numbers go first, and keep their documents longer; 0 by
            default.
        step: Name of the step of a workflow that the request is; empty for none.
        next_steps: Steps that come next, and how many steps are before each: 1 for the one that
            comes after this request.
    """

    reuse: str | None
    link_tokens: int | None
    priority: int
    step: str
    next_steps: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is now.

    Attributes:
        free_kv_tokens: Capacity of the KV cache that a new request could get, in tokens. Blocks
            that are cached but used by no running request count as free.
        total_kv_tokens: The whole KV cache, in tokens.
        running_requests: Requests being computed.
        waiting_requests: Requests in the queue.
        prefilling_requests: Running ones whose prompts are not computed yet.
    """

    free_kv_tokens: int
    total_kv_tokens: int
    running_requests: int
    waiting_requests: int
    prefilling_requests: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine has done since it started.

    Attributes:
        requests: Requests accepted.
        finished_requests: Requests whose answers are complete.
        aborted_requests: Requests that were aborted, timed out or dropped.
        failed_requests: Requests that ended in an error.
        prompt_tokens: Prompt tokens of finished requests.
        cached_prompt_tokens: Those of them whose KV cache was reused.
        completion_tokens: Tokens generated by finished requests.
        tree: Counts of the knowledge tree since the process was last started, as of the last
            request that ended or was aborted; ``None`` without a tree.
        block_bytes: Size of a block of the KV cache, the unit of the tree's counts.
        restarts: Times that the engine's process was started again.
        replayed_requests: Requests that started over after a restart.
        resumed_requests: Requests that resumed after a restart, after their emitted tokens.
        retried_requests: Times that a request was retried because it failed or produced no output.
        host_tier_failures: Blocks that could not be copied to the host's memory or back; they were
            computed again.
    """

    requests: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    failed_requests: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    tree: TreeStats | None = None
    block_bytes: int = 0
    restarts: int = 0
    replayed_requests: int = 0
    resumed_requests: int = 0
    retried_requests: int = 0
    host_tier_failures: int = 0


class Counters:
    """Keeps :class:`EngineStats` up to date.

    Attributes:
        stats: The counts so far.
    """

    def __init__(self) -> None:
        self._lock = make_reentrant_lock()  # reentrant: a garbage collection may count an abort
        self.stats = EngineStats()

    def add(self, **counts: int) -> EngineStats:
        """Add to the counts of these names, and return the counts before."""
        with self._lock:
            before = self.stats
            sums = {name: getattr(before, name) + count for name, count in counts.items()}
            self.stats = replace(before, **sums)
        return before

    def finished(self, usage: Usage) -> None:
        """A request's answer is complete."""
        self.add(
            finished_requests=1,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings with which a process starts, made of checked ``EngineKnobs``."""

    model: str
    kv_cache_gib: float | None = None
    max_model_len: int | None = None
    dtype: str = "auto"
    seed: int = 0
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
