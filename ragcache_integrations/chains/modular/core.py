"""Answers prompts of a schema by the engine of an LLM object: the core of both adapters.

The vLLM engine gets a prompt's tokens, in which modules are documents, so that ``reuse="anywhere"``
finds each of them in every prompt. The modular engine gets modules at their positions. Importing
this does not load torch.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeAlias

from ragcache_integrations.core.flows import Call, Flow, in_thread
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Message, RenderedPrompt
from ragcache_integrations.core.prompt import Prompt as EnginePrompt
from ragcache_integrations.errors import ConfigurationError, MarkupError
from ragcache_integrations.llms.backend_kinds import is_modular
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.handover import (
    abackend_of,
    answered_by,
    arguments_of,
    backend_of,
)
from ragcache_integrations.llms.knobs import MODULAR
from ragcache_integrations.prompts.pml import (
    Assembly,
    CompiledSchema,
    Import,
    Module,
    Prompt,
    Schema,
    has_chat_template,
)

__all__ = ["PromptLike", "ReuseReport", "SchemaAnswer", "SchemaLike", "SchemaPrompts"]

SchemaLike: TypeAlias = str | Path | Schema
"""Prompt Markup Language, a file of it, or a schema."""

PromptLike: TypeAlias = str | Mapping[str, Any] | Prompt
"""Prompt Markup Language; imports and arguments; or a prompt."""


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """How an answer reused its prompt's modules.

    Attributes:
        strategy: Name of the strategy that decided what was recomputed; on the vLLM engine the kind
            of reuse, ``anywhere`` or ``prefix``.
        recomputed_share: Share of the encoded tokens that were recomputed; 1 is full prefill, 0 is
            Prompt Cache. The vLLM engine does not report it: ``None``.
        prompt_tokens: Length of the prompt without masked modules.
        cached_tokens: Tokens of it that were not recomputed.
        ttft: Seconds to the first token. The vLLM engine does not report them: ``None``.
        masked: Names of modules that other tokens did not attend to.
        dropped: Names of modules that were left out.
    """

    strategy: str
    recomputed_share: float | None
    prompt_tokens: int
    cached_tokens: int
    ttft: float | None
    masked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaAnswer:
    """A running answer.

    Attributes:
        stream: The engine's stream.
        llm: An LLM object that replays the stream as the answer to ``text``, so that the framework
            processes it like any other answer.
        text: The prompt in Prompt Markup Language, for traces.
        reuse: The kind of reuse, if the engine does not report a strategy.
        left_out: By ``masked`` names of modules that other tokens don't attend to, and by
            ``dropped`` names of those that are left out.
    """

    stream: Any
    llm: Any
    text: str
    reuse: str
    left_out: Mapping[str, Collection[str]]

    def report(self) -> Generator[Call, Any, ReuseReport]:
        """Report the reuse of the whole answer, when it has ended."""
        answer = yield Call(
            partial(methodcaller("result"), self.stream),
            partial(methodcaller("aresult"), self.stream),
        )
        return ReuseReport(
            strategy=getattr(answer, "strategy", self.reuse),
            recomputed_share=getattr(answer, "recomputed_share", None),
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            ttft=getattr(answer, "ttft", None),
            **{name: tuple(modules) for name, modules in self.left_out.items()},
        )


class SchemaPrompts:
    """A schema, and the model that answers its prompts. Thread-safe; it starts when it is used.

    Args:
        schema: See :data:`SchemaLike`.
        llm: One of this package's LLM objects, on an engine of this machine.

    Attributes:
        schema: The schema of the prompts.

    Raises:
        ConfigurationError: The schema cannot be read, or the LLM object has no such engine.
        MarkupError: The schema is invalid; the message has the position and what is allowed there.
    """

    def __init__(self, schema: object, llm: object) -> None:
        if not isinstance(llm, BaseRAGCacheLLM) or not _has_tokens(llm):
            raise ConfigurationError(
                "llm must be one of this package with an engine of this machine, because a server "
                f"gets text and no modules: got {llm!r:.100}"
            )
        self._llm = llm
        self.schema = _schema(schema)
        self._lock = make_lock()
        self._made: CompiledSchema | None = None

    # Encoding ahead

    def register(self) -> Flow:
        """Encode every module and scaffold now, for the first prompt.

        Raises:
            ConfigurationError: The engine is vLLM's with ``reuse="prefix"``.
        """
        engine = yield Call(partial(backend_of, self._llm), partial(abackend_of, self._llm))
        compiled = yield in_thread(self._compiled, engine)
        tenant = {"namespace": self._llm.namespace}
        if is_modular(engine):
            encode = partial(engine.modular_model.encode, _modules(compiled), **tenant)
            yield in_thread(encode)
        else:
            documents = compiled.documents()
            yield Call(
                partial(engine.encode, documents, **tenant),
                partial(engine.aencode, documents, **tenant),
            )

    # Answering

    def stream(
        self,
        prompt: PromptLike,
        text: str,
        call: Mapping[str, Any],
        left_out: Mapping[str, Collection[str]],
        *,
        chat: bool,
    ) -> Generator[Call, Any, SchemaAnswer]:
        """Begin an answer.

        Args:
            prompt: See :data:`PromptLike`.
            text: The end of the prompt; a message of the user if the model has a chat template.
            call: Arguments of this call, such as ``max_tokens``.
            left_out: By ``masked`` names of modules that other tokens don't attend to, and by
                ``dropped`` names of those that are left out.
            chat: Whether the framework passes messages to the LLM object.

        Raises:
            ConfigurationError: An argument is unknown, out of range, or not for this engine.
            MarkupError: The prompt does not conform to the schema.
            RAGCacheError: The engine could not be started.
        """
        arguments = _arguments(self._llm, call)
        engine = yield Call(partial(backend_of, self._llm), partial(abackend_of, self._llm))
        arguments |= _left_out(engine, left_out)
        parsed, made = yield in_thread(self._make, engine, prompt, text)
        stream = yield Call(
            partial(engine.stream, made, **arguments),
            partial(engine.astream, made, **arguments),
        )
        markup = _to_markup(parsed)
        message = (
            EnginePrompt(messages=(Message("user", markup),)) if chat else EnginePrompt.raw(markup)
        )
        # With marked documents, the prompt would differ from the one that is being answered.
        plain = self._llm.model_copy(update={"find_documents": False})
        llm = answered_by(plain, message, stream)
        return SchemaAnswer(stream, llm, markup, _reuse(engine, arguments), left_out)

    def _make(
        self, engine: Any, prompt: PromptLike, text: str
    ) -> tuple[Prompt, Assembly | RenderedPrompt]:
        """The prompt, and the form in which the engine takes it."""
        compiled = self._compiled(engine)
        parsed = self._parse(prompt)
        if text:
            chat = has_chat_template(engine.tokenizer)
            parsed = parsed.with_text(text, role="user" if chat else None)
        make = compiled.assemble if is_modular(engine) else compiled.render
        return parsed, make(parsed)

    def _parse(self, prompt: object) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        if isinstance(prompt, str):
            return Prompt.from_pml(prompt)
        if not isinstance(prompt, Mapping):
            msg = f"a prompt must be a string, a mapping or a Prompt, got {prompt!r:.100}"
            raise ConfigurationError(msg)
        arguments, imports = _imports(prompt)
        return Prompt(self.schema.name, imports, arguments)

    def _compiled(self, engine: Any) -> CompiledSchema:
        with self._lock:
            if self._made is None:
                self._made = self.schema.compile(engine.tokenizer)
            return self._made


def _has_tokens(llm: BaseRAGCacheLLM) -> bool:
    """Whether an LLM object has an engine that takes prompts in tokens."""
    engine = llm.engine
    return llm.base_url is None and (
        engine is None or engine == MODULAR or hasattr(engine, "tokenizer")
    )


def _arguments(llm: BaseRAGCacheLLM, call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call for the engine."""
    for name in ("documents", "tools"):
        if call.get(name):
            msg = f"a prompt of modules takes no {name}: make it a part of the schema"
            raise ConfigurationError(msg)
    return arguments_of(llm, call)


def _left_out(
    engine: Any, left_out: Mapping[str, Collection[str]]
) -> Mapping[str, Collection[str]]:
    """The modules that are left out, as arguments of the engine."""
    if is_modular(engine):
        return left_out
    if any(left_out.values()):
        raise ConfigurationError(
            "masked and dropped are for the engine of ragcache-modular, which leaves modules out "
            f'without moving others (engine="{MODULAR}"): here, import fewer modules'
        )
    return {}


def _reuse(engine: Any, arguments: Mapping[str, Any]) -> str:
    """The kind of reuse of a call; what the modular engine does is in its answer."""
    return str(arguments.get("reuse") or getattr(engine, "reuse", ""))


def _modules(compiled: CompiledSchema) -> list[Module]:
    together = [scaffold.module for scaffold in compiled.scaffolds]
    return [*compiled.modules.values(), *together]


def _schema(schema: object) -> Schema:
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, Path):
        try:
            text = schema.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = f"the schema in {str(schema)!r} cannot be read: {error}"
            raise ConfigurationError(msg) from error
        return Schema.from_pml(text, source=str(schema))
    if isinstance(schema, str):
        return Schema.from_pml(schema)
    raise ConfigurationError(f"schema must be markup, a Path or a Schema, got {schema!r:.100}")


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
                raise ConfigurationError(
                    f"{name!r} must be a string (an argument), a mapping or True (an import), "
                    f"or False or None (left out), got {value!r:.100}"
                )
    return arguments, tuple(imports)


def _to_markup(prompt: Prompt) -> str:
    try:
        return prompt.to_pml()
    except MarkupError:  # it has a character that markup cannot express
        return repr(prompt)
