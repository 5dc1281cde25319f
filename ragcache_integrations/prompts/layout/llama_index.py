"""``RAGPromptTemplate`` for LlamaIndex: an adapter.

See :mod:`ragcache_integrations.prompts.layout.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.generic_utils import messages_to_prompt as default_to_prompt
from llama_index.core.base.llms.types import (
    CacheControl,
    CachePoint,
    ChatMessage,
    ContentBlock,
    MessageRole,
    TextBlock,
)
from llama_index.core.prompts import BasePromptTemplate, PromptType
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore
from llama_index.core.types import BaseOutputParser
from pydantic import PrivateAttr
from typing_extensions import override

from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.fixed_settings import FixedSettings, fixed
from ragcache_integrations.prompts.layout.layout import (
    Flow,
    LaidOutPrompt,
    PartLike,
    PromptLayout,
    PromptPart,
    Turn,
    declared_parts,
)
from ragcache_integrations.prompts.layout.providers import (
    CacheLifetime,
    anthropic_mark,
    marked_texts,
    openai_cache_key,
)
from ragcache_integrations.prompts.recognition.llama_index import current_run

__all__ = ["RAGPromptTemplate"]

Template = str | Sequence[object] | Mapping[str, object] | None


class RAGPromptTemplate(FixedSettings, BasePromptTemplate):  # type: ignore[no-redef] # its field kwargs
    """A prompt whose parts are laid out so that the KV cache can be reused.

    Takes the place of a ``PromptTemplate`` or ``ChatPromptTemplate``, such as a
    ``text_qa_template``. The parts are declared in any order, as keywords or as
    ``(kind, template)`` pairs; they stand by how they change, see
    :class:`~ragcache_integrations.prompts.layout.layout.PromptLayout`. Templates have
    ``{variables}``::

        RAGPromptTemplate(system="Answer briefly.", documents="{context_str}", query="{query_str}")

    The documents' variable takes nodes, strings, or one string that a synthesizer made of them.
    Every model gets plain messages; models of this package recognise the documents in them
    (``find_documents``). Further keywords bind variables, as in LlamaIndex's own templates.

    Attributes:
        parts: The parts in the order in which they stand.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` takes a prompt with a history for a
            conversation. A history may be left out.
        cache_control: For Anthropic's API: ``"5m"`` or ``"1h"`` marks the ends of the prefixes
            that later requests share, to be kept so long; ``None`` marks none.

    Raises:
        ConfigurationError: A part is unknown, declared twice or unusable, there is no query, or a
            further keyword is no variable.
    """

    parts: tuple[PromptPart, ...] = ()
    flow: Flow | None = None
    cache_control: CacheLifetime | None = None

    _layout: PromptLayout = PrivateAttr()

    def __init__(
        self,
        parts: Iterable[PartLike] = (),
        *,
        system: Template = None,
        tools: Template = None,
        instructions: Template = None,
        examples: Template = None,
        documents: str | None = None,
        dynamic_examples: str | None = None,
        history: str | None = None,
        query: str | None = None,
        flow: Flow | None = None,
        cache_control: CacheLifetime | None = None,
        prompt_type: str = PromptType.CUSTOM,
        output_parser: BaseOutputParser | None = None,
        metadata: dict[str, Any] | None = None,
        template_var_mappings: dict[str, Any] | None = None,
        function_mappings: dict[str, Callable[..., Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        declared = declared_parts(
            parts,
            system=system,
            tools=tools,
            instructions=instructions,
            examples=examples,
            documents=documents,
            dynamic_examples=dynamic_examples,
            history=history,
            query=query,
        )
        layout = PromptLayout(declared, flow=flow)
        if cache_control is not None:
            anthropic_mark(cache_control)
        unknown = sorted(
            kwargs.keys() - set(layout.variables) - (template_var_mappings or {}).keys()
        )
        if unknown:
            msg = f"unknown arguments {unknown}: neither knobs nor variables of the template"
            raise ConfigurationError(msg)
        layout.check_bound({**(function_mappings or {}), **kwargs})
        super().__init__(
            parts=layout.parts,
            flow=flow,
            cache_control=cache_control,
            template_vars=list(layout.variables),
            kwargs={},
            metadata={**(metadata or {}), "prompt_type": prompt_type},
            output_parser=output_parser,
            template_var_mappings=template_var_mappings,
            function_mappings=function_mappings,
        )
        self.kwargs = kwargs  # behind pydantic's back: nodes and messages are values, too
        self._layout = layout

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it.

        Args:
            update: What shall be different.
            deep: Whether the copy shares nothing that changes.

        Raises:
            ConfigurationError: What shall be different is unknown, or makes no prompt.
        """
        own: dict[str, Any] = {
            "parts": self.parts,
            "flow": self.flow,
            "cache_control": self.cache_control,
        }
        framework = dict(update or {})
        own |= {name: framework.pop(name) for name in own.keys() & framework.keys()}
        unknown = sorted(framework.keys() - type(self).model_fields.keys())
        if unknown:
            raise fixed(self, unknown[0])
        copied = BasePromptTemplate.model_copy(self, update=framework, deep=deep)
        layout = PromptLayout(own["parts"], flow=own["flow"])
        layout.check_bound(copied.kwargs)
        if own["cache_control"] is not None:
            anthropic_mark(own["cache_control"])
        copied.__dict__.update(own, parts=layout.parts, template_vars=list(layout.variables))
        copied._layout = layout  # noqa: SLF001 - of its own class
        return copied

    @override
    def partial_format(self, **kwargs: Any) -> RAGPromptTemplate:
        """Bind variables in a copy."""
        self._layout.check_bound(kwargs)
        return self.model_copy(update={"kwargs": {**self.kwargs, **kwargs}})

    @override
    def format(
        self,
        llm: BaseLLM | None = None,
        messages_to_prompt: Callable[[Sequence[ChatMessage]], str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Lay the prompt out as one string."""
        return (messages_to_prompt or default_to_prompt)(self.format_messages(llm=llm, **kwargs))

    @override
    def format_messages(self, llm: BaseLLM | None = None, **kwargs: Any) -> list[ChatMessage]:
        """Lay the prompt out as messages."""
        prompt = self.lay_out(**kwargs)
        prompt.remember_documents(current_run())
        messages: list[ChatMessage] = []
        boundaries = prompt.cache_boundaries if self.cache_control is not None else ()
        for turn in prompt.turns:
            if isinstance(turn, Turn):
                role = MessageRole.SYSTEM if turn.role == "system" else MessageRole.USER
                blocks: list[ContentBlock] = []
                for text, marked in marked_texts(turn, boundaries):
                    blocks.append(TextBlock(text=text))
                    blocks += self._cache_points() if marked else []
                messages.append(ChatMessage(role=role, blocks=blocks))
                continue
            given = [_message(message) for message in turn.messages]
            if any(turn is boundary for boundary in boundaries):
                blocks = [*given[-1].blocks, *self._cache_points()]
                given[-1] = given[-1].model_copy(update={"blocks": blocks})
            messages += given
        if self.output_parser is not None:
            messages = self.output_parser.format_messages(messages)
        return messages

    @override
    def get_template(self, llm: BaseLLM | None = None) -> str:
        """The parts' templates in the order in which they stand."""
        return "\n\n".join(part.template for part in self.parts)

    def lay_out(self, **kwargs: Any) -> LaidOutPrompt:
        """Fill the variables in, without making messages of the parts."""
        values = self._map_all_vars({**self.kwargs, **kwargs})
        return self._layout.render({name: _translated(value) for name, value in values.items()})

    def cache_key(self, tenant: str = "", **kwargs: Any) -> str:
        """OpenAI's ``prompt_cache_key``, the same for all requests that share the fixed parts.

        Args:
            tenant: Tells streams of more than about fifteen requests a minute apart.
            **kwargs: Values of variables in fixed parts, where they are not bound.
        """
        unused: dict[str, Any] = dict.fromkeys(self._layout.variables, "")
        for name in self._layout.fixed_variables - self.kwargs.keys() - kwargs.keys():
            del unused[name]  # so that its lack is noticed
        values = {**unused, **self.kwargs, **kwargs}
        values = {name: _translated(value) for name, value in values.items()}
        return openai_cache_key(self._layout.render(values), tenant=tenant)

    def _cache_points(self) -> list[ContentBlock]:
        if self.cache_control is None:
            return []
        return [CachePoint(cache_control=CacheControl(**anthropic_mark(self.cache_control)))]


def _message(message: object) -> ChatMessage:
    if not isinstance(message, ChatMessage):
        msg = f"a history must hold ChatMessage objects, got a {type(message).__name__}"
        raise ConfigurationError(msg)
    return message


def _translated(value: object) -> object:
    if isinstance(value, NodeWithScore | BaseNode):
        return _document(value)
    if isinstance(value, list | tuple):
        return [
            _document(item) if isinstance(item, NodeWithScore | BaseNode) else item
            for item in value
        ]
    return value


def _document(found: NodeWithScore | BaseNode) -> PromptDocument | str:
    node = found.node if isinstance(found, NodeWithScore) else found
    text = node.get_content(metadata_mode=MetadataMode.LLM)
    return PromptDocument(text, node.node_id) if text else ""
