"""Remembers which documents were retrieved for which request, and keeps requests apart.

A request is everything within one outermost run of the framework: a LangChain run without a parent,
or a LlamaIndex span without a parent. Documents are remembered for the request in which they were
retrieved, and an LLM call uses only those of its own request.

A script may retrieve in one run and call the model in another::

    documents = retriever.invoke(question)
    answer = model.invoke(prompt(documents))

Such runs are linked by the context (:mod:`contextvars`) of the thread or task that makes the calls.
The value in the context is immutable: a thread or task that inherits it has the earlier documents,
and none that its parent or its siblings retrieve later. A thread may serve several tenants in
sequence, so linked calls must be in the same namespace.

Documents are recognised in prompts of plain text, because the usual chain formats them into one
string, and the model's class never gets them. The prompt contains their texts verbatim, so it is
searched for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.prompt import Prompt, PromptDocument

from .marking import mark_prompt

__all__ = ["MIN_LENGTH", "REQUESTS", "UNKNOWN", "Requests", "RetrievedDocuments"]

Documents = Iterable[tuple[object, object]]
"""Ids and texts, as a retriever returned them."""

UNKNOWN = object()
"""A run that cannot be identified: no documents are found for it."""

MAX_RUNS = 16384
"""The most runs that are followed. A run whose end is never reported is forgotten after this many
others."""

MAX_EARLIER = 8
"""The most requests that a context links to the next one."""


MIN_LENGTH = 64
"""Characters of the shortest text that is remembered: a shorter one fills no block of KV cache,
and might occur in a prompt by chance."""

CAPACITY = 4096
"""The most documents that are remembered for one request."""

MAX_CHARACTERS = 1 << 24
"""The most characters of these documents together."""

SNIPPET, STRIDE = 32, 16
"""Characters of a snippet, and distance between the places of a prompt that are looked up.

Each text is indexed by the snippets that begin at ``STRIDE`` consecutive places. In every prompt
that contains the text, one of them begins at a multiple of ``STRIDE``, so that no other places have
to be looked up.
"""


class RetrievedDocuments:
    """Documents that were retrieved. Thread-safe; it holds ids and texts, nothing else.

    Documents are identified by their texts: one that is retrieved again keeps its first id. The id
    of another text is not used twice; the second document gets the hash of its text, like those
    without an id. White space around a text is removed, because chains strip it.

    Args:
        capacity: The most documents to remember. The least recently retrieved are forgotten first.
        max_characters: The most characters of all documents together.

    Raises:
        ConfigurationError: An argument is below 1.
    """

    def __init__(self, capacity: int = CAPACITY, max_characters: int = MAX_CHARACTERS) -> None:
        capacity = check_int("capacity", capacity, 1)
        self._max_characters = check_int("max_characters", max_characters, 1)
        self._lock = make_lock()
        self._documents: Memo[str, PromptDocument] = Memo(  # by text
            capacity, max_size=self._max_characters, size=lambda text, _: len(text)
        )
        self._ids: set[str] = set()
        self._indexed: dict[str, set[PromptDocument]] = {}  # by snippet

    def __len__(self) -> int:
        return len(self._documents)

    def remember(self, documents: Iterable[tuple[object, object]]) -> None:
        """Remember the results of a retriever.

        Args:
            documents: Ids and texts, as the retriever returned them. An id that is empty or no
                string counts as missing. Values that are no texts, and texts shorter than
                :data:`MIN_LENGTH` or longer than ``max_characters``, are ignored.
        """
        for name, value in documents:
            text = value.strip() if isinstance(value, str) else ""
            if MIN_LENGTH <= len(text) <= self._max_characters:
                with self._lock:
                    self._remember(name, text)

    def mark(self, prompt: Prompt) -> Prompt:
        """Mark the documents that :meth:`find` finds."""
        return mark_prompt(prompt, self.find(prompt))

    def find(self, prompt: Prompt) -> list[PromptDocument]:
        """Find the documents whose whole text the prompt contains verbatim.

        It takes one look-up for every :data:`STRIDE` characters, regardless of the number of
        documents.
        """
        texts = (part for part in prompt.all_parts if isinstance(part, str))
        documents: dict[str, PromptDocument] = {}
        with self._lock:
            for text in texts:
                for place in range(0, len(text) - SNIPPET + 1, STRIDE):
                    for candidate in self._indexed.get(text[place : place + SNIPPET], ()):
                        own = candidate.text
                        begin = place - _indexed_from(own)
                        if own not in documents and _contains(text, own, begin):
                            documents[own] = candidate
        return list(documents.values())

    def _remember(self, name: object, text: str) -> None:
        if text in self._documents:  # this makes it the most recent one
            return
        own = name if isinstance(name, str) and name not in self._ids else ""
        document = PromptDocument(text, own)
        self._ids.add(document.id)
        for snippet in _snippets(text):
            self._indexed.setdefault(snippet, set()).add(document)
        for _, forgotten in self._documents.put(text, document):
            self._ids.discard(forgotten.id)
            self._remove_from_index(forgotten)

    def _remove_from_index(self, document: PromptDocument) -> None:
        for snippet in _snippets(document.text):
            sharing = self._indexed[snippet]
            sharing.discard(document)
            if not sharing:
                del self._indexed[snippet]


def _indexed_from(text: str) -> int:
    """Index of the first snippet: in the middle, since many texts begin with the same words."""
    return (len(text) - (SNIPPET + STRIDE - 1)) // 2


def _snippets(text: str) -> set[str]:
    first = _indexed_from(text)
    return {text[start : start + SNIPPET] for start in range(first, first + STRIDE)}


def _contains(text: str, document: str, begin: int) -> bool:
    """Whether the document begins at ``begin`` or less than a stride before it."""
    earliest = max(0, begin - STRIDE + 1)
    return text.find(document, earliest, begin + len(document)) >= 0


class _Request:
    """One request. Guarded by the lock of its owner, except for its thread-safe parts."""

    def __init__(self, earlier: tuple[_Request, ...]) -> None:
        self.earlier: tuple[_Request, ...] = earlier
        self.answered: bool = False
        # Documents that are retrieved after an answer belong to another question.
        self.follows_answer = any(request.answered for request in earlier)
        self.ended = False
        self.dismissed = False
        self.is_bare = False  # whether its documents were retrieved outside of runs
        self._by_namespace: dict[str, RetrievedDocuments] = {}

    def remember(self, documents: Documents, namespace: str) -> None:
        memory = self._by_namespace.setdefault(namespace, RetrievedDocuments())
        memory.remember(documents)

    @property
    def retrieved(self) -> bool:
        return any(map(len, self._by_namespace.values()))

    def memories(self, namespaces: AbstractSet[str]) -> list[RetrievedDocuments]:
        """The documents that were retrieved in some namespaces."""
        return [self._by_namespace[name] for name in namespaces & self._by_namespace.keys()]

    def serve(self) -> None:
        """Record that an LLM call used the documents.

        The documents of a chain serve one call after its end, such as a stream that is read when
        its query is over. Those of a retrieval outside of runs may be used again and again.
        """
        self.answered = True
        if self.ended and not self.is_bare:
            self._dismiss()

    def end(self, *, failed: bool) -> None:
        """Keep the documents for the next run in this context, unless a call has used them."""
        self.ended = True
        self.earlier = ()  # otherwise a thread's requests would keep all earlier ones alive
        if failed or self.answered or not self.retrieved:
            self._dismiss()

    def _dismiss(self) -> None:
        self.dismissed = True
        self._by_namespace.clear()


@dataclass(slots=True)
class _Run:
    """One run: its request, its parent, and the namespace in which it retrieves."""

    request: _Request
    parent: Hashable | None
    namespace: str = ""

    @property
    def is_root(self) -> bool:
        return self.parent is None


# The requests that began in this context, the newest last.
_context: ContextVar[tuple[_Request, ...]] = ContextVar("ragcache_requests", default=())


class Requests:
    """Follows runs to their requests, and finds a request's documents in its prompts. Thread-safe.

    Every method takes microseconds and never waits.

    Args:
        max_runs: The most runs that are followed at the same time.

    Raises:
        ConfigurationError: ``max_runs`` is below 1.
    """

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = check_int("max_runs", max_runs, 1)
        self._lock = make_lock()
        self._runs: OrderedDict[Hashable, _Run] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self, run: Hashable, parent: Hashable | None = None) -> None:
        """Record the beginning of a run. Call it in the context of the code that begins it.

        Args:
            run: Identifies the run.
            parent: The run around it; ``None`` begins a request.
        """
        with self._lock:
            request = _new_request() if parent is None else self._request_of(parent)
            self._follow(run, _Run(request, parent))

    def end(self, run: Hashable, *, failed: bool = False) -> None:
        """Record the end of a run. Documents of a failed or answered request are forgotten.

        Args:
            run: As for :meth:`begin`.
            failed: Whether an error ended it.
        """
        with self._lock:
            ended = self._runs.pop(run, None)
            if ended is not None and ended.is_root:
                ended.request.end(failed=failed)

    def set_namespace(self, run: Hashable, namespace: str, *, and_around: bool = False) -> None:
        """Restrict the documents of a run to LLM calls in the same namespace.

        The retrievers of this package call this. Documents of other retrievers have the namespace
        ``""``, and are visible in every namespace within their own request; a call that only the
        context links to them must have the namespace ``""``, too.

        Args:
            run: The retriever's own run.
            namespace: Tenant of the retriever.
            and_around: Whether the run around it reports the documents, as in LlamaIndex.
        """
        with self._lock:
            # Where nothing is followed, which is so without LLM calls of ours, no id is hashed.
            followed = self._runs.get(run) if self._runs else None
            if followed is None:
                return
            followed.namespace = namespace
            around = self._runs.get(followed.parent)
            if and_around and around is not None:
                around.namespace = namespace

    def remember(self, run: Hashable | None, documents: Documents) -> None:
        """Remember retrieved documents; see :class:`RetrievedDocuments`.

        Args:
            run: The run that retrieved them. A run that is not followed is ignored, because its
                request and namespace are unknown. ``None`` outside of runs: the documents then
                belong to the context.
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
        """Mark the documents of the request that its prompt contains verbatim.

        Args:
            prompt: The prompt of the LLM call.
            run: The run of the call, or the one around it; ``None`` outside of runs.
            namespace: Tenant of this call.
        """
        if run is UNKNOWN:
            return prompt
        with self._lock:
            seen, is_own = self._visible_requests(run)
            namespaces = {"", namespace} if is_own else {namespace}
            memories = [memory for request in seen for memory in request.memories(namespaces)]
            for request in seen:
                request.serve()
        return mark_prompt(prompt, _distinct(memories, prompt))

    def _visible_requests(self, run: Hashable | None) -> tuple[list[_Request], bool]:
        """The requests whose documents a run may use, and whether it is the run's own request."""
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
        """The request of a run; it may have begun before the runs were followed."""
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
    """The documents in a prompt; of two texts with the same id, the first keeps it."""
    documents: dict[str, PromptDocument] = {}
    ids: set[str] = set()
    for document in chain.from_iterable(memory.find(prompt) for memory in memories):
        if document.text not in documents:
            own = document if document.id not in ids else PromptDocument(document.text)
            documents[document.text] = own
            ids.add(own.id)
    return list(documents.values())


REQUESTS = Requests()
"""The requests of this process: the frameworks report runs for the whole process."""
