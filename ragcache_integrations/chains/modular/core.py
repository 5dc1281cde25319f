"""Prompts of a schema, answered by the modular engine of an LLM object: the core of both adapters.

Importing this loads no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Message
from ragcache_integrations.core.prompt import Prompt as EnginePrompt
from ragcache_integrations.errors import ConfigurationError, MarkupError
from ragcache_integrations.llms.backend_kinds import MODULAR, is_modular
from ragcache_integrations.llms.handover import (
    abackend_of,
    answered_by,
    arguments_of,
    backend_of,
)
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.modular.pml.chat_roles import has_chat_template
from ragcache_integrations.modular.pml.prompt import Import, Prompt
from ragcache_integrations.modular.pml.schema import Schema
from ragcache_integrations.modular.programs.program import PromptProgram

if TYPE_CHECKING:
    from ragcache_integrations.modular.engine import ModularEngine
    from ragcache_integrations.modular.generation import ModularGeneration
    from ragcache_integrations.modular.layout import Assembly
    from ragcache_integrations.modular.pml.compiled import CompiledSchema
    from ragcache_integrations.modular.streams import AsyncModularStream, ModularStream

__all__ = ["PromptLike", "ReuseReport", "SchemaAnswer", "SchemaLike", "SchemaPrompts"]

SchemaLike: TypeAlias = str | Path | Schema | PromptProgram[Any]
"""Prompt Markup Language, a file of it, a schema, or a prompt program."""

PromptLike: TypeAlias = str | Mapping[str, Any] | Prompt
"""Prompt Markup Language; imports and arguments, or a program's arguments; or a prompt."""

Stream = TypeVar("Stream")


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """What an answer reused of its prompt's modules.

    Attributes:
        strategy: Name of the strategy that chose what to compute again.
        recomputed_share: Of the tokens that were encoded already, the share computed again; 1 is
            full prefill, 0 is Prompt Cache.
        prompt_tokens: Length of the prompt, modules that nothing may see left out.
        cached_tokens: Those of them that were served as they had been encoded.
        ttft: Seconds to the first token.
        masked: Names of modules that nothing could see.
        dropped: Names of modules that were left out altogether.
    """

    strategy: str
    recomputed_share: float
    prompt_tokens: int
    cached_tokens: int
    ttft: float
    masked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaAnswer(Generic[Stream]):
    """An answer in the making.

    Attributes:
        stream: What is generated.
        llm: Tells it, with all that its framework does with an answer, when asked ``text``.
        text: The prompt in Prompt Markup Language, for traces.
        masked: Names of modules that nothing may see.
        dropped: Names of modules that are left out.
    """

    stream: Stream
    llm: Any
    text: str
    masked: Collection[str]
    dropped: Collection[str]

    def report(self, answer: ModularGeneration) -> ReuseReport:
        """What the whole answer reused."""
        return ReuseReport(
            strategy=answer.strategy,
            recomputed_share=answer.recomputed_share,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            ttft=answer.ttft,
            masked=tuple(self.masked),
            dropped=tuple(self.dropped),
        )


class SchemaPrompts:
    """A schema, and the model that answers its prompts. Thread-safe; nothing starts before use.

    Args:
        schema: See :data:`SchemaLike`.
        llm: One of this package's LLM objects, on a modular engine.

    Attributes:
        schema: What prompts are held to.

    Raises:
        ConfigurationError: The schema cannot be read, or the LLM object is none of these.
        MarkupError: It is no schema; the message says where, and what was expected.
    """

    def __init__(self, schema: object, llm: object) -> None:
        if not isinstance(llm, LLMKnobs) or not (llm.engine == MODULAR or is_modular(llm.engine)):
            msg = f'llm must be one of this package with engine="{MODULAR}", got {llm!r:.100}'
            raise ConfigurationError(msg)
        self._llm = llm
        self._program = schema if isinstance(schema, PromptProgram) else None
        self.schema = _schema(schema)
        self._lock = make_lock()
        self._made: CompiledSchema | None = None

    # Encoding ahead

    def register(self) -> None:
        """Encode every module and scaffold, so that the first prompt finds them."""
        self._encode(_engine(backend_of(self._llm)))

    async def aregister(self) -> None:
        """The async twin of :meth:`register`."""
        engine = _engine(await abackend_of(self._llm))
        await asyncio.to_thread(self._encode, engine)

    # Answering

    def stream(
        self,
        given: PromptLike,
        text: str,
        call: Mapping[str, Any],
        *,
        chat: bool,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
    ) -> SchemaAnswer[ModularStream]:
        """Begin an answer.

        Args:
            given: See :data:`PromptLike`.
            text: Stands at the end; said by the user where the model has a chat template.
            call: Arguments of this call alone, such as ``max_tokens``.
            chat: Whether the LLM object will be asked in messages.
            masked: Names of modules that nothing may see.
            dropped: Names of modules that are left out.

        Raises:
            ConfigurationError: An argument is unknown or out of its range.
            MarkupError: The prompt does not conform to the schema.
            RAGCacheError: What making the engine ran into.
        """
        arguments = arguments_of(self._llm, call)
        engine = _engine(backend_of(self._llm))
        prompt, assembly = self._assemble(engine, given, text)
        stream = engine.stream(assembly, masked=masked, dropped=dropped, **arguments)
        return self._answer(prompt, stream, masked, dropped, chat=chat)

    async def astream(
        self,
        given: PromptLike,
        text: str,
        call: Mapping[str, Any],
        *,
        chat: bool,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
    ) -> SchemaAnswer[AsyncModularStream]:
        """The async twin of :meth:`stream`."""
        arguments = arguments_of(self._llm, call)
        engine = _engine(await abackend_of(self._llm))
        prompt, assembly = await asyncio.to_thread(self._assemble, engine, given, text)
        stream = await engine.astream(assembly, masked=masked, dropped=dropped, **arguments)
        return self._answer(prompt, stream, masked, dropped, chat=chat)

    def _answer(
        self,
        prompt: Prompt,
        stream: Stream,
        masked: Collection[str],
        dropped: Collection[str],
        *,
        chat: bool,
    ) -> SchemaAnswer[Stream]:
        text = _shown(prompt)
        asked = EnginePrompt(messages=(Message("user", text),)) if chat else EnginePrompt.raw(text)
        # Found documents would make another prompt of it than the one that is being answered.
        plain = self._llm.model_copy(update={"find_documents": False})
        return SchemaAnswer(stream, answered_by(plain, asked, stream), text, masked, dropped)

    def _assemble(
        self, engine: ModularEngine, given: PromptLike, text: str
    ) -> tuple[Prompt, Assembly]:
        compiled = self._compiled(engine)
        prompt = self._prompt(given)
        if text:
            chat = has_chat_template(engine.modular_model.tokenizer)
            prompt = prompt.with_text(text, role="user" if chat else None)
        return prompt, compiled.assemble(prompt)

    def _prompt(self, given: object) -> Prompt:
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            return Prompt.from_pml(given)
        if not isinstance(given, Mapping):
            msg = f"a prompt must be a string, a mapping or a Prompt, got {given!r:.100}"
            raise ConfigurationError(msg)
        if self._program is not None:
            return self._program.prompt(**given)
        arguments, imports = _imports(given)
        return Prompt(self.schema.name, imports, arguments)

    def _compiled(self, engine: ModularEngine) -> CompiledSchema:
        with self._lock:
            if self._made is None:
                tokenizer = engine.modular_model.tokenizer
                if tokenizer is None:
                    msg = "the engine's model was given without a tokenizer: it reads no text"
                    raise ConfigurationError(msg)
                self._made = self.schema.compile(tokenizer)
            return self._made

    def _encode(self, engine: ModularEngine) -> None:
        compiled = self._compiled(engine)
        together = [scaffold.module for scaffold in compiled.scaffolds]
        modules = [*compiled.modules.values(), *together]
        engine.modular_model.encode(modules, namespace=self._llm.namespace)


def _engine(backend: Any) -> ModularEngine:
    engine: ModularEngine = backend  # as the LLM object was checked to have
    return engine


def _schema(given: object) -> Schema:
    if isinstance(given, Schema):
        return given
    if isinstance(given, PromptProgram):
        return given.schema
    if isinstance(given, Path):
        try:
            text = given.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"the schema in {str(given)!r} cannot be read: {error}"
            raise ConfigurationError(msg) from error
        return Schema.from_pml(text, source=str(given))
    if isinstance(given, str):
        return Schema.from_pml(given)
    msg = f"schema must be markup, a Path, a Schema or a prompt program, got {given!r:.100}"
    raise ConfigurationError(msg)


def _imports(given: Mapping[str, Any]) -> tuple[dict[str, str], tuple[Import, ...]]:
    """Arguments are strings; what is imported is a mapping of what stands in it, or ``True``."""
    arguments: dict[str, str] = {}
    imports: list[Import] = []
    for name, value in given.items():
        match value:
            case str():
                arguments[name] = value
            case True:
                imports.append(Import(name))
            case False | None:
                pass
            case Mapping():
                imports.append(Import(name, *_imports(value)))
            case _:
                msg = (
                    f"{name!r} must be a string (an argument), a mapping or True (an import), "
                    f"or False or None (left out), got {value!r:.100}"
                )
                raise ConfigurationError(msg)
    return arguments, tuple(imports)


def _shown(prompt: Prompt) -> str:
    try:
        return prompt.to_pml()
    except MarkupError:  # it holds a character that markup has no way to write
        return repr(prompt)
