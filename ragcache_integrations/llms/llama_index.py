"""The LLM class for LlamaIndex (see :mod:`ragcache_integrations.llms.base`), and its steps."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any, ClassVar, TypeVar, cast

from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.tools import BaseTool
from llama_index.core.types import PydanticProgramMode
from llama_index.core.workflow import Workflow
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.flows import Call, Each, Flow, aoutputs, outputs
from ragcache_integrations.core.generation import Generation, GenerationChunk, TokenLogprob
from ragcache_integrations.core.prompt import (
    Message,
    Prompt,
    PromptDocument,
    ToolCall,
    ToolCallPiece,
    choice_name,
    join_calls,
    join_pieces,
)
from ragcache_integrations.errors import ConfigurationError, StructuredOutputError
from ragcache_integrations.llms.backend import Backend
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.headers import hides_headers
from ragcache_integrations.llms.openai import (
    REFUSAL,
    extra_texts,
    noted_reasoning,
    usage_fields,
)
from ragcache_integrations.llms.steps import NO_STEP, StepHint, step_hints
from ragcache_integrations.llms.structured import (
    call_arguments,
    call_arguments_so_far,
    json_so_far,
    whole_json,
)
from ragcache_integrations.prompts.llama_index import current_run, watch_retrievers

__all__ = ["RAGCacheLLM", "chat_prompt", "hint_steps"]

_FIELD = "field"
"""Names, in a ``ThinkingBlock``, the field of a message in which its server takes it back."""

AnyWorkflow = TypeVar("AnyWorkflow", bound=Workflow)
Response = TypeVar("Response", ChatResponse, CompletionResponse)
Method = TypeVar("Method", bound=Callable[..., Any])

_step: ContextVar[StepHint] = ContextVar("ragcache_step", default=NO_STEP)

_ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.TOOL: "tool",
}


# What an override copies from LlamaIndex's method; its docstring does not belong on our pages.
_NAMES = ("__module__", "__name__", "__qualname__")


def _with_metadata(method: Method) -> Method:
    """Wrap a method that reads metadata in the event loop, so that it is there by then."""

    @functools.wraps(method, assigned=_NAMES)
    async def prepared(self: RAGCacheLLM, *arguments: Any, **call: Any) -> Any:
        await self._source.aget()
        await asyncio.to_thread(lambda: self.metadata)  # may ask a server
        return await method(self, *arguments, **call)

    return cast("Method", prepared)


# An argument through LlamaIndex's programs to our own methods, where an answer's end is known.
_WHOLE_JSON = "ragcache_whole_json"


def _with_grammar(method: Method) -> Method:
    """One of LlamaIndex's methods for objects of a class, whose answers have a grammar."""

    @functools.wraps(method, assigned=_NAMES)
    def prepared(
        self: RAGCacheLLM,
        output_cls: type[BaseModel],
        prompt: PromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Any:
        schema = {"json_schema": output_cls.model_json_schema()}
        kwargs = {**schema, **(llm_kwargs or {}), _WHOLE_JSON: True}
        return method(self, output_cls, prompt, kwargs, **prompt_args)

    return cast("Method", prepared)


@hides_headers(
    *("complete", "acomplete", "stream_complete", "astream_complete"),
    *("chat", "achat", "stream_chat", "astream_chat"),
)
class RAGCacheLLM(FunctionCallingLLM, BaseRAGCacheLLM):
    """An LLM on the bundled engine, or on any OpenAI-compatible server.

    All knobs: :class:`~ragcache_integrations.llms.knobs.LLMKnobs`. Documents keep their KV caches
    when the model knows them: those that LlamaIndex's retrievers found are recognised (see
    ``find_documents``); others are given as ``documents=`` at the call, nodes or strings whose text
    is verbatim in the prompt.

    A model with a chat template is a chat model: ``complete`` sends it the prompt as one user
    message, unless ``formatted=True`` says that the prompt is already in the model's format. Every
    other prompt goes to the model unchanged. ``raw["usage"]`` has the tokens of an answer,
    including the prompt tokens that were not computed again. With ``engine="modular"``, ``raw``
    also has the ``strategy`` and the ``recomputed_share`` of the encoded tokens that were computed
    again. What a server's model thought is a ``ThinkingBlock``, which goes back with the message;
    why it refuses is in ``additional_kwargs["refusal"]``.

    Reading ``metadata`` starts the engine, which knows the context window, if nothing has started
    it before.

    Attributes:
        is_chat_model: Whether the model gets messages; if ``None``, the engine decides. A server's
            model is assumed to be a chat model.
        is_function_calling_model: Whether agents may give the model tools to call; if ``None``, the
            engine decides by its chat template. A server's model is assumed to call tools.
        pydantic_program_mode: How LlamaIndex gets objects of a class: by a grammar for the answer.
    """

    model_config = ConfigDict(extra="forbid")  # said here too for type checkers

    is_chat_model: bool | None = None
    is_function_calling_model: bool | None = None
    pydantic_program_mode: PydanticProgramMode = PydanticProgramMode.LLM

    @classmethod
    @override
    def class_name(cls) -> str:
        return "RAGCacheLLM"

    @property
    @override
    def metadata(self) -> LLMMetadata:
        backend = self._source.get()
        calls_tools = self.is_function_calling_model
        return LLMMetadata(
            context_window=backend.max_model_len,
            num_output=-1 if self.max_tokens is None else self.max_tokens,  # as LlamaIndex has it
            is_chat_model=self._is_chat(backend.has_chat_template),
            is_function_calling_model=(
                getattr(backend, "supports_tools", False) if calls_tools is None else calls_tools
            ),
            model_name=self.model_name,
        )

    @override
    def to_payload(self) -> dict[str, Any]:
        # Called in the event loop too, so it must not start an engine as metadata does.
        return {"class_name": self.class_name(), **self._identity()}

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt."""
        backend = self._source.get()
        full_prompt = self._completion_prompt(prompt, formatted, backend)
        ready, arguments = self._request(full_prompt, kwargs)
        answer = backend.generate(ready, **arguments)
        return self._completion(answer, answer, kwargs)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        """Async version of :meth:`complete`."""
        backend = await self._source.aget()
        full_prompt = self._completion_prompt(prompt, formatted, backend)
        ready, arguments = self._request(full_prompt, kwargs)
        answer = await backend.agenerate(ready, **arguments)
        return self._completion(answer, answer, kwargs)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        """Answer a prompt chunk by chunk; closing the generator aborts the request."""
        full_prompt = self._completion_prompt(prompt, formatted, self._source.get())
        return outputs(self._responses(full_prompt, kwargs, self._completion))

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Async version of :meth:`stream_complete`."""
        full_prompt = self._completion_prompt(prompt, formatted, await self._source.aget())
        return aoutputs(self._responses(full_prompt, kwargs, self._completion))

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation."""
        ready, arguments = self._request(chat_prompt(messages, self.model_name), kwargs)
        answer = self._source.get().generate(ready, **arguments)
        return self._chat_response(answer, answer, kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Async version of :meth:`chat`."""
        ready, arguments = self._request(chat_prompt(messages, self.model_name), kwargs)
        backend = await self._source.aget()
        answer = await backend.agenerate(ready, **arguments)
        return self._chat_response(answer, answer, kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Answer a conversation chunk by chunk; closing the generator aborts the request."""
        prompt = chat_prompt(messages, self.model_name)
        return outputs(self._responses(prompt, kwargs, self._chat_response))

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        """Async version of :meth:`stream_chat`."""
        prompt = chat_prompt(messages, self.model_name)
        return aoutputs(self._responses(prompt, kwargs, self._chat_response))

    # Tools

    @override
    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        del verbose  # for LlamaIndex's printing
        if isinstance(user_msg, str):
            user_msg = ChatMessage(role=MessageRole.USER, content=user_msg)
        call: dict[str, Any] = {
            "messages": [*(chat_history or ()), *([] if user_msg is None else [user_msg])],
            "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
        }
        if tools:
            call["parallel_tool_calls"] = allow_parallel_tool_calls
            call["tool_choice"] = "required" if tool_required else "auto"
        if kwargs.get("tool_choice") is None:  # as LlamaIndex's programs pass it
            kwargs.pop("tool_choice", None)
        return call | kwargs

    @override
    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The tools that an answer calls, or those of a stream's answer so far.

        Raises:
            StructuredOutputError: There are none although ``error_on_no_tool_call``, or a complete
                answer has a call whose arguments are no JSON object.
        """
        ended = isinstance(response.raw, dict) and response.raw.get("finish_reason") is not None
        calls = _calls(response.message)
        if not calls and error_on_no_tool_call:
            text = response.message.content or ""
            raise StructuredOutputError(f"the answer calls no tool: {text:.200}", text)
        return [
            ToolSelection(
                tool_id=call.id,
                tool_name=call.name,
                tool_kwargs=call_arguments(call) if ended else call_arguments_so_far(call),
            )
            for call in calls
        ]

    apredict: ClassVar = _with_metadata(FunctionCallingLLM.apredict)
    astream: ClassVar = _with_metadata(FunctionCallingLLM.astream)

    # Structured output: LlamaIndex's own programs, with a grammar that lets no other token through.

    structured_predict: ClassVar = _with_grammar(FunctionCallingLLM.structured_predict)
    astructured_predict: ClassVar = _with_metadata(
        _with_grammar(FunctionCallingLLM.astructured_predict)
    )
    stream_structured_predict: ClassVar = _with_grammar(
        FunctionCallingLLM.stream_structured_predict
    )
    astream_structured_predict: ClassVar = _with_metadata(
        _with_grammar(FunctionCallingLLM.astream_structured_predict)
    )

    @override
    def _watch_retrievers(self) -> None:
        watch_retrievers()

    @override
    def _step_hint(self) -> StepHint:
        return _step.get()

    def _is_chat(self, has_chat_template: bool) -> bool:
        return has_chat_template if self.is_chat_model is None else self.is_chat_model

    def _completion_prompt(self, prompt: str, formatted: bool, backend: Backend) -> Prompt:
        if formatted:
            return Prompt.raw(prompt)
        if self._is_chat(backend.has_chat_template):
            return Prompt(messages=(Message("user", prompt),))
        to_prompt = self.completion_to_prompt
        return Prompt.raw(prompt if to_prompt is None else to_prompt(prompt))

    def _request(self, prompt: Prompt, call: dict[str, Any]) -> tuple[Prompt, dict[str, Any]]:
        return self._ready(prompt, None, _call(call), current_run())

    # Streams are read when the query's span has ended, and its documents with it. So the documents
    # are marked here, at the call, and the request is sent when the stream is read.

    def _responses(
        self, prompt: Prompt, call: dict[str, Any], respond: Callable[..., Response]
    ) -> Flow:
        """Respond with the text so far, as LlamaIndex wants it."""
        ready, arguments = self._request(prompt, call)
        said = _SoFar()

        def response(chunk: GenerationChunk) -> Response:
            said.add(chunk)
            return respond(said, chunk, call, chunk.text)

        def responses() -> Flow:
            backend = yield Call(self._source.get, self._source.aget)
            yield Each(
                partial(backend.stream, ready, **arguments),
                partial(backend.astream, ready, **arguments),
                response,
            )

        return responses()

    def _text(
        self, said: Generation | _SoFar, answer: Generation | GenerationChunk, call: dict[str, Any]
    ) -> str:
        """The text so far, or the JSON of it where that alone is wanted."""
        if not call.get(_WHOLE_JSON):
            return said.text
        if answer.finish_reason is None:
            return json_so_far(said.text)
        limit = call.get("max_tokens", self.max_tokens)
        return whole_json(said.text, answer.finish_reason, limit, said.refusal)

    def _completion(
        self,
        said: Generation | _SoFar,
        answer: Generation | GenerationChunk,
        call: dict[str, Any],
        delta: str | None = None,
    ) -> CompletionResponse:
        return CompletionResponse(
            text=self._text(said, answer, call),
            delta=delta,
            additional_kwargs=extra_texts(said.reasoning, said.refusal),
            raw=self._raw(answer),
            logprobs=_logprobs(answer.logprobs),
        )

    def _chat_response(
        self,
        said: Generation | _SoFar,
        answer: Generation | GenerationChunk,
        call: dict[str, Any],
        delta: str | None = None,
    ) -> ChatResponse:
        message = ChatMessage(
            role=MessageRole.ASSISTANT,
            content=self._text(said, answer, call),
            additional_kwargs=extra_texts("", said.refusal),
        )
        thoughts = [self._thinking(said)] if said.reasoning else []
        message.blocks = [*thoughts, *message.blocks, *map(_call_block, said.tool_calls)]
        return ChatResponse(
            message=message,
            delta=delta,
            additional_kwargs={"thinking_delta": answer.reasoning} if answer.reasoning else {},
            raw=self._raw(answer),
            logprobs=_logprobs(answer.logprobs),
        )

    def _thinking(self, said: Generation | _SoFar) -> ThinkingBlock:
        """What the model thought, and whether a server takes it back."""
        origin = {_FIELD: said.reasoning_field, "model": self.model_name}
        return ThinkingBlock(content=said.reasoning, additional_information=origin)

    def _raw(self, answer: Generation | GenerationChunk) -> dict[str, Any]:
        """In OpenAI's form, which LlamaIndex's token counter reads."""
        raw: dict[str, Any] = {"model": self.model_name, "finish_reason": answer.finish_reason}
        if answer.native_finish_reason:
            raw["native_finish_reason"] = answer.native_finish_reason
        if answer.finish_reason is not None and answer.usage is not None:
            if usage := usage_fields(answer.usage):
                raw["usage"] = usage
            raw |= answer.reuse
        return raw


@dataclass(slots=True)
class _SoFar:
    """What a stream has said so far; see :class:`Generation`."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    reasoning_field: str = ""
    refusal: str = ""
    _pieces: list[ToolCallPiece] = field(default_factory=list)

    def add(self, chunk: GenerationChunk) -> None:
        self.text += chunk.text
        self.reasoning += chunk.reasoning
        self.reasoning_field = chunk.reasoning_field or self.reasoning_field
        self.refusal += chunk.refusal
        self._pieces = join_pieces((*self._pieces, *chunk.tool_calls))
        self.tool_calls = join_calls(self._pieces, chunk.finish_reason)


def _call(arguments: dict[str, Any]) -> dict[str, Any]:
    arguments = {name: value for name, value in arguments.items() if name != _WHOLE_JSON}
    if "tool_choice" in arguments:
        arguments["tool_choice"] = choice_name(arguments["tool_choice"])
    if not isinstance(arguments.get("documents"), list | tuple):
        return arguments
    documents = [_document(document) for document in arguments["documents"]]
    return {**arguments, "documents": documents}


def _document(document: object) -> object:
    node = document.node if isinstance(document, NodeWithScore) else document
    if not isinstance(node, BaseNode):
        return document
    text = node.get_content()
    return PromptDocument(text, node.node_id) if text else ""


def chat_prompt(messages: Sequence[ChatMessage], model: str = "") -> Prompt:
    """A conversation.

    Args:
        messages: Its messages.
        model: The name of the model that answers: it gets back what it thought itself, but not
            what another one did, whose fields its server may refuse.

    Raises:
        ConfigurationError: It holds something else than text, or is empty.
    """
    return Prompt(messages=tuple(_message(message, model) for message in messages))


def _message(message: ChatMessage, model: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise ConfigurationError(f"messages of role {message.role.value!r} are not supported")
    for block in message.blocks:
        if isinstance(block, ThinkingBlock | ToolCallBlock) and role == "assistant":
            continue  # read below
        if not isinstance(block, TextBlock | CachePoint):
            msg = f"messages must hold text, got a block of type {type(block).__name__}"
            raise ConfigurationError(msg)
    text = message.content or ""
    if role != "assistant":
        answered = message.additional_kwargs.get("tool_call_id") if role == "tool" else None
        return Message(role, text, tool_call_id=str(answered or ""))
    calls = _calls(message)
    if not (text or calls):
        text = str(message.additional_kwargs.get(REFUSAL) or "")  # all that was said
    return Message(role, text, tool_calls=calls, **_reasoning(message, model))


def _reasoning(message: ChatMessage, model: str) -> dict[str, str]:
    """What a model thought, as arguments of a message that is sent back to it."""
    for block in message.blocks:
        if isinstance(block, ThinkingBlock) and block.content:
            origin = block.additional_information
            name = origin.get(_FIELD)
            own = not model or origin.get("model", model) == model
            if own and isinstance(name, str) and name:
                return {"reasoning": block.content, "reasoning_field": name}
    return noted_reasoning(message.additional_kwargs)


def _call_block(call: ToolCall) -> ToolCallBlock:
    try:
        arguments = call_arguments(call)
    except StructuredOutputError:
        return ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments)
    return ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=arguments)


def _calls(message: ChatMessage) -> list[ToolCall]:
    """The tools that a message calls, from its blocks or in OpenAI's form."""
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if blocks:
        return [
            ToolCall(block.tool_call_id or "", block.tool_name, _as_json(block.tool_kwargs))
            for block in blocks
        ]
    listed = message.additional_kwargs.get("tool_calls") or ()
    return [_openai_call(call) for call in listed]


def _openai_call(call: Any) -> ToolCall:
    plain = call.model_dump() if isinstance(call, BaseModel) else call
    function = plain.get("function") if isinstance(plain, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ConfigurationError(
            'tool_calls of a message must be {"id": ..., "function": {"name": ..., "arguments": '
            f"...}}}}, got {call!r:.200}"
        )
    arguments = function.get("arguments")
    return ToolCall(
        str(plain.get("id") or ""),
        function["name"],
        _as_json({} if arguments is None else arguments),
    )


def _as_json(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _logprobs(logprobs: Sequence[TokenLogprob]) -> list[list[LogProb]] | None:
    """For each token itself, then its likeliest alternatives."""
    return [
        [
            LogProb(token=alternative.token, logprob=alternative.logprob)
            for alternative in (token, *(t for t in token.top if t.token != token.token))
        ]
        for token in logprobs
    ] or None


# Steps of workflows: each call of an LLM in one says which steps may come next.


def hint_steps(workflow: AnyWorkflow) -> AnyWorkflow:
    """Make calls of our LLM class within a workflow say what comes next.

    Every call in a step carries the step's name as ``step``, and as ``next_steps`` the steps that
    accept what it returns, those that accept what they return, and so on, with how many steps are
    before each. What has its own ``step`` keeps it. No answer changes::

        workflow = hint_steps(WriterWorkflow(timeout=60))
        await workflow.run(topic="the moon")

    Only the annotations of the steps are read: an event that a step sends by ``send_event`` counts
    if it is among its return types, too. The agents of an ``AgentWorkflow`` share their steps: give
    each of them an LLM with its own ``step`` and ``next_steps`` instead.

    Args:
        workflow: A workflow.

    Returns:
        The same workflow.

    Raises:
        ConfigurationError: This is no workflow, or the name of a step is too long.
    """
    check_type("workflow", workflow, Workflow, "a Workflow of LlamaIndex")
    steps = workflow._get_steps()  # noqa: SLF001 - LlamaIndex has no other list of them
    configs: dict[str, Any] = {name: step._step_config for name, step in steps.items()}  # noqa: SLF001 - the same
    edges = [
        (name, follower)
        for name, config in configs.items()
        for follower, other in configs.items()
        if any(_reaches(kind, other.accepted_events) for kind in config.return_types)
    ]
    for name, hint in step_hints(configs, edges).items():
        step: Any = steps[name]
        if inspect.ismethod(step):
            hinted: Any = MethodType(_in_step(step.__func__, hint), workflow)
        else:
            hinted = _in_step(step, hint)
        # Agents are pydantic models, which take no other attributes.
        object.__setattr__(workflow, name, hinted)
    return workflow


def _reaches(produced: object, accepted: list[Any]) -> bool:
    """Whether a step that accepts these events may get what another returns."""
    kinds = tuple(kind for kind in accepted if isinstance(kind, type))
    return isinstance(produced, type) and issubclass(produced, kinds)


def _in_step(function: Callable[..., Any], hint: StepHint) -> Callable[..., Any]:
    """A step's function, in whose calls the hint holds."""

    @functools.wraps(function)
    def hinted(*args: Any, **kwargs: Any) -> Any:
        with context_value(_step, hint):
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with context_value(_step, hint):
            return await function(*args, **kwargs)

    return coroutine if inspect.iscoroutinefunction(function) else hinted
