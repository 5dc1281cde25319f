"""Schemas and their prompts as a LlamaIndex query engine: an adapter, see `.modular`."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Collection, Generator
from contextlib import aclosing, closing
from typing import Any, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.llms import LLM, ChatMessage, MessageRole
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from ragcache_integrations.chains.copying import CopiedBySettings
from ragcache_integrations.chains.modular.core import (
    PromptLike,
    SchemaAnswer,
    SchemaLike,
    SchemaPrompts,
)
from ragcache_integrations.llms.handover import abackend_of
from ragcache_integrations.modular.pml.prompt import Prompt

__all__ = ["REUSE_METADATA", "ModularPrompt"]

REUSE_METADATA = "reuse"
"""Key of the :class:`~ragcache_integrations.chains.modular.core.ReuseReport` in the metadata of a
response."""


class ModularPrompt(CopiedBySettings, BaseQueryEngine):
    """Answers prompts that are put together from the modules of a schema (Prompt Cache §3.2).

    The schema is registered once, each of its modules encoded once; a prompt names those it wants,
    and the query is what is new, said by the user::

        trip = ModularPrompt(Path("trip.xml"), llm=RAGCacheLLM(engine="modular"))
        miami = trip.with_prompt({"miami": True, "plan": {"duration": "3 days"}})
        miami.query("Where to surf?")

    A prompt is Prompt Markup Language, a :class:`~ragcache_integrations.modular.pml.prompt.Prompt`,
    or a dict: of a program's arguments where the schema is a program, otherwise of what
    ``<prompt>`` holds. In the latter a string is an argument, a dict an import with what stands in
    it, ``True`` an import of which nothing is to be said. Nothing in a query is markup; an empty
    one adds nothing to the prompt.

    The response has under :data:`REUSE_METADATA` a
    :class:`~ragcache_integrations.chains.modular.core.ReuseReport`; of a streaming response it is
    there when the stream has ended.

    Args:
        schema: Prompt Markup Language, a ``Path`` of a file, a ``Schema``, or a prompt program.
        llm: Answers: ``RAGCacheLLM`` with ``engine="modular"``, whose ``strategy`` says what is
            computed again; LlamaIndex's ``Settings.llm`` where ``None``.
        prompt: What stands before the query; nothing of the modules where ``None``.
        masked: Names of modules of the prompt that nothing may see, by their paths in the schema.
        dropped: Names of modules of the prompt that are left out altogether.
        streaming: Whether responses are streams.
        callback_manager: As for any query engine.

    Raises:
        ConfigurationError: An argument is out of its range.
        MarkupError: The schema is none; the message says where, and what was expected.
    """

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
        self._streaming = streaming
        super().__init__(callback_manager or Settings.callback_manager)

    def with_prompt(
        self, prompt: PromptLike, *, masked: Collection[str] = (), dropped: Collection[str] = ()
    ) -> Self:
        """The same schema with another prompt, of the modules encoded already."""
        other = copy.copy(self)
        other._prompt, other._masked, other._dropped = prompt, masked, dropped  # noqa: SLF001 - its own
        return other

    def register(self) -> None:
        """Encode every module now, so that the first prompt finds them; the model starts."""
        self._prompts.register()

    async def aregister(self) -> None:
        """Do so without blocking the event loop."""
        await self._prompts.aregister()

    def _arguments(self) -> dict[str, Any]:
        return {
            "schema": self._schema,
            "llm": self._llm,
            "prompt": self._prompt,
            "masked": self._masked,
            "dropped": self._dropped,
            "streaming": self._streaming,
        }

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        response: RESPONSE_TYPE
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            chat = self._llm.metadata.is_chat_model
            answer = self._prompts.stream(
                self._prompt,
                query_bundle.query_str,
                {},
                chat=chat,
                masked=self._masked,
                dropped=self._dropped,
            )
            metadata: dict[str, Any] = {}
            texts = _texts(answer, metadata, chat=chat)
            if self._streaming:
                response = StreamingResponse(texts, metadata=metadata)
            else:
                response = Response("".join(texts), metadata=metadata)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        response: RESPONSE_TYPE
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            await abackend_of(self._llm)  # which metadata would wait for
            chat = self._llm.metadata.is_chat_model
            answer = await self._prompts.astream(
                self._prompt,
                query_bundle.query_str,
                {},
                chat=chat,
                masked=self._masked,
                dropped=self._dropped,
            )
            metadata: dict[str, Any] = {}
            texts = _atexts(answer, metadata, chat=chat)
            if self._streaming:
                response = AsyncStreamingResponse(texts, metadata=metadata)
            else:
                async with aclosing(texts):
                    text = "".join([one async for one in texts])
                response = Response(text, metadata=metadata)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response


def _texts(answer: SchemaAnswer[Any], metadata: dict[str, Any], *, chat: bool) -> Generator[str]:
    """Have the LLM tell the answer, and note at its end what it reused."""
    with answer.stream as stream:
        told = (
            answer.llm.stream_chat(_messages(answer.text))
            if chat
            else answer.llm.stream_complete(answer.text, formatted=True)
        )
        with closing(told):
            for response in told:
                yield response.delta or ""
        metadata[REUSE_METADATA] = answer.report(stream.result())


async def _atexts(
    answer: SchemaAnswer[Any], metadata: dict[str, Any], *, chat: bool
) -> AsyncGenerator[str]:
    async with answer.stream as stream:
        told = await (
            answer.llm.astream_chat(_messages(answer.text))
            if chat
            else answer.llm.astream_complete(answer.text, formatted=True)
        )
        async with aclosing(told):
            async for response in told:
                yield response.delta or ""
        metadata[REUSE_METADATA] = answer.report(await stream.aresult())


def _messages(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]
