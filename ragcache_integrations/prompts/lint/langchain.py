"""The linter for LangChain's prompts: an adapter, see :mod:`.lint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

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

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.layout.langchain import RAGPromptTemplate
from ragcache_integrations.prompts.layout.layout import Flow, PromptLayout
from ragcache_integrations.prompts.lint.jinja import jinja_pieces
from ragcache_integrations.prompts.lint.lint import lint_prompt as lint
from ragcache_integrations.prompts.lint.mustache import mustache_pieces
from ragcache_integrations.prompts.lint.rules import MIN_TOKENS, LintReport
from ragcache_integrations.prompts.lint.templates import (
    Template,
    TemplatePiece,
    TemplateVariable,
    bound_pieces,
    joined_pieces,
    messages_matter,
    pieces_of,
    pieces_of_layout,
    pieces_of_rendered,
    placeholder,
)
from ragcache_integrations.prompts.lint.tokens import CountTokens, approximate_tokens

__all__ = ["lint_prompt"]

_CHOSEN_EXAMPLES = "chosen_examples"


def lint_prompt(
    source: BasePromptTemplate[Any] | str | PromptLayout | Sequence[object],
    *,
    flow: Flow | None = None,
    variables: Mapping[str, str] | None = None,
    lengths: Mapping[str, int] | None = None,
    count_tokens: CountTokens = approximate_tokens,
    min_tokens: int = MIN_TOKENS,
) -> LintReport:
    """Find what breaks the common prefix of prompts, where, at what cost, and how to mend it.

    Args:
        source: A LangChain prompt, this package's included, or whatever
            :func:`ragcache_integrations.prompts.lint.lint.lint_prompt` takes, such as recorded
            requests. Variables that are bound to functions vary; those bound to text do not.
        flow: See there, as for the other arguments.
        variables: What variables are about, by name, where their names do not tell.
        lengths: Tokens of variables, by name.
        count_tokens: Counts the tokens of a text, such as a model's ``get_num_tokens``.
        min_tokens: Tokens per request that a finding must cost.

    Raises:
        ConfigurationError: The source cannot be linted, or an argument does not suit it.
    """
    given: Any = source
    if isinstance(source, RAGPromptTemplate):
        flow = flow or source.flow
    if isinstance(source, BasePromptTemplate):
        given = Template(_pieces(source, {}))
    return lint(
        given,
        flow=flow,
        variables=variables,
        lengths=lengths,
        count_tokens=count_tokens,
        min_tokens=min_tokens,
    )


Bound = Mapping[str, object]
"""Values that variables are bound to, by their names."""


def _pieces(prompt: BasePromptTemplate[Any], around: Bound) -> list[TemplatePiece]:
    """What stands where in a prompt, read from its templates: nothing is rendered.

    Args:
        prompt: The prompt.
        around: Values that are bound by what holds it.
    """
    partial = prompt.partial_variables
    bound = {name: value for name, value in {**around, **partial}.items() if not callable(value)}
    if isinstance(prompt, RAGPromptTemplate):
        return pieces_of_layout(PromptLayout(prompt.parts, flow=prompt.flow), bound)
    if any(_is_plain(prompt, kind) for kind in (FewShotPromptTemplate, FewShotPromptWithTemplates)):
        return _few_shots(prompt, bound)
    if _is_plain(prompt, PromptTemplate):
        return _string(prompt, "template", bound)
    if _is_plain(prompt, FewShotChatMessagePromptTemplate):
        return _examples(prompt, "\n")
    if _is_plain(prompt, ChatPromptTemplate):
        messages = [[*_message(message, bound), "\n"] for message in prompt.messages]
        return joined_pieces(piece for message in messages for piece in message)
    return _rendered(prompt, bound)


def _is_plain(prompt: object, kind: Any) -> TypeGuard[Any]:
    """Whether a prompt is of a kind, and no subclass that lays it out in another way."""
    methods = ("format", "format_messages", "format_prompt")
    return isinstance(prompt, kind) and all(
        getattr(type(prompt), name, None) is getattr(kind, name, None) for name in methods
    )


def _string(prompt: Any, name: str, bound: Bound) -> list[TemplatePiece]:
    """The pieces of one of a prompt's templates, whatever its syntax."""
    read = _SYNTAXES.get(prompt.template_format, pieces_of)
    return bound_pieces(read(getattr(prompt, name) or ""), bound)


_SYNTAXES: dict[str, Callable[[str], list[TemplatePiece]]] = {
    "jinja2": jinja_pieces,
    "mustache": mustache_pieces,
}


def _few_shots(prompt: Any, bound: Bound) -> list[TemplatePiece]:
    between = prompt.example_separator
    prefix, suffix = (_end(prompt, name, bound) for name in ("prefix", "suffix"))
    return joined_pieces([*prefix, between, *_examples(prompt, between), *suffix])


def _end(prompt: Any, name: str, bound: Bound) -> list[TemplatePiece]:
    """What stands before or behind the examples: text or a prompt."""
    end = getattr(prompt, name) or ""
    return _string(prompt, name, bound) if isinstance(end, str) else _pieces(end, bound)


def _examples(prompt: Any, between: str) -> list[TemplatePiece]:
    """Examples, which are always the same or chosen for each request."""
    if prompt.example_selector is not None:
        return [TemplateVariable(_CHOSEN_EXAMPLES, messages_matter(_CHOSEN_EXAMPLES))]
    made = [_pieces(prompt.example_prompt, example) for example in prompt.examples or ()]
    return joined_pieces(piece for example in made for piece in [*example, between])


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
        return _rendered(message, bound)
    parts = parts if isinstance(parts, list) else [parts]
    return [piece for part in parts for piece in _part(part, bound)]


def _part(part: Any, bound: Bound) -> list[TemplatePiece]:
    """Text of a message, or an image, of which only the variables count."""
    if isinstance(part, StringPromptTemplate):
        return _pieces(part, bound)
    return bound_pieces(map(TemplateVariable, part.input_variables), bound)


def _rendered(prompt: Any, bound: Bound) -> list[TemplatePiece]:
    """The pieces of what somebody else's class makes of values that show where they stand."""
    names = [name for name in prompt.input_variables if name not in bound]
    values = {**bound, **{name: placeholder(name) for name in names}}
    try:
        if isinstance(prompt, BasePromptTemplate):
            text = prompt.format_prompt(**values).to_string()
        else:
            text = "\n".join(str(made.text) for made in prompt.format_messages(**values))
    except Exception as error:  # it may do anything
        msg = f"the prompt cannot be laid out without values ({error}): lint requests instead"
        raise ConfigurationError(msg) from error
    return pieces_of_rendered(text, map(TemplateVariable, names))
