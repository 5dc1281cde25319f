"""Questions that look like others and ask for something else.

Without them a stream of well separated questions tests no false hits: whatever is near is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from parts.traffic.questions import Question

__all__ = ["near_duplicates", "opposites", "polarity_pairs"]

OPPOSITES = (
    ("enable", "disable"),
    ("increase", "decrease"),
    ("increased", "decreased"),
    ("increases", "decreases"),
    ("with", "without"),
    ("before", "after"),
    ("first", "last"),
    ("start", "end"),
    ("begin", "end"),
    ("starts", "ends"),
    ("biggest", "smallest"),
    ("largest", "smallest"),
    ("most", "least"),
    ("more", "less"),
    ("highest", "lowest"),
    ("higher", "lower"),
    ("high", "low"),
    ("upper", "lower"),
    ("north", "south"),
    ("northern", "southern"),
    ("east", "west"),
    ("eastern", "western"),
    ("left", "right"),
    ("new", "old"),
    ("early", "late"),
    ("long", "short"),
    ("long-term", "short-term"),
    ("men", "women"),
    ("male", "female"),
    ("boy", "girl"),
    ("king", "queen"),
    ("mother", "father"),
    ("wife", "husband"),
    ("brother", "sister"),
    ("son", "daughter"),
    ("win", "lose"),
    ("won", "lost"),
    ("winner", "loser"),
    ("hot", "cold"),
    ("summer", "winter"),
    ("children", "adults"),
    ("young", "elderly"),
    ("safe", "dangerous"),
    ("effective", "ineffective"),
    ("necessary", "unnecessary"),
    ("useful", "useless"),
    ("improve", "worsen"),
    ("reduce", "raise"),
    ("benefit", "harm"),
    ("acute", "chronic"),
    ("benign", "malignant"),
    ("positive", "negative"),
    ("primary", "secondary"),
    ("preoperative", "postoperative"),
    ("unilateral", "bilateral"),
)

FRAMES = (
    ("how to enable {}", "how to disable {}"),
    ("what are the advantages of {}", "what are the disadvantages of {}"),
    ("what happened before {}", "what happened after {}"),
    ("what increases {}", "what decreases {}"),
    ("who is for {}", "who is against {}"),
    ("what can be done with {}", "what can be done without {}"),
    ("the first {}", "the last {}"),
    ("why is {} allowed", "why is {} forbidden"),
)


def opposites(text: str) -> list[str]:
    """The question with one word turned into its opposite, for every word that has one."""
    found = []
    lower = text.casefold()
    for pair in OPPOSITES:
        for old, new in (pair, pair[::-1]):
            if old not in lower:  # quicker to see
                continue
            changed = re.sub(rf"(?<![\w-]){old}(?![\w-])", new, text, count=1, flags=re.IGNORECASE)
            if changed != text:
                found.append(changed)
    return found


def _other_numbers(text: str, rng: np.random.Generator) -> list[str]:
    """The question for another year, season or amount, for every number in it."""
    found = []
    for number in re.finditer(r"\b\d{1,4}\b", text):
        other = int(number[0]) + int(rng.integers(1, 10))
        found.append(f"{text[: number.start()]}{other}{text[number.end() :]}")
    return found


def _other_entities(
    question: Question, others: Sequence[Question], rng: np.random.Generator
) -> list[str]:
    """The question asked about what another one, which begins alike, is about."""
    if not question.entity:
        return []
    start = question.text.split(maxsplit=1)[0].casefold()
    entities = sorted(
        {
            other.entity
            for other in others
            if other.entity
            and other.entity.casefold() != question.entity.casefold()
            and other.text.split(maxsplit=1)[0].casefold() == start
        }
    )
    if not entities:
        return []
    entity = entities[int(rng.integers(len(entities)))]
    return [question.text.replace(question.entity, entity, 1)]


def near_duplicates(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Make near-duplicates that ask for something else.

    A word turned into its opposite, another number, or another subject in the same words: each
    about as often as the questions allow.

    Args:
        questions: What they are made from; at most one near-duplicate is made of each.
        count: How many are wanted.
        seed: The same seed makes the same ones.

    Returns:
        The near-duplicates; fewer than wanted where the rules do not find enough.
    """
    rng = np.random.default_rng([seed, 1])
    asked = {question.text.casefold() for question in questions}
    made: list[Question] = []
    for number in rng.permutation(len(questions)).tolist():
        question = questions[number]
        kinds = [
            opposites(question.text),
            _other_numbers(question.text, rng),
            _other_entities(question, questions, rng),
        ]
        variants = [
            [text for text in texts if text.casefold() not in asked] for texts in kinds if texts
        ]
        variants = [texts for texts in variants if texts]
        if len(made) < count and variants:
            texts = variants[int(rng.integers(len(variants)))]
            text = texts[int(rng.integers(len(texts)))]
            asked.add(text.casefold())
            made.append(Question(text))
    return made


def polarity_pairs(
    questions: Sequence[Question], titles: Sequence[str], count: int, seed: int
) -> list[tuple[str, str]]:
    """Pairs of questions of opposite meaning.

    Half of them at most are real questions that hold a word with an opposite; the others are
    framed around titles ("how to enable X", "how to disable X").

    Args:
        questions: The real ones.
        titles: Titles of articles.
        count: How many pairs.
        seed: The same seed makes the same ones.
    """
    rng = np.random.default_rng([seed, 2])
    pairs: list[tuple[str, str]] = []
    for number in rng.permutation(len(questions)).tolist():
        text = questions[number].text
        turned = opposites(text)
        if turned and len(pairs) < count // 2:
            pairs.append((text, turned[int(rng.integers(len(turned)))]))
    for place, number in enumerate(rng.permutation(len(titles))[: count - len(pairs)].tolist()):
        one, other = FRAMES[place % len(FRAMES)]
        pairs.append((one.format(titles[number]), other.format(titles[number])))
    return pairs
