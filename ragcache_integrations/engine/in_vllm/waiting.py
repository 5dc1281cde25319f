"""vLLM's queue of waiting requests, in our order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from ragcache_integrations.knowledge_tree import ReorderingQueue
from ragcache_integrations.knowledge_tree.node import Key
from ragcache_integrations.knowledge_tree.path import Path

__all__ = ["CacheAwareRequestQueue", "topics"]


def topics(path: Path) -> list[Key]:
    """The last blocks of a request's documents: its priority rises when they get cached.

    The text before the documents is left out, because all requests share it. Keys are returned, not
    nodes, because keys outlive a reset of the cache.
    """
    return [last for _, last in (node.label for node in path.nodes[1:]) if last is not None]


class CacheAwareRequestQueue(RequestQueue):
    """The waiting queue, in our order (see :class:`ReorderingQueue`)."""

    def __init__(self, queue: ReorderingQueue[Request], paths: dict[str, Path]) -> None:
        self.queue = queue
        self._paths = paths

    def add_request(self, request: Request) -> None:
        """Add a request."""
        path = self._paths.get(request.request_id)
        self.queue.add(request, topics(path) if path else (), urgency=-request.priority)

    def pop_request(self) -> Request:
        """Take the next request out."""
        return self.queue.pop()

    def peek_request(self) -> Request:
        """The next request."""
        return self.queue.peek()

    def prepend_request(self, request: Request) -> None:
        """Put a preempted request back at the front."""
        self.queue.push_front(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put back requests that could not be scheduled in this step."""
        self.queue.put_back(requests)

    def remove_request(self, request: Request) -> None:
        """Take a request out."""
        self.queue.remove((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take requests out; unknown ones are ignored."""
        self.queue.remove(requests)

    def __bool__(self) -> bool:
        return len(self.queue) > 0

    def __len__(self) -> int:
        return len(self.queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.queue)
