"""From a call of the engine to its request: checks, tools and tokens.

The module also encodes documents ahead, a few at a time, however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, Unpack

from tqdm import tqdm

from ragcache_integrations.core.checks import check_choice, check_int, check_type
from ragcache_integrations.core.flows import Call, Flow, in_thread
from ragcache_integrations.core.generation import (
    CallOptions,
    SamplingOptions,
    Usage,
    check_call,
    plain,
)
from ragcache_integrations.core.prompt import (
    DocumentSpan,
    Prompt,
    PromptDocument,
    PromptRenderer,
    RenderedPrompt,
    check_steps,
    check_tool_choice,
)
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import (
    ConfigurationError,
    DocumentsNotKeptError,
    PromptTooLongError,
)

from .arguments import GIB, find_tool_parser
from .protocol import (
    MOST_LINK_TOKENS,
    MOST_URGENT,
    REUSES,
    CacheSettings,
    Submit,
    ToolUse,
    document_key,
)
from .streams import AsyncGenerationStream, GenerationStream

__all__ = [
    "NO_PARSER",
    "Account",
    "Calls",
    "encoding",
    "submission",
]


IN_FLIGHT = 32
"""Documents that the engine has at once. More would not fit into a step, and be lost to Ctrl-C."""
LOOKED_UP = 512
"""Documents after which it is looked up whether they are on disk, so that a full one ends it."""
NO_ROOM = "disk_cache_gib has no room for them, or their files were removed"

Document = TypeVar("Document")
Named = tuple[bytes, int]
"""A document's key, and its length in tokens."""
Missing = tuple[int, str]
"""How many documents are not on disk, and why; empty if nothing is known."""


@dataclass(slots=True)
class Account:
    """What was encoded, and whether the disk holds it, where there is one.

    Attributes:
        namespace: The tenant.
        disk_cache_gib: Room on disk in GiB; 0 where there is none.
        token_bytes: Of a token's keys and values.
        usage: Tokens of all documents that are encoded.
        documents: Those that were begun and are to be on disk.
        tokens: Of these.
        finished: How many documents are encoded.
        looked_up: How many of them were looked up on the disk.
    """

    namespace: str
    disk_cache_gib: float
    token_bytes: int
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))
    documents: list[Named] = field(default_factory=list)
    tokens: int = 0
    finished: int = 0
    looked_up: int = 0

    def begin(self, rendered: RenderedPrompt) -> None:
        """Count a document that is about to be encoded.

        Raises:
            DocumentsNotKeptError: It is too much for the disk.
        """
        tokens, gib = len(rendered.token_ids), self.disk_cache_gib
        if not gib:
            return
        self.tokens += tokens
        if self.tokens * self.token_bytes > gib * GIB:
            raise DocumentsNotKeptError(
                f"disk_cache_gib={gib:g} has no room for documents of more than "
                f"{self.tokens - tokens:,} tokens: the first {self.finished:,} were encoded and "
                "stay, raise it for the rest"
            )
        self.documents.append((document_key(plain(self.namespace), rendered.token_ids), tokens))

    def finish(self, usage: Usage) -> None:
        """The first of the documents that were begun is encoded."""
        self.finished += 1
        prompt = self.usage.prompt_tokens + usage.prompt_tokens
        self.usage = Usage(prompt, 0, self.usage.cached_tokens + usage.cached_tokens)

    def due(self) -> list[Named]:
        """Documents that are to be looked up now; empty for none."""
        if not self.documents or self.finished < self.looked_up + LOOKED_UP:
            return []
        begin, self.looked_up = self.looked_up, self.finished
        return self.documents[begin : self.finished]

    def parts(self) -> Iterator[list[Named]]:
        """All documents: later ones may have taken the place of earlier ones."""
        for begin in range(0, len(self.documents), LOOKED_UP):
            yield self.documents[begin : begin + LOOKED_UP]

    def check(self, missing: Missing) -> None:
        """See that none of those that were looked up is missing.

        Raises:
            DocumentsNotKeptError: One is.
        """
        count, why = missing
        if count:
            raise DocumentsNotKeptError(
                f"of {self.finished:,} encoded documents at least {count:,} are not on disk: "
                f"{why or NO_ROOM}. The others stay, and encoding all again adds the rest"
            )


def encoding(
    documents: Iterable[Document],
    render: Callable[[Document], RenderedPrompt | None],
    start: Callable[[RenderedPrompt], Call],
    count_missing: Callable[[list[Named]], Call],
    account: Account,
    *,
    show_progress: bool,
) -> Flow:
    """Encode documents; the output is the usage. What is finished stays when an error ends it.

    Args:
        documents: The documents.
        render: Makes their tokens; ``None`` for one that is empty, or that was encoded before.
        start: Starts a request that encodes one, and returns its stream.
        count_missing: Looks up how many are not on disk, and why; empty if nothing is known.
        account: Of what is encoded; nothing yet.
        show_progress: Show a progress bar on standard error.

    Raises:
        DocumentsNotKeptError: The disk does not hold them.
    """
    running: deque[Any] = deque()

    def first() -> Call:
        """Wait for the answer to the first request."""
        stream = running[0]
        result, aresult = GenerationStream.result, AsyncGenerationStream.aresult
        return Call(partial(result, stream), partial(aresult, stream))

    with _bar(documents, show_progress=show_progress) as bar:
        try:
            for document in documents:
                rendered = yield in_thread(render, document)
                if rendered is None:
                    bar.update()
                    continue
                account.begin(rendered)
                running.append((yield start(rendered)))
                if len(running) == IN_FLIGHT:
                    account.finish((yield first()).usage)
                    running.popleft()
                    bar.update()
                    if part := account.due():
                        account.check((yield count_missing(part)))
            while running:
                account.finish((yield first()).usage)
                running.popleft()
                bar.update()
            for part in account.parts():
                account.check((yield count_missing(part)))
        finally:
            for stream in running:
                stream.abort()
    yield account.usage


def _bar(documents: object, *, show_progress: bool) -> tqdm[Any]:
    total = len(documents) if isinstance(documents, Sized) else None
    return tqdm(desc="Encoding", total=total, unit=" documents", disable=not show_progress)


NO_PARSER = (
    "it is not known how this model writes tool calls: name vLLM's parser for it with "
    "tool_parser=, or force a call with tool_choice, which needs none"
)


def submission(prompt: RenderedPrompt, **fields: Any) -> Submit:
    """Return the request of a prompt's tokens, with further fields of :class:`Submit`."""
    documents = tuple((span.id, span.start, span.end) for span in prompt.documents)
    return Submit(0, prompt.token_ids, documents=documents, **fields)


@dataclass(frozen=True, slots=True)
class Calls:
    """Checks an engine's calls, and turns their prompts into tokens. Thread-safe.

    Attributes:
        renderer: Makes tokens of prompts.
        cache: How the engine reuses documents.
        tool_parser: Name of vLLM's parser of tool calls; ``None`` finds it by the chat template.
        max_model_len: Context window in tokens, prompt and answer together.
    """

    renderer: PromptRenderer
    cache: CacheSettings
    tool_parser: str | None
    max_model_len: int

    def check(
        self,
        options: SamplingOptions | None,
        *,
        reuse: str | None = None,
        link_tokens: int | None = None,
        priority: int = 0,
        step: str = "",
        next_steps: Mapping[str, int] | None = None,
        **call: Unpack[CallOptions],
    ) -> dict[str, Any]:
        """Return the options of a request, and further fields of it, by name.

        Raises:
            ConfigurationError: An argument is wrong, or the engine reuses prefixes alone.
        """
        options = check_call(options, **call)
        reuse = self.cache.reuse if reuse is None else check_choice("reuse", reuse, REUSES)
        if reuse == "anywhere" and self.cache.reuse != "anywhere":
            msg = 'a request can reuse anywhere where the engine was made with reuse="anywhere"'
            raise ConfigurationError(msg)
        if link_tokens is None:
            link_tokens = self.cache.link_tokens
        elif reuse != "anywhere":
            raise ConfigurationError('link_tokens needs reuse="anywhere"')
        check_int("link_tokens", link_tokens, 0, MOST_LINK_TOKENS)
        check_int("priority", priority, -MOST_URGENT, MOST_URGENT)
        step, coming = check_steps(step, {} if next_steps is None else next_steps)
        return {
            "options": options,
            "namespace": call.get("namespace", ""),
            "link_tokens": link_tokens if reuse == "anywhere" else None,
            "priority": priority,
            "step": step,
            "next_steps": coming,
        }

    def tool_use(self, prompt: Prompt | RenderedPrompt, options: SamplingOptions) -> ToolUse | None:
        """Say how the answer may call the prompt's tools; ``None`` if it may not.

        Raises:
            ConfigurationError: This is no prompt, there is no such tool, the options exclude
                tools, or nobody knows how the model writes calls.
        """
        check_type("the prompt", prompt, Prompt | RenderedPrompt, "a Prompt")
        tools = prompt.tools if isinstance(prompt, Prompt) else ()
        choice = check_tool_choice(options.tool_choice, tools)
        if not tools or choice == "none":
            return None
        if options.needs_grammar:
            raise ConfigurationError(
                "json_schema and choice exclude tools, both were given: pass tool_choice='none' "
                "for an answer that calls none"
            )
        template = self.renderer.template
        parser = self.tool_parser or find_tool_parser(template.tool_text)
        if choice == "auto" and not parser and template.writes_tools:
            raise ConfigurationError(NO_PARSER)
        definitions = tuple(tool.definition() for tool in tools)
        return ToolUse(definitions, choice, options.parallel_tool_calls, parser)

    def render(self, prompt: Prompt | RenderedPrompt, namespace: str = "") -> RenderedPrompt:
        """Make tokens of a prompt, unless it is made of tokens.

        Raises:
            PromptTooLongError: It leaves no room for an answer.
        """
        rendered = prompt
        if not isinstance(rendered, RenderedPrompt):
            rendered = self.renderer.render(rendered, namespace)
        length = len(rendered.token_ids)
        if length >= self.max_model_len:
            raise PromptTooLongError(
                length,
                self.max_model_len - 1,
                f"the context window of {self.max_model_len} tokens must also hold the answer",
            )
        return rendered

    def render_pinned(self, documents: object, system: str, namespace: str) -> RenderedPrompt:
        """Make tokens of documents that are pinned, and of the text before them.

        Args:
            documents: A prompt, or several documents.
            system: System text before the documents; a prompt has its own.
            namespace: The tenant.

        Raises:
            ConfigurationError: There are no documents, or a prompt and a system text.
            PromptTooLongError: They leave no room for an answer.
        """
        if not isinstance(documents, Prompt):
            known = [_as_document(document) for document in _several(documents, "pin")]
            documents = Prompt.rag("?", [d for d in known if d is not None], system=system)
        elif system:
            msg = f"a prompt has its own system text: got system={system!r:.60} besides"
            raise ConfigurationError(msg)
        rendered = self.render(documents, namespace)
        if not rendered.documents:
            msg = "there are no documents to pin: the prompt has none, or all are empty"
            raise ConfigurationError(msg)
        return rendered

    def render_documents(
        self, documents: object, namespace: str = ""
    ) -> Callable[[object], RenderedPrompt | None]:
        """Return what makes tokens of documents as they are in every prompt.

        It takes one document after the other, and returns ``None`` for those that are empty or that
        it has seen before.

        Raises:
            ConfigurationError: The engine reuses prefixes alone, or these are not several
                documents; or, from what is returned, this is no document.
            PromptTooLongError: From what is returned: a document leaves no room for an answer.
        """
        if self.cache.reuse != "anywhere":
            raise ConfigurationError('encode() needs an engine with reuse="anywhere"')
        _several(documents, "encode")
        seen: set[str | bytes] = set()

        def render(value: object) -> RenderedPrompt | None:
            if isinstance(value, RenderedPrompt):
                key = document_key(namespace, value.token_ids)
                if key in seen:
                    return None
                seen.add(key)
                return _check_whole(self.render(value))
            document = _as_document(value)
            if document is None or (text := content_id(document.text)) in seen:
                return None
            seen.add(text)
            rendered = self.render(Prompt.raw([document]), namespace)
            (span,) = rendered.documents
            tokens = rendered.token_ids[span.start : span.end]
            return RenderedPrompt(tokens, (DocumentSpan(span.id, 0, len(tokens)),))

        return render


def _check_whole(rendered: RenderedPrompt) -> RenderedPrompt:
    """Check that tokens are one document.

    Raises:
        ConfigurationError: They are not.
    """
    spans = [(span.start, span.end) for span in rendered.documents]
    if spans != [(0, len(rendered.token_ids))]:
        msg = f"tokens to encode must be one document, got {len(spans)} documents in them"
        raise ConfigurationError(msg)
    return rendered


def _several(documents: object, method: str) -> Iterable[object]:
    """Check that these are several documents."""
    if isinstance(documents, str | Mapping) or not isinstance(documents, Iterable):
        msg = f"{method}() takes several documents, such as a list, got {documents!r:.60}"
        raise ConfigurationError(msg)
    return documents


def _as_document(value: Any) -> PromptDocument | None:
    """A document of ours, of LangChain or of LlamaIndex; ``None`` for one without text.

    Raises:
        ConfigurationError: It is none.
    """
    if isinstance(value, PromptDocument):
        return value
    node = getattr(value, "node", value)  # LlamaIndex: one with a score
    if isinstance(value, str):
        text, name = value, ""
    elif hasattr(value, "page_content"):
        text, name = value.page_content, value.id
    elif hasattr(node, "get_content"):
        text, name = node.get_content(), node.node_id
    else:
        raise ConfigurationError(
            "a document must be a text, a PromptDocument, or one of LangChain or LlamaIndex, "
            f"got {type(value).__name__}"
        )
    return PromptDocument(text, name or "") if text else None
