"""English words for the guard: inflections, spellings, parts of speech, and which mean the same.

What is known of words comes from WordNet (``english_words.txt``: words of one frequent meaning;
``english_kin.txt``: words related in rarer meanings, or derived from each other) and from tables of
our own (:data:`.question_words.SAME_WORDS`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from importlib.resources import files

from .question_words import IRREGULAR, MODERN_WORDS, OTHER_WORDS, SAME_WORDS, word_set

__all__ = [
    "are_kin",
    "are_synonyms",
    "compared_word",
    "forms_of",
    "is_derived",
    "is_english_word",
    "part_of_speech",
]

_REMEMBERED = 4_096


def is_english_word(word: str) -> bool:
    """Return whether a word in lower case is a common English one, and no name."""
    return not _dictionary().keys().isdisjoint(forms_of(word)) or compared_word(word) is not None


def _lines(name: str) -> list[list[str]]:
    lines = files(__package__).joinpath(name).read_text("ascii").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def _groups_of_words(groups: Iterable[Sequence[str]]) -> dict[str, set[int]]:
    """Return the numbers of the groups that each word shares with others."""
    shared: defaultdict[str, set[int]] = defaultdict(set)
    for number, words in enumerate(groups):
        for word in words:
            shared[word].update({number} if len(words) > 1 else ())
    return dict(shared)


@cache
def _dictionary() -> dict[str, set[int]]:
    """Return the senses of each English word, by number; words of one sense mean the same."""
    return _groups_of_words([*_lines("english_words.txt"), *SAME_WORDS, *zip(MODERN_WORDS)])


_ENDINGS = (
    ("ies", "y"), ("ied", "y"), ("ying", "ie"), ("sses", "ss"), ("es", "e"), ("es", ""), ("s", ""),
    ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""),
)  # fmt: skip
_TWICE = re.compile(r"([bdfgklmnprtz])\1$")
_SPELLINGS = (
    (re.compile(r"(?<=\w{2})is(?=(?:e|ed|es|ing|ation|ations|er|ers)$)"), "iz"),
    (re.compile(r"(?<=\w{2})ys(?=(?:e|ed|es|ing|er|ers)$)"), "yz"),
    (re.compile(r"(?<=\w{2})our(?=(?:s|ed|ing|ful|ite|able|ist)?$)"), "or"),
    (re.compile(r"(?<=\w{2}[bt])re(?=s?$)"), "er"),
    (re.compile(r"(?<=\w{2}l)l(?=(?:ed|ing|er|ers|ation|ment)$)"), ""),
    (re.compile(r"(?<=\w{2})ogue(?=s?$)"), "og"),
    (re.compile(r"ae|oe"), "e"),
    (re.compile(r"(?<=\w{2})amme(?=s?$)"), "am"),
    (re.compile(r"(?<=\w{2}en)c(?=es?$)"), "s"),
)
_SHORTEST_SPELT = 5


@lru_cache(_REMEMBERED)
def forms_of(word: str) -> frozenset[str]:
    """Return a word in American spelling, and what it may be an inflection of."""
    known = _dictionary()
    forms = {word, *IRREGULAR.get(word, ())}
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 2:  # noqa: PLR2004 - as in "used"
            stem = word[: -len(ending)] + replacement
            forms |= {stem, _TWICE.sub(r"\1", stem)} & known.keys()
    if word.endswith("s") and not word.endswith("ss") and len(word) > 3 and word not in known:  # noqa: PLR2004
        forms.add(word[:-1])  # of a name or a new word
    american = word
    for pattern, replacement in _SPELLINGS if len(word) >= _SHORTEST_SPELT else ():
        american = pattern.sub(replacement, american)
    return frozenset(forms) if american == word else frozenset(forms | forms_of(american))


@lru_cache(_REMEMBERED)
def are_synonyms(text: str, other_text: str) -> bool:
    """Return whether words mean the same, one is of the other's root, or a typing error of it."""
    one, other = forms_of(text), forms_of(other_text)
    if _are_told_apart(one, other):
        return False
    known = _dictionary()
    senses = {sense for form in one for sense in known.get(form, ())}
    if any(sense in senses for form in other for sense in known.get(form, ())):
        return True
    graded, other_graded = compared_word(text), compared_word(other_text)
    if graded and other_graded and graded[1] == other_graded[1]:
        one_base, other_base = graded[0], other_graded[0]
        return any(known[a] & known[b] for a in one_base for b in other_base)
    if any(is_derived(form, another) for form in one for another in other):
        return True
    known_one, known_other = not known.keys().isdisjoint(one), not known.keys().isdisjoint(other)
    return known_one != known_other and _is_typo(text, other_text)


@cache
def _other_words() -> dict[str, set[int]]:
    return _groups_of_words(OTHER_WORDS)


def _are_told_apart(one: frozenset[str], other: frozenset[str]) -> bool:
    """Return whether a table says that words do not mean the same."""
    lines, nowhere = _other_words(), set[int]()
    return any(
        lines.get(form, nowhere) & lines.get(another, nowhere) for form in one for another in other
    )


@lru_cache(_REMEMBERED)
def compared_word(word: str) -> tuple[frozenset[str], str] | None:
    """Return what a word compares, as *large* of *largest*, and whether it is the most of all."""
    for ending in ("iest", "est", "ier", "er"):
        if word.endswith(ending):
            stem = word[: -len(ending)]
            bases = (
                {stem + "y"} if ending[0] == "i" else {stem, stem + "e", _TWICE.sub(r"\1", stem)}
            )
            found = frozenset(bases & _dictionary().keys())
            if found:
                return found, ending[-3:].removeprefix("i")
    return None


_DERIVING = word_set(
    "e al ance ation ations ative ed en ence ency es ing ings ion ions ity ly ment ments ness s y "
    "ial ive th t te tion ional n ns ent ant ure ability ible able"
)
_ROOT = 5


def is_derived(one: str, other: str) -> bool:
    """Return whether two words are of one root, as *recommend* and *recommendation*."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    if shared < _ROOT:
        return False
    rests = one[shared:], other[shared:]
    return all(not rest or rest in _DERIVING for rest in rests)


_LONG = 5


def _is_typo(one: str, other: str) -> bool:
    """Return whether two long words differ by one letter, missing, added, wrong or swapped."""
    if min(len(one), len(other)) < _LONG or abs(len(one) - len(other)) > 1 or one[0] != other[0]:
        return False
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    a, b = one[start:], other[start:]
    return a[1:] == b or a == b[1:] or a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


@cache
def _kin() -> tuple[dict[str, set[str]], dict[str, str]]:
    """Return what words are related to each word, as *harm* to *injury*, and its part of speech.

    That is ``v`` for verbs, ``a`` for adjectives and ``r`` for adverbs.
    """
    kin: defaultdict[str, set[str]] = defaultdict(set)
    parts: dict[str, str] = {}
    for head, *others in _lines("english_kin.txt"):
        word, _, part = head.partition(":")
        if part:
            parts[word] = part
        for other in others:
            kin[word].add(other)
            kin[other].add(word)
    return dict(kin), parts


@lru_cache(_REMEMBERED)
def part_of_speech(word: str) -> str:
    """Return a word's most frequent part of speech: ``n``, ``v``, ``a``, or ``r`` for adverbs."""
    parts, forms = _kin()[1], forms_of(word)
    if word.endswith(("ed", "ing")) and len(forms) > 1:
        return "v"
    return next((parts[form] for form in (word, *sorted(forms)) if form in parts), "n")


@lru_cache(_REMEMBERED)
def are_kin(one: str, other: str) -> bool:
    """Return whether words are related in a rarer meaning, or derived from each other.

    Adjectives are so, too, if both are related to a third word.
    """
    forms, others = forms_of(one), forms_of(other)
    if _are_told_apart(forms, others):
        return False
    if compared_word(one) or compared_word(other):
        return False
    kin = _kin()[0]
    if any(not others.isdisjoint(kin.get(form, ())) for form in forms):
        return True
    if not part_of_speech(one) == part_of_speech(other) == "a":
        return False
    return any(
        not _related(form).isdisjoint(_related(another)) for form in forms for another in others
    )


@lru_cache(_REMEMBERED)
def _related(word: str) -> frozenset[str]:
    """Return the words that share a meaning with a word, and its kin."""
    senses = _dictionary().get(word, ())
    return frozenset(_kin()[0].get(word, ())).union(*(_of_senses()[sense] for sense in senses))


@cache
def _of_senses() -> dict[int, set[str]]:
    words: defaultdict[int, set[str]] = defaultdict(set)
    for word, senses in _dictionary().items():
        for sense in senses:
            words[sense].add(word)
    return dict(words)
