"""Calls of a tool or a node as questions of a cache of answers, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

import numpy as np
from pydantic import BaseModel
from typing_extensions import override

from ragcache_integrations.core.checks import did_you_mean
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import (
    Surroundings,
    freeze_arguments,
    subclass_of,
    window_of,
)

from .changes import ChangeWatch
from .core import AnswerCore
from .entries import Question, Vector
from .flow import AnswerFlow, Way
from .knobs import AnswerKnobs, check_embedded
from .types import AnswerStats

if TYPE_CHECKING:
    from ragcache_integrations._arguments import AnswerArguments

__all__ = ["Framework", "KeptResults", "Results", "ToolCalls", "check_tool", "declared_part"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Framework(Generic[R]):
    """What differs between the frameworks for cached tools.

    Attributes:
        modules: Beginnings of the names of its modules.
        model: The base class of its embedding models.
        argument: Name of the argument that is such a model.
        embed: Name of the method that embeds a query; with an ``a`` before it, of the async one.
        same: Whether two results are the same.
    """

    modules: tuple[str, ...]
    model: type
    argument: str
    embed: str
    same: Callable[[R, R], bool]


@dataclass(frozen=True, slots=True)
class Results(Generic[R]):
    """How the results of one call are treated.

    Attributes:
        why_none: Returns why the content of a result may not be kept; ``None`` if it may.
        served: Returns a copy of an earlier result for its new receiver; ``None`` where the tool
            has to be called instead.
        content: Returns the content of a result.
        never: Whether a result is not kept at all: an error, or one that refers to
            something that is not compared, such as a message of the conversation by its id.
    """

    why_none: Callable[[Any], str | None]
    served: Callable[[R], R | None]
    content: Callable[[R], Any] = lambda result: result
    never: Callable[[R], bool] = lambda _: False


class ToolCalls(Generic[R]):
    """Reads calls of one tool, and decides which results are kept.

    Args:
        framework: Whose tool it is.
        tool: The tool, or a node of a graph. Nothing is kept over a change of it.
        whose: What the names are, for errors, such as ``an argument of search``.
        names: Those of its arguments.
        query_argument: Name of the argument that is compared as a question is; all others, and all
            where it is ``None``, must be equal.
        model: What embeds queries, or ``None``.
        keep: Returns whether the content of a result may be kept; ``None``: each that is one.
        knobs: The settings of the cache, see :class:`AnswerKnobs`.

    Attributes:
        flow: The cache.

    Raises:
        ConfigurationError: A knob is unknown or out of range, another argument is of the wrong
            type, or there is no such argument of the tool.
    """

    def __init__(
        self,
        framework: Framework[R],
        tool: object,
        whose: str,
        names: Collection[str],
        query_argument: str | None,
        model: object,
        keep: Callable[[Any], object] | None,
        knobs: AnswerArguments,
    ) -> None:
        if model is not None and not isinstance(model, framework.model):
            kind = framework.model.__name__
            msg = f"{framework.argument} must be {kind} or None, got {model!r:.100}"
            raise ConfigurationError(msg)
        if keep is not None and not callable(keep):
            raise ConfigurationError(f"keep must be a function or None, got {keep!r:.100}")
        if query_argument is not None and query_argument not in names:
            near = did_you_mean(query_argument, names) if isinstance(query_argument, str) else ""
            raise ConfigurationError(
                f"query_argument must name {whose}, which has "
                f"{', '.join(map(repr, names)) or 'none'}, got {query_argument!r}{near}"
            )
        checked = read_knobs(AnswerKnobs, knobs)
        embeds = query_argument is not None and model is not None
        check_embedded(checked, "query_argument= and the embedding model", embeds=embeds)
        self._query_argument = query_argument
        self._namespace = checked.namespace
        self._keep = keep
        self._embed = framework.embed
        self._model: Any = model
        self._leaves_out = window_of(model)
        watch = ChangeWatch(tool, framework.modules)
        self.flow = AnswerFlow[R](AnswerCore(checked), framework.same, code=watch)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same: copies of a tool share its results."""
        return self

    def question(
        self,
        arguments: Mapping[str, Any],
        around: Surroundings,
        more: Mapping[str, Any] | None = None,
    ) -> Question | None:
        """Return a call as a question; ``None`` where its arguments can't be compared.

        That is so, too, where the query is missing, as it may have a default, or is no text.

        Args:
            arguments: What the tool is called with.
            around: What surrounds the call.
            more: What else it is called with, which has no names.
        """
        others = dict(arguments)
        text = ""
        if self._query_argument is not None:
            text = others.pop(self._query_argument, None)
        # Apart from each other, as an argument may have any name.
        frozen, nameless = freeze_arguments(others), freeze_arguments(more or {})
        if frozen.opaque or nameless.opaque or around.alone or not isinstance(text, str):
            self.flow.core.count("unkept")
            return None
        scope = (self._namespace, frozen.key, nameless.key, around.frozen.key)
        return Question(text, frozenset(), scope, version=around.version)

    async def serve(
        self,
        way: Way,
        question: Question | None,
        around: Surroundings,
        call: Callable[..., Coroutine[Any, Any, R]],
        results: Results[R],
    ) -> R:
        """Return the result of an earlier call, or call.

        Args:
            way: How to wait for the tool and the embedding model.
            question: The call, see :meth:`question`.
            around: What surrounds it.
            call: Calls the tool in a way; with ``again=True`` in the background, unheard.
            results: How its results are treated.

        Raises:
            Exception: Any error of the tool or the embedding model.
        """
        if question is None:
            return await call(way)
        flow = self.flow
        embed = None
        if self._model is not None:
            embed = way.function(partial(self._embedding, way, question.text))
        lookup = await way(flow.look_up, flow.alook_up, question, embed, around)
        served = None if lookup.entry is None else results.served(lookup.entry.answer)
        if served is not None:
            flow.check(lookup, *way.again(lambda way: call(way, again=True)))
            return served
        with around.watched():
            result = await call(way)
        if results.never(result) or not self._may_keep(results, results.content(result)):
            flow.leave_out()
        else:
            flow.keep(lookup, result)
        return result

    async def _embedding(self, way: Way, text: str) -> Vector | None:
        """Embed a query; ``None`` where the model does not read all of it."""
        embed, aembed = (getattr(self._model, f"{a}{self._embed}") for a in ("", "a"))
        embedding = np.asarray(await way(embed, aembed, text), np.float32)
        return None if self._leaves_out(text) else embedding

    def _may_keep(self, results: Results[R], content: Any) -> bool:
        if self._keep is None:
            return results.why_none(content) is None
        return bool(self._keep(content))


class KeptResults:
    """What a cached tool or node does besides being called."""

    if TYPE_CHECKING:
        _calls: ToolCalls[Any]

    def stats(self) -> AnswerStats:
        """Return what was done so far. Touches memory alone."""
        return self._calls.flow.core.stats()

    def clear(self) -> None:
        """Forget all results."""
        self._calls.flow.core.clear()


def check_tool(tool: object, kind: type) -> None:
    """Check that a tool is one of a framework's.

    Args:
        tool: The tool.
        kind: The framework's base class of tools.

    Raises:
        ConfigurationError: It is something else; the message says so if the tool is one of the
            other framework's.
    """
    if isinstance(tool, kind):
        return
    msg = f"tool must be a BaseTool, got {tool!r:.100}"
    ours = _framework_of(kind)
    for other in map(_framework_of, type(tool).__mro__):
        if other is not None and ours is not None and other != ours:
            msg = (
                f"tool must be a BaseTool of {ours}, got {type(tool).__name__} of {other}: "
                f"that one's cached_tool takes it"
            )
            break
    raise ConfigurationError(msg)


def _framework_of(kind: type) -> str | None:
    names = {"langchain": "LangChain", "llama_index": "LlamaIndex"}
    return next((name for start, name in names.items() if kind.__module__.startswith(start)), None)


def declared_part(state: Any, reads: Collection[str]) -> Any:
    """Return a graph's state with the values alone that a node says it reads.

    Args:
        state: A mapping, a pydantic model, a dataclass, or another object with attributes.
        reads: The names of these values.

    Returns:
        A dict, or an object of a subclass of the state's class. If it is asked for another value
        of the state, it raises a :class:`ConfigurationError`.

    Raises:
        ConfigurationError: The state has no values with names, or its class allows no subclasses.
    """
    if isinstance(state, Mapping):
        part = _DeclaredItems({name: state[name] for name in reads if name in state})
        part.others = frozenset(state) - frozenset(reads)
        return part
    if isinstance(state, BaseModel):
        return _declared_fields(state, reads)
    try:
        held = {name: value for name, value in _attributes(state).items() if name in reads}
        others = frozenset(_attributes(state)) - frozenset(reads)
        kind: Any = type(state)
        made: Any = object.__new__(_guarded_class(kind, others))
        for name, value in held.items():
            object.__setattr__(made, name, value)
    except TypeError as error:
        raise ConfigurationError(
            "the state must be a dict, a dataclass, a pydantic model or another object with "
            f"attributes, got {state!r:.100}"
        ) from error
    return made


def refuse_undeclared(name: object) -> NoReturn:
    """Raise the error of a node that asks for what it does not say it reads."""
    msg = f"the node asked for {name!r} of the state, which is not among its reads=: add it there"
    raise ConfigurationError(msg)


class _DeclaredItems(dict[str, Any]):
    """Items of a state. It refuses to say whether the state has others."""

    others: frozenset[str] = frozenset()

    def _check(self, name: object) -> None:
        if name in self.others:
            refuse_undeclared(name)

    def __missing__(self, name: str) -> NoReturn:
        self._check(name)
        raise KeyError(name)

    @override
    def __contains__(self, name: object) -> bool:
        self._check(name)
        return super().__contains__(name)

    @override
    def get(self, name: str, default: Any = None) -> Any:
        self._check(name)
        return super().get(name, default)

    @override
    def pop(self, name: str, *default: Any) -> Any:
        self._check(name)
        return super().pop(name, *default)

    @override
    def copy(self) -> dict[str, Any]:
        made = type(self)(self)
        made.others = self.others
        return made

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def _declared_fields(state: BaseModel, reads: Collection[str]) -> BaseModel:
    places = ("__dict__", "__pydantic_extra__", "__pydantic_private__")
    held: dict[str, dict[str, Any]] = {place: getattr(state, place) or {} for place in places}
    others = {*type(state).model_fields, *chain(*held.values())} - set(reads)
    made: BaseModel = object.__new__(_guarded_class(type(state), frozenset(others)))
    for place, values in held.items():
        part = {name: value for name, value in values.items() if name in reads}
        object.__setattr__(made, place, part)
    if state.model_extra is None:
        object.__setattr__(made, "__pydantic_extra__", None)
    names = state.__pydantic_fields_set__.intersection(reads)
    object.__setattr__(made, "__pydantic_fields_set__", names)
    return made


def _attributes(state: Any) -> dict[str, Any]:
    """Return the attributes of an object.

    Raises:
        TypeError: It has none.
    """
    if is_dataclass(state) and not isinstance(state, type):
        return {field.name: getattr(state, field.name) for field in fields(state)} | getattr(
            state, "__dict__", {}
        )
    own: dict[str, Any] = vars(state)
    return own


@lru_cache(maxsize=256)
def _guarded_class(kind: Any, others: frozenset[str]) -> type:
    """Return a subclass whose objects refuse to say what some attributes are."""

    def getattribute(self: Any, name: str) -> Any:
        if name in others:
            refuse_undeclared(name)
        return kind.__getattribute__(self, name)

    return subclass_of(kind, __getattribute__=getattribute)
