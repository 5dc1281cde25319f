"""The stream of questions: some are asked again and again, and not always in the same words."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragcache_integrations.errors import ConfigurationError

__all__ = ["REPHRASINGS", "Request", "rephrase", "zipf_stream"]

OPENINGS = (
    "please tell me",
    "i would like to know",
    "can you tell me",
    "do you know",
    "quick question:",
    "i was wondering",
)

CLOSINGS = ("please", "exactly", "thanks")

# Both ways where both are safe: "performed" is not always "sang".
CONTRACTIONS = {
    "who is": "who's",
    "what is": "what's",
    "where is": "where's",
    "when is": "when's",
    "do not": "don't",
    "does not": "doesn't",
    "did not": "didn't",
    "who's": "who is",
    "what's": "what is",
    "where's": "where is",
    "don't": "do not",
}

SYNONYMS = {
    "movie": "film",
    "film": "movie",
    "tv show": "television series",
    "tv series": "television show",
    "the us": "the united states",
    "the usa": "the united states",
    "the united states": "the us",
    "biggest": "largest",
    "largest": "biggest",
    "located": "situated",
    "situated": "located",
    "begin": "start",
    "start": "begin",
    "began": "started",
    "started": "began",
    "wrote": "is the author of",
    "sings": "performs",
    "sang": "performed",
    "got the": "received the",
    "come from": "originate from",
    "came from": "originated from",
    "originate from": "come from",
    "come out": "get released",
    "came out": "got released",
    "take place": "happen",
    "took place": "happened",
    "happen": "take place",
    "made": "created",
    "known as": "called",
    "called": "known as",
    "what year": "which year",
    "how many": "what number of",
    "what is the meaning of": "what is meant by",
}


def _substitute(table: dict[str, str], text: str) -> list[str]:
    """The text with one entry of the table swapped, for every entry that it holds."""
    variants = (re.sub(rf"\b{re.escape(old)}\b", new, text, count=1) for old, new in table.items())
    return [variant for variant in variants if variant != text]


def _open(text: str) -> list[str]:
    return [f"{opening} {text}" for opening in OPENINGS]


def _close(text: str) -> list[str]:
    return [f"{text} {closing}" for closing in CLOSINGS]


def _contract(text: str) -> list[str]:
    return _substitute(CONTRACTIONS, text)


def _swap_word(text: str) -> list[str]:
    return _substitute(SYNONYMS, text)


def _move_to_front(text: str) -> list[str]:
    """``who won the cup in 1998`` -> ``in 1998 who won the cup``."""
    match = re.fullmatch(r"(\w+ \w+ .*\w) ((?:in|on|at|during|for) (?:the )?\w+(?: \w+)?)", text)
    return [f"{match[2]} {match[1]}"] if match else []


REPHRASINGS: dict[str, Callable[[str], list[str]]] = {
    "opening": _open,
    "closing": _close,
    "contraction": _contract,
    "synonym": _swap_word,
    "word order": _move_to_front,
}
"""The rules by name; each gives all its variants of a text, none where it does not apply."""


def rephrase(text: str, rng: random.Random) -> str:
    """Put a question in other words: one or two different rules, picked at random.

    Args:
        text: The question.
        rng: Where chance comes from.

    Returns:
        Another text, never the same one.
    """
    original = text
    rules = list(REPHRASINGS)
    rng.shuffle(rules)
    # The wording changes first: an opening would keep the other rules from matching.
    rules.sort(key=lambda name: name in {"opening", "closing"})
    applicable = [name for name in rules if REPHRASINGS[name](text)]
    for name in sorted(rng.sample(applicable, rng.randint(1, 2)), key=rules.index):
        text = rng.choice(REPHRASINGS[name](text) or [text])
    return text if text != original else rng.choice(_open(original))


@dataclass(frozen=True, slots=True)
class Request:
    """One question of the stream.

    Attributes:
        text: The question as it is asked this time.
        topic: Position of the question among those given; the same for all its wordings.
        repeated: Whether this topic has been asked before.
        rephrased: Whether the wording is new; only a repeated one may be.
    """

    text: str
    topic: int
    repeated: bool
    rephrased: bool


def zipf_stream(
    questions: Sequence[str],
    length: int,
    *,
    exponent: float = 0.8,
    rephrased_share: float = 0.5,
    seed: int = 0,
) -> list[Request]:
    """Draw questions by Zipf's law: the r-th most popular one with a chance of r**-exponent.

    Args:
        questions: The questions to draw from; which of them are popular is drawn too.
        length: How many to draw.
        exponent: 0 draws all alike; 0.8 is common in measured traffic.
        rephrased_share: Share of the repeated ones that comes in other words, rounded down.
        seed: The same seed gives the same stream.

    Raises:
        ConfigurationError: There are no questions, or a number is out of its range.
    """
    if not questions or length < 1 or exponent < 0 or not 0 <= rephrased_share <= 1:
        msg = (
            "a stream needs questions, a length of at least 1, an exponent of at least 0 and a "
            f"rephrased_share from 0 to 1, got {len(questions)} questions, {length=}, {exponent=}, "
            f"{rephrased_share=}"
        )
        raise ConfigurationError(msg)
    rng = random.Random(seed)
    by_popularity = rng.sample(range(len(questions)), len(questions))
    chances = itertools.accumulate(rank**-exponent for rank in range(1, len(questions) + 1))
    topics = rng.choices(by_popularity, cum_weights=list(chances), k=length)
    first = {topic: place for place, topic in reversed(list(enumerate(topics)))}
    repeats = [place for place, topic in enumerate(topics) if first[topic] != place]
    changed = set(rng.sample(repeats, int(len(repeats) * rephrased_share)))
    return [
        Request(
            text=rephrase(questions[topic], rng) if place in changed else questions[topic],
            topic=topic,
            repeated=first[topic] != place,
            rephrased=place in changed,
        )
        for place, topic in enumerate(topics)
    ]
