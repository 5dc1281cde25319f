"""Schemas and their prompts as a LangChain Runnable: an adapter, see `.modular`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict
from pydantic import Field, PrivateAttr, SkipValidation, model_validator
from typing_extensions import override

from ragcache_integrations.chains.langchain import StreamedRunnable, chunk_piece
from ragcache_integrations.core.flows import Each, Flow, aoutputs, entering, outputs
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.langchain.translation import langchain_errors, own_call
from ragcache_integrations.retrievers.sharing import Identity

from .core import PromptLike, SchemaLike, SchemaPrompts

__all__ = ["ModularPrompt"]

_OWN = ("masked", "dropped")


class ModularPrompt(StreamedRunnable[PromptLike]):
    """Answers prompts that are put together from the modules of a schema (Prompt Cache §3.2).

    Each module of the schema is encoded once, and its KV cache is reused in every prompt, at any
    place. A call names the modules that it uses and adds new text::

        trip = ModularPrompt(schema=Path("trip.xml"), llm=ChatRAGCache(reuse="anywhere"))
        trip.invoke('<prompt schema="trip"><miami/><user>Where to surf?</user></prompt>')
        trip.invoke({"miami": True, "plan": {"duration": "3 days"}, "input": "Where to surf?"})

    The input is Prompt Markup Language, a
    :class:`~ragcache_integrations.prompts.pml.prompt.Prompt`, or a dict of the contents of
    ``<prompt>``, where a string is an argument, a dict is an import with its contents, and ``True``
    an import without any. The dict has the new text under ``input_key``, in which nothing is
    markup. The output is a dict of ``answer`` (a string, which streams return in pieces) and
    ``reuse`` (a :class:`~ragcache_integrations.chains.modular.core.ReuseReport`).

    Arguments of a call are the model's, such as ``max_tokens``. With ``engine="modular"``,
    ``masked`` and ``dropped`` list paths in the schema of modules that other tokens of the prompt
    don't attend to, or that are left out. In callbacks, the model's run is a child of this chain's
    run.

    Attributes:
        schema_: The argument ``schema``: Prompt Markup Language, a ``Path`` of a file, or a
            ``Schema``.
        llm: Answers: ``ChatRAGCache`` or ``RAGCacheLLM`` on an engine of this machine, by default
            ``ChatRAGCache(reuse="anywhere")``. ``reuse="prefix"`` is exact, and reuses modules
            only after the same text; with ``engine="modular"``, ``strategy`` decides what is
            recomputed.
        input_key: Name of the new text in a dict.

    Raises:
        ConfigurationError: An argument is unknown, out of range or missing.
        MarkupError: The schema is invalid; the message has the position and what is allowed there.
    """

    # pydantic has a method of the plain name.
    schema_: Annotated[SchemaLike, SkipValidation] = Field(alias="schema")
    llm: Annotated[Runnable[Any, Any], SkipValidation] = Field(
        default_factory=lambda: ChatRAGCache(reuse="anywhere")
    )
    input_key: str = "input"

    _prompts: SchemaPrompts = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _rename_schema(cls, values: Any) -> Any:
        """Accept the attribute's name, too, which LangChain's configurable fields use."""
        if isinstance(values, dict) and "schema_" in values:
            return {"schema" if name == "schema_" else name: v for name, v in values.items()}
        return values

    def model_post_init(self, context: Any, /) -> None:
        """Read the schema."""
        super().model_post_init(context)
        schema = self.schema_ if isinstance(self.schema_, str | Path) else Identity(self.schema_)
        self._prompts = self.shared_state.core(
            ("prompts", schema, Identity(self.llm)), lambda: SchemaPrompts(self.schema_, self.llm)
        )

    def register(self) -> None:
        """Encode every module now, for the first prompt. This starts the model."""
        list(outputs(self._prompts.register()))

    async def aregister(self) -> None:
        """Async version of :meth:`register`."""
        [None async for _ in aoutputs(self._prompts.register())]

    @override
    def _flow(
        self, value: PromptLike, config: RunnableConfig, call: dict[str, Any], *, streamed: bool
    ) -> Flow:
        del streamed  # the whole answer is the sum of the pieces
        prompt, text = self._read(value)
        left_out = {name: call[name] for name in _OWN if name in call}
        model = {name: value for name, value in call.items() if name not in _OWN}
        with langchain_errors():
            answer = yield from self._prompts.stream(
                prompt, text, own_call(model), left_out, chat=self._chat
            )
        yield entering(answer.stream)
        given = (self._input(answer.text), config)
        yield Each(
            partial(answer.llm.stream, *given, **model),
            partial(answer.llm.astream, *given, **model),
            chunk_piece,
        )
        yield AddableDict(reuse=(yield from answer.report()))

    @property
    def _chat(self) -> bool:
        return isinstance(self.llm, BaseChatModel)

    def _input(self, text: str) -> Any:
        return [HumanMessage(text)] if self._chat else text

    def _read(self, value: PromptLike) -> tuple[PromptLike, str]:
        """The prompt, and its new text."""
        if not isinstance(value, Mapping):
            return value, ""
        text = value.get(self.input_key, "")
        if not isinstance(text, str):
            raise ConfigurationError(f"{self.input_key!r} must be a string, got {text!r:.100}")
        return {name: item for name, item in value.items() if name != self.input_key}, text
