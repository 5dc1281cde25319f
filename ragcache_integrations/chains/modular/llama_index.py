"""Schemas and their prompts as a LlamaIndex query engine: an adapter, see `.modular`."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import aclosing
from typing import Any, ClassVar, Self

from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM, ChatMessage, MessageRole
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.chains.query_engine.llama_index import QueryEngine
from ragcache_integrations.chains.streams import adeltas, deltas
from ragcache_integrations.llms.handover import abackend_of
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
        self._prompts.register()

    async def aregister(self) -> None:
        """Async version of :meth:`register`."""
        await self._prompts.aregister()

    def _respond(self, query: QueryBundle) -> RESPONSE_TYPE:
        chat = self._llm.metadata.is_chat_model
        left_out = {"masked": self._masked, "dropped": self._dropped}
        answer = self._prompts.stream(self._prompt, query.query_str, {}, chat=chat, **left_out)
        metadata: dict[str, Any] = {}
        texts = _texts(answer, metadata, chat=chat)
        if self._streaming:
            return StreamingResponse(texts, metadata=metadata)
        return Response("".join(texts), metadata=metadata)

    async def _arespond(self, query: QueryBundle) -> RESPONSE_TYPE:
        await abackend_of(self._llm)  # metadata would block until it has started
        chat = self._llm.metadata.is_chat_model
        left_out = {"masked": self._masked, "dropped": self._dropped}
        answer = await self._prompts.astream(
            self._prompt, query.query_str, {}, chat=chat, **left_out
        )
        metadata: dict[str, Any] = {}
        texts = _atexts(answer, metadata, chat=chat)
        if self._streaming:
            return AsyncStreamingResponse(texts, metadata=metadata)
        async with aclosing(texts):
            text = "".join([part async for part in texts])
        return Response(text, metadata=metadata)


def _texts(answer: SchemaAnswer[Any], metadata: dict[str, Any], *, chat: bool) -> Generator[str]:
    """The texts of an answer, as the LLM class streams them; sets the metadata at the end."""
    with answer.stream as stream:
        yield from deltas(answer.llm, _messages(answer.text) if chat else answer.text)
        metadata[REUSE_METADATA] = answer.report(stream.result())


async def _atexts(
    answer: SchemaAnswer[Any], metadata: dict[str, Any], *, chat: bool
) -> AsyncGenerator[str]:
    async with answer.stream as stream:
        texts = adeltas(answer.llm, _messages(answer.text) if chat else answer.text)
        async with aclosing(texts):
            async for text in texts:
                yield text
        metadata[REUSE_METADATA] = answer.report(await stream.aresult())


def _messages(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]
