"""The linter for LlamaIndex's prompts: an adapter.

See :mod:`.lint`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from llama_index.core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    RichPromptTemplate,
    SelectorPromptTemplate,
)

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.layout import Flow, PromptLayout
from ragcache_integrations.prompts.layout.llama_index import RAGPromptTemplate
from ragcache_integrations.prompts.lint.jinja import jinja_pieces
from ragcache_integrations.prompts.lint.lint import lint_prompt as lint
from ragcache_integrations.prompts.lint.rules import MIN_TOKENS, LintReport
from ragcache_integrations.prompts.lint.templates import (
    Template,
    TemplatePiece,
    TemplateVariable,
    bound_pieces,
    pieces_of_layout,
    pieces_of_rendered,
    placeholder,
)
from ragcache_integrations.prompts.lint.tokens import CountTokens, approximate_tokens

__all__ = ["lint_prompt"]


def lint_prompt(
    source: BasePromptTemplate | str | PromptLayout | Sequence[object],
    *,
    flow: Flow | None = None,
    variables: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Find what breaks the common prefix of prompts, where, at what cost, and how to mend it.

    Args:
        source: A LlamaIndex prompt, this package's included, or whatever
            :func:`ragcache_integrations.prompts.lint.lint.lint_prompt` takes, such as recorded
            requests. Variables that are mapped to functions vary; those bound to text do not.
        flow: See there, as for the other arguments.
        variables: What variables are about, by name, where their names do not tell.
        lengths: Tokens of variables, by name.
        count_tokens: Counts the tokens of a text.
        min_tokens: Tokens per request that a finding must cost.

    Raises:
        ConfigurationError: The source cannot be linted, or an argument does not suit it.
    """
    given: Any = source
    if isinstance(source, RAGPromptTemplate):
        flow = flow or source.flow
        layout = PromptLayout(source.parts, flow=source.flow)
        given = Template(pieces_of_layout(layout, source.kwargs))
    elif isinstance(source, BasePromptTemplate):
        given = Template(_pieces(source))
    return lint(
        given,
        flow=flow,
        variables=variables,
        lengths=lengths,
        count_tokens=count_tokens,
        min_tokens=min_tokens,
    )


def _pieces(prompt: BasePromptTemplate) -> list[TemplatePiece]:
    """What stands where in a prompt, read from its templates: nothing is rendered."""
    if isinstance(prompt, SelectorPromptTemplate):
        return _pieces(prompt.default_template)
    mappings = prompt.template_var_mappings or {}
    bound = {mappings.get(name, name): value for name, value in prompt.kwargs.items()}
    if _is_plain(prompt, RichPromptTemplate):
        return bound_pieces(jinja_pieces(prompt.template_str), bound)
    if _is_plain(prompt, PromptTemplate):
        return bound_pieces(_text(prompt.template, prompt), bound)
    if _is_plain(prompt, ChatPromptTemplate):
        texts = [message.content or "" for message in prompt.message_templates]
        pieces = [piece for text in texts for piece in [*_text(text, prompt), "\n"]]
        return bound_pieces(pieces, bound)
    return _rendered(prompt)


def _is_plain(prompt: object, kind: Any) -> TypeGuard[Any]:
    """Whether a prompt is of a kind, and no subclass that lays it out in another way."""
    methods = ("format", "format_messages")
    return isinstance(prompt, kind) and all(
        getattr(type(prompt), name) is getattr(kind, name) for name in methods
    )


_FIELD = re.compile(r"\{([^{}]+)\}")


def _text(text: str, prompt: BasePromptTemplate) -> list[TemplatePiece]:
    """Cut a text as LlamaIndex does: braces around anything but a variable are text."""
    pieces: list[TemplatePiece] = []
    position = 0
    for field in _FIELD.finditer(text):
        if field[1] in prompt.template_vars:
            pieces += [text[position : field.start()], TemplateVariable(field[1])]
            position = field.end()
    return [*pieces, text[position:]]


def _rendered(prompt: BasePromptTemplate) -> list[TemplatePiece]:
    """The pieces of what somebody else's class makes of values that show where they stand."""
    names = [name for name in prompt.template_vars if name not in prompt.kwargs]
    bare = prompt.model_copy(
        update={"function_mappings": {}, "template_var_mappings": {}, "output_parser": None}
    )
    try:
        values: dict[str, Any] = {name: placeholder(name) for name in names}
        messages = bare.format_messages(**values)
        text = "\n".join(message.content or "" for message in messages)
    except Exception as error:  # it may do anything
        msg = f"the prompt cannot be laid out without values ({error}): lint requests instead"
        raise ConfigurationError(msg) from error
    return pieces_of_rendered(text, map(TemplateVariable, names))
