"""Relevance checks for LlamaIndex: an adapter, see :mod:`.check`."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.llm import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import ConfigDict
from typing_extensions import override

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.knobs import settings_of
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition import mark_documents

from .check import (
    RelevanceCheck,
    RelevanceKnobs,
    RelevanceSettings,
    Verdict,
    sampling_arguments,
)

__all__ = ["RelevanceFilter"]

MAX_THREADS = 32
"""The most requests of a check that are sent at the same time."""


class RelevanceFilter(RelevanceKnobs, BaseNodePostprocessor):
    """Asks a model which nodes help to answer a question.

    It is a postprocessor of a query engine::

        engine = index.as_query_engine(node_postprocessors=[RelevanceFilter(llm=llm)])

    Attributes:
        llm: The model. ``RAGCacheLLM`` can only answer yes or no; others are instructed to.
        mode: ``parallel`` asks about each node separately, all at the same time, and drops the
            irrelevant ones. ``shared`` asks once about all of them, keeps them, so that the answer
            reuses their KV caches, and adds a note as the last node.
        prompt: With ``shared``: the prompt for the answer, with ``context_str`` before
            ``query_str``, so that both prompts have the same beginning; ``None`` for LlamaIndex's.
        instruction: With ``parallel``: the system text of each request.
        min_documents: With ``parallel``: the fewest nodes that stay. If too few are relevant, the
            first of the others stay, too.
        max_document_tokens: With ``parallel``: the most tokens of the nodes that stay. Each
            relevant node stays that fits in addition to those before it, and the first
            ``min_documents`` stay in any case; ``None`` for no limit.
        count_tokens: Counts the tokens of a text for that limit, such as ``engine.count_tokens``;
            ``None`` to estimate them.
        separator: With ``shared``: the text that the synthesizer puts between nodes.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range; an attribute of a
            finished object is assigned (``model_copy(update=...)`` makes an object with other
            values); or there is no question.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    llm: LLM
    prompt: BasePromptTemplate | None = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._check = RelevanceCheck(_Judge(self.llm), settings_of(RelevanceSettings, self))

    @classmethod
    @override
    def class_name(cls) -> str:
        return "RelevanceFilter"

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        verdict = self._check.check(_query(query_bundle), _convert(nodes), self._lay_out)
        return _apply(verdict, nodes)

    @override
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        verdict = await self._check.acheck(_query(query_bundle), _convert(nodes), self._lay_out)
        return _apply(verdict, nodes)

    def _lay_out(self, documents: Sequence[PromptDocument], question: str) -> Prompt:
        context = self.separator.join(document.text for document in documents)
        prompt = DEFAULT_TEXT_QA_PROMPT_SEL if self.prompt is None else self.prompt
        messages = prompt.format_messages(llm=self.llm, context_str=context, query_str=question)
        return Prompt(
            messages=tuple(
                Message(message.role.value, mark_documents(message.content or "", documents))
                for message in messages
            )
        )


class _Judge:
    """Any of LlamaIndex's LLMs."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        # Our own class cannot be imported here. It reads documents and accepts a choice.
        self._is_ours = "find_documents" in type(llm).model_fields

    def ask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        if len(prompts) == 1:
            return [self._ask_one(prompts[0], options)]
        with ThreadPoolExecutor(min(MAX_THREADS, len(prompts))) as pool:
            answers = [
                pool.submit(contextvars.copy_context().run, self._ask_one, prompt, options)
                for prompt in prompts
            ]
            return [answer.result() for answer in answers]

    async def aask(self, prompts: Sequence[Prompt], options: SamplingOptions) -> list[str]:
        answers = await asyncio.gather(
            *(
                self._llm.achat(_messages(prompt), **self._arguments(prompt, options))
                for prompt in prompts
            )
        )
        return [answer.message.content or "" for answer in answers]

    def _ask_one(self, prompt: Prompt, options: SamplingOptions) -> str:
        answer = self._llm.chat(_messages(prompt), **self._arguments(prompt, options))
        return answer.message.content or ""

    def _arguments(self, prompt: Prompt, options: SamplingOptions) -> dict[str, Any]:
        arguments = sampling_arguments(options, is_ours=self._is_ours)
        documents = list(prompt.documents) if self._is_ours else []
        return {**arguments, **({"documents": documents} if documents else {})}


def _messages(prompt: Prompt) -> list[ChatMessage]:
    return [ChatMessage(role=message.role, content=message.text) for message in prompt.messages]


def _query(bundle: QueryBundle | None) -> str:
    if bundle is None:
        msg = "a relevance check needs the question: pass query_bundle or query_str"
        raise ConfigurationError(msg)
    return bundle.query_str


def _convert(nodes: Sequence[NodeWithScore]) -> list[PromptDocument]:
    # The text is what synthesizers write. An empty node becomes a blank: the others keep places.
    return [
        PromptDocument(node.node.get_content(metadata_mode=MetadataMode.LLM) or " ", node.node_id)
        for node in nodes
    ]


def _apply(verdict: Verdict, nodes: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    kept = [nodes[index] for index in verdict.kept]
    return [*kept, NodeWithScore(node=TextNode(text=verdict.note))] if verdict.note else kept
