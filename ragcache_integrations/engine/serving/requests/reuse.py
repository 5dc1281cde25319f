"""Fields that say where a request's documents are reused: ``reuse`` and ``link_tokens``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.prompt import ENCODE, LINK_TOKENS, SPAN_ARGS
from ragcache_integrations.engine.protocol import MOST_LINK_TOKENS, REUSES, CacheSettings
from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["ReuseFields"]

FIELDS = REUSE, LINKS = ("reuse", "link_tokens")


class ReuseFields:
    """Reads the fields, and passes them on to the scheduler.

    Args:
        settings: Those of the knowledge tree; ``None`` without one.
    """

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        known = CacheSettings() if settings is None else CacheSettings(**settings)
        self._default, self._links = known.reuse, known.link_tokens

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check a request's fields, and translate them for vLLM.

        Args:
            body: The request with the spans of its documents; it is not changed.

        Raises:
            RequestRefusedError: A field is not among what is allowed.
        """
        xargs = body.get("vllm_xargs")
        xargs = xargs if isinstance(xargs, dict) else {}
        if any(name in xargs for name in (ENCODE, LINK_TOKENS)):
            msg = f"{LINK_TOKENS} and {ENCODE} are not for clients: send {REUSE} and {LINKS}"
            raise RequestRefusedError(400, msg)
        reuse, links = self._read(body)
        if any(name in body for name in FIELDS):
            body = {name: value for name, value in body.items() if name not in FIELDS}
        if reuse == "anywhere" and any(name in xargs for name in SPAN_ARGS):
            body = {**body, "vllm_xargs": {**xargs, LINK_TOKENS: links}}
        return body

    def _read(self, body: dict[str, Any]) -> tuple[str, int]:
        reuse, links = (body.get(name) for name in FIELDS)
        if reuse is None:
            reuse = self._default
        elif reuse not in REUSES:
            msg = f"{REUSE} must be {' or '.join(map(repr, REUSES))}, got {reuse!r:.100}"
            raise RequestRefusedError(400, msg)
        elif reuse == "anywhere" != self._default:
            msg = (
                f"{REUSE} must be 'prefix' here: this server was not started with --reuse anywhere"
            )
            raise RequestRefusedError(400, msg)
        if links is None:
            return reuse, self._links
        if reuse != "anywhere":
            msg = f"{LINKS} needs {REUSE}: 'anywhere', here it is {reuse!r}"
            raise RequestRefusedError(400, msg)
        if not is_whole(links) or not 0 <= links <= MOST_LINK_TOKENS:
            msg = f"{LINKS} must be a whole number from 0 to {MOST_LINK_TOKENS}, got {links!r:.100}"
            raise RequestRefusedError(400, msg)
        return reuse, links
