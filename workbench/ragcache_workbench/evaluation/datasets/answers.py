"""Scores answers: free texts, and choices among a question's options."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .base import Answer, EvalQuestion, Scored
from .metrics import (
    MISSING_LOGPROB,
    choose_option,
    option_in_text,
    option_logprobs,
)

__all__ = ["score_option", "score_text"]


def score_text(
    question: EvalQuestion, answer: Answer, **metrics: Callable[[str, Sequence[str]], float]
) -> Scored:
    """Score a free answer by the question's right answers.

    Args:
        question: The question.
        answer: The model's answer.
        **metrics: Functions of the answer and the right answers, by the names of their scores.
    """
    text = answer.text.strip()
    return Scored({name: score(text, question.answers) for name, score in metrics.items()}, text)


def score_option(question: EvalQuestion, answer: Answer) -> Scored:
    """Score a choice: accuracy 1 if the likeliest option is right, else 0.

    The likeliest option is found by the options' log-probabilities as first tokens. If none of them
    is among the likeliest tokens, or the model returned no log-probabilities, it is the option that
    the answer names first. If the answer names none, MMLU's own rule applies: the first option for
    equal log-probabilities, and no option without log-probabilities.
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
