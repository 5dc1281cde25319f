"""Bursts of requests over documents that come again, whose answers two engines must agree on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from ragcache_integrations.engine import (
    Generation,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.resources import load_passages, load_questions

__all__ = ["BATCH", "answer", "make_prompts", "options"]

BATCH = 50
GIVEN_UP_TOKENS = 120
"""So many that no request that is to be given up ends before that on a busy machine."""
LETTERS = 240
"""Of a passage: what is looked at is blocks that come and go, not how much each of them holds."""


def make_prompts(count: int, seed: int = 5) -> list[Prompt]:
    """Questions over one to three passages, some of which are asked for again and again."""
    passages, questions = load_passages(), load_questions()
    dice = random.Random(seed)
    prompts = []
    for number in range(count):
        ranks = [min(int(dice.paretovariate(0.9)), 60) for _ in range(dice.randint(1, 3))]
        chosen = [passages[100 * place + rank] for place, rank in enumerate(ranks)]
        prompts.append(
            Prompt.rag(
                f"{questions[number % len(questions)].text} ({number})",
                [PromptDocument(passage.text[:LETTERS], passage.id) for passage in chosen],
                system="Answer from the documents, and from nothing else, in a few words.",
            )
        )
    return prompts


def options(number: int) -> SamplingOptions:
    """Answers of different lengths, so that memory runs out in the middle of some."""
    # Penalties have to survive that, too.
    penalty = 0.5 * (number % 3 == 1)
    return SamplingOptions(
        max_tokens=4 + 5 * (number % 8), ignore_eos=True, frequency_penalty=penalty
    )


def answer(
    engine: RAGCacheEngine,
    prompts: Sequence[Prompt],
    *,
    aborts: bool,
    options: Callable[[int], SamplingOptions] = options,
) -> list[Generation]:
    """Answer in bursts; with ``aborts``, others are begun among them and given up."""
    answers: list[Generation] = []
    for begin in range(0, len(prompts), BATCH):
        numbers = range(begin, min(begin + BATCH, len(prompts)))
        given_up, streams = [], []
        for number in numbers:
            if aborts and number % 7 == 3:
                long = replace(options(7), max_tokens=GIVEN_UP_TOKENS)
                given_up.append(engine.stream(prompts[number - 3], long))
            streams.append(engine.stream(prompts[number], options(number)))
        for number, stream in enumerate(given_up):
            if number % 2:
                next(iter(stream))
            stream.abort()
        answers += [stream.result() for stream in streams]
    return answers
