"""Makes what a configuration asks for: data set, store, retriever and model, each only once."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from ragcache_integrations.core.extras import require
from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.datasets import EvalDataset, EvalDocument, load_dataset
from ragcache_integrations.evaluation.settings import EvalSettings

from .base import Model, NoRetriever, Retriever
from .corpus import document_embeddings, faiss_index

__all__ = ["Builder", "Making"]

Making = Callable[[EvalSettings, Sequence[EvalDocument]], Any]
"""A function that makes a retriever or a model for a configuration and its documents."""


class Builder:
    """Makes the parts of runs and keeps those that the next run needs as well.

    Args:
        dataset: A data set that is there already; else the settings say which.
        retriever: A retriever of either framework, or a function that makes one; else ours.
        model: A model of either framework, or a function that makes one; else ours.
        reference: A retriever that tells what the store itself returns, for ``retriever``.
        random_weights: Whether what ``model`` says is noise; found out where ``None``.
        show_progress: Show a progress bar while documents are embedded.
    """

    def __init__(
        self,
        *,
        dataset: EvalDataset | None = None,
        retriever: Any = None,
        model: Any = None,
        reference: Any = None,
        random_weights: bool | None = None,
        show_progress: bool = False,
    ) -> None:
        self._given_dataset = dataset
        self._given_retriever, self._reference = retriever, reference
        self._given_model, self._random_weights = model, random_weights
        self._show_progress = show_progress
        self._datasets: dict[tuple[Any, ...], EvalDataset] = {}
        self._model: tuple[str, Model] | None = None
        if reference is not None and retriever is None:
            msg = "reference goes with a retriever of yours; that of ours is known"
            raise ConfigurationError(msg)

    @property
    def given(self) -> list[str]:
        """What is given as an object or a function, and not made by the settings alone."""
        parts = {"retriever": self._given_retriever, "model": self._given_model}
        return [name for name, part in parts.items() if part is not None]

    def check(self, settings: EvalSettings) -> None:
        """See that the settings say nothing about what is given as an object.

        Raises:
            ConfigurationError: They do.
        """
        given = {
            "retriever": (self._given_retriever, {*settings.cache, *_search_knobs(settings)}),
            "model": (self._given_model, {*settings.engine, *_model_knobs(settings)}),
        }
        for name, (part, knobs) in given.items():
            if part is not None and knobs and not is_making(part):
                msg = (
                    f"{', '.join(sorted(knobs))} cannot be set on a {name} that is given: give a "
                    "function of settings and documents that makes one"
                )
                raise ConfigurationError(msg)

    @property
    def has_reference(self) -> bool:
        """Whether something was given that tells what the store itself returns."""
        return self._reference is not None

    def dataset(self, settings: EvalSettings) -> EvalDataset:
        """The data set of a configuration."""
        if self._given_dataset is not None:
            return self._given_dataset
        key = (settings.dataset, settings.data, settings.documents)
        if key not in self._datasets:
            documents = None if settings.documents is None else Path(settings.documents)
            self._datasets[key] = load_dataset(settings.dataset, settings.data, documents)
        return self._datasets[key]

    def retriever(self, settings: EvalSettings, dataset: EvalDataset) -> Retriever:
        """A retriever whose query cache is empty."""
        if settings.retriever == "none" and self._given_retriever is None:
            return NoRetriever()
        if self._given_retriever is not None:
            made = self._given_retriever
            if is_making(made):
                made = made(settings, dataset.documents)
            return _adapted_retriever(made, self._reference, settings.k)
        if settings.k > len(dataset.documents):
            msg = f"k must be at most {len(dataset.documents)}, the documents, got {settings.k}"
            raise ConfigurationError(msg)
        embeddings = document_embeddings(dataset.documents, show_progress=self._show_progress)
        # Each its own: query caches follow the changes of a store, and stores are changed by that.
        index = faiss_index(embeddings, settings.search_ratio)
        cache = {**settings.cache, "seed": settings.seed} if settings.retriever == "cache" else None
        retriever: Retriever = _adapters(settings.framework).faiss_retriever(
            dataset.documents, index, k=settings.k, cache=cache
        )
        return retriever

    def model(self, settings: EvalSettings, documents: Sequence[EvalDocument]) -> Model:
        """The model; the one that there is, where the settings mean the same."""
        knobs = [settings.model, settings.base_url, settings.framework, settings.engine]
        making = is_making(self._given_model)
        key = json.dumps([*knobs, settings.as_dict() if making else None], sort_keys=True)
        if self._given_model is not None and not making:
            key = ""
        if self._model is not None and self._model[0] == key:
            return self._model[1]
        self.close()
        made = self._given_model(settings, documents) if making else self._given_model
        if made is not None:
            model = _adapted_model(made, self._random_weights)
        else:
            model = _own_model(settings)
        self._model = key, model
        return model

    def close(self) -> None:
        """Give back what was made."""
        if self._model is not None:
            self._model[1].close()
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def is_making(part: Any) -> bool:
    """Whether it makes a part, and is none; retrievers and models are no functions."""
    return isinstance(part, functools.partial) or inspect.isroutine(part)


def _search_knobs(settings: EvalSettings) -> set[str]:
    usual = EvalSettings(dataset=settings.dataset)
    names = ("search_ratio", "retriever")
    return {name for name in names if getattr(settings, name) != getattr(usual, name)}


def _model_knobs(settings: EvalSettings) -> set[str]:
    return {name for name in ("model", "base_url") if getattr(settings, name) is not None}


def _adapters(framework: str) -> ModuleType:
    if framework == "langchain":
        require("langchain_core", feature="framework='langchain'", extra="langchain")
        from ragcache_integrations.evaluation.systems import langchain  # noqa: PLC0415 - a framework

        return langchain
    require("llama_index.core", feature="framework='llama_index'", extra="llama-index")
    from ragcache_integrations.evaluation.systems import llama_index  # noqa: PLC0415 - a framework

    return llama_index


def _framework_of(part: Any, what: str) -> str:
    """Tell a framework by the classes of a part, without importing the other one."""
    roots = {kind.__module__.partition(".")[0] for kind in type(part).__mro__}
    if "langchain_core" in roots:
        return "langchain"
    if "llama_index" in roots:
        return "llama_index"
    msg = (
        f"{what} must be one of LangChain's or LlamaIndex's, or a function that makes one, "
        f"got {type(part).__name__}"
    )
    raise ConfigurationError(msg)


def _adapted_retriever(part: Any, reference: Any, k: int) -> Retriever:
    framework = _framework_of(part, "retriever")
    adapters = _adapters(framework)
    if framework == "langchain":
        adapted: Retriever = adapters.LangChainRetriever(part, reference, k)
        return adapted
    other: Retriever = adapters.LlamaIndexRetriever(part, reference)
    return other


def _adapted_model(part: Any, random_weights: bool | None) -> Model:
    framework = _framework_of(part, "model")
    kind = "LangChainModel" if framework == "langchain" else "LlamaIndexModel"
    adapted: Model = getattr(_adapters(framework), kind)(part, random_weights=random_weights)
    return adapted


def _own_model(settings: EvalSettings) -> Model:
    knobs = dict(settings.engine)
    if settings.base_url is not None:
        knobs["base_url"] = settings.base_url
    elif has_random_weights(settings.model):
        # Its weights are such numbers, and a cached answer is then the same as one that is not.
        knobs.setdefault("dtype", "float32")
    make = "chat_model" if settings.framework == "langchain" else "language_model"
    model: Model = getattr(_adapters(settings.framework), make)(model=settings.model, **knobs)
    return model
