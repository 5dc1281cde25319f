"""The server's own settings, on their way from the command line to the server's processes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from ragcache_integrations.core.checks import (
    check_flag,
    check_int,
    check_number,
    check_seconds,
)

__all__ = ["SCHEDULER", "TREE_SETTINGS", "ServingSettings"]

SCHEDULER = "ragcache_integrations.engine.serving.scheduler.make_scheduler"
"""For ``--scheduler-cls``."""

TREE_SETTINGS = "ragcache"
"""Under this name the knowledge tree's settings stand in ``--additional-config``."""

VARIABLE = "RAGCACHE_SERVING"
"""vLLM makes the middleware, in each of its API processes, without arguments."""

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20

_LEAST = {
    "max_prompt_bytes": 1,
    "new_tenants_per_minute": 0,
    "max_header_bytes": 1,
    "max_headers": 1,
    "max_connections_per_client": 0,
}


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """What the middleware has to know.

    Attributes:
        max_prompt_bytes: Size of the largest request that is read; larger ones get a 413.
        new_tenants_per_minute: Cache salts not seen lately that are taken a minute, for each API
            key; more get a 429, 0 is no limit. Each of the server's API processes counts by itself.
        drain_seconds: Seconds that running requests are given to end once the server is told to.
        log_prompts: Whether the log of requests holds what was asked.
        hang_timeout: Seconds without a sign of life after which an engine's process counts as hung
            and is killed, which ends the server; ``None`` for no limit.
        step_timeout: Seconds that a single step of the model may take before it does; ``None`` for
            no limit.
        max_header_bytes: Bytes that a request's line and headers may have together; more get a 431,
            a URL by itself a 414.
        max_headers: Headers that a request may have; more get a 431.
        header_seconds: Seconds within which a request's headers must have come, from the opening of
            the connection or the request's first byte; a 408 otherwise. ``None`` for no limit.
        body_seconds: The same for its body, and for a client that does not read its answer;
            ``None`` for no limit.
        max_connections_per_client: Connections that one IP address (IPv6: one network of 64 bits)
            may have open; more get a 429, 0 is no limit. Each API process counts by itself.
        folder: Where the schedulers and the middleware meet; empty for nowhere.

    Raises:
        ConfigurationError: One is out of its range.
    """

    max_prompt_bytes: int = 16 * MEBIBYTE
    new_tenants_per_minute: int = 600
    drain_seconds: float = 30.0
    log_prompts: bool = False
    hang_timeout: float | None = 20.0
    step_timeout: float | None = 600.0
    max_header_bytes: int = 64 * KIBIBYTE
    max_headers: int = 100
    header_seconds: float | None = 10.0
    body_seconds: float | None = 60.0
    max_connections_per_client: int = 1024
    folder: str = ""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            object.__setattr__(self, name, check_int(name, getattr(self, name), least))
        seconds = check_number("drain_seconds", self.drain_seconds, 0, unit="seconds")
        object.__setattr__(self, "drain_seconds", seconds)
        object.__setattr__(self, "log_prompts", check_flag("log_prompts", self.log_prompts))
        for name in ("hang_timeout", "step_timeout", "header_seconds", "body_seconds"):
            limit = check_seconds(name, getattr(self, name), also="None for no limit")
            object.__setattr__(self, name, limit)

    def as_environment(self) -> dict[str, str]:
        """The variable that carries them to the server's processes."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ServingSettings:
        """What :meth:`as_environment` left; the defaults where nothing was."""
        return cls(**json.loads(os.environ.get(VARIABLE, "{}")))
