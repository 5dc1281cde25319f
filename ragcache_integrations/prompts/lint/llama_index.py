"""The linter for LlamaIndex's prompts: an adapter.

See :mod:`.lint`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, Unpack

from llama_index.core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    RichPromptTemplate,
    SelectorPromptTemplate,
)

from ragcache_integrations.prompts.layout import PromptLayout
from ragcache_integrations.prompts.layout.llama_index import RAGPromptTemplate

from .jinja import jinja_pieces
from .lint import (
    LintOptions,
    Template,
    TemplatePiece,
    TemplateVariable,
    bound_pieces,
    is_plain,
    pieces_of_layout,
    rendered_pieces,
)
from .lint import lint_prompt as lint
from .rules import LintReport

__all__ = ["lint_prompt"]


def lint_prompt(
    source: BasePromptTemplate | str | PromptLayout | Sequence[object],
    **options: Unpack[LintOptions],
) -> LintReport:
    """Find what breaks the common prefix of prompts, where, at what cost, and how to fix it.

    Args:
        source: A LlamaIndex prompt, including those of this package, or any source of
            :func:`ragcache_integrations.prompts.lint.lint.lint_prompt`, such as recorded requests.
            Variables that are mapped to functions vary; those bound to text don't.
        **options: ``flow``, ``variables``, ``lengths``, ``count_tokens`` and ``min_tokens``, as
            there.

    Raises:
        ConfigurationError: The source cannot be linted, or an argument doesn't apply to it.
        MissingExtraError: The source is recorded requests, and ragcache-workbench is not installed.
    """
    if isinstance(source, RAGPromptTemplate):
        options["flow"] = options.get("flow") or source.flow
    if isinstance(source, BasePromptTemplate):
        return lint(Template(_pieces(source)), **options)
    return lint(source, **options)


def _pieces(prompt: BasePromptTemplate) -> list[TemplatePiece]:
    """The text and variables of a prompt's templates; nothing is rendered."""
    if isinstance(prompt, RAGPromptTemplate):
        return pieces_of_layout(PromptLayout(prompt.parts, flow=prompt.flow), prompt.kwargs)
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
    return _rendered_pieces(prompt)


def _is_plain(prompt: object, kind: Any) -> TypeGuard[Any]:
    return is_plain(prompt, kind, ("format", "format_messages"))


_FIELD = re.compile(r"\{([^{}]+)\}")


def _text(text: str, prompt: BasePromptTemplate) -> list[TemplatePiece]:
    """Cut a text like LlamaIndex: braces that don't surround a variable are text."""
    pieces: list[TemplatePiece] = []
    position = 0
    for field in _FIELD.finditer(text):
        if field[1] in prompt.template_vars:
            pieces += [text[position : field.start()], TemplateVariable(field[1])]
            position = field.end()
    return [*pieces, text[position:]]


def _rendered_pieces(prompt: BasePromptTemplate) -> list[TemplatePiece]:
    """The pieces of a prompt of an unknown class, found by rendering it with placeholders."""
    bare = prompt.model_copy(
        update={"function_mappings": {}, "template_var_mappings": {}, "output_parser": None}
    )

    def render(values: Mapping[str, Any]) -> str:
        messages = bare.format_messages(**values)
        return "\n".join(message.content or "" for message in messages)

    names = [name for name in prompt.template_vars if name not in prompt.kwargs]
    return rendered_pieces(render, names)
