"""The LLM classes for LangChain (see :mod:`ragcache_integrations.llms.base`), and graph steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import (
    BaseChatModel,
    BaseLanguageModel,
    BaseLLM,
    LanguageModelInput,
    ModelProfile,
)
from langchain_core.language_models.base import LangSmithParams, LanguageModelOutputVar
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.outputs import Generation as LangChainGeneration
from langchain_core.outputs import GenerationChunk as LangChainChunk
from langchain_core.prompt_values import ChatPromptValue, PromptValue
from langchain_core.runnables import Runnable, ensure_config
from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, model_validator
from typing_extensions import override

from ragcache_integrations import __version__
from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.checks import check_choice
from ragcache_integrations.core.generation import Generation, GenerationChunk, Usage
from ragcache_integrations.core.prompt import Prompt, choice_name
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.base import CALL_NAMES, BaseRAGCacheLLM
from ragcache_integrations.llms.headers import hidden, hides_headers
from ragcache_integrations.llms.openai import extra_texts, usage_fields
from ragcache_integrations.llms.steps import NO_STEP, StepHint, step_hints
from ragcache_integrations.prompts.langchain import BlocksPromptValue, run_around, watch_retrievers
from ragcache_integrations.prompts.recognition import UNKNOWN

from .translation import (
    StreamedCalls,
    WholeAnswerParser,
    called_tools,
    chat_prompt,
    end_metadata,
    generation_info,
    langchain_errors,
    logprobs_metadata,
    own_call,
    parsed_with_raw,
    schema_arguments,
    tool_definition,
    usage_metadata,
)

__all__ = ["ChatRAGCache", "RAGCacheLLM", "hint_steps"]

Graph = TypeVar("Graph")

_ENTRANCES = ("generate", "agenerate", "stream", "astream")

STRUCTURED_OUTPUT_METHODS = ("json_schema", "json_mode", "function_calling")


class _LangChainKnobs(BaseLanguageModel[LanguageModelOutputVar], BaseRAGCacheLLM):
    """Base class of the chat model and the text model."""

    @model_validator(mode="after")
    def _set_ragcache_version(self) -> Self:
        self._add_version("ragcache-integrations", __version__)
        return self

    @override
    def _watch_retrievers(self) -> None:
        watch_retrievers()

    @override
    def _step_hint(self) -> StepHint:
        return _graph_step()

    @property
    @override
    def _identifying_params(self) -> dict[str, Any]:
        return self._identity()

    @override
    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return super()._get_ls_params(stop=stop or self._stop_strings(), **kwargs)

    @override
    def get_token_ids(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self._source.get().tokenize(text)

    @override
    def get_num_tokens(self, text: str) -> int:
        """Count the tokens of a text, without special tokens."""
        if self.custom_get_token_ids is not None:
            return len(self.custom_get_token_ids(text))
        return self._source.get().count_tokens(text)

    def _request(
        self, prompt: Prompt, stop: list[str] | None, run_manager: Any, call: dict[str, Any]
    ) -> tuple[Prompt, dict[str, Any]]:
        return self._ready(prompt, stop, own_call(call), run_around(run_manager))


@hides_headers(*_ENTRANCES)
class ChatRAGCache(_LangChainKnobs[AIMessage], BaseChatModel):
    """A chat model on the bundled engine, or on any OpenAI-compatible server.

    All knobs: :class:`~ragcache_integrations.llms.knobs.LLMKnobs`. Documents keep their KV caches
    when the model knows them: those that LangChain's retrievers found are recognised (see
    ``find_documents``); others are given as ``{"type": "text-plain", "text": ..., "id": ...}``
    blocks of a message, or as ``documents=`` at the call or by ``.bind(documents=docs)``, LangChain
    ``Document`` objects or strings whose text is verbatim in the messages.

    ``usage_metadata["input_token_details"]["cache_read"]`` is the number of prompt tokens that were
    not computed again. With ``engine="modular"``, ``response_metadata`` also has the ``strategy``
    and the ``recomputed_share`` of the encoded tokens that were computed again. Errors for which
    LangChain has an exception are both that exception and ours; a prompt that is too long is its
    ``ContextOverflowError``. What a server's model thought is in
    ``additional_kwargs["reasoning_content"]`` and in ``content_blocks``, and goes back with the
    message; why it refuses is in ``additional_kwargs["refusal"]``. ``profile`` has the context
    window if ``max_model_len`` or a running engine says it.

    Attributes:
        streaming: Whether ``invoke`` streams, for callbacks that need tokens as they come.
    """

    model_config = ConfigDict(extra="forbid")  # said here too for type checkers

    streaming: bool = False

    @override
    def _resolve_model_profile(self) -> ModelProfile | None:
        window = self._known_window()
        if window is None:
            return None
        return ModelProfile(max_input_tokens=window, text_inputs=True, text_outputs=True)

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        if update and self.profile == self._resolve_model_profile():
            update = {"profile": None, **update}  # which is resolved again
        return super().model_copy(update=update, deep=deep)

    @property
    @override
    def _llm_type(self) -> str:
        return "ragcache-chat"

    @override
    def _get_invocation_params(
        self, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        return super()._get_invocation_params(stop, **hidden(kwargs))  # for callbacks

    @override
    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call tools.

        Args:
            tools: LangChain tools, functions, pydantic classes, ``TypedDict`` classes, JSON schemas
                or definitions in OpenAI's form.
            tool_choice: ``auto`` or ``None`` leaves it to the model, ``none`` or ``False`` forbids
                calls, ``any``, ``required`` or ``True`` has one called at least, and the name of a
                tool has that one called. On the local engine a grammar holds forced calls to the
                tool's schema.
            parallel_tool_calls: Whether one answer may call several tools; ``None`` for yes.
            strict: Whether a server must hold arguments to the schemas; ``None`` leaves it to the
                server.
            **kwargs: Other arguments of every call, such as ``max_tokens``.

        Raises:
            ConfigurationError: An argument is wrong, or the model has not learnt to call tools; the
                first call raises that if the engine does not run yet.
        """
        definitions = [tool_definition(tool, strict) for tool in tools]
        call: dict[str, Any] = {"tools": definitions, **kwargs}
        if tool_choice is not None:
            call["tool_choice"] = choice_name(tool_choice)
        if parallel_tool_calls is not None:
            call["parallel_tool_calls"] = parallel_tool_calls
        stop = {"stop"}  # which LangChain passes on for itself
        self._check_tools(own_call({name: call[name] for name in call.keys() - stop}))
        return self.bind(**call)

    @override
    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: str = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Make answers that satisfy a schema, by a grammar that lets no other token through.

        An answer that is no whole JSON, such as one that ``max_tokens`` cut off, or a refusal, is a
        :class:`~ragcache_integrations.errors.StructuredOutputError`, which is LangChain's
        ``OutputParserException`` too.

        Args:
            schema: A pydantic class, a ``TypedDict``, a JSON schema, an OpenAI function or a
                ``response_format``.
            include_raw: Return ``{"raw": message, "parsed": ..., "parsing_error": ...}``.
            method: ``json_schema``, ``json_mode`` or ``function_calling``: all the same here.
            strict: Whether a server must keep to the schema in its strict mode, as
                :class:`~ragcache_integrations.engine.SamplingOptions` says; the engine's own
                grammar is always strict.
            **kwargs: Arguments of every call, such as ``max_tokens``.

        Raises:
            ConfigurationError: The schema can't be read or, with ``strict=True`` for a server, has
                no strict form, an argument is unknown, or the engine is modular, which has no
                grammars.
        """
        check_choice("method", method, STRUCTURED_OUTPUT_METHODS)
        grammar = schema_arguments(schema, strict)
        call = self._call(None, own_call(kwargs) | grammar)
        model = self.bind(
            **grammar,
            ls_structured_output_format={"kwargs": {"method": method}, "schema": schema},
            **kwargs,
        )
        parser = WholeAnswerParser.of(schema, call.options.max_tokens)
        return parsed_with_raw(model, parser) if include_raw else model | parser

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with langchain_errors():
            prompt, arguments = self._chat_request(messages, stop, run_manager, kwargs)
            answer = self._source.get().generate(prompt, **arguments)
        return self._chat_result(answer)

    @override
    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with langchain_errors():
            prompt, arguments = self._chat_request(messages, stop, run_manager, kwargs)
            backend = await self._source.aget()
            answer = await backend.agenerate(prompt, **arguments)
        return self._chat_result(answer)

    @override
    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with langchain_errors():
            prompt, arguments = self._chat_request(messages, stop, run_manager, kwargs)
            calls = StreamedCalls()
            with closing(self._source.get().stream(prompt, **arguments)) as chunks:
                for chunk in chunks:
                    yield self._chat_chunk(chunk, calls)

    @override
    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with langchain_errors():
            prompt, arguments = self._chat_request(messages, stop, run_manager, kwargs)
            calls = StreamedCalls()
            backend = await self._source.aget()
            async with aclosing(await backend.astream(prompt, **arguments)) as chunks:
                async for chunk in chunks:
                    yield self._chat_chunk(chunk, calls)

    def _chat_request(
        self, messages: list[BaseMessage], stop: list[str] | None, run_manager: Any, call: Any
    ) -> tuple[Prompt, dict[str, Any]]:
        return self._request(chat_prompt(messages, self.model_name), stop, run_manager, call)

    def _chat_result(self, answer: Generation) -> ChatResult:
        message = AIMessage(
            content=answer.text,
            **called_tools(answer.tool_calls),
            usage_metadata=usage_metadata(answer.usage),
            additional_kwargs=extra_texts(answer.reasoning, answer.refusal),
            response_metadata={
                "model_name": self.model_name,
                **end_metadata(answer),
                **answer.reuse,
                **logprobs_metadata(answer.logprobs),
            },
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chat_chunk(self, chunk: GenerationChunk, calls: StreamedCalls) -> ChatGenerationChunk:
        metadata = logprobs_metadata(chunk.logprobs)
        message = AIMessageChunk(
            content=chunk.text,
            tool_call_chunks=calls.add(chunk),
            additional_kwargs=extra_texts(chunk.reasoning, chunk.refusal),
            response_metadata=metadata,
        )
        if chunk.finish_reason is not None:
            # Once in a stream: LangChain concatenates these when it adds the chunks up.
            metadata |= {"model_name": self.model_name, **end_metadata(chunk), **chunk.reuse}
            message.response_metadata = metadata
            message.chunk_position = "last"
            if chunk.usage is not None:
                message.usage_metadata = usage_metadata(chunk.usage)
        return ChatGenerationChunk(message=message)


@hides_headers(*_ENTRANCES)
class RAGCacheLLM(_LangChainKnobs[str], BaseLLM):
    """Text in, text out on the bundled engine, or on any OpenAI-compatible server.

    The prompt goes to the model as it is, without a chat template; for conversations and
    instruction-tuned models there is :class:`ChatRAGCache`. All knobs:
    :class:`~ragcache_integrations.llms.knobs.LLMKnobs`; ``documents=`` as there.
    """

    model_config = ConfigDict(extra="forbid")  # said here too for type checkers

    @property
    @override
    def _llm_type(self) -> str:
        return "ragcache"

    @property
    @override
    def _identifying_params(self) -> dict[str, Any]:
        return super()._identifying_params | (_call_arguments.get() or {})

    # LangChain's cache of answers goes by the parameters, and knows nothing of a call's arguments.

    @override
    def generate(self, *args: Any, **kwargs: Any) -> LLMResult:
        """Answer prompts, as LangChain's base class has it."""
        with context_value(_call_arguments, _ours(kwargs)):
            return super().generate(*args, **kwargs)

    @override
    async def agenerate(self, *args: Any, **kwargs: Any) -> LLMResult:
        """Async version of :meth:`generate`."""
        with context_value(_call_arguments, _ours(kwargs)):
            return await super().agenerate(*args, **kwargs)

    @override
    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        with langchain_errors():
            ready, arguments = self._request_all(prompts, stop, run_manager, kwargs)
            answers = self._source.get().generate_batch(ready, **arguments)
        return self._llm_result(answers)

    @override
    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        with langchain_errors():
            ready, arguments = self._request_all(prompts, stop, run_manager, kwargs)
            backend = await self._source.aget()
            answers = await backend.agenerate_batch(ready, **arguments)
        return self._llm_result(answers)

    @override
    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[LangChainChunk]:
        with langchain_errors():
            ready, arguments = self._request(Prompt.raw(prompt), stop, run_manager, kwargs)
            with closing(self._source.get().stream(ready, **arguments)) as chunks:
                for ours in chunks:
                    chunk = LangChainChunk(text=ours.text, generation_info=generation_info(ours))
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    @override
    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[LangChainChunk]:
        with langchain_errors():
            ready, arguments = self._request(Prompt.raw(prompt), stop, run_manager, kwargs)
            backend = await self._source.aget()
            async with aclosing(await backend.astream(ready, **arguments)) as chunks:
                async for ours in chunks:
                    chunk = LangChainChunk(text=ours.text, generation_info=generation_info(ours))
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    @override
    def _convert_input(self, model_input: LanguageModelInput) -> PromptValue:
        value = super()._convert_input(model_input)
        if isinstance(value, ChatPromptValue):
            return BlocksPromptValue(messages=value.messages)
        return value

    @override
    def _generate_helper(
        self, prompts: list[str], stop: Any, run_managers: list[Any], **kwargs: Any
    ) -> LLMResult:
        with context_value(_run_managers, tuple(run_managers)):
            return super()._generate_helper(prompts, stop, run_managers, **kwargs)

    @override
    async def _agenerate_helper(
        self, prompts: list[str], stop: Any, run_managers: list[Any], **kwargs: Any
    ) -> LLMResult:
        with context_value(_run_managers, tuple(run_managers)):
            return await super()._agenerate_helper(prompts, stop, run_managers, **kwargs)

    def _request_all(
        self, texts: list[str], stop: list[str] | None, run_manager: Any, call: dict[str, Any]
    ) -> tuple[list[Prompt], dict[str, Any]]:
        prompts = [Prompt.raw(text) for text in texts]
        return self._ready_all(prompts, stop, own_call(call), _runs(texts, run_manager))

    def _llm_result(self, answers: Sequence[Generation]) -> LLMResult:
        total = sum((answer.usage for answer in answers), start=Usage(0, 0, 0))
        return LLMResult(
            generations=[
                [LangChainGeneration(text=answer.text, generation_info=generation_info(answer))]
                for answer in answers
            ],
            llm_output={"model_name": self.model_name, "token_usage": usage_fields(total) or {}},
        )


# One call may answer the prompts of several runs, as `batch` has it. LangChain makes a run manager
# for each and hands _generate() the first, as if all prompts belonged to that one's request.
_run_managers: ContextVar[tuple[Any, ...]] = ContextVar("ragcache_run_managers", default=())

_call_arguments: ContextVar[dict[str, Any] | None] = ContextVar(
    "ragcache_call_arguments", default=None
)


def _ours(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name in CALL_NAMES}


def _runs(prompts: Sequence[str], run_manager: Any) -> list[Hashable | None]:
    """The run of each prompt."""
    managers = _run_managers.get() or (run_manager,)
    if len(managers) == len(prompts):
        return [run_around(manager) for manager in managers]
    return [UNKNOWN for _ in prompts]


# Steps of LangGraph's graphs: each call of a model in a node says which nodes may come next.

HINTS = "__ragcache_steps"
"""Where a graph's configuration holds the hints. LangGraph writes no name like this into its
checkpoints, and LangChain no mapping into its traces."""
ENDS = frozenset({"__start__", "__end__"})


def hint_steps(graph: Graph) -> Graph:
    """Make calls of our LLM classes within a graph say what comes next.

    Every call in a node carries the node's name as ``step``, and as ``next_steps`` the nodes that
    the graph's edges lead to, with how many steps are before each. A condition counts all of its
    targets, the end of the graph nothing. What has its own ``step`` keeps it. No answer changes::

        graph = hint_steps(builder.compile())
        graph.invoke({"messages": [HumanMessage("A text on the moon.")]})

    A graph in a node of this one, or that a node's function or tool calls, counts as that node,
    even if it has hints of its own. A condition's targets are known by LangGraph's map, or by its
    annotation ``-> Literal[...]``. A node that goes somewhere by
    ``Command`` needs LangGraph's annotation ``Command[Literal[...]]``: its edges are known by it.

    Args:
        graph: A compiled graph of LangGraph, such as of ``StateGraph.compile()`` or
            ``create_agent()``.

    Returns:
        The graph with these hints; the argument stays as it is.

    Raises:
        ConfigurationError: This is no compiled graph, or the name of a node is empty or too long.
    """
    known: Any = graph
    if not hasattr(known, "nodes") or not hasattr(known, "get_graph"):
        raise ConfigurationError(
            "hint_steps takes a compiled graph, such as StateGraph(...).compile(), got "
            f"{type(graph).__name__}"
        )
    drawn = known.get_graph()
    hints = step_hints(
        (name for name in drawn.nodes if name not in ENDS),
        ((edge.source, edge.target) for edge in drawn.edges),
    )
    hinted: Graph = known.with_config(configurable={HINTS: hints})
    return hinted


def _graph_step() -> StepHint:
    """The node of a graph in which this code is executed, if the graph has hints."""
    configurable = ensure_config().get("configurable") or {}
    hints = configurable.get(HINTS)
    if not isinstance(hints, dict):
        return NO_STEP
    # A place such as "writer:<task>|model:<task>", in which the hints of the outermost graph that
    # has some hold. A graph in one of its nodes may have nodes of the same names, as agents do.
    place = str(configurable.get("checkpoint_ns") or "")
    names = [part.partition(":")[0] for part in place.split("|")]
    hint = next((hints[name] for name in names if name in hints), NO_STEP)
    return hint if isinstance(hint, StepHint) else NO_STEP
