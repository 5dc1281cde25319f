"""Requests that resume after the emitted tokens of their answers.

To vLLM these tokens are the end of the prompt. Without further steps the text would differ from
that of an undisturbed run: a stop string, a character of several tokens or a leading space that
straddles the cut would be missed. So vLLM's own state is set as if it had generated the tokens
itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

__all__ = ["continue_text"]

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
        (internal,) = getattr(output_processor, "external_req_ids", {}).get(name, [name])
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
