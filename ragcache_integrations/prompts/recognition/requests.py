"""What was retrieved for which request, so that no request sees the documents of another.

A request is all that happens within one outermost run of the framework: a LangChain run without a
parent, a LlamaIndex span without a parent. Documents are remembered for the request in which they
were retrieved, and an LLM call looks at those of its own request alone.

A script may retrieve in one run and ask in another::

    documents = retriever.invoke(question)
    answer = model.invoke(prompt(documents))

Such runs are linked by the context (:mod:`contextvars`) of the thread or task that makes the calls.
What the context holds is immutable: a thread or task that inherited it sees what was retrieved
before, and nothing that its parent or its siblings retrieve afterwards. A thread may serve one
tenant after another, so that here the namespaces of both calls have to be equal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextvars import ContextVar

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition.marking import mark_prompt
from ragcache_integrations.prompts.recognition.retrieved import RetrievedDocuments

__all__ = ["REQUESTS", "UNKNOWN", "Requests"]

Documents = Iterable[tuple[object, object]]
"""Ids and texts, as a retriever gave them."""

UNKNOWN = object()
"""Stands for a run that cannot be told: no documents are found for it."""

MAX_RUNS = 16384
"""Runs that are followed. One whose end is never reported is forgotten behind so many others."""

MAX_EARLIER = 8
"""Requests that a context links to the next one."""


class _Request:
    """One request. Guarded by the lock of its owner, but for what is thread-safe itself."""

    def __init__(self, earlier: tuple[_Request, ...]) -> None:
        self.earlier: tuple[_Request, ...] = earlier
        self.answered: bool = False
        # What is retrieved after an answer belongs to another question than what was before.
        self.follows_answer = any(request.answered for request in earlier)
        self.ended = False
        self.dismissed = False
        self.is_bare = False  # retrieved by calls that nothing is around
        self._by_namespace: dict[str, RetrievedDocuments] = {}

    def remember(self, documents: Documents, namespace: str) -> None:
        memory = self._by_namespace.setdefault(namespace, RetrievedDocuments())
        memory.remember(documents)

    @property
    def retrieved(self) -> bool:
        return any(map(len, self._by_namespace.values()))

    def memories(self, namespaces: AbstractSet[str]) -> list[RetrievedDocuments]:
        """What was retrieved in some namespaces."""
        return [self._by_namespace[name] for name in namespaces & self._by_namespace.keys()]

    def serve(self) -> None:
        """Note that an LLM call looked at the documents.

        One that retrieved within a chain and was asked only afterwards, as by a stream that is read
        when its query is over, is served once. Documents of a bare retrieval may be asked about
        again and again.
        """
        self.answered = True
        if self.ended and not self.is_bare:
            self._dismiss()

    def end(self, *, failed: bool) -> None:
        """Keep the documents for the next run in this context, unless they have served already."""
        self.ended = True
        self.earlier = ()  # or a thread's requests would keep all that were ever before them
        if failed or self.answered or not self.retrieved:
            self._dismiss()

    def _dismiss(self) -> None:
        self.dismissed = True
        self._by_namespace.clear()


class _Run:
    """One run: whose it is, and in which namespace it retrieves."""

    __slots__ = ("namespace", "parent", "request")

    def __init__(self, request: _Request, parent: Hashable | None) -> None:
        self.request = request
        self.parent = parent
        self.namespace = ""

    @property
    def is_root(self) -> bool:
        return self.parent is None


# The requests that began in this context, the newest last.
_context: ContextVar[tuple[_Request, ...]] = ContextVar("ragcache_requests", default=())


class Requests:
    """Follows runs to their requests, and finds a request's documents in its prompts. Thread-safe.

    Every method takes microseconds and blocks nothing.

    Args:
        max_runs: The most runs that are followed at once.

    Raises:
        ConfigurationError: ``max_runs`` is below 1.
    """

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        if max_runs < 1:
            msg = f"max_runs must be at least 1, got {max_runs}"
            raise ConfigurationError(msg)
        self._max_runs = max_runs
        self._lock = make_lock()
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self, run: Hashable, parent: Hashable | None = None) -> None:
        """Note that a run began, in the context of whoever began it.

        Args:
            run: Identifies it.
            parent: The run around it; ``None`` where there is none, so that a request begins.
        """
        with self._lock:
            request = _new_request() if parent is None else self._request_of(parent)
            self._follow(run, _Run(request, parent))

    def end(self, run: Hashable, *, failed: bool = False) -> None:
        """Note that a run ended. Documents of a request that failed or was answered are forgotten.

        Args:
            run: As for :meth:`begin`.
            failed: Whether an error ended it.
        """
        with self._lock:
            ended = self._runs.pop(run, None)
            if ended is not None and ended.is_root:
                ended.request.end(failed=failed)

    def set_namespace(self, run: Hashable, namespace: str, *, and_around: bool = False) -> None:
        """Restrict what a run retrieves to LLM calls in the same namespace.

        The retrievers of this package call this. Documents of other retrievers are of the namespace
        ``""``. Those are visible in every namespace within their own request; a call that only the
        context links to them has to be in the namespace ``""``, too.

        Args:
            run: The retriever's own run.
            namespace: Tenant.
            and_around: Whether the run around it reports the documents, as LlamaIndex has it.
        """
        with self._lock:
            followed = self._runs.get(run)
            if followed is None:
                return
            followed.namespace = namespace
            around = self._runs.get(followed.parent)
            if and_around and around is not None:
                around.namespace = namespace

    def remember(self, run: Hashable | None, documents: Documents) -> None:
        """Remember what was retrieved; see :class:`~.recognition.RetrievedDocuments`.

        Args:
            run: Who retrieved it. A run that is not followed is passed over, since nobody could
                say to which request and namespace its documents belong. ``None`` for code that
                runs in no run: the documents then belong to the context.
            documents: Ids and texts.
        """
        with self._lock:
            if run is None:
                request = _new_request()
                request.is_bare = True
                request.remember(documents, "")
                request.end(failed=False)
            elif run in self._runs:
                followed = self._runs[run]
                followed.request.is_bare |= followed.is_root
                followed.request.remember(documents, followed.namespace)

    def mark(self, prompt: Prompt, run: Hashable | None, namespace: str) -> Prompt:
        """Mark the documents of the request that stand verbatim in its prompt.

        Args:
            prompt: What is to be answered.
            run: The run that answers it, or the one around that; ``None`` where there is none.
            namespace: Tenant, as effective for this call.
        """
        if run is UNKNOWN:
            return prompt
        with self._lock:
            seen, is_own = self._requests_seen_by(run)
            namespaces = {"", namespace} if is_own else {namespace}
            memories = [memory for request in seen for memory in request.memories(namespaces)]
            for request in seen:
                request.serve()
        return mark_prompt(prompt, _distinct(memories, prompt))

    def _requests_seen_by(self, run: Hashable | None) -> tuple[list[_Request], bool]:
        """The requests to look at, and whether they are the run's own one."""
        earlier = _context.get()
        seen: list[_Request] = []
        if run is not None:
            own = self._request_of(run)
            own.answered = True
            if own.retrieved:
                return [own], True
            earlier = own.earlier
        for request in reversed(earlier):
            if request.ended and not request.dismissed:
                seen.append(request)
                if request.follows_answer:
                    break
        return seen[::-1], False

    def _request_of(self, run: Hashable) -> _Request:
        """The request of a run, also of one that began before anyone listened."""
        followed = self._runs.get(run)
        if followed is None:
            followed = _Run(_Request(_linked()), None)
            self._follow(run, followed)
        return followed.request

    def _follow(self, run: Hashable, followed: _Run) -> None:
        self._runs[run] = followed
        if len(self._runs) > self._max_runs:
            _, forgotten = self._runs.popitem(last=False)
            if forgotten.is_root:
                forgotten.request.end(failed=True)


def _linked() -> tuple[_Request, ...]:
    return tuple(request for request in _context.get() if not request.dismissed)[-MAX_EARLIER:]


def _new_request() -> _Request:
    request = _Request(_linked())
    _context.set((*request.earlier, request))
    return request


def _distinct(memories: Iterable[RetrievedDocuments], prompt: Prompt) -> list[PromptDocument]:
    """The documents in a prompt; an id that two texts have is left to the first."""
    documents: dict[str, PromptDocument] = {}
    ids: set[str] = set()
    for document in _found(memories, prompt):
        if document.text not in documents:
            own = document if document.id not in ids else PromptDocument(document.text)
            documents[document.text] = own
            ids.add(own.id)
    return list(documents.values())


def _found(memories: Iterable[RetrievedDocuments], prompt: Prompt) -> Iterator[PromptDocument]:
    for memory in memories:
        yield from memory.find(prompt)


REQUESTS = Requests()
"""The requests of this process: the frameworks report runs for the whole process."""
