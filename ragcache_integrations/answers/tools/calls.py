"""Calls of a tool as questions of a cache of answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sized
from typing import Any, Generic, TypeVar

from ragcache_integrations.answers.core import AnswerCore, Question
from ragcache_integrations.answers.flow import AnswerFlow
from ragcache_integrations.answers.knobs import AnswerKnobArguments, AnswerKnobs
from ragcache_integrations.core.knobs import read_knobs
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.keys import freeze_arguments

__all__ = ["ToolCalls"]

R = TypeVar("R")


class ToolCalls(Generic[R]):
    """Reads calls of one tool, and decides which results are kept.

    Args:
        tool: Its name, for errors.
        names: Those of its arguments.
        query_argument: Name of the argument that is compared as a question is; all others, and all
            where it is ``None``, must be equal.
        knobs: The settings of the cache, see :class:`AnswerKnobs`.
        keep: Returns whether a result may be kept; ``None``: those that are not empty.
        same: Whether two results are the same.

    Attributes:
        flow: The cache.

    Raises:
        ConfigurationError: A knob is unknown or out of range, or there is no such argument.
    """

    def __init__(
        self,
        tool: str,
        names: Collection[str],
        query_argument: str | None,
        knobs: AnswerKnobArguments,
        keep: Callable[[Any], bool] | None,
        same: Callable[[R, R], bool],
    ) -> None:
        if query_argument is not None and query_argument not in names:
            msg = (
                f"query_argument must name an argument of {tool}, which has "
                f"{', '.join(map(repr, names)) or 'none'}, got {query_argument!r}"
            )
            raise ConfigurationError(msg)
        if keep is not None and not callable(keep):
            msg = f"keep must be a function or None, got {keep!r:.100}"
            raise ConfigurationError(msg)
        checked = read_knobs(AnswerKnobs, knobs)
        self._query_argument = query_argument
        self._namespace = checked.namespace
        self._keep = keep or _is_something
        self.flow = AnswerFlow[R](AnswerCore(checked), same)

    def question(self, arguments: Mapping[str, Any]) -> Question | None:
        """Return a call as a question; ``None`` where its arguments can't be compared.

        Raises:
            ConfigurationError: The argument that is the query is missing, or is no text.
        """
        others = dict(arguments)
        text = ""
        if self._query_argument is not None:
            text = others.pop(self._query_argument, None)
            if not isinstance(text, str):
                msg = (
                    f"query_argument={self._query_argument!r} must name a text among the tool's "
                    f"arguments, which are {', '.join(map(repr, arguments)) or 'none'}"
                )
                raise ConfigurationError(msg)
        frozen = freeze_arguments(others)
        if frozen.opaque:
            self.flow.core.count("unkept")
            return None
        return Question(text, frozenset(), (self._namespace, frozen.key))

    def keeps(self, result: Any) -> bool:
        """Whether a result may be kept."""
        kept = bool(self._keep(result))
        if not kept:
            self.flow.core.count("unkept")
        return kept


def _is_something(result: object) -> bool:
    return result is not None and not (isinstance(result, Sized) and len(result) == 0)
