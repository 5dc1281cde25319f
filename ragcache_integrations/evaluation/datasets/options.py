"""Scoring an answer that is one of a question's options."""

from __future__ import annotations

from .base import Answer, EvalQuestion, Scored
from .metrics import (
    MISSING_LOGPROB,
    choose_option,
    option_in_text,
    option_logprobs,
)

__all__ = ["score_option"]


def score_option(question: EvalQuestion, answer: Answer) -> Scored:
    """1 where the likeliest option is right, else 0.

    By the options' log-probabilities as first tokens. Where none of them is among the likeliest
    tokens, or the model gave no log-probabilities, by the option that the answer names first; where
    it names none, by MMLU's own rule: the first option for equal log-probabilities, and none where
    there are no log-probabilities at all.
    """
    logprobs = option_logprobs(answer.likeliest, question.options)
    chosen: int | None
    if max(logprobs) > MISSING_LOGPROB:
        chosen = choose_option(logprobs)
    else:
        chosen = option_in_text(answer.text, question.options)
        if chosen is None and answer.likeliest:
            chosen = choose_option(logprobs)
    prediction = None if chosen is None else question.options[chosen]
    return Scored({"accuracy": float(prediction in question.answers)}, prediction)
