"""The server's settings, and their way from the command line to the server's processes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from ragcache_integrations.core.checks import (
    check_field,
    check_flag,
    check_int,
    check_number,
    check_seconds,
)

__all__ = ["SCHEDULER", "TREE_SETTINGS", "ServingSettings"]

SCHEDULER = "ragcache_integrations.engine.serving.scheduler.make_scheduler"
"""For ``--scheduler-cls``."""

TREE_SETTINGS = "ragcache"
"""The key of the knowledge tree's settings in ``--additional-config``."""

VARIABLE = "RAGCACHE_SERVING"
"""Environment variable with the settings: vLLM makes the middleware without arguments, in each of
its API processes."""

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Settings of the middleware.

    Attributes:
        max_prompt_bytes: The most bytes of a request's body; larger ones get a 413.
        new_tenants_per_minute: How many cache salts that were not seen lately are accepted per
            minute and API key; more get a 429, 0 for no limit. Each of the server's API processes
            counts separately.
        drain_seconds: Seconds that running requests have to end after a signal to end the server.
        log_prompts: Whether the log of requests contains their bodies.
        hang_timeout: Seconds without a heartbeat after which an engine's process counts as hung and
            is killed, which ends the server; ``None`` for no limit.
        step_timeout: Seconds that a single step of the model may take before its process counts as
            hung; ``None`` for no limit.
        max_header_bytes: The most bytes of a request's line and headers together; more get a 431,
            or a 414 if the URL alone is too long.
        max_headers: The most headers of a request; more get a 431.
        header_seconds: Seconds within which a request's headers must arrive, from the opening of
            the connection or the request's first byte; else it gets a 408. ``None`` for no limit.
        body_seconds: The same for its body, and for a client that does not read its answer;
            ``None`` for no limit.
        max_connections_per_client: The most open connections of one IP address (IPv6: one network
            of 64 bits); more get a 429, 0 for no limit. Each API process counts separately.
        folder: Folder in which the schedulers and the middleware exchange files; empty for none.

    Raises:
        ConfigurationError: A setting is out of its range.
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
        for name in ("max_prompt_bytes", "max_header_bytes", "max_headers"):
            check_field(self, check_int, name, 1)
        for name in ("new_tenants_per_minute", "max_connections_per_client"):
            check_field(self, check_int, name, 0)
        check_field(self, check_number, "drain_seconds", 0, unit="seconds")
        check_field(self, check_flag, "log_prompts")
        for name in ("hang_timeout", "step_timeout", "header_seconds", "body_seconds"):
            check_field(self, check_seconds, name, also="None for no limit")

    def as_environment(self) -> dict[str, str]:
        """The variable that carries them to the server's processes."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> ServingSettings:
        """Read the variable of :meth:`as_environment`; the defaults if it is not set."""
        return cls(**json.loads(os.environ.get(VARIABLE, "{}")))
