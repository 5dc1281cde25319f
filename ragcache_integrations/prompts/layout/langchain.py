"""``RAGPromptTemplate`` for LangChain: an adapter.

See :mod:`ragcache_integrations.prompts.layout.layout`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from langchain_core.documents import Document
from langchain_core.messages import (
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.prompts.chat import BaseChatPromptTemplate
from pydantic import ConfigDict, PrivateAttr
from typing_extensions import override

from ragcache_integrations.core.checks import check_flag
from ragcache_integrations.core.knobs import FixedSettings
from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.langchain import (
    BlocksPromptValue,
    current_run,
    documents_once,
    part_block,
)
from ragcache_integrations.prompts.repeats import HELD, dump_parts

from .layout import (
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
    marked_content,
    openai_cache_key,
    turn_content,
    write_messages,
)

__all__ = ["RAGPromptTemplate"]


class RAGPromptTemplate(FixedSettings, BaseChatPromptTemplate):
    """A chat prompt whose parts are laid out so that the KV cache can be reused.

    Drop-in replacement for ``ChatPromptTemplate``. The parts are declared in any order, as keywords
    or as ``(kind, template)`` pairs; they are ordered by how they change, see
    :class:`~ragcache_integrations.prompts.layout.layout.PromptLayout`. Templates have
    ``{variables}``::

        RAGPromptTemplate(system="Answer briefly.", documents="{context}", query="{question}")

    The documents' variable takes LangChain ``Document`` objects, strings, or one string that a
    chain made of them. Every model gets plain messages; models of this package recognise the
    documents in them (``find_documents``), or get them as ``document_blocks``. For OpenAI's API,
    use ``model.bind(prompt_cache_key=prompt.cache_key())``.

    Attributes:
        parts: The parts in the order of the prompt.
        flow: ``"single_turn"`` or ``"conversation"``; ``None`` means a conversation if there is a
            history. The input may lack the history.
        document_blocks: Whether documents are ``text-plain`` content blocks of the messages, which
            :class:`~ragcache_integrations.langchain.ChatRAGCache` accepts. Other chat models may
            refuse them; models that complete text get their text. Not with ``cache_control``.
        cache_control: For Anthropic's API: ``"5m"`` or ``"1h"`` marks the ends of the prefixes
            that later requests share, and sets how long they are kept; ``None`` marks none.
        documents_once: Whether text of a document or of a tool's result that is earlier in the
            prompt is referred to, instead of said again; see
            :func:`ragcache_integrations.langchain.documents_once`. Add the last message of the
            prompt to the history, in place of the bare question.

    Raises:
        ConfigurationError: A part is unknown, declared twice or unusable, or there is no query. Or
            an attribute of a finished object is assigned; ``model_copy(update=...)`` makes an
            object with other values.
    """

    model_config = ConfigDict(extra="forbid")

    parts: tuple[PromptPart, ...] = ()
    flow: Flow | None = None
    document_blocks: bool = False
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
        if cache_control is not None and kwargs.get("document_blocks"):
            raise ConfigurationError(
                "document_blocks are for ChatRAGCache and cache_control is for Anthropic's API: "
                f"take one, got document_blocks=True and {cache_control=}"
            )
        bound = kwargs.get("partial_variables") or {}
        layout.check_bound(bound)
        history_variable = layout.history_variable
        optional = {history_variable} if history_variable else set()
        kwargs |= {
            "input_variables": sorted(set(layout.variables) - set(bound) - optional),
            "optional_variables": sorted(optional - set(bound)),
            "input_types": dict.fromkeys(optional, list[BaseMessage]),
        }
        super().__init__(
            parts=layout.parts,
            flow=flow,
            cache_control=cache_control,
            documents_once=documents_once,
            **kwargs,
        )
        self._layout = layout

    @classmethod
    @override
    def is_lc_serializable(cls) -> bool:
        return False

    @property
    @override
    def _prompt_type(self) -> str:
        return "ragcache-rag"

    @override
    def partial(self, **kwargs: Any) -> RAGPromptTemplate:
        """Bind variables in a copy: to values, or to functions that are called in each request."""
        return cast("RAGPromptTemplate", super().partial(**kwargs))

    @override
    def format_prompt(self, **kwargs: Any) -> ChatPromptValue:
        """Lay the prompt out for a chat model, or for one that completes text."""
        return self._value(self.format_messages(**kwargs))

    @override
    async def aformat_prompt(self, **kwargs: Any) -> ChatPromptValue:
        """Async version of :meth:`format_prompt`."""
        return self._value(await self.aformat_messages(**kwargs))

    def _value(self, messages: list[BaseMessage]) -> ChatPromptValue:
        kind = BlocksPromptValue if self.document_blocks else ChatPromptValue
        return kind(messages=messages)

    @override
    def format_messages(self, **kwargs: Any) -> list[BaseMessage]:
        """Lay the prompt out as messages."""
        prompt = self.lay_out(**kwargs)
        if not self.document_blocks:
            prompt.remember_documents(current_run())
        mark = None if self._mark is None else self._with_mark
        messages = write_messages(prompt, self._message, convert_to_messages, mark)
        return documents_once(messages) if self.documents_once else messages

    def lay_out(self, **kwargs: Any) -> LaidOutPrompt:
        """Fill the variables in, without making messages of the parts.

        Args:
            **kwargs: Values of the variables that are not bound.
        """
        values = self._merge_partial_and_user_variables(**kwargs)
        return self._layout.render(
            {name: convert_documents(v, Document, _document) for name, v in values.items()}
        )

    def cache_key(self, tenant: str = "", **kwargs: Any) -> str:
        """OpenAI's ``prompt_cache_key``, the same for all requests that share the fixed parts.

        Args:
            tenant: Separates streams of more than about fifteen requests a minute.
            **kwargs: Values of variables in fixed parts that are not bound.
        """
        bound = {name: v for name, v in self.partial_variables.items() if not callable(v)}
        values = self._layout.key_values({**bound, **kwargs})
        return openai_cache_key(self.lay_out(**values), tenant=tenant)

    @override
    def pretty_repr(self, html: bool = False) -> str:
        """The parts' templates in the order of the prompt."""
        return "\n\n".join(f"[{part.kind}]\n{part.template}" for part in self.parts)

    @property
    def _mark(self) -> dict[str, Any] | None:
        lifetime = self.cache_control
        return None if lifetime is None else {"cache_control": anthropic_mark(lifetime)}

    def _message(self, turn: Turn, texts: MarkedTexts) -> BaseMessage:
        kind = SystemMessage if turn.role == "system" else HumanMessage
        content = turn_content(turn, texts, self._mark)
        is_marked = not isinstance(content, str)  # within the turn, where its parts have no place
        if self.document_blocks:
            content = [part_block(piece) for piece in turn.pieces]
        if self.documents_once and turn.has_documents and not is_marked:
            return kind(
                content=content, additional_kwargs={HELD: dump_parts(turn.pieces, turn.pieces)}
            )
        return kind(content=content)

    def _with_mark(self, message: BaseMessage) -> BaseMessage:
        content = marked_content(message.content, self._mark or {})
        return message.model_copy(update={"content": content})


def _document(document: Document) -> PromptDocument | str:
    text = document.page_content
    return PromptDocument(text, document.id or "") if text else ""
