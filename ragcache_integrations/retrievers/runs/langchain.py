"""Retrievals in stages, as LangChain's callbacks see them: one retriever run each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManager,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config

from ragcache_integrations.retrievers.retrieval import DocumentStage

__all__ = ["AsyncRetrieverRun", "RetrieverRun"]


class RetrieverRun:
    """A run as ``BaseRetriever.invoke`` makes one.

    Attributes:
        manager: Its callbacks.
    """

    def __init__(self, manager: CallbackManagerForRetrieverRun) -> None:
        self.manager = manager

    @classmethod
    def start(
        cls,
        retriever: BaseRetriever,
        query: str,
        config: RunnableConfig | None,
        ls_params: Any,
    ) -> Self:
        """Begin one."""
        config = ensure_config(config)
        manager = CallbackManager.configure(*_configuration(retriever, config, ls_params))
        name = config.get("run_name") or retriever.get_name()
        run_id = config.get("run_id")
        return cls(manager.on_retriever_start(None, query, name=name, run_id=run_id))

    def end(self, stage: DocumentStage[Any] | None) -> None:
        """Tell that it is over."""
        self.manager.on_retriever_end(_documents(stage))

    def fail(self, error: BaseException) -> None:
        """Tell what went wrong."""
        self.manager.on_retriever_error(error)


class AsyncRetrieverRun:
    """A run as ``BaseRetriever.ainvoke`` makes one.

    Attributes:
        manager: Its callbacks.
    """

    def __init__(self, manager: AsyncCallbackManagerForRetrieverRun) -> None:
        self.manager = manager

    @classmethod
    async def start(
        cls,
        retriever: BaseRetriever,
        query: str,
        config: RunnableConfig | None,
        ls_params: Any,
    ) -> Self:
        """Begin one."""
        config = ensure_config(config)
        manager = AsyncCallbackManager.configure(*_configuration(retriever, config, ls_params))
        name = config.get("run_name") or retriever.get_name()
        run_id = config.get("run_id")
        return cls(await manager.on_retriever_start(None, query, name=name, run_id=run_id))

    async def aend(self, stage: DocumentStage[Any] | None) -> None:
        """Tell that it is over."""
        await self.manager.on_retriever_end(_documents(stage))

    async def afail(self, error: BaseException) -> None:
        """Tell what went wrong."""
        await self.manager.on_retriever_error(error)


def _configuration(
    retriever: BaseRetriever, config: RunnableConfig, ls_params: Any
) -> tuple[Any, ...]:
    """Return what ``CallbackManager.configure`` takes, in its order."""
    return (
        config.get("callbacks"),
        None,
        False,  # verbose
        config.get("tags"),
        retriever.tags,
        {**(config.get("metadata") or {}), **ls_params},
        retriever.metadata,
    )


def _documents(stage: DocumentStage[Any] | None) -> Sequence[Document]:
    return [] if stage is None else list(stage.documents)
