"""Lints templates, from their text and variables.

A template doesn't show how its variables change. Their names mostly do, and the caller can say it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from ragcache_integrations.core.checks import check_choice, unknown_name
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout import Change, Flow, PromptLayout
from ragcache_integrations.prompts.rendering import TextTemplate, template_fields

from .rules import (
    MIN_TOKENS,
    REMEDIES,
    WORDS,
    Finding,
    LintReport,
    Matter,
    Stretch,
    break_findings,
)
from .tokens import CountTokens, approximate_tokens, excerpt

__all__ = [
    "ASSUMED_TOKENS",
    "LONGEST_REASON",
    "Template",
    "TemplatePiece",
    "TemplateVariable",
    "bound_pieces",
    "is_plain",
    "join_pieces",
    "lint_template",
    "matter_of",
    "messages_matter",
    "pieces_of",
    "pieces_of_layout",
    "rendered_pieces",
]

LONGEST_REASON = 300
"""Characters that are shown of why a template cannot be read; they may repeat all of it."""

ASSUMED_TOKENS: dict[Matter, int] = {"documents": 1000, "history": 500, "json": 100}
"""Assumed lengths of a template's variables in tokens."""

OTHER_TOKENS = 20
"""Assumed length of other variables in tokens."""

CHANGES: dict[Matter, Change] = {
    "text": Change.FIXED,
    "documents": Change.RECURRING,
    "history": Change.CONVERSATION,
    "user": Change.CONVERSATION,
    "query": Change.REQUEST,
    "timestamp": Change.REQUEST,
    "random_id": Change.REQUEST,
    "other": Change.REQUEST,
}
"""How each matter changes."""


_NAMES: tuple[tuple[Matter, re.Pattern[str]], ...] = tuple(
    (kind["matter"], re.compile(rf"(?:^|_)(?:{'|'.join(kind['words'])})(?:_|$)"))
    for kind in WORDS["names"]
)

# A clock time, or a date after "today" or the like; other dates may be fixed facts.
_BAKED_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?"
    r"|(?i:\b(?:today|now|current (?:date|time))\b\W{1,4}(?:is\W{1,2})?"
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4})"
)
_BAKED_ID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE
)

_BAKED: tuple[tuple[Matter, re.Pattern[str]], ...] = (
    ("timestamp", _BAKED_TIME),
    ("random_id", _BAKED_ID),
)


@dataclass(frozen=True, slots=True)
class TemplateVariable:
    """A place in a template that is filled for each request.

    Attributes:
        name: Its name.
        matter: What it is about; ``None`` infers it from the name.
        change: How it changes; ``None`` infers it from the matter.
        numbered: Whether its items are numbered in their order.
    """

    name: str
    matter: Matter | None = None
    change: Change | None = None
    numbered: bool = False


TemplatePiece = str | TemplateVariable


@dataclass(frozen=True, slots=True)
class Template:
    """A template that an adapter has taken apart.

    Attributes:
        pieces: Text and variables, in order.
    """

    pieces: Sequence[TemplatePiece]


def matter_of(name: str) -> Matter:
    """What a variable is about, inferred from its name; ``other`` if that shows nothing."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for matter, pattern in _NAMES:
        if pattern.search(snake):
            return matter
    return "other"


def messages_matter(name: str) -> Matter:
    """What a placeholder for messages is about: the history, unless its name shows otherwise.

    An agent's notes, for example, come after the question and are as new as it is.
    """
    return "other" if re.search("scratchpad|steps|example|shot", name.lower()) else "history"


def pieces_of(text: str) -> list[TemplatePiece]:
    """Cut a template in Python's format syntax into text and variables.

    Raises:
        ConfigurationError: Its braces don't match.
    """
    pieces: list[TemplatePiece] = []
    for literal, name, spec, _ in template_fields(text):
        pieces.append(literal)
        if name is not None:
            pieces += [_field(name), *map(_field, _inner_fields(spec or ""))]
    return join_pieces(pieces)


def _field(name: str) -> TemplateVariable:
    return TemplateVariable(re.split(r"[.\[]", name)[0])


def _inner_fields(spec: str) -> list[str]:
    """Variables in a format, such as a width."""
    return re.findall(r"\{([^{}!:]*)", spec)


def join_pieces(pieces: Iterable[TemplatePiece]) -> list[TemplatePiece]:
    """Join neighbouring texts; leave out empty ones."""
    merged: list[TemplatePiece] = []
    for is_text, run in itertools.groupby(pieces, lambda piece: isinstance(piece, str)):
        items = list(run)
        text = "".join(map(str, items)) if is_text else ""
        merged += [text] if text else [] if is_text else items
    return merged


def is_plain(prompt: object, kind: type, methods: Iterable[str]) -> bool:
    """Whether a prompt is of a class, and not of a subclass that renders it in another way.

    Args:
        prompt: The prompt.
        kind: A framework's class.
        methods: Names of the class's methods that render.
    """
    return isinstance(prompt, kind) and all(
        getattr(type(prompt), name, None) is getattr(kind, name, None) for name in methods
    )


def rendered_pieces(
    render: Callable[[dict[str, Any]], str], names: Iterable[str]
) -> list[TemplatePiece]:
    """Cut a prompt into text and variables by rendering it with placeholders.

    Args:
        render: Renders the prompt with values of the variables.
        names: Names of the variables.

    Raises:
        ConfigurationError: The prompt cannot be rendered in this way, or a placeholder is missing
            from the result: the prompt does something with the value.
    """
    values = {name: f"\ue000{name}\ue001" for name in names}
    try:
        text = render(values)
    except Exception as error:  # the prompt's code may raise anything
        msg = f"the prompt cannot be rendered without values ({error}): lint requests instead"
        raise ConfigurationError(msg) from error
    pieces = join_pieces(
        TemplateVariable(piece) if number % 2 else piece
        for number, piece in enumerate(re.split("\ue000([^\ue001]*)\ue001", text))
    )
    shown = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
    if lost := sorted(values.keys() - shown):
        msg = f"cannot find {lost} in the rendered prompt: lint requests instead"
        raise ConfigurationError(msg)
    return pieces


def bound_pieces(
    pieces: Iterable[TemplatePiece], bound: Mapping[str, object]
) -> list[TemplatePiece]:
    """Replace bound variables by their values.

    Args:
        pieces: Text and variables.
        bound: Values by the names of the variables.
    """
    return join_pieces(
        str(bound[piece.name])
        if isinstance(piece, TemplateVariable) and piece.name in bound
        else piece
        for piece in pieces
    )


def pieces_of_layout(layout: PromptLayout, bound: Mapping[str, object]) -> list[TemplatePiece]:
    """Cut a layout into text and variables, which change as their parts declare.

    Args:
        layout: The layout.
        bound: Values of bound variables, by name.
    """
    kinds: dict[str, Matter] = {"documents": "documents", "history": "history", "query": "query"}
    pieces: list[TemplatePiece] = []
    for part in layout.parts:
        change = layout.change(part)
        for piece in TextTemplate(part.template).pieces:
            if isinstance(piece, str):
                pieces.append(piece)
            elif isinstance(bound.get(piece.name), str):
                pieces.append(str(bound[piece.name]))
            elif piece.name not in bound:
                # Only its values would show whether a fixed part changes; the name has to do.
                fixed = change is Change.FIXED
                pieces.append(
                    TemplateVariable(piece.name, kinds.get(part.kind), None if fixed else change)
                )
        pieces.append("\n\n")
    return pieces


def lint_template(
    pieces: Sequence[TemplatePiece],
    *,
    flow: Flow | None = None,
    variables: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Lint a template.

    Args:
        pieces: Text and variables, in order.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` means a conversation if there is a
            history.
        variables: What variables are about, by name, if the names don't show it.
        lengths: Tokens of variables, by name, if :data:`ASSUMED_TOKENS` are wrong.
        count_tokens: Counts the tokens of a text.
        min_tokens: The fewest recomputed tokens that are reported.

    Raises:
        ConfigurationError: A variable is unknown, or about something unknown.
    """
    matters = dict(variables or {})
    allowed = [matter for matter in get_args(Matter) if matter in CHANGES]
    for name, matter in matters.items():
        check_choice(f"the matter of {name!r}", matter, allowed)
    names = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
    for name in sorted({*matters, *(lengths or {})} - names):
        raise ConfigurationError(unknown_name("variable of the template", name, names))
    stretches: list[Stretch] = []
    for piece in pieces:
        if isinstance(piece, str):
            stretches += _text_stretches(piece, count_tokens)
        else:
            stretches.append(_variable_stretch(piece, matters, lengths or {}))
    conversation = flow == "conversation" or (
        flow is None and any(stretch.matter == "history" for stretch in stretches)
    )
    if not conversation:
        stretches = [
            replace(s, change=Change.REQUEST) if s.change is Change.CONVERSATION else s
            for s in stretches
        ]
    findings, recomputed = break_findings(stretches, min_tokens=min_tokens)
    numbered = _numbered(pieces, stretches, min_tokens)
    findings += numbered
    recomputed += sum(finding.recomputed_tokens for finding in numbered)
    return LintReport(
        findings=tuple(sorted(findings, key=lambda f: (-f.recomputed_tokens, f.token))),
        recomputed_tokens=round(recomputed),
        prompt_tokens=round(sum(stretch.tokens for stretch in stretches)),
    )


def _variable_stretch(
    variable: TemplateVariable, matters: Mapping[str, str], lengths: Mapping[str, int]
) -> Stretch:
    declared = matters.get(variable.name)
    matter: Matter = next(
        (m for m in get_args(Matter) if m == declared), variable.matter or matter_of(variable.name)
    )
    change = CHANGES[matter] if declared or variable.change is None else variable.change
    tokens = lengths.get(variable.name, ASSUMED_TOKENS.get(matter, OTHER_TOKENS))
    return Stretch(f"{{{variable.name}}}", matter, change, tokens)


def _numbered(
    pieces: Sequence[TemplatePiece], stretches: Sequence[Stretch], min_tokens: int
) -> list[Finding]:
    """Findings about documents that a loop numbers: at another rank their text differs."""
    labels = {
        f"{{{piece.name}}}"
        for piece in pieces
        if isinstance(piece, TemplateVariable) and piece.numbered
    }
    findings = []
    token = 0.0
    for stretch in stretches:
        known = stretch.matter == "documents" and stretch.label in labels
        if known and stretch.tokens >= min_tokens:
            code, lost = "rank-in-document", round(stretch.tokens)
            label = f"the number of each of {stretch.label}"
            findings.append(Finding(code, label, round(token), lost, REMEDIES[code]))
        token += stretch.tokens
    return findings


def _text_stretches(text: str, count_tokens: CountTokens) -> list[Stretch]:
    """The stretches of fixed text; times and ids in it may have been inserted by the program."""
    stretches: list[Stretch] = []
    position = 0
    baked = sorted(
        (match.start(), match.end(), matter)
        for matter, pattern in _BAKED
        for match in pattern.finditer(text)
    )
    for start, end, matter in baked:
        if start < position:
            continue
        stretches += _fixed_stretches(text[position:start], count_tokens)
        value = text[start:end]
        stretches.append(Stretch(excerpt(value), matter, Change.REQUEST, count_tokens(value)))
        position = end
    return stretches + _fixed_stretches(text[position:], count_tokens)


def _fixed_stretches(text: str, count_tokens: CountTokens) -> list[Stretch]:
    return [Stretch(excerpt(text), "text", Change.FIXED, count_tokens(text))] if text else []
