"""Laying out the parts of a prompt: what changes least comes first.

Two requests share the KV caches of their common prefix and nothing behind it, so every part should
stand behind all parts that change less often. A part declares how it changes; its place follows.

Source: "KV cache centric LLM application design", sections 0 and 2; RAGCache
(https://arxiv.org/abs/2404.12457) section 5.1 for documents behind the system text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from ragcache_integrations.core.ids import content_id
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition.requests import REQUESTS
from ragcache_integrations.prompts.rendering import (
    Piece,
    TextTemplate,
    Variable,
    merged,
    stable_json,
)

__all__ = [
    "PARTS",
    "Change",
    "Flow",
    "LaidOutPrompt",
    "PartLike",
    "PromptLayout",
    "PromptPart",
    "RenderedPart",
    "Turn",
    "declared_parts",
]

Flow = Literal["single_turn", "conversation"]

SEAM = "\n\n"


class Change(StrEnum):
    """How a part changes from request to request, from least to most.

    ``FIXED``: it never does. ``CONVERSATION``: it is added to, or stays, while a conversation goes
    on, and differs between conversations. ``RECURRING``: it is drawn from a pool, so that the same
    pieces come again. ``REQUEST``: it is new in every request.
    """

    FIXED = "fixed"
    CONVERSATION = "conversation"
    RECURRING = "recurring"
    REQUEST = "request"

    @property
    def rank(self) -> int:
        """0 for what changes least."""
        return list(Change).index(self)


PARTS: dict[str, Change] = {
    "system": Change.FIXED,
    "tools": Change.FIXED,
    "instructions": Change.FIXED,
    "examples": Change.FIXED,
    "documents": Change.RECURRING,
    "dynamic_examples": Change.REQUEST,
    "history": Change.CONVERSATION,
    "query": Change.REQUEST,
}
"""The parts that a prompt may have and how each changes unless told otherwise, in the order in
which those stand that change alike."""

_SPOKEN_BY_SYSTEM = ("system", "tools", "instructions", "examples")


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One part of a prompt.

    Attributes:
        kind: One of :data:`PARTS`.
        template: Text with ``{variables}``, see
            :class:`~ragcache_integrations.prompts.rendering.TextTemplate`. ``history`` is
            one variable and nothing else; ``query`` and ``documents`` have at least one.
        changes: How the part changes; ``None`` is what :data:`PARTS` says of its kind. Say it
            where, for example, the instructions greet a user by name (``"conversation"``) or tell
            the time (``"request"``).
    """

    kind: str
    template: str
    changes: Change | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in PARTS:
            msg = f"unknown part {self.kind!r}: allowed are {', '.join(PARTS)}"
            raise ConfigurationError(msg)
        if self.changes is not None and self.changes not in list(Change):
            msg = f"changes must be one of {', '.join(Change)} or None, got {self.changes!r}"
            raise ConfigurationError(msg)
        if self.kind == "query" and self.changes not in {None, Change.REQUEST}:
            msg = f'a query is new in every request: changes must be "request", got {self.changes}'
            raise ConfigurationError(msg)
        template = TextTemplate(self.template)
        if not template.text:
            msg = f"the part {self.kind!r} is empty: leave it out"
            raise ConfigurationError(msg)
        if self.kind in {"query", "documents"} and not template.variables:
            msg = (
                f"the {self.kind} must hold a variable such as {{question}}, got {template.text!r}"
            )
            raise ConfigurationError(msg)
        if self.kind == "history" and [Variable(n) for n in template.variables] != list(
            template.pieces
        ):
            msg = f"the history must be one variable such as {{history}}, got {template.text!r}"
            raise ConfigurationError(msg)


PartLike = PromptPart | tuple[str, Any]


def declared_parts(
    parts: Iterable[PartLike] = (), **by_kind: str | Sequence[object] | Mapping[str, object] | None
) -> tuple[PromptPart, ...]:
    """Read parts as users write them.

    Args:
        parts: :class:`PromptPart` objects or ``(kind, template)`` pairs, in any order.
        by_kind: Templates by the parts' kinds; ``None`` for a part that is not there. What is no
            string, such as a list of tools, is written as JSON with sorted keys.

    Raises:
        ConfigurationError: A part is unknown, or cannot be read.
    """
    declared = []
    for part in parts:
        if isinstance(part, PromptPart):
            declared.append(part)
        elif isinstance(part, tuple) and len(part) == 2:  # noqa: PLR2004 - a pair
            declared.append(PromptPart(part[0], _template(part[1])))
        else:
            msg = f"a part must be a PromptPart or a pair (kind, template), got {part!r}"
            raise ConfigurationError(msg)
    return (
        *declared,
        *(
            PromptPart(kind, _template(given))
            for kind, given in by_kind.items()
            if given is not None
        ),
    )


def _template(given: object) -> str:
    if isinstance(given, str):
        return given
    return stable_json(given).replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class RenderedPart:
    """A part with its variables filled in.

    Attributes:
        kind: One of :data:`PARTS`.
        change: How it changes.
        role: Who says it, ``system`` or ``user``.
        pieces: Text and documents; empty where the part is made of messages.
        messages: Messages that stand as they were given, for a history.
    """

    kind: str
    change: Change
    role: str
    pieces: tuple[Piece, ...] = ()
    messages: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """The pieces as one string."""
        return "".join(piece if isinstance(piece, str) else piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Turn:
    """Neighbouring parts that the same role says: one message."""

    role: str
    parts: tuple[RenderedPart, ...]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Text and documents of all parts, with a blank line between two parts."""
        pieces: list[Piece] = []
        for part in self.parts:
            pieces += [SEAM, *part.pieces] if pieces else part.pieces
        return tuple(merged(pieces))

    @property
    def text(self) -> str:
        """The message as one string."""
        return SEAM.join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class LaidOutPrompt:
    """A prompt whose parts stand in order.

    Attributes:
        parts: Those that are not empty.
    """

    parts: tuple[RenderedPart, ...]

    @property
    def turns(self) -> tuple[Turn | RenderedPart, ...]:
        """Messages in order: a :class:`Turn`, or a part that is made of messages itself."""
        turns: list[Turn | RenderedPart] = []
        for part in self.parts:
            last = turns[-1] if turns else None
            if part.messages:
                turns.append(part)
            elif isinstance(last, Turn) and last.role == part.role:
                turns[-1] = Turn(part.role, (*last.parts, part))
            else:
                turns.append(Turn(part.role, (part,)))
        return tuple(turns)

    @property
    def documents(self) -> tuple[PromptDocument, ...]:
        """The documents in the order in which they stand."""
        return tuple(
            piece
            for part in self.parts
            for piece in part.pieces
            if isinstance(piece, PromptDocument)
        )

    @property
    def cache_boundaries(self) -> tuple[RenderedPart, ...]:
        """The parts behind which a prefix ends that later requests share.

        At most two: the last part that never changes, and the last that stays or grows within a
        conversation. Documents come in other company the next time, so no boundary follows them.
        """
        boundaries = []
        for change in (Change.FIXED, Change.CONVERSATION):
            of_change = [part for part in self.parts if part.change is change]
            boundaries += of_change[-1:]
        return tuple(boundaries)

    @property
    def cache_key(self) -> str:
        """A hash of all that never changes: requests with the same one share a prefix."""
        fixed = [[part.kind, part.text] for part in self.parts if part.change is Change.FIXED]
        return content_id(stable_json(fixed))

    def prompt(self) -> Prompt:
        """The prompt for our engine, its documents marked as such.

        Raises:
            ConfigurationError: A history holds something else than the engine's messages.
        """
        messages: list[Message] = []
        for turn in self.turns:
            if isinstance(turn, Turn):
                messages.append(Message(turn.role, turn.pieces))
                continue
            for message in turn.messages:
                if not isinstance(message, Message):
                    msg = f"the engine takes Message objects, got a {type(message).__name__}"
                    raise ConfigurationError(msg)
                messages.append(message)
        return Prompt(messages=tuple(messages))

    def remember_documents(self, run: Hashable | None) -> None:
        """Let models recognise the documents in the text, see ``find_documents``.

        For frameworks, whose messages are plain text.

        Args:
            run: The framework's run in which the prompt is written; ``None`` where there is none.
        """
        documents = [(document.id, document.text) for document in self.documents]
        if documents:
            REQUESTS.remember(run, documents)


class PromptLayout:
    """Parts of a prompt in the order that keeps the longest prefix.

    In a conversation the history stands before this turn's documents: it only grows, while the
    documents are others in every turn and would break all of it. In single-turn flows, what belongs
    to one conversation is as new as the query, and stands behind the documents.

    Text that never changes, and text about the user, is the system's; the rest is the user's. A
    history of messages stands between as it is.

    Args:
        parts: The parts, in any order; each kind at most once, and a query.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` takes a prompt with a history for a
            conversation.

    Raises:
        ConfigurationError: There is no query or more than one, a part is unknown or declared
            twice, or the flow is unknown.
    """

    def __init__(self, parts: Iterable[PartLike], *, flow: Flow | None = None) -> None:
        declared = declared_parts(parts)
        kinds = [part.kind for part in declared]
        if kinds.count("query") != 1:
            msg = f"a prompt needs exactly one query, got {kinds.count('query')}"
            raise ConfigurationError(msg)
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            msg = f"each part may be declared once, got more than one {' and '.join(twice)}"
            raise ConfigurationError(msg)
        if flow not in {None, "single_turn", "conversation"}:
            msg = f"flow must be 'single_turn', 'conversation' or None, got {flow!r}"
            raise ConfigurationError(msg)
        self.flow: Flow = flow or ("conversation" if "history" in kinds else "single_turn")
        self.parts = tuple(sorted(declared, key=self._place))
        self._templates = tuple(TextTemplate(part.template) for part in self.parts)

    def __eq__(self, other: object) -> bool:
        """Whether the parts and the flow are the same."""
        if not isinstance(other, PromptLayout):
            return NotImplemented
        return (self.flow, self.parts) == (other.flow, other.parts)

    def __hash__(self) -> int:
        return hash((self.flow, self.parts))

    def change(self, part: PromptPart) -> Change:
        """How a part changes in this flow."""
        changes = Change(part.changes or PARTS[part.kind])
        if changes is Change.CONVERSATION and self.flow == "single_turn":
            return Change.REQUEST
        return changes

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables, in the order in which they first stand."""
        return tuple(dict.fromkeys(v for t in self._templates for v in t.variables))

    @property
    def history_variable(self) -> str | None:
        """The variable of the history, which may be left out: a conversation begins without one."""
        for part, template in zip(self.parts, self._templates, strict=True):
            if part.kind == "history":
                return template.variables[0]
        return None

    @property
    def fixed_variables(self) -> frozenset[str]:
        """Variables of parts that must not change: bind them once and for all."""
        return frozenset(
            name
            for part, template in zip(self.parts, self._templates, strict=True)
            if self.change(part) is Change.FIXED
            for name in template.variables
        )

    def check_bound(self, values: Mapping[str, object]) -> None:
        """Refuse values that are bound to a part that must not change, and do.

        Raises:
            ConfigurationError: One is a function, which may give another value each time.
        """
        for name in sorted(self.fixed_variables & values.keys()):
            if callable(values[name]):
                msg = (
                    f"{name!r} is bound to a function, but stands in a part that must not change: "
                    'bind its value, or declare the part as changes="request"'
                )
                raise ConfigurationError(msg)

    def render(self, values: Mapping[str, object]) -> LaidOutPrompt:
        """Fill the variables in.

        Args:
            values: By variable; more than needed is fine. Documents are ``PromptDocument`` objects
                or one string; what comes several times stands several times. The history is a list
                of messages of any kind, which stay as they are, or text, and may be left out.

        Raises:
            ConfigurationError: A value is missing or unusable.
        """
        rendered = []
        for part, template in zip(self.parts, self._templates, strict=True):
            change = self.change(part)
            spoken = change.rank <= Change.CONVERSATION.rank and part.kind in _SPOKEN_BY_SYSTEM
            role = "system" if spoken else "user"
            pieces: tuple[Piece, ...] = ()
            messages: tuple[Any, ...] = ()
            if part.kind == "history":
                history = values.get(template.variables[0], ())
                if isinstance(history, str):
                    pieces = tuple(filter(None, (history.strip(),)))
                elif isinstance(history, Sequence):
                    messages = tuple(history)
                else:
                    msg = f"a history must be messages or text, got a {type(history).__name__}"
                    raise ConfigurationError(msg)
            else:
                filled = _with_documents(values, template) if part.kind == "documents" else values
                pieces = template.render(filled, fixed=change is Change.FIXED)
            if pieces or messages:
                rendered.append(RenderedPart(part.kind, change, role, pieces, messages))
        return LaidOutPrompt(tuple(rendered))

    def _place(self, part: PromptPart) -> tuple[int, int]:
        return self.change(part).rank, list(PARTS).index(part.kind)


def _with_documents(values: Mapping[str, object], template: TextTemplate) -> dict[str, object]:
    """Read lists as documents; elsewhere in a prompt a list of strings is JSON."""
    filled = dict(values)
    for name in template.variables:
        given = filled.get(name)
        if isinstance(given, list | tuple):
            filled[name] = [_document(item) for item in given if item != ""] or ""
    return filled


def _document(item: object) -> object:
    return PromptDocument(item) if isinstance(item, str) else item
