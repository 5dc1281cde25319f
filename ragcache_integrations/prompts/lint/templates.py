"""Linting templates: what stands where, and how each variable changes.

A template does not tell how its variables change; their names do, mostly, and the caller can.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import Change, Flow, PromptLayout
from ragcache_integrations.prompts.lint.rules import (
    MIN_TOKENS,
    REMEDIES,
    Finding,
    LintReport,
    Matter,
    Stretch,
    break_findings,
)
from ragcache_integrations.prompts.lint.tokens import CountTokens, approximate_tokens, excerpt
from ragcache_integrations.prompts.rendering import TextTemplate

__all__ = [
    "ASSUMED_TOKENS",
    "Template",
    "TemplatePiece",
    "TemplateVariable",
    "bound_pieces",
    "joined_pieces",
    "lint_template",
    "matter_of",
    "messages_matter",
    "pieces_of",
    "pieces_of_layout",
    "pieces_of_rendered",
    "placeholder",
]

ASSUMED_TOKENS: dict[Matter, int] = {"documents": 1000, "history": 500, "json": 100}
"""Tokens that a variable of a template is taken to have, unless it is told; others have 20."""

OTHERWISE = 20

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


def _words(*words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|_)(?:{'|'.join(words)})(?:_|$)")


# The first that fits decides: user_question is a query, context_id a random id.
_NAMES: tuple[tuple[Matter, re.Pattern[str]], ...] = (
    ("documents", _words("context_messages")),  # LlamaIndex's documents of any kind
    ("timestamp", _words("time", "date", "datetime", "now", "today", "timestamp", "clock")),
    (
        "random_id",
        _words(
            *("uuid", "guid", "nonce", "salt"),
            "(?:request|session|trace|run|thread|message|conversation|chat)_id",
        ),
    ),
    ("text", _words("format_instructions", "tools?", "schema", "dialect", "top_k", "table_info")),
    ("query", _words("query", "queries", "question", "input", "utterance", "task", "instruction")),
    ("history", _words("history", "messages", "conversation", "dialog", "dialogue", "transcript")),
    (
        "documents",
        _words(
            *("context", "contexts", "docs?", "documents?", "passages?", "chunks?", "sources?"),
            *("search_results", "summaries", "nodes", "snippets?", "knowledge"),
        ),
    ),
    (
        "user",
        _words("user", "users?_(?:name|info|profile)", "username", "profile", "persona", "tenant"),
    ),
)

# A clock time, or a date that says that it is today's; a date alone may be a fixed fact.
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
        matter: What it is about; what its name says where ``None``.
        change: How it changes; as its matter does where ``None``.
        numbered: Whether its items are numbered in the order in which they stand.
    """

    name: str
    matter: Matter | None = None
    change: Change | None = None
    numbered: bool = False


TemplatePiece = str | TemplateVariable


@dataclass(frozen=True, slots=True)
class Template:
    """A template in neutral terms, as the adapters make it.

    Attributes:
        pieces: Text and variables in the order in which they stand.
    """

    pieces: Sequence[TemplatePiece]


def matter_of(name: str) -> Matter:
    """What a variable is about, by its name; ``other`` where that says nothing."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for matter, pattern in _NAMES:
        if pattern.search(snake):
            return matter
    return "other"


def messages_matter(name: str) -> Matter:
    """What a placeholder for messages is about: the history, unless its name says otherwise.

    What an agent noted since the question stands behind it and is as new.
    """
    return "other" if re.search("scratchpad|steps|example|shot", name.lower()) else "history"


def pieces_of(text: str) -> list[TemplatePiece]:
    """Cut a template in Python's format syntax into text and variables.

    Raises:
        ConfigurationError: It is none.
    """
    pieces: list[TemplatePiece] = []
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError as error:
        msg = f"a template's braces do not match ({error}): write {{{{ and }}}} for braces"
        raise ConfigurationError(msg) from error
    for literal, name, spec, _ in fields:
        pieces.append(literal)
        if name is not None:
            pieces += [_field(name), *map(_field, _inner_fields(spec or ""))]
    return joined_pieces(pieces)


def _field(name: str) -> TemplateVariable:
    return TemplateVariable(re.split(r"[.\[]", name)[0])


def _inner_fields(spec: str) -> list[str]:
    """Variables in a format, such as a width."""
    return re.findall(r"\{([^{}!:]*)", spec)


def joined_pieces(pieces: Iterable[TemplatePiece]) -> list[TemplatePiece]:
    """Join neighbouring texts; leave out empty ones."""
    joined: list[TemplatePiece] = []
    for is_text, run in itertools.groupby(pieces, lambda piece: isinstance(piece, str)):
        items = list(run)
        text = "".join(map(str, items)) if is_text else ""
        joined += [text] if text else [] if is_text else items
    return joined


def placeholder(name: str) -> str:
    """A value that shows where a variable stands in what a framework makes of a template."""
    return f"\ue000{name}\ue001"


def pieces_of_rendered(text: str, variables: Iterable[TemplateVariable]) -> list[TemplatePiece]:
    """Cut what a framework made of a template whose variables had :func:`placeholder` values.

    Raises:
        ConfigurationError: A variable stands nowhere: the template does something with its value.
    """
    by_name = {variable.name: variable for variable in variables}
    pieces: list[TemplatePiece] = []
    for number, piece in enumerate(re.split("\ue000([^\ue001]*)\ue001", text)):
        if number % 2 == 0:
            pieces += [piece] if piece else []
        else:
            pieces.append(by_name.get(piece, TemplateVariable(piece)))
    shown = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
    lost = sorted(by_name.keys() - shown)
    if lost:
        msg = f"cannot tell where {lost} stand in what the prompt makes: lint requests instead"
        raise ConfigurationError(msg)
    return pieces


def bound_pieces(
    pieces: Iterable[TemplatePiece], bound: Mapping[str, object]
) -> list[TemplatePiece]:
    """Put values in place of the variables that are bound to them."""
    return joined_pieces(
        str(bound[piece.name])
        if isinstance(piece, TemplateVariable) and piece.name in bound
        else piece
        for piece in pieces
    )


def pieces_of_layout(layout: PromptLayout, bound: Mapping[str, object]) -> list[TemplatePiece]:
    """Cut a layout into text and variables, which change as their parts declare.

    Args:
        layout: The layout.
        bound: Values that are bound already.
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
                # Of a part that must not change only the values can tell: their names have to.
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
        pieces: Text and variables in the order in which they stand.
        flow: Whether it serves conversations; by default those with a history.
        variables: What variables are about, by name, where the names do not tell.
        lengths: Tokens of variables, by name, where :data:`ASSUMED_TOKENS` are wrong.
        count_tokens: Counts the tokens of a text.
        min_tokens: Tokens that a finding must cost.
    """
    told = dict(variables or {})
    allowed = [matter for matter in get_args(Matter) if matter in CHANGES]
    for name, matter in told.items():
        if matter not in allowed:
            msg = f"{name!r} must be about one of {', '.join(allowed)}, got {matter!r}"
            raise ConfigurationError(msg)
    names = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
    unknown = sorted({*told, *(lengths or {})} - names)
    if unknown:
        msg = f"the template has no variables {unknown}, only {sorted(names)}"
        raise ConfigurationError(msg)
    stretches: list[Stretch] = []
    for piece in pieces:
        if isinstance(piece, str):
            stretches += _text_stretches(piece, count_tokens)
        else:
            stretches.append(_variable_stretch(piece, told, lengths or {}))
    conversation = flow == "conversation" or (
        flow is None and any(stretch.matter == "history" for stretch in stretches)
    )
    if not conversation:
        stretches = [
            Stretch(s.label, s.matter, Change.REQUEST, s.tokens)
            if s.change is Change.CONVERSATION
            else s
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
    variable: TemplateVariable, told: Mapping[str, str], lengths: Mapping[str, int]
) -> Stretch:
    given = told.get(variable.name)
    matter: Matter = next(
        (m for m in get_args(Matter) if m == given), variable.matter or matter_of(variable.name)
    )
    change = CHANGES[matter] if given or variable.change is None else variable.change
    tokens = lengths.get(variable.name, ASSUMED_TOKENS.get(matter, OTHERWISE))
    return Stretch(f"{{{variable.name}}}", matter, change, tokens)


def _numbered(
    pieces: Sequence[TemplatePiece], stretches: Sequence[Stretch], min_tokens: int
) -> list[Finding]:
    """Documents that a loop numbers: at another rank they are another text."""
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
    """Fixed text, and what looks as if it had been baked into it when the program started."""
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
        stretches += _fixed(text[position:start], count_tokens)
        found = text[start:end]
        stretches.append(Stretch(excerpt(found), matter, Change.REQUEST, count_tokens(found)))
        position = end
    return stretches + _fixed(text[position:], count_tokens)


def _fixed(text: str, count_tokens: CountTokens) -> list[Stretch]:
    return [Stretch(excerpt(text), "text", Change.FIXED, count_tokens(text))] if text else []
