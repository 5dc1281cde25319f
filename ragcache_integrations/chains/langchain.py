"""What our Runnables have in common: answers in pieces, and calls of any of LangChain's models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

from langchain_core.documents import Document
from langchain_core.language_models import BaseLLM
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import Generation
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate, format_document
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
    RunnableSerializable,
)
from langchain_core.runnables.config import ensure_config, merge_configs
from langchain_core.runnables.utils import AddableDict
from pydantic import BeforeValidator, ConfigDict, SkipValidation, ValidationInfo
from typing_extensions import override

from ragcache_integrations.adaptive import (
    EngineAsker,
    Limits,
    LogprobSupport,
    ModelAnswer,
    ModelRequest,
)
from ragcache_integrations.adaptive.asker import (
    DEFAULT_ANSWER_TOKENS,
    count_roughly,
    count_texts,
)
from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.flows import (
    Call,
    Each,
    Flow,
    aoutputs,
    awhole_output,
    outputs,
    whole_output,
)
from ragcache_integrations.core.generation import TokenLogprob
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.base import BaseRAGCacheLLM
from ragcache_integrations.llms.handover import backend_of
from ragcache_integrations.prompts.langchain import (
    CompletionPromptValue,
    message_content,
)
from ragcache_integrations.retrievers.sharing import Rebuildable

from .askers import MAX_TOKENS_NAMES, limit_argument, own_arguments, usage_of

__all__ = [
    "INNER_TAG",
    "BoundRunnable",
    "LangChainAsker",
    "LangChainModel",
    "Output",
    "StreamedRunnable",
    "Template",
    "chunk_piece",
    "marked_documents",
    "read_question",
    "unbound",
]

Output = dict[str, Any]
Input = TypeVar("Input")


class StreamedRunnable(RunnableSerializable[Input, Output], Rebuildable):
    """A Runnable whose output is a dict that comes in pieces, which are dicts that can be added.

    Each run has its own callbacks, which are part of its ``config``. Subclasses keep state in
    ``shared_state``, which copies with other settings share.

    Raises:
        ConfigurationError: An argument is unknown, missing or out of range.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )
    _written: ClassVar[frozenset[str]] = frozenset()
    """The keys that the pieces have."""

    @override
    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:
        """Answer; other arguments are the model's."""

        def answer(value: Input, config: RunnableConfig) -> Output:
            return dict(whole_output(self._flow(value, config, kwargs, streamed=False)))

        run: Any = self._call_with_config  # its types don't allow functions of input and config
        return dict(run(answer, input, config))

    @override
    async def ainvoke(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Output:
        """Async version of :meth:`invoke`."""

        async def answer(value: Input, config: RunnableConfig) -> Output:
            return dict(await awhole_output(self._flow(value, config, kwargs, streamed=False)))

        run: Any = self._acall_with_config  # as above
        return dict(await run(answer, input, config))

    @override
    def stream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Output]:
        """Answer in pieces; closing the iterator aborts the answer."""

        def answer(values: Iterator[Input], config: RunnableConfig) -> Iterator[Output]:
            yield from outputs(self._flow(next(values), config, kwargs, streamed=True))

        run: Any = self._transform_stream_with_config  # as above
        yield from run(iter([input]), answer, config)

    @override
    async def astream(
        self, input: Input, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Output]:
        """Async version of :meth:`stream`."""

        async def inputs() -> AsyncIterator[Input]:
            yield input

        async def answer(
            values: AsyncIterator[Input], config: RunnableConfig
        ) -> AsyncIterator[Output]:
            flow = self._flow(await anext(values), config, kwargs, streamed=True)
            async with aclosing(aoutputs(flow)) as pieces:
                async for piece in pieces:
                    yield piece

        run: Any = self._atransform_stream_with_config  # as above
        # It is a generator, although typed as an iterator: closing it aborts the answer.
        async with aclosing(run(inputs(), answer, config)) as pieces:
            async for piece in pieces:
                yield piece

    def _first_piece(self, inputs: Mapping[str, Any]) -> Output:
        """The first piece: the input without the keys of later pieces, which would be added."""
        return AddableDict({key: inputs[key] for key in inputs if key not in self._written})

    def _flow(
        self, value: Input, config: RunnableConfig, call: dict[str, Any], *, streamed: bool
    ) -> Flow:
        """Answer within one run; ``call`` has the model's arguments.

        The outputs are pieces, or the whole answer unless it is ``streamed``. Subclasses implement
        this.
        """
        raise NotImplementedError


def chunk_piece(chunk: Any) -> Output:
    """A piece of an answer, of a model's chunk: a string or a message."""
    return AddableDict(answer=chunk if isinstance(chunk, str) else str(chunk.text))


def read_question(value: object, input_key: str) -> tuple[dict[str, Any], str]:
    """Read the input of a chain, a question or a dict with one.

    Args:
        value: The input.
        input_key: Name of the question in a dict.

    Returns:
        The input as a dict, and the question.

    Raises:
        ConfigurationError: There is no question.
    """
    inputs = dict(value) if isinstance(value, Mapping) else {input_key: value}
    question = inputs.get(input_key)
    if not isinstance(question, str):
        msg = f"the input must be a string, or a dict with {input_key!r}, got {value!r}"
        raise ConfigurationError(msg)
    return inputs, question


def _check_template(value: object, info: ValidationInfo) -> object:
    if isinstance(value, BasePromptTemplate):
        return value
    msg = f"{info.field_name} must be one of LangChain's templates, got {value!r:.100}"
    raise ConfigurationError(msg)


# Not validated by pydantic, which would make a new object.
Template = Annotated[BasePromptTemplate[Any], SkipValidation, BeforeValidator(_check_template)]


def marked_documents(
    documents: Sequence[Document], template: BasePromptTemplate[Any]
) -> list[PromptDocument]:
    """Return documents as prompts have them.

    An empty document becomes a blank, so that the others keep their places.

    Args:
        documents: The documents.
        template: Formats each of them.
    """
    return [
        PromptDocument(format_document(document, template) or " ", document.id or "")
        for document in documents
    ]


INNER_TAG = "nostream"
"""Tag of the calls whose answers are only steps to that of the user: LangGraph streams no tokens of
runs that have it, and ``astream_events`` takes it as one of its ``exclude_tags``."""


@dataclass(frozen=True)
class BoundRunnable:
    """A Runnable without its bindings.

    Attributes:
        runnable: The Runnable inside of the bindings.
        arguments: The arguments that were bound.
        config: The configuration that was bound.
    """

    runnable: Any
    arguments: dict[str, Any]
    config: RunnableConfig

    def configured(self, config: RunnableConfig) -> BoundRunnable:
        """The same with more configuration."""
        return replace(self, config=merge_configs(self.config, config))


def unbound(runnable: Any, *, every: bool = False) -> BoundRunnable:
    """Take a Runnable out of the bindings that ``bind`` and ``with_config`` make.

    Args:
        runnable: Any Runnable.
        every: Whether to remove also bindings that compute a configuration at each call, such as
            those of ``with_listeners``; what they compute is lost.
    """
    arguments: dict[str, Any] = {}
    config = RunnableConfig()
    while isinstance(runnable, RunnableBinding) and (every or not runnable.config_factories):
        arguments = {**runnable.kwargs, **arguments}
        config = merge_configs(runnable.config, config)
        runnable = runnable.bound
    return BoundRunnable(runnable, arguments, config)


class LangChainModel:
    """The properties of a model, regardless of its bindings.

    Models of this package get marked documents in their prompts; others get plain text.
    Log-probabilities are requested if the model's class has a field ``logprobs``, and are always
    read from answers that have them. The length of an answer is limited if the class has one of the
    usual fields for it.

    Args:
        llm: A chat model or an LLM, also after ``bind``; or any Runnable that accepts messages.

    Raises:
        ConfigurationError: ``llm`` is no Runnable.
    """

    def __init__(self, llm: Runnable[Any, Any]) -> None:
        check_type("llm", llm, Runnable, "one of LangChain's models")
        self.outer = llm
        binding = unbound(llm)
        self.inner, self.bound, self.config = binding.runnable, binding.arguments, binding.config
        self.own = self.inner if isinstance(self.inner, BaseRAGCacheLLM) else None
        self.fields = frozenset(getattr(type(self.inner), "model_fields", ()))
        supported = (
            self.own is not None or bool(self.bound.get("logprobs")) or "logprobs" in self.fields
        )
        self.logprob_support = LogprobSupport(available=supported)

    def limits(self) -> Limits:
        """The most tokens that the model reads and writes."""
        names = [name for name in MAX_TOKENS_NAMES if name in self.fields or name in self.bound]
        limits = [self.bound.get(name, getattr(self.inner, name, None)) for name in names]
        # A negative number means no limit.
        answer = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
        if self.own is not None:
            window: int | None = backend_of(self.own).max_model_len
        else:
            window = (getattr(self.inner, "profile", None) or {}).get("max_input_tokens")
        return Limits(window, answer or DEFAULT_ANSWER_TOKENS)

    def arguments(self, request: ModelRequest) -> dict[str, Any]:
        """Arguments of a call, besides the prompt."""
        if self.own is not None:
            logprobs = self.bound.get("logprobs", self.own.logprobs)
            return own_arguments(request, logprobs=logprobs)
        arguments = limit_argument(request, self.fields)
        if request.logprobs and "logprobs" in self.fields and "logprobs" not in self.bound:
            arguments["logprobs"] = True
        return arguments


class LangChainAsker:
    """A model within one run: its calls are children of that run.

    Args:
        model: The model.
        config: The configuration of the run.
        call: Arguments of every call of the model.

    Attributes:
        logprob_support: Whether answers have log-probabilities.
        namespace: The tenant that the arguments name; ``None`` if they name none.
    """

    def __init__(
        self,
        model: LangChainModel,
        config: RunnableConfig | None = None,
        call: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._config = config
        self._call = dict(call or {})
        self.namespace: object = self._call.get("namespace")
        self.logprob_support = model.logprob_support

    def ask(self, request: ModelRequest) -> ModelAnswer:
        """Answer a request."""
        answer: ModelAnswer = whole_output(self._asking(request))
        return answer

    async def aask(self, request: ModelRequest) -> ModelAnswer:
        """Async version of :meth:`ask`."""
        answer: ModelAnswer = await awhole_output(self._asking(request))
        return answer

    def stream(self, request: ModelRequest) -> Generator[ModelAnswer]:
        """Answer a request in pieces; those of models that complete text have only text."""
        return outputs(self._streaming(request))

    def astream(self, request: ModelRequest) -> AsyncGenerator[ModelAnswer]:
        """Async version of :meth:`stream`."""
        return aoutputs(self._streaming(request))

    def _asking(self, request: ModelRequest) -> Flow:
        llm, arguments = self._model.inner, self._arguments(request)
        if isinstance(llm, BaseLLM):
            # invoke() would only return the text.
            prompts: list[PromptValue] = [self._completion(request.prompt)]
            run = self._run(request)
            result = yield Call(
                partial(llm.generate_prompt, prompts, **run, **arguments),
                partial(llm.agenerate_prompt, prompts, **run, **arguments),
            )
            yield _answer(result.generations[0][0])
        else:
            given = (self._messages(request.prompt), self._config_of(request))
            invoke, ainvoke = self._model.outer.invoke, self._model.outer.ainvoke
            message = yield Call(
                partial(invoke, *given, **arguments), partial(ainvoke, *given, **arguments)
            )
            yield _answer(message)

    def _streaming(self, request: ModelRequest) -> Flow:
        outer, arguments = self._model.outer, self._arguments(request)
        given = (self._input(request.prompt), self._config_of(request))
        yield Each(
            partial(outer.stream, *given, **arguments),
            partial(outer.astream, *given, **arguments),
            _answer,
        )

    def limits(self) -> Limits:
        """The most tokens that the model reads and writes."""
        return self._model.limits()

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a document's text.

        If the tokenizer is unknown, the count is a high estimate: LangChain's default would
        download the tokenizer of GPT-2.
        """
        if self._model.own is not None:
            return backend_of(self._model.own).count_tokens(text)
        custom = getattr(self._model.inner, "custom_get_token_ids", None)
        return len(custom(text)) if custom is not None else count_roughly(text)

    def count_prompt(self, prompt: Prompt) -> int:
        """Count the tokens of a prompt, including those of the chat template."""
        if self._model.own is not None:
            return EngineAsker(backend_of(self._model.own)).count_prompt(prompt)
        return count_texts(prompt, self.count_tokens)

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        arguments = {**self._call, **self._model.arguments(request)}
        if isinstance(self._model.inner, BaseLLM):
            arguments = {**self._model.bound, **arguments}
            if self._model.own is not None:
                arguments["documents"] = list(request.prompt.documents)
        return arguments

    def _config_of(self, request: ModelRequest) -> RunnableConfig | None:
        """The configuration of a call."""
        if not request.inner:
            return self._config
        return merge_configs(self._config, RunnableConfig(tags=[INNER_TAG]))

    def _run(self, request: ModelRequest) -> dict[str, Any]:
        """The configuration of a call as arguments of an LLM's own methods."""
        config = ensure_config(merge_configs(self._model.config, self._config_of(request)))
        return {name: config.get(name) for name in ("callbacks", "tags", "metadata", "run_name")}

    def _input(self, prompt: Prompt) -> Any:
        is_text = isinstance(self._model.inner, BaseLLM)
        return self._completion(prompt) if is_text else self._messages(prompt)

    def _completion(self, prompt: Prompt) -> CompletionPromptValue:
        return CompletionPromptValue.of(prompt, is_ours=self._model.own is not None)

    def _messages(self, prompt: Prompt) -> list[BaseMessage]:
        messages: list[BaseMessage] = []
        for message in prompt.messages:
            kind = SystemMessage if message.role == "system" else HumanMessage
            messages.append(kind(message_content(message, is_ours=self._model.own is not None)))
        return messages


def _answer(result: Any) -> ModelAnswer:
    if isinstance(result, BaseMessage):
        usage = usage_of(getattr(result, "usage_metadata", None))
        return ModelAnswer(str(result.text), _logprobs(result.response_metadata), usage)
    if isinstance(result, Generation):
        info = result.generation_info or {}
        return ModelAnswer(result.text, _logprobs(info), usage_of(info.get("usage")))
    return ModelAnswer(str(result))


def _logprobs(metadata: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """Read log-probabilities in OpenAI's form, which LangChain's models use, too."""
    logprobs = metadata.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return tuple(
        TokenLogprob(
            token["token"],
            -1,
            token["logprob"],
            tuple(
                TokenLogprob(top["token"], -1, top["logprob"])
                for top in token.get("top_logprobs") or ()
            ),
        )
        for token in content or ()
    )
