"""The linter: finds what keeps a prompt's KV cache from being reused, and how to fix it.

It lints templates, from their text and variables. A template doesn't show how its variables change.
Their names mostly do, and the caller can say it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, TypedDict, get_args

import regex

from ragcache_integrations.core.checks import check_choice, check_int, unknown_name
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.texts import join_neighbours, token_weight
from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.prompts.layout import Change, Flow, PromptLayout, check_flow
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

__all__ = [
    "ASSUMED_TOKENS",
    "LONGEST_REASON",
    "MAX_MUSTACHE",
    "CountTokens",
    "Finding",
    "LintOptions",
    "LintReport",
    "Template",
    "TemplatePiece",
    "TemplateVariable",
    "approximate_tokens",
    "bound_pieces",
    "common_length",
    "excerpt",
    "is_plain",
    "join_pieces",
    "lint_prompt",
    "matter_of",
    "messages_matter",
    "mustache_pieces",
    "pieces_of",
    "pieces_of_layout",
    "printable",
    "rendered_pieces",
]


CountTokens = Callable[[str], int]

_TOKEN = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|_+|[^\w\s]+|\n+")
_SCRIPTS_TOKEN = regex.compile(
    r"\p{Latin}[\p{Latin}\p{M}]{0,7}|\d{1,3}|_+|[^\w\s\p{M}]+|\n+|(?V1)(?P<other>[\w--\p{Latin}]+)"
)

_EXCERPT = 48
"""The most characters of a text that a message shows."""


def approximate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text in the tokenizers of current models.

    A token is a word or up to eight letters of it, up to three digits, a run of punctuation, or a
    run of line ends. Words of other scripts than the Latin one have as many as
    :func:`~ragcache_integrations.core.texts.token_weight` says.
    """
    if text.isascii():
        return sum(1 for _ in _TOKEN.finditer(text))
    others = [match["other"] for match in _SCRIPTS_TOKEN.finditer(text)]
    return others.count(None) + round(token_weight("".join(filter(None, others))))


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Length of the longest common prefix of two sequences."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def excerpt(text: str) -> str:
    """The beginning of a text, on one line and in quotes."""
    line = printable(" ".join(text.split()))
    return f'"{line}"' if len(line) <= _EXCERPT else f'"{line[: _EXCERPT - 3]}..."'


def printable(text: str) -> str:
    """The text without characters that control a terminal, shortened for a message."""
    text = text[: _EXCERPT + 1]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


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
    return join_neighbours(
        filter(None, pieces),
        lambda piece: isinstance(piece, str),
        lambda texts: "".join(map(str, texts)),
    )


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


def _stretches(
    pieces: Iterable[TemplatePiece],
    matters: Mapping[str, str],
    lengths: Mapping[str, int],
    count_tokens: CountTokens,
) -> list[Stretch]:
    stretches: list[Stretch] = []
    for piece in pieces:
        if isinstance(piece, str):
            stretches += _text_stretches(piece, count_tokens)
        else:
            stretches.append(_variable_stretch(piece, matters, lengths))
    return stretches


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


MAX_MUSTACHE = 2**18
"""The most characters of a template: LangChain's tokenizer copies the rest of it at each tag."""

_VARIABLES = ("variable", "no escape")


def mustache_pieces(text: str) -> list[TemplatePiece]:
    """Cut a Mustache template into text and variables.

    A section with variables in it becomes the variable that it iterates over, as in LangChain. A
    section without variables is a condition, and its text counts. Inverted sections don't count.

    Raises:
        ConfigurationError: The text is no Mustache template, or too long.
        MissingExtraError: LangChain, whose tokenizer reads it, is not installed.
    """
    if len(text) > MAX_MUSTACHE:
        msg = f"a Mustache template must have at most {MAX_MUSTACHE} characters, got {len(text)}"
        raise ConfigurationError(msg)
    mustache = require(
        "langchain_core.utils.mustache", feature="linting Mustache templates", extra="langchain"
    )
    try:
        tokens = list(mustache.tokenize(text))
    except (SyntaxError, ValueError, LookupError) as error:
        msg = f"the Mustache template cannot be read: {str(error)[:LONGEST_REASON]}"
        raise ConfigurationError(msg) from error
    return join_pieces(_mustache_pieces(tokens))


def _mustache_pieces(tokens: Iterable[tuple[str, str]]) -> list[TemplatePiece]:
    pieces: list[TemplatePiece] = []
    inside: list[str] = []  # kinds of the sections that are open
    section: list[TemplatePiece] = []
    for kind, key in tokens:
        if kind in {"section", "inverted section"}:
            if not inside:
                section = [TemplateVariable(_root(key))]
            inside.append(kind)
        elif kind == "end":
            inside.pop()
            if not inside:
                pieces += _section(section)
                section = []
        elif "inverted section" not in inside:
            target = section if inside else pieces
            target += [key] if kind == "literal" else []
            target += [TemplateVariable(_root(key))] if kind in _VARIABLES else []
    return pieces


def _section(section: list[TemplatePiece]) -> list[TemplatePiece]:
    """The pieces of a section: its variable, or its text if it is only a condition."""
    shown = section[1:]
    if any(isinstance(piece, TemplateVariable) for piece in shown):
        return section[:1]
    return shown


def _root(key: str) -> str:
    return key.strip().partition(".")[0]


ENTRY_POINTS = "ragcache.lint"
"""What distributions lint besides templates; ragcache-workbench lints recorded ``requests``."""


class LintOptions(TypedDict, total=False):
    """The keyword arguments of :func:`lint_prompt`."""

    flow: Flow | None
    variables: Mapping[str, str] | None
    lengths: Mapping[str, int] | None
    count_tokens: CountTokens
    min_tokens: int


def lint_prompt(
    source: str | PromptLayout | Template | Sequence[object],
    *,
    flow: Flow | None = None,
    variables: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Find what breaks the common prefix of prompts, where, at what cost, and how to fix it.

    :mod:`ragcache_integrations.langchain` and :mod:`ragcache_integrations.llama_index` export the
    same function, which accepts the frameworks' prompts, too::

        print(lint_prompt("Today is {date}. Answer from these documents: {context} {question}"))

    Args:
        source: A template: text with ``{variables}``, a
            :class:`~ragcache_integrations.prompts.layout.layout.PromptLayout`, or ``(role, text)``
            pairs in the order of the prompt, where ``("placeholder", "{history}")`` inserts
            messages. Or traffic, which needs ragcache-workbench: a list of at least two requests as
            they were sent, see :func:`~ragcache_workbench.logs.recorded_requests`, or a log that
            :func:`~ragcache_workbench.logs.read_requests` read.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` means a conversation if there is a
            history.
        variables: For templates: what variables are about, by name, if their names don't show it:
            ``text`` (always the same), ``documents``, ``history``, ``query``, ``timestamp``,
            ``random_id``, ``user`` or ``other``.
        lengths: For templates: tokens of variables, by name. By default documents have 1,000, a
            history 500 and others 20.
        count_tokens: Counts the tokens of a text, such as ``engine.count_tokens``. By default they
            are estimated from the words.
        min_tokens: The fewest recomputed tokens per request that are reported; by default a block
            of KV cache.

    Raises:
        ConfigurationError: The source is neither, or an argument doesn't apply to it.
        MissingExtraError: The source is traffic, and ragcache-workbench is not installed.
    """
    check_flow(flow)
    min_tokens = check_int("min_tokens", min_tokens, 1, unit="tokens")
    pieces = _template_pieces(source)
    if pieces is None:
        if variables or lengths:
            raise ConfigurationError("traffic has no variables: leave out variables= and lengths=")
        return _lint_requests(source, flow=flow, count_tokens=count_tokens, min_tokens=min_tokens)
    if isinstance(source, PromptLayout) and flow is None:
        flow = source.flow
    matters, lengths = dict(variables or {}), dict(lengths or {})
    allowed = [matter for matter in get_args(Matter) if matter in CHANGES]
    for name, matter in matters.items():
        check_choice(f"the matter of {name!r}", matter, allowed)
    names = {piece.name for piece in pieces if isinstance(piece, TemplateVariable)}
    for name in sorted({*matters, *lengths} - names):
        raise ConfigurationError(unknown_name("variable of the template", name, names))
    stretches = _stretches(pieces, matters, lengths, count_tokens)
    if flow is None and any(stretch.matter == "history" for stretch in stretches):
        flow = "conversation"
    if flow != "conversation":
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


def _lint_requests(source: object, **options: Any) -> LintReport:
    """Lint recorded requests, by the distribution that can."""
    if not isinstance(source, list | tuple):
        msg = f"pass a template or a list of requests to lint, got a {type(source).__name__}"
        raise ConfigurationError(msg)
    for entry in entry_points(group=ENTRY_POINTS, name="requests"):
        lint: Callable[..., LintReport] = entry.load()
        return lint(source, **options)
    feature = "linting recorded requests"
    raise MissingExtraError(feature, "eval")


def _template_pieces(source: object) -> Sequence[TemplatePiece] | None:
    """The pieces of a template; ``None`` if ``source`` is no template."""
    if isinstance(source, Template):
        return source.pieces
    if isinstance(source, str):
        return pieces_of(source)
    if isinstance(source, PromptLayout):
        return pieces_of_layout(source, {})
    if not isinstance(source, list | tuple) or not source or not all(map(_is_pair, source)):
        return None
    pieces: list[TemplatePiece] = []
    for role, text in source:
        turn = pieces_of(text)
        if role == "placeholder":
            names = [piece.name for piece in turn if isinstance(piece, TemplateVariable)]
            turn = [TemplateVariable(name, messages_matter(name)) for name in names]
        pieces += [*turn, "\n"]
    return pieces


def _is_pair(turn: object) -> bool:
    pair = 2
    return (
        isinstance(turn, tuple)
        and len(turn) == pair
        and all(isinstance(text, str) for text in turn)
    )
