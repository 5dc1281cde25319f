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

from ragcache_integrations.core.checks import check_flag, unknown_name
from ragcache_integrations.core.knobs import FixedSettings, assignment_error
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.llama_index import current_run, documents_once
from ragcache_integrations.prompts.repeats import HELD, dump_parts

from .layout import (
    PARTS,
    Flow,
    LaidOutPrompt,
    PartLike,
    PromptLayout,
    PromptPart,
    Template,
    Turn,
    convert_documents,
)
from .providers import (
    CacheLifetime,
    MarkedTexts,
    anthropic_mark,
    check_lifetime,
    openai_cache_key,
    write_messages,
)

__all__ = ["RAGPromptTemplate"]


class RAGPromptTemplate(FixedSettings, BasePromptTemplate):  # type: ignore[no-redef] # its field kwargs
    """A prompt whose parts are laid out so that the KV cache can be reused.

    Drop-in replacement for ``PromptTemplate`` and ``ChatPromptTemplate``, such as a
    ``text_qa_template``. The parts are declared in any order, as keywords or as
    ``(kind, template)`` pairs; they are ordered by how they change, see
    :class:`~ragcache_integrations.prompts.layout.layout.PromptLayout`. Templates have
    ``{variables}``::

        RAGPromptTemplate(system="Answer briefly.", documents="{context_str}", query="{query_str}")

    The documents' variable takes nodes, strings, or one string that a synthesizer made of them.
    Every model gets plain messages; models of this package recognise the documents in them
    (``find_documents``). Further keywords bind variables, as in LlamaIndex's own templates.

    Attributes:
        parts: The parts in the order of the prompt.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` means a conversation if there is a
            history. The history's value is optional.
        cache_control: For Anthropic's API: ``"5m"`` or ``"1h"`` marks the ends of the prefixes
            that later requests share, and sets how long they are kept; ``None`` marks none.
        documents_once: Whether text of a document or of a tool's result that is earlier in the
            prompt is referred to, instead of said again; see
            :func:`ragcache_integrations.llama_index.documents_once`. Add the last message of the
            prompt to the history, in place of the bare question.

    Raises:
        ConfigurationError: A part is unknown, declared twice or unusable, there is no query, or
            another keyword is no variable.
    """

    parts: tuple[PromptPart, ...] = ()
    flow: Flow | None = None
    cache_control: CacheLifetime | None = None
    documents_once: bool = False

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
        documents_once: bool = False,
        prompt_type: str = PromptType.CUSTOM,
        output_parser: BaseOutputParser | None = None,
        metadata: dict[str, Any] | None = None,
        template_var_mappings: dict[str, Any] | None = None,
        function_mappings: dict[str, Callable[..., Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        layout = PromptLayout(
            parts,
            flow=flow,
            system=system,
            tools=tools,
            instructions=instructions,
            examples=examples,
            documents=documents,
            dynamic_examples=dynamic_examples,
            history=history,
            query=query,
        )
        check_lifetime(cache_control)
        check_flag("documents_once", documents_once)
        variables = {*layout.variables, *(template_var_mappings or {})}
        for name in sorted(kwargs.keys() - variables):
            arguments = [*PARTS, "flow", "cache_control", "documents_once", "prompt_type"]
            raise ConfigurationError(unknown_name("argument", name, [*arguments, *variables]))
        layout.check_bound({**(function_mappings or {}), **kwargs})
        super().__init__(
            parts=layout.parts,
            flow=flow,
            cache_control=cache_control,
            documents_once=documents_once,
            template_vars=list(layout.variables),
            kwargs={},
            metadata={**(metadata or {}), "prompt_type": prompt_type},
            output_parser=output_parser,
            template_var_mappings=template_var_mappings,
            function_mappings=function_mappings,
        )
        self.kwargs = kwargs  # not through pydantic: nodes and messages are values, too
        self._layout = layout

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it.

        Args:
            update: Values of fields that differ in the copy.
            deep: Whether mutable values are copied, too.

        Raises:
            ConfigurationError: A field is unknown, or the parts make no prompt.
        """
        own = {name: getattr(self, name) for name in ("parts", "flow", "cache_control")}
        framework = dict(update or {})
        own |= {name: framework.pop(name) for name in own.keys() & framework.keys()}
        unknown = sorted(framework.keys() - type(self).model_fields.keys())
        if unknown:
            raise assignment_error(self, unknown[0])
        duplicate = BasePromptTemplate.model_copy(self, update=framework, deep=deep)
        layout = PromptLayout(own["parts"], flow=own["flow"])
        layout.check_bound(duplicate.kwargs)
        check_lifetime(own["cache_control"])
        duplicate.__dict__.update(own, parts=layout.parts, template_vars=list(layout.variables))
        duplicate._layout = layout  # noqa: SLF001 - of the same class
        return duplicate

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
        mark = None if self.cache_control is None else self._with_cache_point
        messages = write_messages(prompt, self._message, _read_history, mark)
        messages = documents_once(messages) if self.documents_once else messages
        if self.output_parser is not None:
            messages = self.output_parser.format_messages(messages)
        return messages

    @override
    def get_template(self, llm: BaseLLM | None = None) -> str:
        """The parts' templates in the order of the prompt."""
        return "\n\n".join(part.template for part in self.parts)

    def lay_out(self, **kwargs: Any) -> LaidOutPrompt:
        """Fill the variables in, without making messages of the parts.

        Args:
            **kwargs: Values of the variables that are not bound.
        """
        return self._render(self._map_all_vars({**self.kwargs, **kwargs}))

    def cache_key(self, tenant: str = "", **kwargs: Any) -> str:
        """OpenAI's ``prompt_cache_key``, the same for all requests that share the fixed parts.

        Args:
            tenant: Separates streams of more than about fifteen requests a minute.
            **kwargs: Values of variables in fixed parts that are not bound.
        """
        values = self._layout.key_values({**self.kwargs, **kwargs})
        return openai_cache_key(self._render(values), tenant=tenant)

    def _render(self, values: Mapping[str, object]) -> LaidOutPrompt:
        return self._layout.render(
            {name: convert_documents(v, _NODES, _document) for name, v in values.items()}
        )

    def _message(self, turn: Turn, texts: MarkedTexts) -> ChatMessage:
        role = MessageRole.SYSTEM if turn.role == "system" else MessageRole.USER
        blocks: list[ContentBlock] = []
        for text, ends in texts:
            blocks.append(TextBlock(text=text))
            blocks += self._cache_points() if ends else []
        held = self.documents_once and turn.has_documents
        extras = {HELD: dump_parts(turn.pieces, turn.pieces)} if held else {}
        return ChatMessage(role=role, blocks=blocks, additional_kwargs=extras)

    def _with_cache_point(self, message: ChatMessage) -> ChatMessage:
        return message.model_copy(update={"blocks": [*message.blocks, *self._cache_points()]})

    def _cache_points(self) -> list[ContentBlock]:
        if self.cache_control is None:
            return []
        return [CachePoint(cache_control=CacheControl(**anthropic_mark(self.cache_control)))]


def _read_history(messages: Sequence[Any]) -> list[ChatMessage]:
    for message in messages:
        if not isinstance(message, ChatMessage):
            msg = f"a history must hold ChatMessage objects, got a {type(message).__name__}"
            raise ConfigurationError(msg)
    return list(messages)


_NODES = (NodeWithScore, BaseNode)


def _document(item: NodeWithScore | BaseNode) -> PromptDocument | str:
    node = item.node if isinstance(item, NodeWithScore) else item
    text = node.get_content(metadata_mode=MetadataMode.LLM)
    return PromptDocument(text, node.node_id) if text else ""
