"""Retrievals in stages, as LangChain's callbacks see them: one retriever run each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config

from ragcache_integrations.retrievers.retrieval import DocumentStage

__all__ = ["RetrieverRun"]


class RetrieverRun:
    """A run as ``BaseRetriever.invoke`` makes one, or ``ainvoke``.

    Attributes:
        manager: Callbacks of the run; those of a run that :meth:`astart` began are coroutines.
    """

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    @classmethod
    def start(cls, retriever: BaseRetriever, query: str, config: RunnableConfig | None) -> Self:
        """Begin a run.

        Args:
            retriever: The retriever, whose tags and metadata the run has.
            query: The question.
            config: The call's configuration.
        """
        configuration, names = _arguments(retriever, config)
        manager = CallbackManager.configure(*configuration)
        return cls(manager.on_retriever_start(None, query, **names))

    @classmethod
    async def astart(
        cls, retriever: BaseRetriever, query: str, config: RunnableConfig | None
    ) -> Self:
        """Async version of :meth:`start`."""
        configuration, names = _arguments(retriever, config)
        manager = AsyncCallbackManager.configure(*configuration)
        return cls(await manager.on_retriever_start(None, query, **names))

    def end(self, stage: DocumentStage[Any] | None) -> None:
        """Report the end of the retrieval, with its last stage."""
        self.manager.on_retriever_end(_documents(stage))

    def fail(self, error: BaseException) -> None:
        """Report an error."""
        self.manager.on_retriever_error(error)

    async def aend(self, stage: DocumentStage[Any] | None) -> None:
        """Async version of :meth:`end`."""
        await self.manager.on_retriever_end(_documents(stage))

    async def afail(self, error: BaseException) -> None:
        """Async version of :meth:`fail`."""
        await self.manager.on_retriever_error(error)


def _arguments(
    retriever: BaseRetriever, config: RunnableConfig | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``CallbackManager.configure``, and a run's name and id."""
    config = ensure_config(config)
    ls_params: dict[str, Any] = {**retriever._get_ls_params()}  # noqa: SLF001 - as invoke() does
    configuration = (
        config.get("callbacks"),
        None,
        False,  # verbose
        config.get("tags"),
        retriever.tags,
        {**(config.get("metadata") or {}), **ls_params},
        retriever.metadata,
    )
    name = config.get("run_name") or retriever.get_name()
    return configuration, {"name": name, "run_id": config.get("run_id")}


def _documents(stage: DocumentStage[Any] | None) -> Sequence[Document]:
    return [] if stage is None else list(stage.documents)
