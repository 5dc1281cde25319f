"""Metrics of answers and of retrieval, in their usual definitions, and scores made of them.

Natural Questions, SQuAD and similar data sets: exact match and F1 of SQuAD's ``evaluate-v1.1``, or
what the authors of a data set changed in it.
MMLU: accuracy by the log-probabilities of the options' letters, as in the benchmark's own code.
PubMedQA: accuracy and macro-F1. QMSum and LongBench: ROUGE-L.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from ragcache_integrations.errors import ConfigurationError

from .base import Answer, EvalQuestion, Scored

__all__ = [
    "MISSING_LOGPROB",
    "choose_option",
    "exact_match",
    "k_recall",
    "macro_f1",
    "normalise_answer",
    "normalise_trivia_answer",
    "option_in_text",
    "option_logprobs",
    "rouge_l",
    "score_option",
    "token_f1",
    "token_f1_or_empty",
    "token_f1_or_yes_no",
]

MISSING_LOGPROB = -100.0
"""Used for an option that is not among the likeliest tokens, as in MMLU's own code."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TRIVIA_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation + "\u2018\u2019\u00b4`"), " ")

WHOLE_ANSWERS = frozenset({"yes", "no", "noanswer"})
"""Answers of which no part is right."""


def normalise_answer(text: str) -> str:
    """Bring an answer to SQuAD's normal form.

    That is in lower case, without ASCII punctuation and the articles a, an and the, with single
    spaces (``normalize_answer`` of SQuAD's evaluate-v1.1).
    """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def normalise_trivia_answer(text: str) -> str:
    """Bring an answer to TriviaQA's normal form.

    It is SQuAD's, but underscores, punctuation and single quotation marks become spaces
    (``normalize_answer`` of the authors' ``triviaqa_evaluation``).
    """
    bare = text.lower().translate(_TRIVIA_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(
    answer: str, references: Sequence[str], normalise: Callable[[str], str] = normalise_answer
) -> float:
    """Return 1 if the answer equals one of the references in normal form, else 0 (SQuAD).

    Args:
        answer: The answer.
        references: Right answers.
        normalise: Returns the normal form of a text.

    Raises:
        ConfigurationError: There is no reference.
    """
    text = normalise(answer)
    return float(any(text == normalise(reference) for reference in _some(references)))


def token_f1(
    answer: str, references: Sequence[str], normalise: Callable[[str], str] = normalise_answer
) -> float:
    """Best F1 of the words that the answer has in common with a reference, from 0 to 1 (SQuAD).

    Args:
        answer: The answer.
        references: Right answers.
        normalise: Returns the normal form of a text.

    Raises:
        ConfigurationError: There is no reference.
    """
    words = normalise(answer).split()
    return max(_overlap(words, normalise(text).split()) for text in _some(references))


def token_f1_or_empty(answer: str, references: Sequence[str]) -> float:
    """Return F1 as SQuAD's ``evaluate-v2.0`` does: texts without words equal each other.

    So the empty answer to an unanswerable question, whose reference is empty, is right.

    Raises:
        ConfigurationError: There is no reference.
    """
    return max(token_f1(answer, references), exact_match(answer, references))


def token_f1_or_yes_no(answer: str, references: Sequence[str]) -> float:
    """Return F1 as HotpotQA's script does: yes, no and noanswer have it only with their like.

    Raises:
        ConfigurationError: There is no reference.
    """
    text = normalise_answer(answer)
    return max(
        0.0
        if text != (right := normalise_answer(reference))
        and not WHOLE_ANSWERS.isdisjoint({text, right})
        else token_f1(answer, [reference])
        for reference in _some(references)
    )


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """ROUGE-L of the best reference: F1 of the longest common subsequence of words, 0 to 1.

    Words are runs of ASCII letters and digits in lower case, unstemmed, as the ``rouge_score``
    package has them by default (Lin, ROUGE, 2004).

    Raises:
        ConfigurationError: There is no reference.
    """
    words = _words(answer)
    return max(_rouge(words, _words(reference)) for reference in _some(references))


def option_logprobs(likeliest: Mapping[str, float], options: Sequence[str]) -> list[float]:
    """Return the log-probabilities of a question's options as the next token.

    In a text after ``Answer:``, an option comes after a space (MMLU's own code looks for nothing
    else). In a chat, where an answer begins a turn, it comes without one. The likeliest option says
    which of the two it is: all are looked up as it is written.

    Args:
        likeliest: Log-probabilities of the likeliest tokens.
        options: The options, such as A, B, C, D.

    Returns:
        A number for each option; :data:`MISSING_LOGPROB` for options that are missing.
    """
    spaced = [likeliest.get(f" {option}", MISSING_LOGPROB) for option in options]
    bare = [likeliest.get(option, MISSING_LOGPROB) for option in options]
    return bare if max(bare, default=0) > max(spaced, default=0) else spaced


def choose_option(logprobs: Sequence[float]) -> int:
    """Position of the likeliest option; the first among equals.

    Raises:
        ConfigurationError: There is no option.
    """
    if not logprobs:
        raise ConfigurationError("there must be at least one option, got none")
    return max(range(len(logprobs)), key=logprobs.__getitem__)


def option_in_text(text: str, options: Sequence[str]) -> int | None:
    """Find the option that an answer names first, for models without log-probabilities.

    Options are matched as whole words: single letters exactly, words in any case.

    Returns:
        The option's position among the options; ``None`` if the answer names none.
    """
    matches: list[tuple[int, int]] = []
    for place, option in enumerate(options):
        flags = re.IGNORECASE if len(option) > 1 else 0
        match = re.search(rf"(?<!\w){re.escape(option)}(?!\w)", text, flags)
        if match is not None:
            matches.append((match.start(), place))
    return min(matches)[1] if matches else None


def macro_f1(predictions: Sequence[str | None], labels: Sequence[str]) -> float:
    """F1 of each label, averaged over the labels there are (PubMedQA's own evaluation).

    Args:
        predictions: The label chosen for each question; ``None`` for none.
        labels: The right labels.

    Raises:
        ConfigurationError: There is no question, or the lengths differ.
    """
    if not labels or len(predictions) != len(labels):
        msg = f"got {len(predictions)} predictions for {len(labels)} labels, at least 1 is needed"
        raise ConfigurationError(msg)
    pairs = Counter(zip(predictions, labels, strict=True))
    chosen, right = Counter(predictions), Counter(labels)
    kinds = sorted({label for label in (*predictions, *labels) if label is not None})
    scores = [2 * pairs[kind, kind] / (chosen[kind] + right[kind]) for kind in kinds]
    return sum(scores) / len(scores)


def k_recall(returned: Sequence[str], nearest: Collection[str], k: int) -> float:
    """Share of the k nearest documents that were returned, from 0 to 1 (Proximity §4.2.4).

    Args:
        returned: Ids of the documents that were returned; those after the k-th do not count.
        nearest: Ids of the documents that the store itself returns for the same question. An id
            that comes several times has to be returned as often.
        k: Number of documents per question; at least 1. If the store has fewer, their number.

    Raises:
        ConfigurationError: ``k`` is below 1, or the store returned nothing.
    """
    count = min(k, len(nearest))
    if count < 1:
        msg = f"recall needs k of at least 1 and a document, got k={k} and {len(nearest)} documents"
        raise ConfigurationError(msg)
    return (Counter(returned[:k]) & Counter(nearest)).total() / count


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


def _some(references: Sequence[str]) -> Sequence[str]:
    if isinstance(references, str) or not references:
        msg = f"references must be at least one text in a sequence, got {references!r}"
        raise ConfigurationError(msg)
    return references


def _f1(common: int, words: Sequence[str], right: Sequence[str]) -> float:
    if common == 0:
        return 0.0
    precision, recall = common / len(words), common / len(right)
    return (2 * precision * recall) / (precision + recall)


def _overlap(words: Sequence[str], right: Sequence[str]) -> float:
    return _f1((Counter(words) & Counter(right)).total(), words, right)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _rouge(words: Sequence[str], right: Sequence[str]) -> float:
    return _f1(_longest_common_subsequence(words, right), words, right)


def _longest_common_subsequence(words: Sequence[str], others: Sequence[str]) -> int:
    # A row of the usual table: lengths[j] is the length for the words so far and others[:j].
    lengths = [0] * (len(others) + 1)
    for word in words:
        diagonal = 0
        for place, other in enumerate(others, start=1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == other else max(above, lengths[place - 1])
            diagonal = above
    return lengths[-1]
