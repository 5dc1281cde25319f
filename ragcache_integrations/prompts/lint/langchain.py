"""The linter for LangChain's prompts: an adapter, see :mod:`.lint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard, Unpack

from langchain_core.messages import BaseMessage
from langchain_core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    FewShotChatMessagePromptTemplate,
    FewShotPromptTemplate,
    FewShotPromptWithTemplates,
    MessagesPlaceholder,
    PromptTemplate,
    StringPromptTemplate,
)

from ragcache_integrations.prompts.layout import PromptLayout
from ragcache_integrations.prompts.layout.langchain import RAGPromptTemplate

from .jinja import jinja_pieces
from .lint import (
    LintOptions,
    Template,
    TemplatePiece,
    TemplateVariable,
    bound_pieces,
    is_plain,
    join_pieces,
    messages_matter,
    mustache_pieces,
    pieces_of,
    pieces_of_layout,
    rendered_pieces,
)
from .lint import lint_prompt as lint
from .rules import LintReport

__all__ = ["lint_prompt"]

_CHOSEN_EXAMPLES = "chosen_examples"


def lint_prompt(
    source: BasePromptTemplate[Any] | str | PromptLayout | Sequence[object],
    **options: Unpack[LintOptions],
) -> LintReport:
    """Find what breaks the common prefix of prompts, where, at what cost, and how to fix it.

    Args:
        source: A LangChain prompt, including those of this package, or any source of
            :func:`ragcache_integrations.prompts.lint.lint.lint_prompt`, such as recorded requests.
            Variables that are bound to functions vary; those bound to text don't.
        **options: ``flow``, ``variables``, ``lengths``, ``count_tokens`` (such as a model's
            ``get_num_tokens``) and ``min_tokens``, as there.

    Raises:
        ConfigurationError: The source cannot be linted, or an argument doesn't apply to it.
        MissingExtraError: The source is recorded requests, and ragcache-workbench is not installed.
    """
    if isinstance(source, RAGPromptTemplate):
        options["flow"] = options.get("flow") or source.flow
    if isinstance(source, BasePromptTemplate):
        return lint(Template(_pieces(source, {})), **options)
    return lint(source, **options)


Bound = Mapping[str, object]
"""Values that variables are bound to, by their names."""


def _pieces(prompt: BasePromptTemplate[Any], around: Bound) -> list[TemplatePiece]:
    """The text and variables of a prompt's templates; nothing is rendered.

    Args:
        prompt: The prompt.
        around: Values that are bound by the prompt that contains it.
    """
    partial = prompt.partial_variables
    bound = {name: value for name, value in {**around, **partial}.items() if not callable(value)}
    if isinstance(prompt, RAGPromptTemplate):
        return pieces_of_layout(PromptLayout(prompt.parts, flow=prompt.flow), bound)
    if _is_plain(prompt, FewShotPromptTemplate) or _is_plain(prompt, FewShotPromptWithTemplates):
        return _few_shots(prompt, bound)
    if _is_plain(prompt, PromptTemplate):
        return _string(prompt, "template", bound)
    if _is_plain(prompt, FewShotChatMessagePromptTemplate):
        return _examples(prompt, "\n")
    if _is_plain(prompt, ChatPromptTemplate):
        messages = [[*_message(message, bound), "\n"] for message in prompt.messages]
        return join_pieces(piece for message in messages for piece in message)
    return _rendered_pieces(prompt, bound)


def _is_plain(prompt: object, kind: Any) -> TypeGuard[Any]:
    return is_plain(prompt, kind, ("format", "format_messages", "format_prompt"))


def _string(prompt: Any, name: str, bound: Bound) -> list[TemplatePiece]:
    """The pieces of one of a prompt's templates, in its syntax."""
    read = _SYNTAXES.get(prompt.template_format, pieces_of)
    return bound_pieces(read(getattr(prompt, name) or ""), bound)


_SYNTAXES: dict[str, Callable[[str], list[TemplatePiece]]] = {
    "jinja2": jinja_pieces,
    "mustache": mustache_pieces,
}


def _few_shots(prompt: Any, bound: Bound) -> list[TemplatePiece]:
    between = prompt.example_separator
    prefix, suffix = (_end(prompt, name, bound) for name in ("prefix", "suffix"))
    return join_pieces([*prefix, between, *_examples(prompt, between), *suffix])


def _end(prompt: Any, name: str, bound: Bound) -> list[TemplatePiece]:
    """The pieces before or after the examples: of a text or of a prompt."""
    end = getattr(prompt, name) or ""
    return _string(prompt, name, bound) if isinstance(end, str) else _pieces(end, bound)


def _examples(prompt: Any, between: str) -> list[TemplatePiece]:
    """The pieces of the examples: a variable if they are selected for each request."""
    if prompt.example_selector is not None:
        return [TemplateVariable(_CHOSEN_EXAMPLES, messages_matter(_CHOSEN_EXAMPLES))]
    examples = [_pieces(prompt.example_prompt, example) for example in prompt.examples or ()]
    return join_pieces(piece for example in examples for piece in [*example, between])


def _message(message: Any, bound: Bound) -> list[TemplatePiece]:
    if isinstance(message, MessagesPlaceholder):
        name = message.variable_name
        return bound_pieces([TemplateVariable(name, messages_matter(name))], bound)
    if isinstance(message, BaseMessage):
        return [str(message.text)]
    if isinstance(message, BasePromptTemplate):
        return _pieces(message, bound)
    parts = getattr(message, "prompt", None)
    if parts is None:
        return _rendered_pieces(message, bound)
    parts = parts if isinstance(parts, list) else [parts]
    return [piece for part in parts for piece in _part(part, bound)]


def _part(part: Any, bound: Bound) -> list[TemplatePiece]:
    """The pieces of a message's text; of an image, only the variables."""
    if isinstance(part, StringPromptTemplate):
        return _pieces(part, bound)
    return bound_pieces(map(TemplateVariable, part.input_variables), bound)


def _rendered_pieces(prompt: Any, bound: Bound) -> list[TemplatePiece]:
    """The pieces of a prompt of an unknown class, found by rendering it with placeholders."""

    def render(values: Bound) -> str:
        if isinstance(prompt, BasePromptTemplate):
            return prompt.format_prompt(**bound, **values).to_string()
        messages = prompt.format_messages(**bound, **values)
        return "\n".join(str(message.text) for message in messages)

    names = [name for name in prompt.input_variables if name not in bound]
    return rendered_pieces(render, names)
