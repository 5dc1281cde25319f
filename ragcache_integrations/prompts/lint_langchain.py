"""The linter for LangChain's prompts: an adapter, see :mod:`ragcache_integrations.prompts.lint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    FewShotPromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)

from ragcache_integrations.prompts.layout import Flow, PromptLayout
from ragcache_integrations.prompts.lint import lint_prompt as lint
from ragcache_integrations.prompts.lint_rules import MIN_TOKENS, LintReport
from ragcache_integrations.prompts.lint_templates import (
    Template,
    TemplatePiece,
    TemplateVariable,
    messages_matter,
    pieces_of_layout,
    pieces_of_rendered,
    placeholder,
)
from ragcache_integrations.prompts.lint_tokens import CountTokens, approximate_tokens
from ragcache_integrations.prompts.template_langchain import RAGPromptTemplate

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
            :func:`ragcache_integrations.prompts.lint.lint_prompt` takes, such as recorded
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
        bound = {name: v for name, v in source.partial_variables.items() if not callable(v)}
        given = Template(pieces_of_layout(PromptLayout(source.parts, flow=source.flow), bound))
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


def _pieces(prompt: BasePromptTemplate[Any]) -> list[TemplatePiece]:
    functions = [name for name, value in prompt.partial_variables.items() if callable(value)]
    names = [*prompt.input_variables, *functions]
    values = {
        **{name: v for name, v in prompt.partial_variables.items() if name not in functions},
        **{name: placeholder(name) for name in names},
    }
    if isinstance(prompt, ChatPromptTemplate):
        text, of_messages = _chat_text(prompt, values)
    elif isinstance(prompt, FewShotPromptTemplate) and prompt.example_selector is not None:
        ends = (
            PromptTemplate.from_template(end, template_format=prompt.template_format)
            for end in (prompt.prefix, prompt.suffix)
        )
        text = placeholder(_CHOSEN_EXAMPLES).join(end.format(**values) for end in ends)
        of_messages = {_CHOSEN_EXAMPLES}
    else:
        text, of_messages = prompt.format_prompt(**values).to_string(), set()
    return pieces_of_rendered(
        text,
        [
            TemplateVariable(name, messages_matter(name) if name in of_messages else None)
            for name in {*names, *of_messages}
        ],
    )


def _chat_text(prompt: ChatPromptTemplate, values: dict[str, Any]) -> tuple[str, set[str]]:
    """The messages as one text, and which variables hold messages."""
    texts: list[str] = []
    of_messages: set[str] = set()
    for message in prompt.messages:
        if isinstance(message, MessagesPlaceholder):
            of_messages.add(message.variable_name)
            texts.append(placeholder(message.variable_name))
        elif isinstance(message, BaseMessage):
            texts.append(message.text)
        elif getattr(message, "example_selector", None) is not None:
            of_messages.add(_CHOSEN_EXAMPLES)
            texts.append(placeholder(_CHOSEN_EXAMPLES))
        else:
            texts += [made.text for made in message.format_messages(**values)]
    return "\n".join(texts), of_messages
