"""Questions made from passages, by rule: what is asked for stands in the passage, word for word.

A sentence loses a name, a number or a date, and a question word takes its place; words are dropped
and halves change places, so that a reader has to look for what is meant. No grammar is parsed.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

__all__ = ["Made", "make_question", "sentences"]

_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_DATE = re.compile(
    rf"\b(?:\d{{1,2}} )?(?:{_MONTH})(?: \d{{1,2}})?(?:,? \d{{4}})?\b|\b1\d{{3}}s?\b|\b20[0-4]\d\b"
)
_NUMBER = re.compile(
    r"\b\d[\d,.]*\d\b|\b\d\b|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b"
)
_NAME = re.compile(
    r"\b[A-Z][\w'’-]*(?:(?: (?:of|the|and|de|von|van))* [A-Z][\w'’-]*)*"  # noqa: RUF001 - as printed
)
_IN_PLACE = re.compile(r"(?:in|at|near|from|to|of) (?:the )?$", re.IGNORECASE)
_BEFORE_DATE = re.compile(r"(?:in|on|since|until|by|from|of|to|around|about) (?:the )?$")
_DROPPED = frozenset(
    """
    a an the of in on at to for and or that which who whom this these those is was are were be been
    has have had by with from as it its his her their also
    """.split()
)
_OPENERS = frozenset(
    """
    The A An In On At He She It They This These Those There When While After Before As If For From
    However But And His Her Its Their By Since During With To That Some Many Most Both We I You
    Although What How Why Where Who Yes No Not Or So Then Okay Yeah
    """.split()
)
_LONGEST_ANSWER = 6
_FEWEST_WORDS, _MOST_WORDS = 4, 14


@dataclass(frozen=True)
class Made:
    """A question and its answer.

    Attributes:
        text: The question.
        answer: As the passage words it.
        sentence: The sentence that tells.
    """

    text: str
    answer: str
    sentence: str


def sentences(passage: str) -> list[str]:
    """The sentences of a passage, roughly."""
    return [one.strip() for one in _SENTENCE.split(passage) if one.strip()]


def make_question(passage: str, dice: random.Random) -> Made | None:
    """Ask for something that a passage says; ``None`` where nothing was found to ask for."""
    told = [one for one in sentences(passage) if _FEWEST_WORDS + 2 <= len(one.split()) <= 60]
    dice.shuffle(told)
    for sentence in told[:4]:
        found = _askable(sentence)
        if found:
            begin, end, kind = dice.choice(found)
            question = _ask(sentence, begin, end, kind, dice)
            if question is not None:
                return Made(question, sentence[begin:end], sentence)
    return None


def _askable(sentence: str) -> list[tuple[int, int, str]]:
    taken: list[tuple[int, int, str]] = []

    def free(begin: int, end: int) -> bool:
        return all(end <= other or begin >= last for other, last, _ in taken)

    for pattern, kind in ((_DATE, "date"), (_NUMBER, "number"), (_NAME, "name")):
        for match in pattern.finditer(sentence):
            begin, end = match.span()
            words = match[0].split()
            if kind == "name" and words[0] in _OPENERS:
                begin += len(words[0]) + 1
                words = words[1:]
            if kind == "name" and begin == 0 and len(words) == 1:
                continue  # any word may begin a sentence
            if words and len(words) <= _LONGEST_ANSWER and end > begin and free(begin, end):
                taken.append((begin, end, kind))
    return taken


def _ask(sentence: str, begin: int, end: int, kind: str, dice: random.Random) -> str | None:
    before, after = sentence[:begin], sentence[end:].rstrip(" .!?")
    if kind == "date":
        ask = dice.choice(["when", "when", "what year", "what date", "when did", "when was"])
        before = _BEFORE_DATE.sub("", before)
    elif kind == "number":
        ask = dice.choice(["how many", "how many", "how much", "what number of", "what is the"])
    elif _IN_PLACE.search(before):
        ask = dice.choice(["where", "where", "what", "which", "who", "what place"])
        before = _IN_PLACE.sub("", before) if ask == "where" else before
    else:
        ask = dice.choice(["who", "who", "what", "which", "what is the name of", "whose"])
    left, right = before.split(), after.split()
    most = dice.randint(_FEWEST_WORDS, _MOST_WORDS)
    # What stands near the answer tells most; more of the side that has more.
    keep_left = min(len(left), max(most // 2, most - len(right)))
    keep_right = min(len(right), most - keep_left)
    left, right = left[len(left) - keep_left :], right[:keep_right]
    if kind == "number" and right:  # how many WHAT
        words = [*right, *left] if dice.random() < 0.8 else [*left, *right]
    elif not left or dice.random() < 0.5:
        words = [*right, *left]
    else:
        words = [*left, *right]
    drop = dice.choice([0.0, 0.3, 0.7])
    words = [one for one in words if one.lower() not in _DROPPED or dice.random() >= drop]
    loose = dice.choice([0.0, 0.0, 0.15, 0.3])
    words = [one for one in words if dice.random() >= loose]
    if len(words) < _FEWEST_WORDS - 1:
        return None
    style = dice.random()
    if style < 0.1:  # key words alone, as people type them
        dice.shuffle(words)
        text = " ".join([*words, ask.split()[0]])
    elif style < 0.2:
        text = " ".join([*words, "is", ask.split()[0]])
    else:
        text = " ".join([ask, *words])
    text = re.sub(r"[\"“”()\[\];:]|,(?=\s|$)", "", text)
    return text.lower() if dice.random() < 0.6 else f"{text[0].upper()}{text[1:]}?"
