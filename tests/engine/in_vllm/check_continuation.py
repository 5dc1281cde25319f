"""vLLM's detokeniser, brought to where it would be had it generated what is known."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists

from ragcache_integrations.engine.in_vllm.driver import continue_text
from ragcache_integrations.engine.tiny_model import default_model_path

NAME = "7.1"
TEXT = " größer als 東京 🚀👩‍🚀 zum Mond, é und ñ. Ende"
PROMPT = "Was ist größer? 東京"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model_path())


class Request:
    """A request as vLLM's output processor sees it, answered with tokens of our choice."""

    def __init__(
        self, tokenizer: Any, prompt: list[int], emitted: list[int], stop: list[str]
    ) -> None:
        self._processor = OutputProcessor(tokenizer, log_stats=False)
        sampling = SamplingParams(logprobs=1, stop=stop, output_kind=RequestOutputKind.DELTA)
        request = EngineCoreRequest(
            request_id=f"{NAME}-abcdef01",
            prompt_token_ids=prompt + emitted,
            mm_features=None,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            external_req_id=NAME,
        )
        self._processor.add_request(request, None)
        if emitted:
            continue_text(self._processor, NAME, prompt, emitted, sampling)

    def say(self, tokens: list[int]) -> list[tuple[str, str, str | None]]:
        """The text of each token, as it is handed out, and as its log-probability has it."""
        said = []
        for number, token in enumerate(tokens, start=1):
            logprobs = LogprobsLists(
                np.array([[token, token]]), np.array([[-1.0, -1.0]]), np.array([1])
            )
            reason = FinishReason.LENGTH if number == len(tokens) else None
            output = EngineCoreOutput(
                f"{NAME}-abcdef01", [token], new_logprobs=logprobs, finish_reason=reason
            )
            (result,) = self._processor.process_outputs([output]).request_outputs
            completion = result.outputs[0]
            entry = completion.logprobs[0][token].decoded_token if completion.logprobs else ""
            said.append((completion.text, entry, completion.finish_reason))
            if result.finished:
                break
        return said


@pytest.mark.parametrize("stop", [[], ["Mond, é"], ["🚀👩"], ["nie", "ge"], ["東京 🚀"]])
def test_wherever_a_text_is_cut_it_goes_on(tokenizer: Any, stop: list[str]) -> None:
    prompt, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (PROMPT, TEXT))
    whole = Request(tokenizer, prompt, [], stop).say(answer)
    text = "".join(piece for piece, _, _ in whole)
    found = [TEXT.index(one) for one in stop if one in TEXT]
    assert text == (TEXT[: min(found)] if found else TEXT)
    assert "" in [piece for piece, _, _ in whole], "no character has several tokens"
    for cut in range(1, len(whole)):
        rest = Request(tokenizer, prompt, answer[:cut], stop).say(answer[cut:])
        assert rest == whole[cut:], cut


def test_another_version_of_vllm_is_told_of(
    tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    processor = SimpleNamespace(tokenizer=tokenizer, request_states={NAME: SimpleNamespace()})
    with caplog.at_level(logging.WARNING, logger="ragcache_integrations"):
        continue_text(processor, NAME, [1], [2], SamplingParams())
    assert "cannot continue a text" in caplog.text
    caplog.clear()
    continue_text(SimpleNamespace(tokenizer=None), NAME, [1], [2], SamplingParams())
    assert not caplog.records
