"""The linter: what in a prompt keeps its KV cache from being reused, and how to mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import Flow, PromptLayout
from ragcache_integrations.prompts.lint.files import RequestLog
from ragcache_integrations.prompts.lint.requests import RecordedRequest, recorded_requests
from ragcache_integrations.prompts.lint.rules import MIN_TOKENS, Finding, LintReport
from ragcache_integrations.prompts.lint.templates import (
    Template,
    TemplatePiece,
    TemplateVariable,
    lint_template,
    messages_matter,
    pieces_of,
    pieces_of_layout,
)
from ragcache_integrations.prompts.lint.tokens import CountTokens, approximate_tokens
from ragcache_integrations.prompts.lint.traffic import MIN_REQUESTS, lint_traffic

__all__ = ["Finding", "LintReport", "lint_prompt"]


def lint_prompt(
    source: str | PromptLayout | Template | RequestLog | Sequence[object],
    *,
    flow: Flow | None = None,
    variables: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Find what breaks the common prefix of prompts, where, at what cost, and how to mend it.

    :mod:`ragcache_integrations.langchain` and :mod:`ragcache_integrations.llama_index` export the
    same function, which takes the frameworks' prompts, too.

    Args:
        source: A template: text with ``{variables}``, a
            :class:`~ragcache_integrations.prompts.layout.layout.PromptLayout`, or ``(role, text)``
            pairs in the order in which they stand, of which ``("placeholder", "{history}")`` stands
            for messages. Or traffic: a list of at least two requests as they were sent, see
            :func:`~ragcache_integrations.prompts.lint.requests.recorded_requests`, or a log that
            :func:`~ragcache_integrations.prompts.lint.files.read_requests` read.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` takes what has a history for a
            conversation.
        variables: Of a template: what variables are about, by name, where their names do not tell:
            ``text`` (always the same), ``documents``, ``history``, ``query``, ``timestamp``,
            ``random_id``, ``user`` or ``other``.
        lengths: Of a template: tokens of variables, by name; 1,000 for documents, 500 for a history
            and 20 for others where not given.
        count_tokens: Counts the tokens of a text, such as ``engine.count_tokens``. By default they
            are estimated from the words.
        min_tokens: Tokens per request that a finding must cost; by default a block of KV cache.

    Raises:
        ConfigurationError: The source is neither, or an argument does not suit it.
    """
    if flow not in {None, "single_turn", "conversation"}:
        msg = f"flow must be 'single_turn', 'conversation' or None, got {flow!r}"
        raise ConfigurationError(msg)
    if isinstance(min_tokens, bool) or not isinstance(min_tokens, int) or min_tokens < 1:
        msg = f"min_tokens must be a whole number of at least 1, got {min_tokens!r}"
        raise ConfigurationError(msg)
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
        msg = "traffic has no variables: leave out variables= and lengths="
        raise ConfigurationError(msg)
    log = source if isinstance(source, RequestLog) else _as_log(source)
    if log.skipped and len(log.requests) < MIN_REQUESTS:
        msg = f"a log must have at least {MIN_REQUESTS} requests that can be read: {log.remarks[0]}"
        raise ConfigurationError(msg)
    report = lint_traffic(log.requests, flow=flow, count_tokens=count_tokens, min_tokens=min_tokens)
    return replace(report, skipped=log.skipped, remarks=tuple(log.remarks))


def _template_pieces(source: object) -> Sequence[TemplatePiece] | None:
    """The pieces of a template; ``None`` for what is none."""
    if isinstance(source, Template):
        return source.pieces
    if isinstance(source, str):
        return pieces_of(source)
    if isinstance(source, PromptLayout):
        return pieces_of_layout(source, {})
    if not isinstance(source, list | tuple) or not source:
        return None
    if not all(map(_is_pair, source)):
        return None
    pieces: list[TemplatePiece] = []
    for role, text in source:
        turn = pieces_of(text)
        if role == "placeholder":
            turn = [
                TemplateVariable(piece.name, messages_matter(piece.name))
                for piece in turn
                if isinstance(piece, TemplateVariable)
            ]
        pieces += [*turn, "\n"]
    return pieces


def _is_pair(turn: object) -> bool:
    pair = 2
    return (
        isinstance(turn, tuple)
        and len(turn) == pair
        and all(isinstance(text, str) for text in turn)
    )


def _as_log(source: object) -> RequestLog:
    if not isinstance(source, list | tuple):
        msg = f"give a template or a list of requests to lint, got a {type(source).__name__}"
        raise ConfigurationError(msg)
    requests: list[RecordedRequest] = []
    for number, entry in enumerate(source, 1):
        if isinstance(entry, RecordedRequest):
            requests.append(entry)
        else:
            requests += recorded_requests(entry, f"request {number}")
    return RequestLog(requests)
