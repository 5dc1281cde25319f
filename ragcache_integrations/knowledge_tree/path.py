"""A request's way through the knowledge tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragcache_integrations.core.prompt import Span

from .node import Node

__all__ = ["Path", "Span"]


@dataclass(slots=True, eq=False)
class Path:
    """The nodes of one request.

    Attributes:
        nodes: The text before the first document, then the documents that may be cached.
        ends: For each node, how many leading blocks of the prompt end in it or before it.
        spans: All documents of the request, those beyond ``cache_depth`` included.
        accessed: Whether the access was counted; a preempted request comes twice.
        accessed_at: When it was; kept only where frequencies have a time window.
        counted_at: When it was, in the time of :class:`~.popularity.Popularity`.
        retracted: Whether it was taken back.
        closed: Whether the request has left.
    """

    nodes: tuple[Node, ...]
    ends: tuple[int, ...]
    spans: tuple[Span, ...] = field(default=())
    accessed: bool = False
    accessed_at: float = 0.0
    counted_at: float = 0.0
    retracted: bool = False
    closed: bool = False
