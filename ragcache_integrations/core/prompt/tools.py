"""Tools that a model may call, and its calls: the same words for every engine and server."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ragcache_integrations.core.checks import check_text, check_type, unknown_name
from ragcache_integrations.core.schemas import copy_schema
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "TOOL_CHOICES",
    "Tool",
    "ToolCall",
    "ToolCallPiece",
    "check_tool_choice",
    "check_unique",
    "choice_name",
    "join_calls",
    "join_pieces",
    "new_call_id",
    "tools_of",
]

TOOL_CHOICES = ("auto", "none", "required")
"""Values of ``tool_choice`` besides the name of a tool: the model decides, calls none, or at least
one."""

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({"type": "object", "properties": {}})
NAME = re.compile(r"[A-Za-z0-9_$.:-]{1,128}")
ID_BYTES = 12

_DEFINITION = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: Up to 128 letters, digits and ``_$.:-``.
        description: What it does, for the model; empty for none.
        parameters: JSON schema of its arguments, an object.
        strict: Whether a server must hold the arguments to the schema; ``None`` to leave it to the
            server.

    Raises:
        ConfigurationError: A value is of the wrong type, or the name is not allowed.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_ARGUMENTS, hash=False)
    strict: bool | None = None

    def __post_init__(self) -> None:
        check_text("a tool's name", self.name)
        if not NAME.fullmatch(self.name) or self.name in (*TOOL_CHOICES, "any"):
            raise ConfigurationError(
                "a tool's name must be 1 to 128 letters, digits and _$.:- and not one of "
                f"any, {', '.join(TOOL_CHOICES)}, got {self.name[:150]!r}"
            )
        check_text(f"the description of the tool {self.name}", self.description)
        of_this = f"of the tool {self.name}"
        check_type(f"strict {of_this}", self.strict, bool | None, "True, False or None")
        schema = copy_schema(f"parameters {of_this}", self.parameters)
        object.__setattr__(self, "parameters", schema)

    @classmethod
    def of(cls, definition: object) -> Tool:
        """The tool of a definition in OpenAI's form; a tool is returned unchanged.

        Args:
            definition: ``{"type": "function", "function": {"name": ..., "description": ...,
                "parameters": ..., "strict": ...}}``, of which only the name is required.

        Raises:
            ConfigurationError: It has another form, or an unknown field.
        """
        if isinstance(definition, Tool):
            return definition
        function = definition.get("function") if isinstance(definition, Mapping) else None
        if (
            not isinstance(definition, Mapping)
            or definition.get("type", "function") != "function"
            or not isinstance(function, Mapping)
            or "name" not in function
        ):
            raise ConfigurationError(f"a tool must be {_DEFINITION}, got {definition!r:.200}")
        unknown = sorted(set(map(str, function)) - set(_FUNCTION_FIELDS))
        if unknown:
            raise ConfigurationError(unknown_name("field of a tool", unknown[0], _FUNCTION_FIELDS))
        return cls(
            function["name"],
            function.get("description") or "",
            function.get("parameters") or NO_ARGUMENTS,
            function.get("strict"),
        )

    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI's form."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = dict(self.parameters)
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


def tools_of(definitions: object) -> tuple[Tool, ...]:
    """The tools of a call.

    Args:
        definitions: Tools, or definitions in OpenAI's form; ``None`` for none.

    Raises:
        ConfigurationError: They are no list, or a definition is wrong.
    """
    if not isinstance(definitions, list | tuple | None):
        raise ConfigurationError(f"tools must be a list of {_DEFINITION}, got {definitions!r:.200}")
    return tuple(map(Tool.of, definitions or ()))


def check_unique(tools: Sequence[Tool]) -> None:
    """Check that every tool has a name of its own.

    Raises:
        ConfigurationError: Two have the same.
    """
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"every tool needs a name of its own, {twice[0]!r} occurs twice")


def choice_name(choice: object) -> str:
    """``tool_choice`` in our words, from the forms in which frameworks and providers have it.

    Args:
        choice: A string, of which ``any`` means ``required``; ``True`` for ``required``, ``False``
            for ``none``, ``None`` for ``auto``; or OpenAI's object that names a tool.

    Raises:
        ConfigurationError: It has another form.
    """
    if choice is None:
        return "auto"
    if isinstance(choice, bool):
        return "required" if choice else "none"
    if isinstance(choice, str):
        return "required" if choice == "any" else choice
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return str(function["name"])
    raise ConfigurationError(
        f"tool_choice must be any, {', '.join(TOOL_CHOICES)}, the name of a tool or "
        f'{{"type": "function", "function": {{"name": ...}}}}, got {choice!r:.200}'
    )


def check_tool_choice(choice: object, tools: Sequence[Tool]) -> str:
    """Check which tools must be called.

    Args:
        choice: One of :data:`TOOL_CHOICES`, or the name of a tool.
        tools: The tools of the call.

    Raises:
        ConfigurationError: It is neither, or something must be called and there are no tools.
    """
    allowed = (*TOOL_CHOICES, *(tool.name for tool in tools))
    choice = check_text("tool_choice", choice)
    if choice not in allowed:
        raise ConfigurationError(unknown_name("tool_choice", choice, allowed))
    if choice == "required" and not tools:
        raise ConfigurationError("tool_choice='required' needs tools, and there are none")
    return choice


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model.

    Attributes:
        id: Identifies the call; its result names it.
        name: Name of the tool, which need not exist.
        arguments: JSON of the arguments as the model wrote it: no valid JSON where the answer was
            cut off, and not held to the tool's schema unless a grammar was.
    """

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        for name in ("id", "name", "arguments"):
            check_text(f"{name} of a tool call", getattr(self, name))


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a call in a stream.

    Attributes:
        index: Which of the answer's calls it belongs to, from 0.
        arguments: The next part of the arguments' JSON.
        id: The call's id, in its first piece alone.
        name: The tool's name, in the call's first piece alone.
    """

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


def join_calls(pieces: Iterable[ToolCallPiece], reason: str | None = None) -> tuple[ToolCall, ...]:
    """The calls whose pieces have come, in their order.

    Args:
        pieces: The pieces.
        reason: Why the answer ended; ``None`` where it has not, or that is unknown.
    """
    whole = [ToolCall(piece.id, piece.name, piece.arguments) for piece in join_pieces(pieces)]
    if reason in {"length", "content_filter", "abort"}:  # the arguments may be what is missing
        return tuple(whole)
    # Some servers write nothing where there are no arguments.
    return tuple(call if call.arguments else replace(call, arguments="{}") for call in whole)


def join_pieces(pieces: Iterable[ToolCallPiece]) -> list[ToolCallPiece]:
    """The pieces that have come, those of each call joined into one; the calls in their order."""
    joined: dict[int, ToolCallPiece] = {}
    for piece in pieces:
        known = joined.get(piece.index, ToolCallPiece(piece.index))
        joined[piece.index] = ToolCallPiece(
            piece.index,
            known.arguments + piece.arguments,
            known.id or piece.id,
            known.name or piece.name,
        )
    return [joined[index] for index in sorted(joined)]


def new_call_id() -> str:
    """An id for a call whose server sent none."""
    return f"call_{secrets.token_hex(ID_BYTES)}"
