"""A small world to evaluate: real retrievers over a real store, and a model that answers at once.

The model is a stand-in, for tests that break a run off again and again: the engine takes half a
minute to start. What it says depends on all of its prompt, as a model's answer does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.vectorstores import InMemoryVectorStore
from typing_extensions import override

from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.resources import load_passages
from ragcache_workbench.evaluation.settings import EvalSettings

PASSAGES = 60
DIM = 32


class Words(Embeddings):
    """The sum of a random vector for every word: texts that share words are near each other."""

    def embed_query(self, text: str) -> list[float]:
        words = enumerate(text.lower().split()[:40])
        # Places count a little: the same words in another order are another text.
        vector = np.sum([(1 + place / 50) * self._word(one) for place, one in words], axis=0)
        return [float(x) for x in vector / np.linalg.norm(vector)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    @staticmethod
    def _word(word: str) -> Any:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=DIM)


def store() -> InMemoryVectorStore:
    held = InMemoryVectorStore(Words())
    held.add_documents(
        [Document(passage.text, id=passage.id) for passage in load_passages()[:PASSAGES]]
    )
    return held


def make_retriever(settings: EvalSettings, _: object) -> ApproximateCacheRetriever:
    knobs: Any = {"tolerance": 0.8, "capacity": 25, **settings.cache}
    return ApproximateCacheRetriever.from_vectorstore(store(), k=settings.k, **knobs)


class Echo(BaseChatModel):
    """Says a few words that depend on all of its prompt.

    Attributes:
        seconds: How long each word takes.
        called: Called with the number of each call, and may raise.
    """

    seconds: float = 0.0
    called: Callable[[int], None] | None = None
    calls: list[int] = []  # noqa: RUF012 - pydantic copies it

    @property
    @override
    def _llm_type(self) -> str:
        return "echo"

    def _words(self, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        self.calls.append(len(self.calls))
        if self.called is not None:
            self.called(len(self.calls))
        prompt = "\n".join(message.text for message in messages)
        digest = hashlib.sha256(prompt.encode()).hexdigest()
        for number in range(3):
            yield AIMessageChunk(content=f"{digest[4 * number : 4 * number + 4]} ")
        details = InputTokenDetails(cache_read=len(prompt) // 8)
        usage = UsageMetadata(
            input_tokens=len(prompt) // 4,
            output_tokens=3,
            total_tokens=len(prompt) // 4 + 3,
            input_token_details=details,
        )
        yield AIMessageChunk(content="", usage_metadata=usage, chunk_position="last")

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        text = "".join(str(word.text) for word in self._words(messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    @override
    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in self._words(messages):
            await asyncio.sleep(self.seconds)
            yield ChatGenerationChunk(message=word)
