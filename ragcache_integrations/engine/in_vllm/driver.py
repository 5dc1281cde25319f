"""vLLM in the engine's process.

vLLM is unmodified. Only :class:`VLLM` and :mod:`.scheduler` read attributes outside its documented
interface.

A resumed request's emitted tokens are the end of its prompt to vLLM. Without further steps the text
would differ from that of an undisturbed run: a stop string, a character of several tokens or a
leading space that straddles the cut would be missed. So vLLM's own state is set as if it had
generated the tokens itself.

Grammars need a tokenizer that leaves the text of a schema unchanged. One that converts text to
lower case, or composes its characters, has no tokens for a capital letter that a schema requires:
guidance would force the tokens of another text, and vLLM would end the request with an error.
"""

from __future__ import annotations

import copy
import json
import logging
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.config import KVTransferConfig
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.usage.usage_lib import UsageContext
from vllm.v1.structured_output.backend_guidance import GuidanceBackend

from ragcache_integrations.core.checks import unknown_name
from ragcache_integrations.core.extras import require
from ragcache_integrations.core.generation import Sampling, SamplingOptions, TokenLogprob
from ragcache_integrations.core.prompt import (
    ENCODE,
    LINK_TOKENS,
    PIN,
    ToolCallPiece,
    check_spans,
    extra_args_from_spans,
    extra_args_from_steps,
)
from ragcache_integrations.engine.arguments import (
    CPU_BLOCK_SIZE,
    CPU_KV_CACHE_GIB,
    GIB,
    GUIDANCE,
    XGRAMMAR,
    structured_outputs_config,
    without_host_tier,
)
from ragcache_integrations.engine.protocol import (
    CacheSettings,
    EngineLoad,
    EngineSettings,
    FailureKind,
    Output,
    Ready,
    RequestFailed,
    Step,
    Submit,
    ToolUse,
    document_key,
)
from ragcache_integrations.engine.schema_limits import check_schema, limit_schema, reaches_limits
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree import TreeSnapshot

from .anywhere.disk import DISK_CACHE_DIR, DISK_CACHE_GIB
from .connector import HOST_CACHE_GIB, REUSES_ANYWHERE, DocumentConnector, finish_writing
from .kv_cache import block_bytes
from .scheduler import DocumentCache, scheduler_class
from .unread import submitted_name

__all__ = ["VLLM", "CallReader", "continue_text", "keeping_text", "slow_on_cpu"]


logger = logging.getLogger(__name__)

CONTEXT = 4
"""Preceding tokens that vLLM needs to decode a token for its log-probability: the most tokens that
one character may have."""


def continue_text(
    output_processor: Any, name: str, prompt: Sequence[int], emitted: Sequence[int], sampling: Any
) -> None:
    """Make a request's text continue after the emitted tokens.

    Args:
        output_processor: vLLM's output processor, which knows the request.
        name: The request's name, as it was submitted.
        prompt: The prompt's tokens, without the emitted ones.
        emitted: The tokens of the answer that were emitted before.
        sampling: The request's ``SamplingParams``.
    """
    tokenizer = output_processor.tokenizer
    if tokenizer is None or not emitted:
        return
    try:
        (internal,) = output_processor.external_req_ids.get(name, [name])
        state = output_processor.request_states[internal]
        request = SimpleNamespace(
            request_id=internal,
            prompt_token_ids=list(prompt),
            prompt_embeds=None,
            sampling_params=sampling,
        )
        detokenizer = type(state.detokenizer)(tokenizer, request)
        # As if each token had just been generated, and the text returned except for an end that
        # may be the beginning of a stop string.
        detokenizer.update(list(emitted), stop_terminated=False)
        detokenizer.get_next_output_text(finished=False, delta=True)
        state.detokenizer = detokenizer
        logprobs = state.logprobs_processor.logprobs
        if isinstance(logprobs, list):
            logprobs.extend({token_id: None} for token_id in emitted[-CONTEXT:])
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.warning(
            "this version of vLLM cannot continue a text where it was cut: a stop string or a "
            "character that straddles the cut may be missed",
            exc_info=True,
        )


_X86 = {"x86_64", "AMD64"}
# Private functions of torch, which vLLM calls, too. A missing one is taken as support.
_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def slow_on_cpu(dtype: torch.dtype) -> str | None:
    """The type's name if it is computed on a CPU, in software; only known of bfloat16 on x86."""
    if not current_platform.is_cpu() or platform.machine() not in _X86 or dtype != torch.bfloat16:
        return None
    if any(getattr(torch.cpu, name, lambda: True)() for name in _CHECKS):
        return None
    return "bfloat16"


_CHANGING = frozenset(
    {"Lowercase", "StripAccents", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Strip"}
)


def keeping_text(tokenizer: Any) -> Any:
    """A copy of a tokenizer without normalizers that change text; the tokenizer if it has none.

    Args:
        tokenizer: A tokenizer of ``transformers``; one without a ``tokenizers`` backend is returned
            unchanged.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.normalizer is None:
        return tokenizer
    state = json.loads(backend.to_str())
    kept = _kept(state["normalizer"])
    if kept == state["normalizer"]:
        return tokenizer
    tokenizers = require("tokenizers", feature="the engine", extra="vllm")
    copied = copy.deepcopy(tokenizer)
    changed = tokenizers.Tokenizer.from_str(json.dumps({**state, "normalizer": kept}))
    copied.backend_tokenizer.normalizer = changed.normalizer
    return copied


def _kept(normalizer: dict[str, Any]) -> dict[str, Any] | None:
    if normalizer["type"] in _CHANGING:
        return None
    if normalizer["type"] != "Sequence":
        return normalizer
    parts = [part for part in map(_kept, normalizer["normalizers"]) if part is not None]
    return {"type": "Sequence", "normalizers": parts} if parts else None


NEUTRAL = {
    field.name: field.default
    for field in fields(Sampling)
    if field.name not in {"max_tokens", "temperature", "stop"}
}
"""Values of sampling options that change nothing, and are not passed to vLLM."""


def suits_guidance(config: Any) -> bool:
    """Whether guidance supports a model's tokenizer."""
    if config.model_config.skip_tokenizer_init:
        return True  # there is no grammar without a tokenizer
    supported = getattr(GuidanceBackend, "is_tokenizer_supported", None)  # not in older versions
    return supported is None or bool(supported(cached_tokenizer_from_config(config.model_config)))


def sampling_params(options: SamplingOptions, extra_args: dict[str, Any]) -> SamplingParams:
    """Sampling parameters for vLLM with only the fields that are set: others may change in vLLM.

    Args:
        options: Our sampling options.
        extra_args: Documents' spans for the scheduler; empty for none.
    """
    set_fields: dict[str, Any] = {
        name: getattr(options, name)
        for name, neutral in NEUTRAL.items()
        if getattr(options, name) != neutral
    }
    if options.stop:
        set_fields["stop"] = list(options.stop)
    if options.json_schema is not None:
        set_fields["structured_outputs"] = StructuredOutputsParams(json=dict(options.json_schema))
    elif options.choice:
        set_fields["structured_outputs"] = StructuredOutputsParams(choice=list(options.choice))
    if extra_args:
        set_fields["extra_args"] = extra_args
    return SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        output_kind=RequestOutputKind.DELTA,
        **set_fields,
    )


def token_logprobs(
    token_ids: tuple[int, ...], positions: list[dict[int, Any]] | None, alternatives: int
) -> tuple[TokenLogprob, ...]:
    """Convert vLLM's log-probabilities.

    Args:
        token_ids: The chosen tokens.
        positions: A mapping ``{token id: Logprob}`` for each of them; ``None`` if none were
            requested.
        alternatives: Number of alternatives to report for each token.
    """
    if positions is None:
        return ()
    tokens = []
    for token_id, position in zip(token_ids, positions, strict=True):
        ranked = sorted(position.items(), key=lambda item: item[1].rank)[:alternatives]
        top = tuple(
            TokenLogprob(entry.decoded_token or "", number, entry.logprob)
            for number, entry in ranked
        )
        chosen = position[token_id]
        tokens.append(TokenLogprob(chosen.decoded_token or "", token_id, chosen.logprob, top))
    return tuple(tokens)


def extra_args(request: Submit) -> dict[str, Any]:
    """What the scheduler learns of a request's documents.

    An attempt that failed may have failed to read stored documents: the next one is exact.
    """
    arguments = extra_args_from_spans(request.documents)
    if request.encodes:
        arguments[ENCODE] = 1
    elif arguments and request.link_tokens is not None and not request.attempt:
        arguments[LINK_TOKENS] = request.link_tokens
    if request.pin is not None:
        arguments[PIN] = request.pin
    return arguments | extra_args_from_steps(request.step, request.next_steps)


def errors_of(outputs: Iterable[Any]) -> dict[str, tuple[FailureKind, str]]:
    """Why vLLM ended requests with an error: the kind and the message, by the request's name.

    Args:
        outputs: ``EngineCoreOutput`` of a step. Older versions of vLLM do not say why.
    """
    errors = {}
    for output in outputs:
        error = getattr(output, "error", None)
        if error is not None:
            invalid = error.code == "validation_error"
            kind = FailureKind.INVALID if invalid else FailureKind.OTHER
            errors[submitted_name(output.request_id)] = kind, error.message
    return errors


def connector_config(cache: CacheSettings) -> KVTransferConfig | None:
    """Configuration that makes vLLM use our connector; ``None`` where nothing needs one."""
    anywhere = cache.reuse == "anywhere"
    if not (anywhere or cache.disk_cache_gib or cache.host_cache_gib):
        return None
    extra = {
        REUSES_ANYWHERE: anywhere,
        HOST_CACHE_GIB: cache.host_cache_gib,
        DISK_CACHE_GIB: cache.disk_cache_gib,
        DISK_CACHE_DIR: cache.disk_cache_dir,
    }
    return KVTransferConfig(
        kv_connector=DocumentConnector.__name__,
        kv_connector_module_path=DocumentConnector.__module__,
        kv_role="kv_both",
        kv_connector_extra_config=extra,
        # A request whose blocks could not be read back fails, with everything that was computed
        # from them, and is submitted again. vLLM's "recompute" would leave the wrong blocks for
        # other requests to find until they are computed again, which an abort may prevent.
        kv_load_failure_policy="fail",
    )


class CallReader:
    """Reads the calls of one answer, by vLLM's own parsers.

    A model that is free to call tools writes calls in the form that it was trained on, which a
    parser of vLLM's reads. Where a call is forced, a grammar has the answer be JSON that holds the
    calls and nothing else, whichever model it is.

    Args:
        use: The tools, and which of them must be called.
        tokenizer: The model's tokenizer.
        prompt: Tokens of the prompt.

    Attributes:
        schema: JSON schema that the answer must satisfy; ``None`` if it is free.
        keeps_special_tokens: Whether the parser needs the text of special tokens.
        called: Whether any call has begun.

    Raises:
        ValueError: There is no such parser, or it does not suit the tokenizer.
    """

    def __init__(self, use: ToolUse, tokenizer: Any, prompt: list[int]) -> None:
        # Imported here: most engines never see a tool, and vLLM's server takes long to import.
        from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415 - takes long
            ChatCompletionRequest,
        )

        self._prompt: list[int] | None = prompt
        self._most_calls = None if use.parallel else 1
        definitions = [_closed(tool) if use.forced else tool for tool in use.definitions]
        named = {"type": "function", "function": {"name": use.choice}}
        request = ChatCompletionRequest.model_validate(
            {
                "messages": [{"role": "user", "content": ""}],
                "tools": definitions,
                "tool_choice": use.choice if use.choice in {"auto", "required"} else named,
                "parallel_tool_calls": use.parallel,
            }
        )
        try:
            self._parser: Any = _parser_class(use)(tokenizer, request.tools)
        except ValueError:
            raise
        except Exception as error:  # such as a special token that the vocabulary lacks
            msg = f"vLLM's tool_parser {use.parser!r} does not suit the model: {error}"
            raise ValueError(msg) from error
        self._request = self._parser.adjust_request(request)
        outputs = self._request.structured_outputs
        schema = None if outputs is None else outputs.json
        if use.choice == "required" and not use.parallel and isinstance(schema, dict):
            schema = {**schema, "maxItems": 1}  # older versions set no limit
        self.schema: Any = schema
        self.keeps_special_tokens = not self._request.skip_special_tokens
        self.called = False

    def read(
        self, text: str, token_ids: list[int], *, finished: bool
    ) -> tuple[str, tuple[ToolCallPiece, ...]]:
        """Read a further piece of the answer.

        Args:
            text: Its text.
            token_ids: Its tokens.
            finished: Whether it is the last one.

        Returns:
            The part of the text that is no call, and pieces of calls.
        """
        if self._parser is None:
            return text, ()
        try:
            delta = self._parser.parse_delta(
                text, token_ids, self._request, self._prompt, finished=finished
            )
        except Exception:
            # Parsers stumble over what models write. A call that has begun stays incomplete, so
            # that it is never executed.
            logger.warning("vLLM's parser cannot read this answer as tool calls", exc_info=True)
            self._parser = None
            return text, ()
        self._prompt = None
        if delta is None:
            return "", ()
        pieces = tuple(
            _piece(call)
            for call in delta.tool_calls or ()
            if self._most_calls is None or call.index < self._most_calls
        )
        self.called = self.called or bool(pieces)
        return delta.content or "", pieces


def _parser_class(use: ToolUse) -> Any:
    # Imported here, too, for the engines that never see a tool.
    from vllm.parser.abstract_parser import DelegatingParser  # noqa: PLC0415 - takes long
    from vllm.parser.parser_manager import ParserManager  # noqa: PLC0415 - takes long
    from vllm.tool_parsers import ToolParser, ToolParserManager  # noqa: PLC0415 - takes long

    if use.forced:
        # The base class reads the JSON of forced calls. Those of families would have the model
        # write its own form, by a kind of grammar that the engine's backend does not have.
        class ForcedCalls(DelegatingParser):
            tool_parser_cls = ToolParser

        return ForcedCalls
    known = list(ToolParserManager.list_registered())
    if use.parser not in known:
        raise ValueError(unknown_name("tool_parser", use.parser, known))
    return ParserManager.get_parser(tool_parser_name=use.parser, enable_auto_tools=True)


def _piece(call: Any) -> ToolCallPiece:
    function = call.function
    arguments = getattr(function, "arguments", None) or ""
    return ToolCallPiece(
        call.index, arguments, call.id or "", getattr(function, "name", None) or ""
    )


def _closed(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool whose arguments are those that its schema names, and no others."""
    function = tool["function"]
    parameters = function["parameters"]
    if "properties" not in parameters:
        return tool
    return {
        **tool,
        "function": {**function, "parameters": {"additionalProperties": False, **parameters}},
    }


@dataclass(frozen=True, slots=True)
class _Running:
    """A request that vLLM is computing."""

    request_id: int
    attempt: int
    options: SamplingOptions
    limit: int | None = None
    calls: CallReader | None = None
    texts: list[str] = field(default_factory=list)

    def finish_reason(self, text: str, reason: Any) -> Any:
        """The finish reason after a further text; ``length`` if a limit of ours cut the answer."""
        if self.limit is not None:
            self.texts.append(text)
            if reason == "stop" and reaches_limits("".join(self.texts), self.limit):
                return "length"
        called = self.calls is not None and self.calls.called
        return "tool_calls" if reason == "stop" and called else reason


class VLLM:
    """vLLM in this process, advanced step by step.

    Args:
        settings: Settings of the engine.

    Attributes:
        on_begin: Called before a step with the numbers of the requests that it is the first to
            compute.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if current_platform.is_cpu():
            size = CPU_KV_CACHE_GIB if settings.kv_cache_gib is None else settings.kv_cache_gib
            settings = without_host_tier(replace(settings, kv_cache_gib=size))
        arguments: dict[str, Any] = {
            "model": settings.model,
            "max_model_len": settings.max_model_len,
            "dtype": settings.dtype,
            "seed": settings.seed,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
        }
        if current_platform.is_cpu():
            arguments["block_size"] = CPU_BLOCK_SIZE
        if settings.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * GIB)
        cache = settings.cache
        if settings.vllm_args.get("scheduler_cls") is not None:
            cache = None  # the tree and the host tier need our scheduler
        connector = None if cache is None else connector_config(cache)
        if connector is not None:
            arguments["kv_transfer_config"] = connector
        arguments |= settings.vllm_args
        chosen = arguments.get("structured_outputs_config")
        arguments["structured_outputs_config"] = structured_outputs_config(chosen)
        config = EngineArgs(**arguments).create_engine_config(UsageContext.LLM_CLASS)
        if chosen is None and not suits_guidance(config):
            config.structured_outputs_config.backend = XGRAMMAR
        self._limits_schemas = config.structured_outputs_config.backend == GUIDANCE
        if cache is not None and config.scheduler_config.scheduler_cls is None:
            config.scheduler_config.scheduler_cls = scheduler_class(
                cache, asynchronous=bool(config.scheduler_config.async_scheduling)
            )
        self._engine = LLMEngine.from_vllm_config(
            config, usage_context=UsageContext.LLM_CLASS, disable_log_stats=True
        )
        self._core = self._engine.engine_core.engine_core
        self._scheduler: Any = self._core.scheduler
        self._block_pool = self._scheduler.kv_cache_manager.block_pool
        if self._limits_schemas:
            grammars = self._scheduler.structured_output_manager
            grammars.tokenizer = keeping_text(grammars.tokenizer)
        self.on_begin: Callable[[tuple[int, ...]], None] = lambda _: None
        self._report_admissions()
        self._errors: dict[str, tuple[FailureKind, str]] = {}
        self._note_errors()
        self._running: dict[str, _Running] = {}
        self._names: dict[int, str] = {}
        self._tree_is_off: str | None = None
        self._cache = settings.cache
        self._documents: DocumentCache | None = None
        if settings.cache is not None:
            other = "vllm_args chose another scheduler"
            self._tree_is_off = getattr(self._scheduler, "fallback_reason", other)
            self._documents = getattr(self._scheduler, "documents", None)
        self.max_model_len: int = config.model_config.max_model_len
        self.block_size: int = config.cache_config.block_size

    def _report_admissions(self) -> None:
        schedule = self._scheduler.schedule

        def schedule_and_report(*args: Any, **kwargs: Any) -> Any:
            plan = schedule(*args, **kwargs)
            if plan.scheduled_new_reqs:
                names = (submitted_name(new.req_id) for new in plan.scheduled_new_reqs)
                requests = (self._running.get(name) for name in names)
                self.on_begin(tuple(r.request_id for r in requests if r is not None))
            return plan

        self._scheduler.schedule = schedule_and_report

    def _note_errors(self) -> None:
        """Keep what a step says of errors, which vLLM leaves out of its own engine's outputs."""
        get_output = self._engine.engine_core.get_output

        def get_and_note() -> Any:
            step = get_output()
            self._errors = errors_of(step.outputs)
            return step

        self._engine.engine_core.get_output = get_and_note

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do, even if only to free blocks of ended requests."""
        return bool(
            self._engine.has_unfinished_requests()
            or self._scheduler.has_requests()
            or self._core.batch_queue  # steps in flight; none without asynchronous scheduling
        )

    @property
    def idles(self) -> bool:
        """Whether nobody waits for what a step would compute."""
        return self._documents is not None and self._documents.idles

    def has_encoded(self, request: Submit) -> bool:
        """Whether a request would only encode documents that are stored."""
        documents = self._documents
        return (
            request.encodes
            and documents is not None
            and all(
                documents.keeps(
                    document_key(request.namespace, request.token_ids[begin:end]), end - begin
                )
                for _, begin, end in request.documents
            )
        )

    def count_missing(self, documents: Sequence[tuple[bytes, int]]) -> tuple[int, str]:
        """Look up whether encoded documents are kept, once all that waits is written.

        Args:
            documents: Their keys and lengths in tokens.

        Returns:
            How many are not, and why the latest of them could not be written; empty if all could.
        """
        if self._documents is None:
            return len(documents), ""
        reports = self._engine.collective_rpc(finish_writing)
        for unwritten, _ in reports:
            self._documents.forget_files(unwritten)
        missing = [tokens for key, tokens in documents if not self._documents.keeps(key, tokens)]
        why = next((error for _, error in reports if error), "")
        return len(missing), why or self._documents.why_not_kept(max(missing, default=0))

    def submit(self, request: Submit) -> None:
        """Add a request.

        Raises:
            ConfigurationError: The documents' spans are wrong, or they cannot be pinned.
            ValueError: vLLM refuses the request.
        """
        check_spans(request.documents, len(request.token_ids))
        number = request.request_id
        # Each attempt has another name, because vLLM may still be computing the previous one.
        name = f"{number}.{request.attempt}" if request.attempt else str(number)
        prompt: dict[str, Any] = {"prompt_token_ids": [*request.token_ids, *request.emitted]}
        if request.namespace:
            prompt["cache_salt"] = request.namespace
        (prompt,) = self._engine.renderer.render_cmpl([prompt])
        calls = None
        if request.tools is not None:
            tokenizer = cached_tokenizer_from_config(self._engine.vllm_config.model_config)
            calls = CallReader(request.tools, tokenizer, request.token_ids)
        options, limit = self._limited(request, calls)
        try:
            sampling = sampling_params(options, extra_args(request))
            if calls is not None and calls.keeps_special_tokens:
                sampling.skip_special_tokens = False
            self._engine.add_request(name, prompt, sampling, priority=request.priority)
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        except BaseException as error:
            # A panic in guidance, which is written in Rust, is a BaseException.
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"no grammar can be made of json_schema: {error}") from None
        if request.emitted:
            continue_text(
                self._engine.output_processor, name, request.token_ids, request.emitted, sampling
            )
        self._running[name] = _Running(number, request.attempt, options, limit, calls)
        self._names[number] = name
        self._check_pin(request, name)

    def _check_pin(self, request: Submit, name: str) -> None:
        """Abort a request whose documents cannot be pinned."""
        if request.pin is None:
            return
        why: str | None = "documents are pinned by the knowledge tree, which is off"
        if self._documents is not None:
            why = self._documents.take_pin_refusal(name)
        if why is not None:
            self.abort((request.request_id,))
            raise ConfigurationError(why)

    def unpin(self, request: Submit) -> bool:
        """Unpin the documents of a request, which is not computed; whether they were pinned."""
        if self._documents is None:
            return False
        before = self._documents.tree.stats().pins
        self.submit(request)
        self.abort((request.request_id,))
        return self._documents.tree.stats().pins < before

    def _limited(
        self, request: Submit, calls: CallReader | None
    ) -> tuple[SamplingOptions, int | None]:
        """The options of this attempt, and the answer tokens from which limits were derived.

        That is ``None`` for no limits.
        """
        options = request.options
        if calls is not None:
            options = replace(options, json_schema=calls.schema)
        if options.max_tokens is not None:  # else vLLM takes the rest of the window
            options = replace(options, max_tokens=options.max_tokens - len(request.emitted))
        if options.json_schema is None:
            return options, None
        if not self._limits_schemas:
            return replace(options, json_schema=check_schema(options.json_schema)), None
        left = self.max_model_len - len(request.token_ids)
        own = request.options.max_tokens
        limit = max(1, left if own is None else min(left, own))
        return replace(options, json_schema=limit_schema(options.json_schema, limit)), limit

    def abort(self, request_ids: tuple[int, ...], *, retract: bool = False) -> None:
        """Abort requests.

        Args:
            request_ids: Numbers of the requests; unknown ones are ignored.
            retract: Whether their documents were a wrong guess, which does not count as an access.
        """
        if retract and self._documents is not None:
            self._documents.retract({str(number) for number in request_ids})
        names = [self._names.pop(number) for number in request_ids if number in self._names]
        for name in names:
            del self._running[name]
        if names:
            self._engine.abort_request(names)

    def step(self) -> tuple[Output | RequestFailed, ...]:
        """Compute one step and return each request's new output or failure."""
        outputs: list[Output | RequestFailed] = []
        for result in self._engine.step():
            running = self._running.get(result.request_id)
            if running is None:
                continue
            if result.finished:
                del self._running[result.request_id]
                del self._names[running.request_id]
            completion = result.outputs[0]
            if completion.finish_reason == "error":
                outputs.append(self._failure(result.request_id, running))
                continue
            token_ids = tuple(completion.token_ids)
            alternatives = running.options.logprobs or 0
            text: str = completion.text
            pieces: tuple[ToolCallPiece, ...] = ()
            if running.calls is not None:
                text, pieces = running.calls.read(text, list(token_ids), finished=result.finished)
            outputs.append(
                Output(
                    request_id=running.request_id,
                    text=text,
                    token_ids=token_ids,
                    logprobs=token_logprobs(token_ids, completion.logprobs, alternatives),
                    finish_reason=running.finish_reason(completion.text, completion.finish_reason),
                    cached_tokens=result.num_cached_tokens or 0,
                    attempt=running.attempt,
                    tool_calls=pieces,
                )
            )
        return tuple(outputs)

    def _failure(self, name: str, running: _Running) -> RequestFailed:
        """The message about a request that vLLM ended with an error."""
        if self._documents is not None and self._documents.unread.take(name):
            kind = FailureKind.HOST_TIER
            why = "its documents could not be read back from the host's memory or the disk"
        else:
            unknown = FailureKind.OTHER, "vLLM ended it with an error"
            kind, why = self._errors.get(name, unknown)
        return RequestFailed(running.request_id, kind, why, running.attempt)

    def warm_up(self) -> None:
        """Answer one short prompt and forget it: vLLM's first request pays for lazy set-up."""
        self.submit(Submit(0, [1, 2, 3], SamplingOptions(max_tokens=2), "", ()))
        while self.busy:
            self.step()
        self.reset_cache()

    def reset_cache(self) -> bool:
        """Empty the KV cache; ``False`` while requests use it."""
        return bool(self._engine.reset_prefix_cache())

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        running, waiting = self._scheduler.get_request_counts()
        return EngineLoad(
            free_kv_tokens=self._block_pool.get_num_free_blocks() * self.block_size,
            total_kv_tokens=self.total_kv_tokens,
            running_requests=running,
            waiting_requests=waiting,
            prefilling_requests=sum(
                request.num_computed_tokens < request.num_prompt_tokens
                for request in self._scheduler.running
            ),
        )

    @property
    def total_kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens, without vLLM's placeholder block."""
        return int((self._block_pool.num_gpu_blocks - 1) * self.block_size)

    def ready(self) -> Ready:
        """What the application learns of the loaded engine."""
        config, documents = self._engine.vllm_config, self._documents
        workers = config.parallel_config.world_size
        wants_reuse = self._cache is not None and self._cache.reuse == "anywhere"
        wants_disk = self._cache is not None and self._cache.disk_cache_gib > 0
        no_reuse = self._tree_is_off if wants_reuse else None
        no_disk = self._tree_is_off if wants_disk else None
        return Ready(
            max_model_len=self.max_model_len,
            total_kv_tokens=self.total_kv_tokens,
            block_size=self.block_size,
            block_bytes=block_bytes(self._scheduler.kv_cache_config) * workers,
            tree_is_off=self._tree_is_off,
            slow_dtype=slow_on_cpu(config.model_config.dtype),
            reuse_is_off=no_reuse if documents is None else documents.reuse_is_off,
            disk_is_off=no_disk if documents is None else documents.disk_is_off,
        )

    def report(self, outputs: tuple[Output | RequestFailed, ...] = ()) -> Step:
        """A step's outputs, or none after an abort, with the counts of the tree if any ended."""
        if self._documents is None:
            return Step(outputs)
        ended = not outputs or any(
            isinstance(output, RequestFailed) or output.finish_reason is not None
            for output in outputs
        )
        stats = self._documents.stats() if ended else None
        return Step(outputs, stats, *self._documents.host_failures)

    def tree(self) -> TreeSnapshot | None:
        """The knowledge tree as plain data; ``None`` without one."""
        return None if self._documents is None else self._documents.snapshot()

    def shutdown(self) -> None:
        """Free what vLLM holds."""
        self._engine.engine_core.shutdown()
