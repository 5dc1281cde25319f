"""Schemas and their prompts as a LlamaIndex query engine: an adapter, see `.modular`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Self

from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM, ChatMessage, MessageRole
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.chains.llama_index import Answer, PendingResponse, QueryEngine, deltas
from ragcache_integrations.core.flows import Call, Flow, aoutputs, entering, outputs
from ragcache_integrations.llms.handover import abackend_of, backend_of
from ragcache_integrations.prompts.pml import Prompt

from .core import (
    PromptLike,
    SchemaAnswer,
    SchemaLike,
    SchemaPrompts,
)

__all__ = ["REUSE_METADATA", "ModularPrompt"]

REUSE_METADATA = "reuse"
"""Key of the :class:`~ragcache_integrations.chains.modular.core.ReuseReport` in the metadata of a
response."""


class ModularPrompt(QueryEngine):
    """Answers prompts that are put together from the modules of a schema (Prompt Cache §3.2).

    Each module of the schema is encoded once, and its KV cache is reused in every prompt, at any
    place. A prompt names the modules that it uses, and the query is the new text of the user::

        trip = ModularPrompt(Path("trip.xml"), llm=RAGCacheLLM(reuse="anywhere"))
        miami = trip.with_prompt({"miami": True, "plan": {"duration": "3 days"}})
        miami.query("Where to surf?")

    A prompt is Prompt Markup Language, a :class:`~ragcache_integrations.prompts.pml.prompt.Prompt`,
    or a dict of the contents of ``<prompt>``, where a string is an argument, a dict is an import
    with its contents, and ``True`` an import without any. Nothing in a query is markup; an empty
    query adds nothing to the prompt.

    The metadata of the response has a
    :class:`~ragcache_integrations.chains.modular.core.ReuseReport` under :data:`REUSE_METADATA`;
    for a streaming response it is complete when the stream has ended.

    Args:
        schema: Prompt Markup Language, a ``Path`` of a file, or a ``Schema``.
        llm: Answers: ``RAGCacheLLM`` on an engine of this machine with ``reuse="anywhere"``;
            ``None`` for LlamaIndex's ``Settings.llm``. ``reuse="prefix"`` is exact, and reuses
            modules only after the same text; with ``engine="modular"``, ``strategy`` decides what
            is recomputed.
        prompt: The prompt before the query; ``None`` for one without modules.
        masked: Paths in the schema of modules that other tokens of the prompt don't attend to; only
            with ``engine="modular"``.
        dropped: Paths in the schema of modules that are left out; only with ``engine="modular"``.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.

    Raises:
        ConfigurationError: An argument is out of range.
        MarkupError: The schema is invalid; the message has the position and what is allowed there.
    """

    _argument_names: ClassVar[tuple[str, ...]] = (
        *("schema", "llm", "prompt", "masked", "dropped", "streaming"),
    )

    def __init__(
        self,
        schema: SchemaLike,
        *,
        llm: LLM | None = None,
        prompt: PromptLike | None = None,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        self._llm: Any = llm or Settings.llm
        self._schema = schema
        self._prompts = SchemaPrompts(schema, self._llm)
        self._prompt = Prompt(self._prompts.schema.name) if prompt is None else prompt
        self._masked = masked
        self._dropped = dropped
        super().__init__(streaming=streaming, callback_manager=callback_manager)

    def with_prompt(
        self, prompt: PromptLike, *, masked: Collection[str] = (), dropped: Collection[str] = ()
    ) -> Self:
        """A query engine with another prompt, which shares the encoded modules."""
        other = copy.copy(self)
        other._prompt, other._masked, other._dropped = prompt, masked, dropped  # noqa: SLF001 - the same class
        return other

    def register(self) -> None:
        """Encode every module now, for the first prompt. This starts the model."""
        list(outputs(self._prompts.register()))

    async def aregister(self) -> None:
        """Async version of :meth:`register`."""
        [None async for _ in aoutputs(self._prompts.register())]

    @contextmanager
    def _synthesis(self, query: QueryBundle) -> Iterator[PendingResponse]:
        del query  # no nodes are found, from which an answer would be synthesised
        yield PendingResponse()

    def _answer(self, query: QueryBundle) -> Flow:
        # The metadata would block until the model has started.
        yield Call(partial(backend_of, self._llm), partial(abackend_of, self._llm))
        chat = self._llm.metadata.is_chat_model
        left_out = {"masked": self._masked, "dropped": self._dropped}
        answer = yield from self._prompts.stream(
            self._prompt, query.query_str, {}, left_out, chat=chat
        )
        metadata: dict[str, Any] = {}
        yield Answer(_texts(answer, metadata, chat=chat), metadata=metadata)


def _texts(answer: SchemaAnswer, metadata: dict[str, Any], *, chat: bool) -> Flow:
    """The texts of an answer, as the LLM class streams them; sets the metadata at the end."""
    yield entering(answer.stream)
    yield deltas(answer.llm, _messages(answer.text) if chat else answer.text)
    metadata[REUSE_METADATA] = yield from answer.report()


def _messages(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]
