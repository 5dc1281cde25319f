"""Orders the parts of a prompt so that the most stable come first.

Two requests share the KV cache of their common prefix and of nothing after it. So each part should
come after all parts that change less often. A part declares how it changes, which decides where it
goes.

Source: "KV cache centric LLM application design", sections 0 and 2; RAGCache
(https://arxiv.org/abs/2404.12457) section 5.1 for documents after the system text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Literal, get_args

from ragcache_integrations.core.checks import check_choice, or_none, unknown_name
from ragcache_integrations.core.prompt import Message, Part, Prompt, PromptDocument, part_text
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.recognition import REQUESTS
from ragcache_integrations.prompts.rendering import (
    TextTemplate,
    Variable,
    merge_texts,
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
    "Template",
    "Turn",
    "check_flow",
    "convert_documents",
]

Flow = Literal["single_turn", "conversation"]

SEAM = "\n\n"


class Change(StrEnum):
    """How a part changes from request to request, from least to most.

    ``FIXED``: it never changes. ``CONVERSATION``: it grows or stays within a conversation, and
    differs between conversations. ``RECURRING``: it consists of pieces that other requests use,
    too, such as documents. ``REQUEST``: it is new in every request.
    """

    FIXED = "fixed"
    CONVERSATION = "conversation"
    RECURRING = "recurring"
    REQUEST = "request"

    @property
    def rank(self) -> int:
        """0 for a part that never changes; larger if it changes more often."""
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
"""The kinds of parts, and how each changes by default. Parts that change in the same way come in
this order."""

_SPOKEN_BY_SYSTEM = ("system", "tools", "instructions", "examples")


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One part of a prompt.

    Attributes:
        kind: One of :data:`PARTS`.
        template: Text with ``{variables}``, see
            :class:`~ragcache_integrations.prompts.rendering.TextTemplate`. ``history`` is
            one variable and nothing else; ``query`` and ``documents`` have at least one.
        changes: How the part changes; ``None`` takes what :data:`PARTS` says about its kind. Set
            it if, for example, the instructions greet a user by name (``"conversation"``) or
            contain the time (``"request"``).
    """

    kind: str
    template: str
    changes: Change | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in PARTS:
            raise ConfigurationError(unknown_name("part", str(self.kind), PARTS))
        or_none(check_choice)("changes", self.changes, list(Change), also="None")
        if self.kind == "query" and self.changes not in {None, Change.REQUEST}:
            msg = f'a query is new in every request: changes must be "request", got {self.changes}'
            raise ConfigurationError(msg)
        template = TextTemplate(self.template)
        if not template.text:
            raise ConfigurationError(f"the part {self.kind!r} is empty: leave it out")
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
Template = str | Sequence[object] | Mapping[str, object] | None


def check_flow(flow: object) -> None:
    """Check a flow.

    Raises:
        ConfigurationError: It is neither ``"single_turn"``, ``"conversation"`` nor ``None``.
    """
    or_none(check_choice)("flow", flow, get_args(Flow), also="None")


def _declared_parts(parts: Iterable[PartLike] = (), **by_kind: Template) -> tuple[PromptPart, ...]:
    """Read parts as users write them.

    Args:
        parts: :class:`PromptPart` objects or ``(kind, template)`` pairs, in any order.
        by_kind: Templates by the parts' kinds; ``None`` for a missing part. A value that is no
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
    for kind, value in by_kind.items():
        declared += [] if value is None else [PromptPart(kind, _template(value))]
    return tuple(declared)


def _template(value: object) -> str:
    if isinstance(value, str):
        return value
    return stable_json(value).replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class RenderedPart:
    """A part with its variables filled in.

    Attributes:
        kind: One of :data:`PARTS`.
        change: How it changes.
        role: Role of its message, ``system`` or ``user``.
        pieces: Text and documents; empty if the part consists of messages.
        messages: The messages of a history, unchanged.
    """

    kind: str
    change: Change
    role: str
    pieces: tuple[Part, ...] = ()
    messages: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """The pieces as one string."""
        return "".join(map(part_text, self.pieces))


@dataclass(frozen=True, slots=True)
class Turn:
    """Neighbouring parts of the same role, which are one message."""

    role: str
    parts: tuple[RenderedPart, ...]

    @property
    def pieces(self) -> tuple[Part, ...]:
        """Text and documents of all parts, with a blank line between two parts."""
        pieces: list[Part] = []
        for part in self.parts:
            pieces += [SEAM, *part.pieces] if pieces else part.pieces
        return tuple(merge_texts(pieces))

    @property
    def has_documents(self) -> bool:
        """Whether any part has documents."""
        return any(isinstance(piece, PromptDocument) for piece in self.pieces)

    @property
    def text(self) -> str:
        """The message as one string."""
        return SEAM.join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class LaidOutPrompt:
    """A prompt whose parts are in order.

    Attributes:
        parts: The parts that are not empty.
    """

    parts: tuple[RenderedPart, ...]

    @property
    def turns(self) -> tuple[Turn | RenderedPart, ...]:
        """Messages in order: a :class:`Turn`, or a part that consists of messages."""
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
        """The documents in the order of the prompt."""
        pieces = chain.from_iterable(part.pieces for part in self.parts)
        return tuple(piece for piece in pieces if isinstance(piece, PromptDocument))

    @property
    def cache_boundaries(self) -> tuple[RenderedPart, ...]:
        """The parts after which a prefix ends that later requests share.

        There are at most two: the last part that never changes, and the last one that stays or
        grows within a conversation. No boundary follows documents, because other requests combine
        them with others.
        """
        last = {part.change: part for part in self.parts}
        return tuple(
            last[change] for change in (Change.FIXED, Change.CONVERSATION) if change in last
        )

    @property
    def cache_key(self) -> str:
        """A hash of the parts that never change: requests with the same key share a prefix."""
        fixed = [[part.kind, part.text] for part in self.parts if part.change is Change.FIXED]
        return content_id(stable_json(fixed))

    def prompt(self) -> Prompt:
        """The prompt for our engine, with its documents marked.

        Raises:
            ConfigurationError: The history holds other objects than the engine's messages.
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

        Frameworks need this because their messages are plain text.

        Args:
            run: The framework's run in which the prompt is written; ``None`` outside of a run.
        """
        documents = [(document.id, document.text) for document in self.documents]
        if documents:
            REQUESTS.remember(run, documents)


class PromptLayout:
    """Parts of a prompt in the order that keeps the longest prefix.

    In a conversation the history comes before this turn's documents: the history only grows, and
    different documents in every turn would break all of it. In single-turn flows, text about one
    conversation is as new as the query, and comes after the documents.

    Text that never changes, and text about the user, goes into the system message; the rest goes
    into the user's. A history of messages comes between them, unchanged::

        layout = PromptLayout([("documents", "{context}"), ("query", "{question}")])
        prompt = layout.render({"context": documents, "question": question}).prompt()

    Args:
        parts: The parts, in any order: each kind at most once, and a query.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` means a conversation if there is a
            history.
        by_kind: Templates by the parts' kinds; ``None`` for a missing part. A value that is no
            string, such as a list of tools, is written as JSON with sorted keys.

    Raises:
        ConfigurationError: There is no query or more than one, a part is unknown or declared
            twice, or the flow is unknown.
    """

    def __init__(
        self, parts: Iterable[PartLike] = (), *, flow: Flow | None = None, **by_kind: Template
    ) -> None:
        declared = _declared_parts(parts, **by_kind)
        kinds = [part.kind for part in declared]
        if kinds.count("query") != 1:
            msg = f"a prompt needs exactly one query, got {kinds.count('query')}"
            raise ConfigurationError(msg)
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            msg = f"each part may be declared once, got more than one {' and '.join(twice)}"
            raise ConfigurationError(msg)
        check_flow(flow)
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
        """All variables, in the order in which they first occur."""
        return tuple(dict.fromkeys(v for t in self._templates for v in t.variables))

    @property
    def history_variable(self) -> str | None:
        """The variable of the history, which is optional: a conversation begins without one."""
        for part, template in zip(self.parts, self._templates, strict=True):
            if part.kind == "history":
                return template.variables[0]
        return None

    @property
    def fixed_variables(self) -> frozenset[str]:
        """Variables of parts that must not change: bind them to values."""
        return frozenset(
            name
            for part, template in zip(self.parts, self._templates, strict=True)
            if self.change(part) is Change.FIXED
            for name in template.variables
        )

    def check_bound(self, values: Mapping[str, object]) -> None:
        """Check the values that are bound to parts that must not change.

        Args:
            values: By variable; functions are allowed for the variables of other parts only.

        Raises:
            ConfigurationError: A value is a function, which may return another result each time.
        """
        for name in sorted(self.fixed_variables & values.keys()):
            if callable(values[name]):
                raise ConfigurationError(
                    f"{name!r} is bound to a function, but its part must not change: "
                    'bind its value, or declare the part as changes="request"'
                )

    def key_values(self, values: Mapping[str, object]) -> dict[str, object]:
        """Values for a prompt of which only the ``cache_key`` is needed.

        Args:
            values: By variable. The others are empty, unless they are :attr:`fixed_variables`.
        """
        blank = dict.fromkeys(set(self.variables) - self.fixed_variables, "")
        return {**blank, **values}

    def render(self, values: Mapping[str, object]) -> LaidOutPrompt:
        """Fill the variables in.

        Args:
            values: By variable; superfluous ones are ignored. Documents are ``PromptDocument``
                objects or one string; duplicates are kept. The history is text or a list of
                messages of any kind, which stay as they are; it is optional.

        Raises:
            ConfigurationError: A value is missing or unusable.
        """
        rendered = []
        for part, template in zip(self.parts, self._templates, strict=True):
            change = self.change(part)
            stable = change.rank <= Change.CONVERSATION.rank
            role = "system" if stable and part.kind in _SPOKEN_BY_SYSTEM else "user"
            pieces: tuple[Part, ...] = ()
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
        value = filled.get(name)
        if isinstance(value, list | tuple):
            filled[name] = [_document(item) for item in value if item != ""] or ""
    return filled


def convert_documents(
    value: object, kinds: type | tuple[type, ...], convert: Callable[[Any], object]
) -> object:
    """Convert the framework's documents in the value of a variable.

    Args:
        value: A document, a list that may hold documents, or anything else, which stays.
        kinds: The framework's classes of documents.
        convert: Makes a ``PromptDocument`` of a document, or an empty string of an empty one.
    """
    if isinstance(value, kinds):
        return convert(value)
    if isinstance(value, list | tuple):
        return [convert(item) if isinstance(item, kinds) else item for item in value]
    return value


def _document(item: object) -> object:
    return PromptDocument(item) if isinstance(item, str) else item
