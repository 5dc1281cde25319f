"""The one place that touches vLLM; it runs in the engine's process only.

vLLM is unmodified. What is outside its documented interface is read by :meth:`VLLM.load` and
:meth:`VLLM.total_kv_tokens` alone.
"""

from __future__ import annotations

from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from ragcache_integrations.engine._protocol import EngineSettings, Output, Submit
from ragcache_integrations.engine.generation import EngineLoad, SamplingOptions, TokenLogprob

try:
    from vllm.exceptions import VLLMClientError as RefusedError
except ImportError:  # older versions raise ValueError itself
    RefusedError = ValueError

__all__ = ["VLLM"]

GIB = 1 << 30
CPU_KV_CACHE_GIB = 1.0
"""On a CPU the KV cache shares the machine's memory with everything else."""


def sampling_params(options: SamplingOptions) -> SamplingParams:
    """Translate, naming only what is set, so that other fields may come and go in vLLM."""
    fields: dict[str, Any] = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "output_kind": RequestOutputKind.DELTA,
    }
    if options.top_p != 1:
        fields["top_p"] = options.top_p
    if options.top_k:
        fields["top_k"] = options.top_k
    if options.stop:
        fields["stop"] = list(options.stop)
    if options.seed is not None:
        fields["seed"] = options.seed
    if options.logprobs is not None:
        fields["logprobs"] = options.logprobs
    if options.ignore_eos:
        fields["ignore_eos"] = True
    if options.json_schema is not None:
        fields["structured_outputs"] = StructuredOutputsParams(json=dict(options.json_schema))
    elif options.choice:
        fields["structured_outputs"] = StructuredOutputsParams(choice=list(options.choice))
    return SamplingParams(**fields)


def token_logprobs(
    token_ids: tuple[int, ...], positions: list[dict[int, Any]] | None, alternatives: int
) -> tuple[TokenLogprob, ...]:
    """Translate vLLM's ``{token id: Logprob}``, one mapping a position."""
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


class VLLM:
    """vLLM in this process, stepped by hand."""

    def __init__(self, settings: EngineSettings) -> None:
        arguments: dict[str, Any] = {
            "model": settings.model,
            "max_model_len": settings.max_model_len,
            "dtype": settings.dtype,
            "seed": settings.seed,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
        }
        kv_cache_gib = settings.kv_cache_gib
        if kv_cache_gib is None and current_platform.is_cpu():
            kv_cache_gib = CPU_KV_CACHE_GIB
        if kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int(kv_cache_gib * GIB)
        self._engine = LLMEngine.from_engine_args(EngineArgs(**(arguments | settings.vllm_args)))
        self._options: dict[str, SamplingOptions] = {}
        config = self._engine.vllm_config
        self.max_model_len: int = config.model_config.max_model_len
        self.block_size: int = config.cache_config.block_size

    @property
    def busy(self) -> bool:
        """Whether a step has anything to compute."""
        return bool(self._engine.has_unfinished_requests())

    def submit(self, request: Submit) -> None:
        """Add a request.

        Raises:
            ValueError: vLLM refuses it.
        """
        name = str(request.request_id)
        prompt: dict[str, Any] = {"prompt_token_ids": request.token_ids}
        if request.namespace:
            prompt["cache_salt"] = request.namespace
        renderer = getattr(self._engine, "renderer", None)
        if renderer is not None:  # older versions take the raw prompt
            (prompt,) = renderer.render_cmpl([prompt])
        try:
            self._engine.add_request(name, prompt, sampling_params(request.options))
        except RefusedError as error:
            raise ValueError(str(error)) from error
        self._options[name] = request.options

    def abort(self, request_ids: tuple[int, ...]) -> None:
        """Give these requests up. Unknown ones are ignored."""
        names = [str(number) for number in request_ids]
        names = [name for name in names if self._options.pop(name, None) is not None]
        if names:
            self._engine.abort_request(names)

    def step(self) -> tuple[Output, ...]:
        """Compute one step and return what it added to each request."""
        outputs = []
        for result in self._engine.step():
            options = self._options.get(result.request_id)
            if options is None:
                continue
            completion = result.outputs[0]
            token_ids = tuple(completion.token_ids)
            outputs.append(
                Output(
                    request_id=int(result.request_id),
                    text=completion.text,
                    token_ids=token_ids,
                    logprobs=token_logprobs(token_ids, completion.logprobs, options.logprobs or 0),
                    finish_reason=completion.finish_reason,
                    cached_tokens=result.num_cached_tokens or 0,
                )
            )
            if result.finished:
                del self._options[result.request_id]
        return tuple(outputs)

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
        )

    @property
    def total_kv_tokens(self) -> int:
        """Room of the KV cache in tokens. One block is vLLM's own placeholder."""
        return int((self._block_pool.num_gpu_blocks - 1) * self.block_size)

    @property
    def _scheduler(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler

    @property
    def _block_pool(self) -> Any:
        return self._scheduler.kv_cache_manager.block_pool

    def shutdown(self) -> None:
        """Free what vLLM holds."""
        self._engine.engine_core.shutdown()
