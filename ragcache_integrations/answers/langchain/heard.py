"""What happens while a chain answers, by its callbacks: documents, models' answers, parsers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.outputs import Generation, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from typing_extensions import override

from ragcache_integrations.answers.entries import document_identity
from ragcache_integrations.answers.finish import is_blank, unfinished
from ragcache_integrations.retrievers.keys import Surroundings

from .values import why_ended_early, why_no_message

__all__ = ["HeardRun", "identities_of"]

_MODEL = "its model"
_RETRIEVER = "its retriever"


class HeardRun(BaseCallbackHandler):
    """Hears which documents a chain retrieves on its own, and how its models' answers ended.

    Attributes:
        grew: Whether a parser streamed what it read so far again and again, so that the sum of its
            pieces is not what it returns for the whole.
    """

    run_inline = True

    def __init__(self) -> None:
        self._retrieving: set[UUID] = set()
        self._inner: set[UUID] = set()
        self._documents: list[list[Document]] = []
        self._parsing: set[UUID] = set()
        self.grew = False
        self._around: Surroundings | None = None
        self._failed: set[str] = set()
        self._tools: dict[UUID, str] = {}
        self._reason: str | None = None

    def within(self, around: Surroundings) -> RunnableConfig:
        """Return a configuration for the runs of a call, which are heard."""
        self._around = around
        return self.alone(around.config)

    def alone(self, config: RunnableConfig) -> RunnableConfig:
        """Return a configuration for runs that are heard, and whose answer is not kept."""
        return merge_configs(config, {"callbacks": [self]})

    @property
    def reason(self) -> str | None:
        """Why what was answered is no answer, as its models report; ``None``: it is one."""
        if self._reason is None and self._failed:
            return f"{min(self._failed)} failed, and nothing like it was used instead"
        return self._reason

    @override
    def on_retriever_start(
        self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        if parent_run_id in self._retrieving:
            self._inner.add(run_id)
        self._retrieving.add(run_id)

    @override
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._failed.discard(_RETRIEVER)
        if run_id not in self._inner:
            self._documents.append(list(documents))

    @override
    def on_retriever_error(self, *args: Any, **kwargs: Any) -> None:
        self._failed.add(_RETRIEVER)

    @override
    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        self._tools[run_id] = f"its tool {(serialized or {}).get('name', '')}"

    @override
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if isinstance(output, ToolMessage) and output.status == "error":
            self.on_tool_error(run_id=run_id)
        else:
            self._failed.discard(self._tools.get(run_id, ""))

    @override
    def on_tool_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        self._failed.add(self._tools.get(run_id, "its tool"))

    @override
    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: without it, prompts would be written as texts for :meth:`on_llm_start`."""

    @override
    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self._failed.discard(_MODEL)
        reason = unfinished(response.llm_output)
        for generation in (each for several in response.generations for each in several):
            reason = reason or _why_no_generation(generation)
        self._reason = self._reason or reason

    @override
    def on_llm_error(self, *args: Any, **kwargs: Any) -> None:
        self._failed.add(_MODEL)

    @override
    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        thread = (kwargs.get("metadata") or {}).get("thread_id")
        if thread is not None and self._around is not None:
            self._around.note_thread(thread)
        # LangChain does not know the input of what it streams yet.
        if kwargs.get("run_type") == "parser" and inputs == {"input": ""}:
            self._parsing.add(run_id)

    @override
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._reason = self._reason or why_ended_early(outputs)
        if run_id in self._parsing:
            # A parser that passes texts on returns the same for the whole.
            read = kwargs.get("inputs")
            text = read.text if isinstance(read, BaseMessage) else read
            self.grew = self.grew or not (isinstance(outputs, str) and outputs == text)

    @property
    def searched(self) -> bool:
        """Whether the chain retrieved documents itself."""
        return bool(self._documents)

    def only(self, documents: frozenset[Any]) -> bool:
        """Whether these are what was retrieved, each time."""
        return bool(self._documents) and all(
            identities_of(retrieved) == documents for retrieved in self._documents
        )

    def told(self) -> str:
        """Say in words what was retrieved."""
        if not self._documents:
            return "nothing that its callbacks report"
        return " and ".join(f"{len(documents)} documents" for documents in self._documents)


def _why_no_generation(generation: Generation) -> str | None:
    reason = unfinished(generation.generation_info)
    message = getattr(generation, "message", None)
    if isinstance(message, BaseMessage):
        return reason or why_no_message(message)
    return reason or ("its model said nothing" if is_blank(generation.text) else None)


def identities_of(documents: list[Document]) -> frozenset[Any] | None:
    """Return which documents these are; ``None`` where one can't be compared."""
    found = [
        document_identity(document.id, document.page_content, document.metadata)
        for document in documents
    ]
    return None if None in found else frozenset(found)
