"""The linter: finds what keeps a prompt's KV cache from being reused, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TypedDict

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.prompts.layout import Flow, PromptLayout, check_flow

from .rules import MIN_TOKENS, Finding, LintReport
from .templates import (
    Template,
    TemplatePiece,
    TemplateVariable,
    lint_template,
    messages_matter,
    pieces_of,
    pieces_of_layout,
)
from .tokens import CountTokens, approximate_tokens

__all__ = ["Finding", "LintOptions", "LintReport", "lint_prompt"]

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
    if pieces is not None:
        return lint_template(
            pieces,
            flow=source.flow if isinstance(source, PromptLayout) and flow is None else flow,
            variables=variables,
            lengths=lengths,
            count_tokens=count_tokens,
            min_tokens=min_tokens,
        )
    if variables or lengths:
        raise ConfigurationError("traffic has no variables: leave out variables= and lengths=")
    if not isinstance(source, list | tuple):
        msg = f"pass a template or a list of requests to lint, got a {type(source).__name__}"
        raise ConfigurationError(msg)
    for entry in entry_points(group=ENTRY_POINTS, name="requests"):
        lint: Callable[..., LintReport] = entry.load()
        return lint(source, flow=flow, count_tokens=count_tokens, min_tokens=min_tokens)
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
