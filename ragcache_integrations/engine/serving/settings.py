"""The server's settings, and their way from the command line to the server's processes."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from ragcache_integrations.core.checks import check_number
from ragcache_integrations.core.knobs import CheckedSettings, Count, Flag, Positive, checked
from ragcache_integrations.engine.protocol import Limit

__all__ = ["SCHEDULER", "TREE_SETTINGS", "ConnectionSettings", "ServingSettings"]

SCHEDULER = "ragcache_integrations.engine.serving.scheduler.make_scheduler"
"""For ``--scheduler-cls``."""

TREE_SETTINGS = "ragcache"
"""The key of the knowledge tree's settings in ``--additional-config``."""

VARIABLE = "RAGCACHE_SERVING"
"""Environment variable with the settings: vLLM makes the middleware without arguments, in each of
its API processes."""

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20


class ConnectionSettings(CheckedSettings):
    """Limits of connections and headers, before any API key is checked.

    Attributes:
        max_header_bytes: The most bytes of a request's line and headers together; more get a 431,
            or a 414 if the URL alone is too long.
        max_headers: The most headers of a request; more get a 431.
        header_seconds: Seconds within which a request's headers must arrive, from the opening of
            the connection or the request's first byte, else it gets a 408; ``None`` for no limit.
        body_seconds: The same for its body, and for a client that does not read its answer;
            ``None`` for no limit.
        max_connections_per_client: The most open connections of one IP address (IPv6: one network
            of 64 bits), such as a proxy's; more get a 429, 0 for no limit. Each API process counts
            separately.
    """

    max_header_bytes: Positive = 64 * KIBIBYTE
    max_headers: Positive = 100
    header_seconds: Limit = 10.0
    body_seconds: Limit = 60.0
    max_connections_per_client: Count = 1024


class ServingSettings(ConnectionSettings):
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
        folder: Folder in which the schedulers and the middleware exchange files; empty for none.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    max_prompt_bytes: Positive = 16 * MEBIBYTE
    new_tenants_per_minute: Count = 600
    drain_seconds: Annotated[float, checked(check_number, 0, unit="seconds")] = 30.0
    log_prompts: Flag = False
    hang_timeout: Limit = 20.0
    step_timeout: Limit = 600.0
    folder: str = Field(default="", repr=False)

    def as_environment(self) -> dict[str, str]:
        """The variable that carries them to the server's processes."""
        return {VARIABLE: self.model_dump_json()}

    @classmethod
    def from_environment(cls) -> ServingSettings:
        """Read the variable of :meth:`as_environment`; the defaults if it is not set."""
        return cls.model_validate_json(os.environ.get(VARIABLE, "{}"))
