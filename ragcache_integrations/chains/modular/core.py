"""Answers prompts of a schema by the modular engine of an LLM object: the core of both adapters.

Importing it does not load torch.
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
from ragcache_integrations.modular.programs import PromptProgram
from ragcache_integrations.prompts.pml import Import, Prompt, Schema, has_chat_template

if TYPE_CHECKING:
    from ragcache_integrations.modular.engine import ModularEngine
    from ragcache_integrations.modular.generation import ModularGeneration
    from ragcache_integrations.modular.streams import AsyncModularStream, ModularStream
    from ragcache_integrations.prompts.pml import Assembly, CompiledSchema

__all__ = ["PromptLike", "ReuseReport", "SchemaAnswer", "SchemaLike", "SchemaPrompts"]

SchemaLike: TypeAlias = str | Path | Schema | PromptProgram[Any]
"""Prompt Markup Language, a file of it, a schema, or a prompt program."""

PromptLike: TypeAlias = str | Mapping[str, Any] | Prompt
"""Prompt Markup Language; imports and arguments, or a program's arguments; or a prompt."""

Stream = TypeVar("Stream")


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """How an answer reused its prompt's modules.

    Attributes:
        strategy: Name of the strategy that decided what was recomputed.
        recomputed_share: Share of the encoded tokens that were recomputed; 1 is full prefill, 0 is
            Prompt Cache.
        prompt_tokens: Length of the prompt without masked modules.
        cached_tokens: Tokens of it that were not recomputed.
        ttft: Seconds to the first token.
        masked: Names of modules that other tokens did not attend to.
        dropped: Names of modules that were left out.
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
    """A running answer.

    Attributes:
        stream: The engine's stream.
        llm: An LLM object that replays the stream as the answer to ``text``, so that the framework
            processes it like any other answer.
        text: The prompt in Prompt Markup Language, for traces.
        masked: Names of modules that other tokens don't attend to.
        dropped: Names of modules that are left out.
    """

    stream: Stream
    llm: Any
    text: str
    masked: Collection[str]
    dropped: Collection[str]

    def report(self, answer: ModularGeneration) -> ReuseReport:
        """Report the reuse of the whole answer."""
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
    """A schema, and the model that answers its prompts. Thread-safe; it starts when it is used.

    Args:
        schema: See :data:`SchemaLike`.
        llm: One of this package's LLM objects, on a modular engine.

    Attributes:
        schema: The schema of the prompts.

    Raises:
        ConfigurationError: The schema cannot be read, or the LLM object has another engine.
        MarkupError: The schema is invalid; the message has the position and what is allowed there.
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
        """Encode every module and scaffold now, for the first prompt."""
        self._encode(_engine(backend_of(self._llm)))

    async def aregister(self) -> None:
        """Async version of :meth:`register`."""
        engine = _engine(await abackend_of(self._llm))
        await asyncio.to_thread(self._encode, engine)

    # Answering

    def stream(
        self,
        prompt: PromptLike,
        text: str,
        call: Mapping[str, Any],
        *,
        chat: bool,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
    ) -> SchemaAnswer[ModularStream]:
        """Begin an answer.

        Args:
            prompt: See :data:`PromptLike`.
            text: The end of the prompt; a message of the user if the model has a chat template.
            call: Arguments of this call, such as ``max_tokens``.
            chat: Whether the framework passes messages to the LLM object.
            masked: Names of modules that other tokens don't attend to.
            dropped: Names of modules that are left out.

        Raises:
            ConfigurationError: An argument is unknown or out of range.
            MarkupError: The prompt does not conform to the schema.
            RAGCacheError: The engine could not be started.
        """
        arguments = arguments_of(self._llm, call)
        engine = _engine(backend_of(self._llm))
        parsed, assembly = self._assemble(engine, prompt, text)
        stream = engine.stream(assembly, masked=masked, dropped=dropped, **arguments)
        return self._answer(parsed, stream, masked, dropped, chat=chat)

    async def astream(
        self,
        prompt: PromptLike,
        text: str,
        call: Mapping[str, Any],
        *,
        chat: bool,
        masked: Collection[str] = (),
        dropped: Collection[str] = (),
    ) -> SchemaAnswer[AsyncModularStream]:
        """Async version of :meth:`stream`."""
        arguments = arguments_of(self._llm, call)
        engine = _engine(await abackend_of(self._llm))
        parsed, assembly = await asyncio.to_thread(self._assemble, engine, prompt, text)
        stream = await engine.astream(assembly, masked=masked, dropped=dropped, **arguments)
        return self._answer(parsed, stream, masked, dropped, chat=chat)

    def _answer(
        self,
        prompt: Prompt,
        stream: Stream,
        masked: Collection[str],
        dropped: Collection[str],
        *,
        chat: bool,
    ) -> SchemaAnswer[Stream]:
        text = _to_markup(prompt)
        message = (
            EnginePrompt(messages=(Message("user", text),)) if chat else EnginePrompt.raw(text)
        )
        # With marked documents, the prompt would differ from the one that is being answered.
        plain = self._llm.model_copy(update={"find_documents": False})
        return SchemaAnswer(stream, answered_by(plain, message, stream), text, masked, dropped)

    def _assemble(
        self, engine: ModularEngine, prompt: PromptLike, text: str
    ) -> tuple[Prompt, Assembly]:
        compiled = self._compiled(engine)
        parsed = self._parse(prompt)
        if text:
            chat = has_chat_template(engine.modular_model.tokenizer)
            parsed = parsed.with_text(text, role="user" if chat else None)
        return parsed, compiled.assemble(parsed)

    def _parse(self, prompt: object) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        if isinstance(prompt, str):
            return Prompt.from_pml(prompt)
        if not isinstance(prompt, Mapping):
            msg = f"a prompt must be a string, a mapping or a Prompt, got {prompt!r:.100}"
            raise ConfigurationError(msg)
        if self._program is not None:
            return self._program.prompt(**prompt)
        arguments, imports = _imports(prompt)
        return Prompt(self.schema.name, imports, arguments)

    def _compiled(self, engine: ModularEngine) -> CompiledSchema:
        with self._lock:
            if self._made is None:
                tokenizer = engine.modular_model.tokenizer
                if tokenizer is None:
                    msg = "the engine's model has no tokenizer, so it cannot read text"
                    raise ConfigurationError(msg)
                self._made = self.schema.compile(tokenizer)
            return self._made

    def _encode(self, engine: ModularEngine) -> None:
        compiled = self._compiled(engine)
        together = [scaffold.module for scaffold in compiled.scaffolds]
        modules = [*compiled.modules.values(), *together]
        engine.modular_model.encode(modules, namespace=self._llm.namespace)


def _engine(backend: Any) -> ModularEngine:
    engine: ModularEngine = backend  # SchemaPrompts checks that the LLM object has one
    return engine


def _schema(schema: object) -> Schema:
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, PromptProgram):
        return schema.schema
    if isinstance(schema, Path):
        try:
            text = schema.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"the schema in {str(schema)!r} cannot be read: {error}"
            raise ConfigurationError(msg) from error
        return Schema.from_pml(text, source=str(schema))
    if isinstance(schema, str):
        return Schema.from_pml(schema)
    msg = f"schema must be markup, a Path, a Schema or a prompt program, got {schema!r:.100}"
    raise ConfigurationError(msg)


def _imports(contents: Mapping[str, Any]) -> tuple[dict[str, str], tuple[Import, ...]]:
    """Split contents into arguments, which are strings, and imports: mappings or ``True``."""
    arguments: dict[str, str] = {}
    imports: list[Import] = []
    for name, value in contents.items():
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


def _to_markup(prompt: Prompt) -> str:
    try:
        return prompt.to_pml()
    except MarkupError:  # it has a character that markup cannot express
        return repr(prompt)
