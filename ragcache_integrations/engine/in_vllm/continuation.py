"""A request that goes on behind tokens of its answer which are known already.

To vLLM they are the end of its prompt. Left at that, the text would come out otherwise than in one
go: a stop string, a character of several tokens or a leading space that straddles the cut would be
missed. So vLLM's own state is brought to where it would be had it generated them itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

__all__ = ["continue_text"]

logger = logging.getLogger(__name__)

CONTEXT = 4
"""Tokens before one that vLLM looks at to decode it for a log-probability: a character's most."""


def continue_text(
    output_processor: Any, name: str, prompt: Sequence[int], emitted: Sequence[int], sampling: Any
) -> None:
    """Let a request's text go on behind what was emitted.

    Args:
        output_processor: vLLM's, which knows the request.
        name: The request's, as it was submitted.
        prompt: The prompt's tokens, without those emitted.
        emitted: Tokens of the answer that are known.
        sampling: The request's ``SamplingParams``.
    """
    tokenizer = output_processor.tokenizer
    if tokenizer is None or not emitted:
        return
    try:
        (internal,) = getattr(output_processor, "external_req_ids", {}).get(name, [name])
        state = output_processor.request_states[internal]
        request = SimpleNamespace(
            request_id=internal,
            prompt_token_ids=list(prompt),
            prompt_embeds=None,
            sampling_params=sampling,
        )
        detokenizer = type(state.detokenizer)(tokenizer, request)
        # As if each had just been generated, and the text handed out but for what may yet turn
        # out to be the beginning of a stop string.
        detokenizer.update(list(emitted), stop_terminated=False)
        detokenizer.get_next_output_text(finished=False, delta=True)
        state.detokenizer = detokenizer
        logprobs = state.logprobs_processor.logprobs
        if isinstance(logprobs, list):
            logprobs.extend({token_id: None} for token_id in emitted[-CONTEXT:])
    except (AttributeError, KeyError, TypeError, ValueError):
        logger.warning(
            "this version of vLLM does not let a text go on where it was cut: a stop string or a "
            "character that straddles the cut may be missed",
            exc_info=True,
        )
