"""Settings of a run, and grids of them.

Every knob has one flat name, whether it belongs to the workload, the retriever or the engine.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike, fspath
from typing import Any, Final, Literal, Self, get_args

import numpy as np

from ragcache_integrations.adaptive import AdaptiveSettings, SynthesisConfig
from ragcache_integrations.adaptive import Synthesis as Method
from ragcache_integrations.core.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    unknown_name,
)
from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.engine.protocol import TreeKnobs
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.order import Order
from ragcache_integrations.retrievers.cached import CacheKnobs, read_knobs

from .datasets import BUNDLED
from .workloads import KINDS, Kind, check_workload

__all__ = [
    "BY_MODEL",
    "CACHE_KNOBS",
    "ENGINE_KNOBS",
    "KNOBS",
    "SUMMARY_WORDS",
    "Corpus",
    "EvalSettings",
    "Framework",
    "ProfilerKind",
    "Rephraser",
    "RetrieverKind",
    "Store",
    "Synthesis",
    "grid",
    "parse_assignment",
    "parse_sweep",
]

Framework = Literal["langchain", "llama_index"]
RetrieverKind = Literal["cache", "plain", "none"]
Store = Literal["memory", "disk"]
Rephraser = Kind | Literal["model"]

BY_MODEL: Final = "model"
"""The rephrasing that is not one of the rules'."""
Synthesis = Literal["stuff", "map_reduce", "map_rerank", "adaptive"]
Mode = Literal["adaptive", "gradual", "largest", "median"]
ProfilerKind = Literal["llm", "heuristic"]
Corpus = Literal["sample", "all"]

_SHARED = {"k", "seed"}
"""Knobs of the run that are passed to the retriever, too."""

_UNSWEPT = {"annotate", "cache", "tag", "namespace", "follow_changes", "embedding_memo"}
"""Knobs of the retriever that do not change its answers, or are no plain values."""

CACHE_KNOBS = tuple(name for name in CacheKnobs.model_fields if name not in {*_SHARED, *_UNSWEPT})
"""Knobs of the approximate query cache; see
:class:`~ragcache_integrations.retrievers.cached.knobs.CacheKnobs`."""

ENGINE_KNOBS = ("kv_cache_gib", "max_model_len", "dtype", "knowledge_tree", *TreeKnobs.model_fields)
"""Knobs of the bundled engine; see :class:`~ragcache_integrations.engine.RAGCacheEngine`."""

MAX_SWEEP = 1000

SUMMARY_WORDS = 100
"""The most words of each summary of ``map_reduce`` where no other number is set."""


_MOST = 2**53
"""The largest whole number: a float holds each up to here."""


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} must be a text that is not empty, got {value!r}")


def _check_whole(name: str, value: object, low: int = 1, *, also: str = "") -> None:
    check_int(name, check_int(name, value, low, also=also), low, _MOST)


def _check_above_zero(name: str, value: object, high: float = math.inf, *, also: str) -> None:
    check_number(name, value, 0, high, above=True, also=also)


def _checked(check: Callable[..., object], *bounds: Any) -> dict[str, Any]:
    """Metadata of a field: its check, which gets name, value and bounds."""
    return {"check": check, "bounds": bounds}


def _one_of(words: Any) -> dict[str, Any]:
    """Metadata of a field that has one of the words of a ``Literal``."""
    return _checked(check_choice, get_args(words))


def _plain(value: Any) -> Any:
    """Replace paths, NumPy's numbers and mappings by values that JSON has."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """One configuration, which is one run.

    Attributes:
        dataset: One of :data:`~ragcache_workbench.evaluation.datasets.DATASETS`, such as ``nq``;
            or the name of a data set that is passed as an object.
        data: ``bundled`` for the sample that comes with the package, ``hub`` or ``hub:NAME`` for
            the Hugging Face hub, or a path.
        documents: JSON lines of passages to retrieve from instead of the data set's own.
        sample: Number of questions to draw at random; ``None`` for all.
        corpus: For a ``sample``: ``sample`` to retrieve from the documents that answer its
            questions, among others at random
            (:meth:`~ragcache_workbench.evaluation.datasets.EvalDataset.documents_of`), so that
            only these are embedded; ``all`` for all documents. Quality, recall and retrieval times
            over a few documents are better than over all.
        seed: Seed of the sample, the stream of questions and the query cache's hyperplanes.
        workload: ``as_is``, ``uniform``, ``zipf``, or ``tripclick:PATH``, the order of a log; see
            :func:`~ragcache_workbench.evaluation.workloads.make_workload`.
        length: Number of questions in the stream; ``None`` for the workload's usual length.
        variants: For ``uniform``: number of times that each question comes.
        rephrasing: For ``zipf``: how far from the questions their rephrasings are; or ``model`` for
            the model's own, each of which it has to answer as it answers the question
            (:func:`~ragcache_workbench.evaluation.rephrasings.rephrased_by_model`). One that is
            refused is replaced by a ``medium`` one.
        exponent: For ``zipf``: Zipf's exponent; at least 0.
        rate: Requests per second, arriving as a Poisson process; ``None`` for a closed loop.
        minutes: Length of a trace at ``rate`` in minutes; 60 in RAGCache §7.
        users: For a closed loop: number of concurrent users, each asking one question at a time.
        framework: ``langchain`` or ``llama_index``, for parts that are not passed as objects.
        retriever: ``cache`` for the store with an approximate query cache, ``plain`` for the store
            alone, ``none`` for no retrieval.
        k: Documents per question; with ``adaptive`` synthesis the most that are read.
        search_ratio: Share of an IVF index's clusters that a search scans, above 0 and at most 1;
            ``None`` for a flat index, which compares with all documents.
        store: Where the vectors are: in ``memory``, or on the ``disk``, from which every search
            reads them again
            (:func:`~ragcache_workbench.evaluation.systems.corpus.index_on_disk`).
        order: The documents' order in the prompt: ``relevance``, ``reverse``, ``cached_first`` or
            ``auto``.
        synthesis: How chunks become an answer: ``stuff``, ``map_reduce`` or ``map_rerank``
            (RAGServe §2), or ``adaptive``, which chooses the method and the number of chunks for
            each question (RAGServe §4). ``None`` for the data set's own prompt.
        intermediate_length: For ``map_reduce``: the most words of each summary; ``None`` for
            :data:`SUMMARY_WORDS`. For ``adaptive``: that of all questions; ``None`` if each decides
            it.
        method: For ``adaptive``: the method of all questions; ``None`` if each decides it.
        num_chunks: For ``adaptive``: the number of documents that all questions read, at most
            ``k``; ``None`` if each decides it.
        mode: For ``adaptive``: ``adaptive`` takes the largest configuration that fits the free
            memory; ``gradual`` the smallest that suits the question first, and larger ones, up to
            that of ``adaptive``, only while the model does not find the answer; ``largest`` the
            largest of what suits the question and ``median`` the median of it, without looking at
            the memory.
        profiler: For ``adaptive``: ``llm`` to profile questions by the model, ``heuristic`` by
            their words alone.
        latency_budget: For ``adaptive``: estimated seconds that an answer may take; ``None`` for no
            limit.
        golden_every: For ``profiler="llm"``: one in this many questions is answered again with the
            most expensive configuration, and the profiler learns from it (RAGServe §5); ``None``
            for never.
        answer_once: Whether an equal prompt, of this run or of an earlier one of the same call, is
            answered by the same answer, without asking the model again. Greedy answers are the same
            then, but for rounding in other batches; of such questions only the retrieval is timed.
            Prompts are equal if their texts are; the ids of their documents do not count.
        max_tokens: Limit of an answer in tokens; ``None`` for the data set's own.
        model: Path or hub name of the bundled engine's model; ``None`` for the bundled one. With
            ``base_url``, the name that the server serves.
        base_url: Address of an OpenAI-compatible server to use instead of the bundled engine.
        cache: Knobs of the query cache; :data:`CACHE_KNOBS`.
        engine: Knobs of the bundled engine; :data:`ENGINE_KNOBS`.

    Raises:
        ConfigurationError: A setting is out of its range, unknown, or excludes another.
        ModelNotFoundError: ``model`` looks like a path and no model is there.
    """

    dataset: str = field(metadata=_checked(_check_text))
    data: str = field(default=BUNDLED, metadata=_checked(_check_text))
    documents: str | None = field(default=None, metadata=_checked(_check_text))
    sample: int | None = field(default=None, metadata=_checked(_check_whole))
    corpus: Corpus = field(default="sample", metadata=_one_of(Corpus))
    seed: int = field(default=0, metadata=_checked(_check_whole, 0))
    workload: str = field(default="as_is", metadata=_checked(lambda _, kind: check_workload(kind)))
    length: int | None = field(default=None, metadata=_checked(_check_whole))
    variants: int = field(default=4, metadata=_checked(_check_whole))
    rephrasing: Rephraser = field(
        default="medium", metadata=_checked(check_choice, (*KINDS, BY_MODEL))
    )
    exponent: float = field(default=0.8, metadata=_checked(check_number, 0))
    rate: float | None = field(default=None, metadata=_checked(_check_above_zero))
    minutes: float | None = field(default=None, metadata=_checked(_check_above_zero))
    users: int = field(default=1, metadata=_checked(_check_whole))
    framework: Framework = field(default="langchain", metadata=_one_of(Framework))
    retriever: RetrieverKind = field(default="cache", metadata=_one_of(RetrieverKind))
    k: int = field(default=5, metadata=_checked(_check_whole))
    search_ratio: float | None = field(default=None, metadata=_checked(_check_above_zero, 1.0))
    store: Store = field(default="memory", metadata=_one_of(Store))
    order: Order = field(default="relevance", metadata=_one_of(Order))
    synthesis: Synthesis | None = field(default=None, metadata=_one_of(Synthesis))
    intermediate_length: int | None = field(default=None, metadata=_checked(_check_whole))
    method: Method | None = field(default=None, metadata=_one_of(Method))
    num_chunks: int | None = field(default=None, metadata=_checked(_check_whole))
    mode: Mode = field(default="adaptive", metadata=_one_of(Mode))
    profiler: ProfilerKind = field(default="llm", metadata=_one_of(ProfilerKind))
    latency_budget: float | None = field(default=None, metadata=_checked(_check_above_zero))
    golden_every: int | None = field(default=None, metadata=_checked(_check_whole))
    answer_once: bool = field(default=False, metadata=_checked(check_flag))
    max_tokens: int | None = field(default=None, metadata=_checked(_check_whole))
    model: str | None = field(default=None, metadata=_checked(_check_text))
    base_url: str | None = field(default=None, metadata=_checked(_check_text))
    cache: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for setting in fields(self):
            name, value = setting.name, _plain(getattr(self, setting.name))
            object.__setattr__(self, name, value)
            check, optional = setting.metadata.get("check"), setting.default is None
            if check is not None and not (optional and value is None):
                also = {"also": "None"} if optional and check is not _check_text else {}
                check(name, value, *setting.metadata["bounds"], **also)
        self._check_together()
        for name, known in (("cache", CACHE_KNOBS), ("engine", ENGINE_KNOBS)):
            unknown = sorted(set(getattr(self, name)) - set(known))
            if unknown:
                raise _unknown(unknown[0], known)
        read_knobs({**self.cache, "k": self.k, "seed": self.seed})
        if self.base_url is None:
            engine_settings(self.model, **self.engine)

    def _check_together(self) -> None:
        adaptive = self.synthesis == "adaptive"
        server = self.base_url is not None
        held = self.method is not None and self.num_chunks is not None
        length_is_open = self.method == "map_reduce" and self.intermediate_length is None
        wrong = {
            "minutes needs a rate, and excludes length": (
                self.minutes is not None and (self.rate is None or self.length is not None)
            ),
            f"users are for a closed loop: with rate={self.rate} leave it at 1": (
                self.rate is not None and self.users != 1
            ),
            "base_url needs model, the name that the server serves": server and self.model is None,
            f"base_url excludes {', '.join(self.engine)}: they are the bundled engine's": (
                server and bool(self.engine)
            ),
            f"{_need(self.cache)} retriever='cache', got {self.retriever!r}": (
                bool(self.cache) and self.retriever != "cache"
            ),
            "store='disk' needs documents, got retriever='none'": (
                self.store == "disk" and self.retriever == "none"
            ),
            f"synthesis={self.synthesis!r} needs documents, got retriever='none'": (
                self.synthesis is not None and self.retriever == "none"
            ),
            f"synthesis='adaptive' reads the best documents, got order={self.order!r}": (
                adaptive and self.order != "relevance"
            ),
            f"{_need(self._only_adaptive())} synthesis='adaptive', "
            f"got synthesis={self.synthesis!r}": not adaptive and bool(self._only_adaptive()),
            f"num_chunks must be at most k={self.k}, got {self.num_chunks}": (
                self.num_chunks is not None and self.num_chunks > self.k
            ),
            f"method={self.method!r} and num_chunks={self.num_chunks} leave nothing to choose for "
            f"a question: take synthesis={self.method!r} and k={self.num_chunks}": (
                held and not length_is_open
            ),
            "answer_once needs order='relevance' and no synthesis='adaptive', with which a prompt "
            "depends on what came before, "
            f"got synthesis={self.synthesis!r} and order={self.order!r}": (
                self.answer_once and (adaptive or self.order != "relevance")
            ),
            "answer_once needs reuse='prefix': with 'anywhere' an answer depends on what came "
            "before": self.answer_once and self.engine.get("reuse") == "anywhere",
            "golden_every needs synthesis='adaptive' and profiler='llm', "
            f"got synthesis={self.synthesis!r} and profiler={self.profiler!r}": (
                self.golden_every is not None and not (adaptive and self.profiler == "llm")
            ),
        }
        msg = next((text for text, applies in wrong.items() if applies), "")
        if msg:
            raise ConfigurationError(msg)
        if adaptive:
            self.adaptive_settings()

    def _only_adaptive(self) -> list[str]:
        """The names of the knobs that are set and are for adaptive synthesis alone."""
        usual = {"mode": "adaptive", "profiler": "llm"}
        names = ("method", "num_chunks", "mode", "profiler", "latency_budget")
        return [name for name in names if getattr(self, name) != usual.get(name)]

    def adaptive_settings(self) -> AdaptiveSettings:
        """How adaptive synthesis chooses a configuration for each question.

        Raises:
            ConfigurationError: Knobs contradict each other.
        """
        return AdaptiveSettings(
            mode=self.mode,
            method=self.method,
            num_chunks=self.num_chunks,
            intermediate_length=self.intermediate_length,
            max_chunks=self.k,
            latency_budget=self.latency_budget,
            golden_every=self.golden_every,
        )

    @property
    def synthesis_config(self) -> SynthesisConfig | None:
        """The configuration of all questions; ``None`` without synthesis, or if it is adaptive."""
        if self.synthesis is None or self.synthesis == "adaptive":
            return None
        length = self.intermediate_length or SUMMARY_WORDS
        reduces = self.synthesis == "map_reduce"
        return SynthesisConfig(self.synthesis, self.k, length if reduces else None)

    def set(self, **knobs: Any) -> Self:
        """Return the settings with other knobs, by their flat names.

        Raises:
            ConfigurationError: A knob is unknown, and the message lists all; or out of its range.
        """
        own, cache, engine = dict[str, Any](), dict(self.cache), dict(self.engine)
        groups = ((_OWN, own), (CACHE_KNOBS, cache), (ENGINE_KNOBS, engine))
        for name, value in knobs.items():
            group = next((group for names, group in groups if name in names), None)
            if group is None:
                raise _unknown(name, KNOBS)
            group[name] = value
        return replace(self, cache=cache, engine=engine, **own)

    def flat(self) -> dict[str, Any]:
        """Return the settings by their flat names; of query cache and engine those that are set."""
        content = asdict(self)
        cache, engine = content.pop("cache"), content.pop("engine")
        flat: dict[str, Any] = content | cache | engine
        return flat

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data for JSON and :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_dict` returned.

        Raises:
            ConfigurationError: ``content`` holds no settings.
        """
        names = {setting.name for setting in fields(cls)}
        unknown = sorted(set(content) - names)
        if unknown or "dataset" not in content:
            msg = f"settings must have {', '.join(sorted(names))}, got {', '.join(content)}"
            raise ConfigurationError(msg)
        return cls(**content)


_OWN = tuple(
    setting.name
    for setting in fields(EvalSettings)
    if setting.name not in {"dataset", "cache", "engine"}
)
KNOBS = tuple(sorted({*_OWN, *CACHE_KNOBS, *ENGINE_KNOBS}))
"""Everything that can be set and swept, by flat names."""


def _unknown(name: str, allowed: Iterable[str]) -> ConfigurationError:
    return ConfigurationError(unknown_name("knob", name, allowed))


def _need(names: Iterable[str]) -> str:
    """Begin a sentence on what some knobs need."""
    subjects = list(names)
    return f"{', '.join(subjects)} need{'s' if len(subjects) == 1 else ''}"


def parse_assignment(text: str) -> tuple[str, Any]:
    """Read ``name=value``.

    Raises:
        ConfigurationError: It is no assignment, or there is no such knob.
    """
    name, values = parse_sweep(text)
    if len(values) != 1:
        msg = f"{name} must have one value here, got {text!r}; several are for --sweep"
        raise ConfigurationError(msg)
    return name, values[0]


def parse_sweep(text: str) -> tuple[str, tuple[Any, ...]]:
    """Read ``name=value,value,...``.

    Values are numbers, ``true``, ``false``, ``none``, or texts.

    Raises:
        ConfigurationError: It is no assignment, there is no such knob, or a value comes twice.
    """
    name, mark, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if not mark:
        raise ConfigurationError(f"write a knob as name=value, or name=value,value, got {text!r}")
    if name not in KNOBS:
        raise _unknown(name, KNOBS)
    words = [word.strip() for word in listed.split(",")]
    if not all(words) or len(set(words)) != len(words):
        msg = f"{name} must have values that are not empty and different, got {listed!r}"
        raise ConfigurationError(msg)
    return name, tuple(_value(name, word) for word in words)


def grid(
    settings: EvalSettings, sweep: Mapping[str, Sequence[Any]] | None = None
) -> list[EvalSettings]:
    """Return all combinations of some knobs' values, each as a configuration.

    Knobs of the model vary slowest, so that few engines have to be started. Link tokens are for
    ``reuse="anywhere"``: unless ``reuse`` is swept, too, an exact run comes first, to compare with.

    Args:
        settings: The values of all other knobs.
        sweep: Lists of values by knob; empty or ``None`` for these settings alone.

    Raises:
        ConfigurationError: A knob is unknown, without values or out of its range, or there are
            more than 1,000 combinations.
    """
    swept = dict(sweep or {})
    for name, values in swept.items():
        if name not in KNOBS:
            raise _unknown(name, KNOBS)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigurationError(f"{name} must have a list of values, got {values!r}")
    if math.prod(map(len, swept.values())) > MAX_SWEEP:
        msg = f"a sweep may have {MAX_SWEEP} configurations, got more: {json.dumps(swept)}"
        raise ConfigurationError(msg)
    if "link_tokens" in swept and "reuse" not in swept:
        exact = {name: values for name, values in swept.items() if name != "link_tokens"}
        anywhere = {"reuse": ["anywhere"], **swept}
        return [*grid(settings.set(reuse="prefix"), exact), *grid(settings, anywhere)]
    slow = {*ENGINE_KNOBS, "model", "base_url", "framework"}
    names = sorted(swept, key=lambda name: name not in slow)  # stable: in the order given
    combinations = itertools.product(*(swept[name] for name in names))
    return [
        settings.set(**dict(zip(names, values, strict=True))) if names else settings
        for values in combinations
    ]


def _value(name: str, word: str) -> Any:
    text = {"none": "null", "None": "null", "True": "true", "False": "false"}.get(word, word)
    try:
        value = json.loads(text)
    except ValueError:
        return word
    return word if isinstance(value, list | dict | str) or name in _TEXTS else value


_TEXTS = {"data", "documents", "base_url"}
