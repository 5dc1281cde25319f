"""Quality of answers and of retrieval, each metric with its usual definition.

Natural Questions, SQuAD and the like: exact match and F1 as SQuAD's ``evaluate-v1.1`` has them.
MMLU: accuracy by the log-probabilities of the options' letters, as the benchmark's own code does
it. PubMedQA: accuracy and macro-F1. QMSum and LongBench: ROUGE-L.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "MISSING_LOGPROB",
    "choose_option",
    "exact_match",
    "k_recall",
    "macro_f1",
    "normalise_answer",
    "option_in_text",
    "option_logprobs",
    "rouge_l",
    "token_f1",
]

MISSING_LOGPROB = -100.0
"""Taken for an option that is not among the likeliest tokens, as in MMLU's own code."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Bring an answer to SQuAD's normal form.

    Lower case; without ASCII punctuation; without the articles a, an and the; single spaces
    (``normalize_answer`` of SQuAD's evaluate-v1.1).
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 where the answer is one of the references in normal form, else 0 (SQuAD).

    Raises:
        ConfigurationError: There is no reference.
    """
    given = normalise_answer(answer)
    return float(any(given == normalise_answer(one) for one in _some(references)))


def token_f1(answer: str, references: Sequence[str]) -> float:
    """F1 of the words in common with the reference that has most, from 0 to 1 (SQuAD).

    Raises:
        ConfigurationError: There is no reference.
    """
    given = normalise_answer(answer).split()
    return max(_f1(given, normalise_answer(one).split()) for one in _some(references))


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words, from 0 to 1; of the best reference.

    Words are runs of ASCII letters and digits in lower case, unstemmed, as the ``rouge_score``
    package has them by default (Lin, ROUGE, 2004).

    Raises:
        ConfigurationError: There is no reference.
    """
    given = _words(answer)
    return max(_rouge(given, _words(one)) for one in _some(references))


def option_logprobs(likeliest: Mapping[str, float], options: Sequence[str]) -> list[float]:
    """Log-probabilities of a question's options as the next token.

    With a space before, as a text goes on after ``Answer:`` (MMLU's own code looks for nothing
    else). Where none of these is among the likeliest tokens, as in a chat, where an answer begins
    a turn: without.

    Args:
        likeliest: Log-probabilities of the likeliest tokens.
        options: Such as A, B, C, D.

    Returns:
        One an option; :data:`MISSING_LOGPROB` for each that is not there.
    """
    spaced = any(f" {option}" in likeliest for option in options)
    return [
        likeliest.get(f" {option}" if spaced else option, MISSING_LOGPROB) for option in options
    ]


def choose_option(logprobs: Sequence[float]) -> int:
    """Position of the likeliest option; the first among equals.

    Raises:
        ConfigurationError: There is none.
    """
    if not logprobs:
        msg = "there must be at least one option, got none"
        raise ConfigurationError(msg)
    return max(range(len(logprobs)), key=logprobs.__getitem__)


def option_in_text(text: str, options: Sequence[str]) -> int | None:
    """Position of the option that stands first in an answer, for models without log-probabilities.

    Options are looked for as whole words; single letters as they are, words in any case.

    Returns:
        ``None`` where there is none.
    """
    found: list[tuple[int, int]] = []
    for place, option in enumerate(options):
        flags = re.IGNORECASE if len(option) > 1 else 0
        match = re.search(rf"(?<!\w){re.escape(option)}(?!\w)", text, flags)
        if match is not None:
            found.append((match.start(), place))
    return min(found)[1] if found else None


def macro_f1(predictions: Sequence[str | None], labels: Sequence[str]) -> float:
    """F1 of each label, averaged over the labels there are (PubMedQA's own evaluation).

    Args:
        predictions: The label that was given to each question; ``None`` for none.
        labels: The right ones.

    Raises:
        ConfigurationError: There is no question, or the lengths differ.
    """
    if not labels or len(predictions) != len(labels):
        msg = f"got {len(predictions)} predictions for {len(labels)} labels, at least 1 is needed"
        raise ConfigurationError(msg)
    pairs = Counter(zip(predictions, labels, strict=True))
    given, right = Counter(predictions), Counter(labels)
    kinds = sorted({one for one in (*predictions, *labels) if one is not None})
    scores = [2 * pairs[kind, kind] / (given[kind] + right[kind]) for kind in kinds]
    return sum(scores) / len(scores)


def k_recall(returned: Sequence[str], nearest: Collection[str], k: int) -> float:
    """Share of the k nearest documents that were returned, from 0 to 1 (Proximity §4.2.4).

    Args:
        returned: Ids of what was returned; those after the k-th do not count.
        nearest: Ids of what the store itself returns for the same question. One that comes several
            times has to be returned as often.
        k: How many are wanted. Where the store has fewer, all of these are.

    Raises:
        ConfigurationError: ``k`` is below 1, or the store returned nothing.
    """
    wanted = min(k, len(nearest))
    if wanted < 1:
        msg = f"recall needs k of at least 1 and a document, got k={k} and {len(nearest)} documents"
        raise ConfigurationError(msg)
    return (Counter(returned[:k]) & Counter(nearest)).total() / wanted


def _some(references: Sequence[str]) -> Sequence[str]:
    if isinstance(references, str) or not references:
        msg = f"references must be at least one text in a sequence, got {references!r}"
        raise ConfigurationError(msg)
    return references


def _f1(given: Sequence[str], right: Sequence[str]) -> float:
    common = sum((Counter(given) & Counter(right)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(right)
    return (2 * precision * recall) / (precision + recall)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _rouge(given: Sequence[str], right: Sequence[str]) -> float:
    common = _longest_common_subsequence(given, right)
    if common == 0:
        return 0.0
    precision, recall = common / len(given), common / len(right)
    return 2 * precision * recall / (precision + recall)


def _longest_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    lengths = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, against in enumerate(other, start=1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == against else max(above, lengths[place - 1])
            diagonal = above
    return lengths[-1]
