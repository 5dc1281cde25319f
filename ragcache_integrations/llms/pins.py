"""Pinned documents, through the LLM classes of both frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ragcache_integrations.core.generation import Usage
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from .backend import BackendSource

__all__ = ["Pinning"]


class Pinning:
    """The methods of an LLM class that pin documents in its engine."""

    if TYPE_CHECKING:
        namespace: str
        _source: BackendSource

    def pin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        namespace: str | None = None,
    ) -> Usage:
        """Keep documents' KV caches in the GPU under any load.

        Args:
            documents: Documents or nodes of the framework, texts, or a prompt of ours. They stay at
                one place: after ``system``, in this order.
            ttl: Seconds; ``None`` until :meth:`unpin`.
            system: System text before the documents.
            namespace: The tenant; the object's own if ``None``.

        Raises:
            ConfigurationError: There would be no room for the longest request, or the tenant's
                pins would exceed its quota; or this is no local engine with a knowledge tree. A
                server takes the field ``pin`` of a request.
        """
        call = {"ttl": ttl, "system": system, "namespace": self._tenant(namespace)}
        usage: Usage = _pinning(self._source.get()).pin(documents, **call)
        return usage

    async def apin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        ttl: float | None = None,
        system: str = "",
        namespace: str | None = None,
    ) -> Usage:
        """Async version of :meth:`pin`."""
        call = {"ttl": ttl, "system": system, "namespace": self._tenant(namespace)}
        usage: Usage = await _pinning(await self._source.aget()).apin(documents, **call)
        return usage

    def unpin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        system: str = "",
        namespace: str | None = None,
    ) -> bool:
        """Let pinned documents be evicted again; whether they were pinned."""
        call = {"system": system, "namespace": self._tenant(namespace)}
        return bool(_pinning(self._source.get()).unpin(documents, **call))

    async def aunpin(
        self,
        documents: Prompt | Iterable[Any],
        *,
        system: str = "",
        namespace: str | None = None,
    ) -> bool:
        """Async version of :meth:`unpin`."""
        call = {"system": system, "namespace": self._tenant(namespace)}
        return bool(await _pinning(await self._source.aget()).aunpin(documents, **call))

    def _tenant(self, namespace: str | None) -> str:
        return self.namespace if namespace is None else namespace


def _pinning(backend: Any) -> Any:
    if not hasattr(backend, "pin"):
        msg = (
            f"documents are pinned in a local engine, got {type(backend).__name__}: send the field "
            "`pin` in a request to `ragcache serve`"
        )
        raise ConfigurationError(msg)
    return backend
