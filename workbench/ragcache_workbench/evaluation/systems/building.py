"""Makes the parts of a configuration, each only once: data set, store, retriever and model."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.engine.tiny_model import has_random_weights
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import EvalDataset, EvalDocument, load_dataset
from ragcache_workbench.evaluation.settings import EvalSettings

from .base import Model, Retriever, no_retriever
from .corpus import document_embeddings, faiss_index, index_on_disk

__all__ = ["Builder", "Making"]

Making = Callable[[EvalSettings, Sequence[EvalDocument]], Any]
"""A function that makes a retriever or a model for a configuration and its documents."""


@dataclass(kw_only=True)
class Builder:
    """Makes the parts of runs, and keeps those that the next run needs, too.

    Attributes:
        own_dataset: The user's data set; ``None`` for the one in the settings.
        own_retriever: The user's retriever of either framework, or a function that makes one;
            ``None`` for ours.
        own_model: The user's model of either framework, or a function that makes one; ``None`` for
            ours.
        own_reference: A retriever that returns the documents of the store itself, for
            ``own_retriever``.
        random_weights: Whether the answers of ``own_model`` are noise; ``None`` to find out.
        show_progress: Whether to show a progress bar while documents are embedded.

    Raises:
        ConfigurationError: There is an ``own_reference`` without an ``own_retriever``.
    """

    own_dataset: EvalDataset | None = None
    own_retriever: Any = None
    own_model: Any = None
    own_reference: Any = None
    random_weights: bool | None = None
    show_progress: bool = False

    def __post_init__(self) -> None:
        self._datasets: dict[tuple[Any, ...], EvalDataset] = {}
        self._model: tuple[str, Model] | None = None
        if self.own_reference is not None and self.own_retriever is None:
            raise ConfigurationError("reference is for a retriever of yours; that of ours is known")

    @property
    def passed_parts(self) -> list[str]:
        """Names of the parts that are objects or functions of the user."""
        parts = {"retriever": self.own_retriever, "model": self.own_model}
        return [name for name, part in parts.items() if part is not None]

    def check(self, settings: EvalSettings) -> None:
        """Check that no setting is for a part that is an object of the user.

        Raises:
            ConfigurationError: There are such settings.
        """
        parts = {
            "retriever": (self.own_retriever, {*settings.cache, *_search_knobs(settings)}),
            "model": (self.own_model, {*settings.engine, *_model_knobs(settings)}),
        }
        for name, (part, knobs) in parts.items():
            if part is not None and knobs and not is_making(part):
                raise ConfigurationError(
                    f"{', '.join(sorted(knobs))} cannot be set on a {name} that is given: give a "
                    "function of settings and documents that makes one"
                )

    def dataset(self, settings: EvalSettings) -> EvalDataset:
        """Return the data set of a configuration."""
        if self.own_dataset is not None:
            return self.own_dataset
        key = (settings.dataset, settings.data, settings.documents)
        if key not in self._datasets:
            documents = None if settings.documents is None else Path(settings.documents)
            self._datasets[key] = load_dataset(settings.dataset, settings.data, documents)
        return self._datasets[key]

    def retriever(self, settings: EvalSettings, documents: Sequence[EvalDocument]) -> Retriever:
        """Make a retriever of documents, with an empty query cache."""
        if settings.retriever == "none" and self.own_retriever is None:
            return no_retriever()
        if self.own_retriever is not None:
            made = self.own_retriever
            if is_making(made):
                made = made(settings, documents)
            adapters = _adapters_of(made, "retriever")
            adapted: Retriever = adapters.adapted_retriever(made, self.own_reference, settings.k)
            return adapted
        if settings.k > len(documents):
            msg = f"k must be at most {len(documents)}, the documents, got {settings.k}"
            raise ConfigurationError(msg)
        embeddings = document_embeddings(
            documents,
            among=self.dataset(settings).documents,
            show_progress=self.show_progress,
        )
        # An index for each: to follow a store's changes a query cache hooks into the store.
        index = faiss_index(embeddings, settings.search_ratio)
        if settings.store == "disk":
            index = index_on_disk(index)
        cache = {**settings.cache, "seed": settings.seed} if settings.retriever == "cache" else None
        retriever: Retriever = _adapters(settings.framework).faiss_retriever(
            documents, index, k=settings.k, cache=cache
        )
        return retriever

    def model(self, settings: EvalSettings, documents: Sequence[EvalDocument]) -> Model:
        """Return the model; the last one again if the settings mean the same."""
        knobs = [settings.model, settings.base_url, settings.framework, settings.engine]
        making = is_making(self.own_model)
        key = json.dumps([*knobs, settings.as_dict() if making else None], sort_keys=True)
        if self.own_model is not None and not making:
            key = ""
        if self._model is not None and self._model[0] == key:
            return self._model[1]
        self.close()
        made = self.own_model(settings, documents) if making else self.own_model
        if made is None:
            model = _own_model(settings)
        else:
            adapted = _adapters_of(made, "model").adapted_model
            model = adapted(made, random_weights=self.random_weights)
        self._model = key, model
        return model

    def close(self) -> None:
        """Close the model."""
        if self._model is not None:
            self._model[1].close()
            self._model = None


def is_making(part: Any) -> bool:
    """Whether an object is a function that makes a part; retrievers and models are not."""
    return isinstance(part, functools.partial) or inspect.isroutine(part)


def _search_knobs(settings: EvalSettings) -> set[str]:
    usual = EvalSettings(dataset=settings.dataset)
    names = ("search_ratio", "store", "retriever")
    return {name for name in names if getattr(settings, name) != getattr(usual, name)}


def _model_knobs(settings: EvalSettings) -> set[str]:
    return {name for name in ("model", "base_url") if getattr(settings, name) is not None}


def _adapters(framework: str) -> ModuleType:
    package, extra = _FRAMEWORKS[framework]
    require(package, feature=f"framework={framework!r}", extra=extra)
    return importlib.import_module(f"{__package__}.{framework}")


_FRAMEWORKS = {
    "langchain": ("langchain_core", "langchain"),
    "llama_index": ("llama_index.core", "llama-index"),
}
"""For each framework's adapters, the package that they need, and the extra that installs it."""


def _adapters_of(part: Any, what: str) -> ModuleType:
    """Find out a part's framework by its classes, without importing the other framework."""
    roots = {kind.__module__.partition(".")[0] for kind in type(part).__mro__}
    for framework, (package, _) in _FRAMEWORKS.items():
        if package.partition(".")[0] in roots:
            return _adapters(framework)
    raise ConfigurationError(
        f"{what} must be one of LangChain's or LlamaIndex's, or a function that makes one, "
        f"got {type(part).__name__}"
    )


def _own_model(settings: EvalSettings) -> Model:
    knobs = dict(settings.engine)
    if settings.base_url is not None:
        knobs["base_url"] = settings.base_url
    elif has_random_weights(settings.model):
        # Its weights are float32; so a cached answer equals one that was computed without a cache.
        knobs.setdefault("dtype", "float32")
    adapters = _adapters(settings.framework)
    model: Model = adapters.adapted_model(
        adapters.OWN_MODEL(model=settings.model, **knobs), owned=True
    )
    return model
