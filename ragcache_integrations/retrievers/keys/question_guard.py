"""Differences between questions that an embedding hardly sees, and an answer turns on.

"Revenue in 2023" and "revenue in 2024", "how to enable" and "how to disable" are neighbours to an
embedding model. So the guard reads a question's *marks*: what is asked for, numbers, dates,
negations, opposites, comparisons, units and names. Marks are compared as a whole, so they can be a
part of a cache key: entries of other marks are not even looked at.

Marks don't show every difference. So questions in English whose marks are the same are compared
with each other, word by word (:mod:`.question_pairs`), before one gets the other's answer; in other
languages all words are marks. It knows words, not meanings: it takes
some rephrasings for other questions, which costs a hit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise

from .question_lexicon import is_english_word
from .question_pairs import english_difference
from .question_reading import TOKEN
from .question_words import (
    ADVERBS,
    AUXILIARIES,
    CAPITONYMS,
    COMPARISONS,
    DATES,
    FUNCTION_WORDS,
    NEGATIONS,
    NUMBERS,
    OPPOSITES,
    QUESTION_WORDS,
    RELATIONS,
    SCALES,
    TABLES,
    TENS,
    UNITS,
    asking_words,
    first_for_others,
    in_one_wording,
    patterns,
    without_courtesies,
    word_set,
)

__all__ = ["QuestionMarks", "may_share", "question_difference", "question_marks", "unify_unicode"]

QuestionMarks = tuple[tuple[str, ...], ...]
"""The marks of a question by kind, in the order of :data:`KINDS`; last what must be spelt alike."""

KINDS = (
    *("what is asked for", "numbers", "dates", "negations", "opposites"),
    *("comparison", "units", "names", "words"),
)

_LONGEST = 4_000
"""Characters of a question that are read; a longer one is the same as itself alone."""

_REMEMBERED = 4_096

_TOKEN = re.compile(
    r"""
    \d+(?:st|nd|rd|th)\b                      # ordinals
    | \d+(?:[.,:/]\d+)*(?:[kmb]\b)?          # figures, also 1,000 and 3.5 and 10:30 and 5k
    | \w+(?:[-_.'+\#@/]\w+)*[+\#]*            # words, identifiers, don't, gpt-4, c++
    | (?<![^\s(=<>])-(?=\d) | (?<=\d\ )-(?=\ \d)  # a sign, and a difference
    | (?<=[\d)])!                             # a factorial
    | [%$+*/^=<>] | [^\w\s\x00-\x7f]
    """,
    re.VERBOSE | re.IGNORECASE,
)
_LEFT = frozenset({"log", "logged", "logging", "sign", "signed", "signing", "opt", "zoom", "check"})
_OPERATORS = frozenset("-!+*/^=<>")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SENTENCE_END = (".", "!", "?", ":", ";", "\n")
_POWERS = str.maketrans({power: f"^{digit}" for digit, power in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_HALVES = ("-only", "-free", "-less")
_NOT_NEGATED = ("unc", "und", "uni", "unl", "unt")
_NEGATED = ("uncommon", "uncert", "unclear", "undo", "unlike", "unlock", "unlimited", "untrue")


def unify_unicode(text: str) -> str:
    """Return a text without differences of Unicode's spellings, but for those of another meaning.

    NFKC alone takes 10² for 102.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text.translate(_POWERS))


def question_marks(text: str) -> QuestionMarks:
    """Return the marks of a question, by kind.

    Texts that come again are remembered. Capitals distinguish names from other words, so a question
    in lower case has no names.

    Args:
        text: The question. If it is not in English, its words are its only marks.
    """
    return (*_marks(_plain_text(text)), tuple(sorted(_spellings(text))))


def question_difference(text: str, other: str) -> str | None:
    """Return in words how two questions differ, such as ``numbers: 2023 / 2024``.

    Returns:
        The first kind of difference, in the marks or in the words; ``None`` if the guard sees none.
    """
    if text == other:
        return None
    kinds = (*KINDS, "spelling")
    marks = zip(kinds, question_marks(text), question_marks(other), strict=True)
    for kind, own, others in marks:
        if own != others:
            return f"{kind}: {', '.join(own) or 'none'} / {', '.join(others) or 'none'}"
    one, two = _plain_text(text), _plain_text(other)
    if one == two or max(len(one), len(two)) > _LONGEST or not _is_english(one):
        return None
    return english_difference(one, two)


def may_share(text: str, other: str) -> bool:
    """Return whether two questions may share what was found for one of them."""
    return question_difference(text, other) is None


def _plain_text(text: str) -> str:
    return unify_unicode(text).replace("\u2019", "'").replace("\u2212", "-")


@lru_cache(_REMEMBERED)
def _marks(text: str) -> QuestionMarks:
    if len(text) > _LONGEST:
        return ((text,), *((),) * (len(KINDS) - 1))
    if not _is_english(text):
        return (*((),) * (len(KINDS) - 1), _words_of_other_languages(text))
    text = in_one_wording(without_courtesies(text))
    tokens = list(_TOKEN.finditer(text))
    plain = [part for token in tokens for part in _parts(_plain(token[0]))]
    asked_for, words = _asked_for(plain)
    names = tuple(_names(text, tokens))
    compares = not COMPARISONS.isdisjoint(words)
    return (
        tuple(sorted((asked_for, *_asked_besides(text)))),
        tuple(_numbers(_scaled(_whole_numbers(words)))),
        tuple(sorted(_dates(words))),
        ("not",) * sum(map(_negates, words)),
        tuple(_sides(words)),
        tuple(_content(words) if compares else (*_directions(words), *_roles(asked_for, words))),
        tuple(dict.fromkeys(UNITS[word] for word in words if word in UNITS)),
        names if compares else tuple(sorted(names)),
        (),
    )


_AROUND = "\"'`,;:!?.\u2026\u2018\u2019\u201c\u201d\u00ab\u00bb\u00bf\u00a1"
_CODE = frozenset("\\/_.#+@%$&=<>|^*()[]{}:")
_OWN_LETTER = frozenset("aIi")  # an article and a pronoun


def _spellings(text: str) -> Iterator[str]:
    """Yield the words whose case or symbols carry meaning, as they are spelt.

    Those are words with a capital after their first letter (``MW``, ``getID``), single letters
    (``G``), letters together with symbols (``-v``, ``%M``, ``X.maxSize``), and symbols alone
    (``??``), but for punctuation and dashes. Embedding models often read none of these differences.
    """
    for word in unicodedata.normalize("NFC", text[:_LONGEST]).split():
        core = word.strip(_AROUND)
        if core[:1] in "([{":
            core = core.strip("()[]{}")
        if not any(map(str.isalnum, word)):
            if len(word) > 1 and word.isascii() and not word.startswith("--"):
                yield word
        elif any(map(str.isalpha, core)) and (
            any(map(str.isupper, core[1:]))
            or (len(core) == 1 and core not in _OWN_LETTER)
            or not _CODE.isdisjoint(core)
            or core[0] == "-"
        ):
            yield core


def _plain(token: str) -> str:
    return token.casefold().removesuffix("'s")


def _asked_for(words: list[str]) -> tuple[str, list[str]]:
    """Return what is asked for, and the words that do not say that."""
    for place in range(len(words)):
        asking, length = asking_words(words, place)
        if asking:
            return asking, words[:place] + words[place + length :]
    return "whether", words


_QUESTION_WORD = re.compile(rf"\b(?:{'|'.join(sorted(QUESTION_WORDS))})\b", re.IGNORECASE)
_BESIDES = re.compile(
    r"(?:\b(?:and|or|but|plus|also|then)\s|[,;:.?!/&])\s*"
    r"(?:(?:also|then|if so|in|at|on|by|to|from|for|with|of|since|until)\b,?\s+)*"
    rf"({_QUESTION_WORD.pattern}(?:\s+\w+)?)",
    re.IGNORECASE,
)
"""A question word that another one, or a whole question, precedes, as in "who and when"."""


def _asked_besides(text: str) -> Iterator[str]:
    """Yield what a question asks for besides the first thing."""
    first = _QUESTION_WORD.search(text)
    for found in _BESIDES.finditer(text, first.end()) if first else ():
        yield asking_words(found[1].casefold().split(), 0)[0]


_SAID = {**NUMBERS, **DATES, **UNITS, **dict.fromkeys(NEGATIONS)}


def _parts(word: str) -> list[str]:
    """Return the parts of *five-a-side* and *mid-January*, and other words whole."""
    parts = word.split("-")
    if parts[0] in TENS or not any(part in _SAID for part in parts):
        return [word]
    return parts


def _whole_numbers(words: list[str]) -> Iterator[str]:
    """Yield the words, with *twenty-one* and *twenty one* as 21."""
    parts: list[str] = []
    for word in words:
        halves = word.split("-")
        parts += halves if NUMBERS.get(halves[0], "").endswith("0") else [word]
    tens = ""
    for part in [*parts, ""]:
        unit = {"one": "1", "first": "1th"}.get(part, NUMBERS.get(part, ""))
        if tens and unit.removesuffix("th") in {*"123456789"}:
            yield tens[0] + unit
            tens = ""
            continue
        if tens:
            yield tens
        tens = NUMBERS.get(part, "") if part in TENS else ""
        if not tens:
            yield part


_FIGURE = re.compile(r"\d{1,15}(?:\.\d{1,6})?")


def _scaled(words: Iterable[str]) -> Iterator[str]:
    """Yield the words, with *two hundred and five* as 205, and *1.5 million* as 1500000."""
    thousands, group = Decimal(0), None  # of one number: what is below a thousand comes last
    scale = 0  # that the last word was, or 0
    held: list[str] = []  # what is yielded unless a scale follows
    scaled = False
    for word in (*words, ""):
        figure = _figure(NUMBERS.get(word, word))
        value = Decimal(figure) if _FIGURE.fullmatch(figure) else None
        if word in SCALES:
            group = (Decimal(1) if group is None else group) * SCALES[word]
            if SCALES[word] >= 1000:  # noqa: PLR2004 - hundreds are a part of thousands
                thousands, group = thousands + group, None
            scale, scaled, held = SCALES[word], True, []
        elif scale and not held and word == "and":
            held = [word]
        elif scale and value is not None and value < scale:
            group, scale, held = (group or 0) + value, 0, []
        else:
            if scaled:
                yield f"{(thousands + (group or 0)).normalize():f}"
            yield from held
            thousands, group, scale, scaled = Decimal(0), value, 0, False
            held = [word]


def _numbers(words: Iterable[str]) -> Iterator[str]:
    """Yield numbers and operators, in their order: a date or a difference turns on it."""
    for word in words:
        if not any(character.isnumeric() for character in word):
            if word in NUMBERS:
                yield NUMBERS[word]
            elif word in _OPERATORS or (len(word) == 1 and unicodedata.category(word) == "Sm"):
                yield word
        elif word.endswith(("st", "nd", "rd", "th")):
            yield f"{word[:-2]}th"
        else:
            yield _figure(word)


def _figure(word: str) -> str:
    """Write a figure in one way: 1,000 as 1000. Zeros at the end count: version 3.10 is not 3.1."""
    return word.replace(",", "") if _THOUSANDS.fullmatch(word) else word


def _dates(words: list[str]) -> Iterator[str]:
    yield from (DATES[word] for word in words if word in DATES)
    for before, word in pairwise(words):
        if word in {"am", "pm", "a.m", "p.m"} and before[0].isdigit():
            yield word[0]
        # Elsewhere it is mostly a verb.
        if word == "may" and before in {"in", "of", "since", "until", "by", "last", "next"}:
            yield word


def _negates(word: str) -> bool:
    undone = word.startswith("un") and (
        len(word) > 4 and (not word.startswith(_NOT_NEGATED) or word.startswith(_NEGATED))  # noqa: PLR2004 - as in undo
    )
    return (
        word in NEGATIONS or undone or word.startswith("non-") or word.endswith(("n't", *_HALVES))
    )


def _sides(words: list[str]) -> list[str]:
    """Return the sides that words take. Those of one pair keep their order, as in "up or down"."""
    sides = [side for word in words for side in OPPOSITES.get(word, ()) or _prefix(word)]
    # Elsewhere it is no side, as in "find out".
    sides += ["out" for before, word in pairwise(words) if word == "out" and before in _LEFT]
    return sorted(sides, key=lambda side: side.rstrip("-"))


def _prefix(word: str) -> tuple[str, ...]:
    """Return the side that a word's beginning takes, as in *pre-war* or *hypertension*."""
    return tuple(prefix for prefix in ("pre-", "post-", "hyper") if word.startswith(prefix))


def _content(words: Iterable[str]) -> Iterator[str]:
    """Yield the words that say something, in their order, without plurals."""
    return (word.rstrip("s") for word in words if word not in FUNCTION_WORDS)


def _directions(words: list[str]) -> Iterator[str]:
    """Yield where something leads from, and where to."""
    if "from" in words and "to" in words:
        for place, word in enumerate(words):
            if word in {"from", "to"}:
                yield f"{word} {next(_content(words[place + 1 :]), '')}"


def _roles(asked_for: str, words: list[str]) -> Iterator[str]:
    """Yield who does what to whom, where both are named; *beaten by* the other way round.

    Where one of them is asked for, the other has no place of its own: "who beat them in Rome".
    """
    if asked_for in {"person", "thing"}:
        return
    asking = next((place for place, word in enumerate(words) if word in AUXILIARIES), len(words))
    for place, word in enumerate(words):
        if word in RELATIONS and place > asking:
            before = [*_content(_lasting(words[:place]))]
            after = [*_content(_lasting(words[place + 1 :]))]
            if before and after:
                roles = before[-1], after[0]
                passive = words[place + 1 : place + 2] == ["by"]
                yield " > ".join(roles[::-1] if passive else roles)


def _lasting(words: Iterable[str]) -> Iterator[str]:
    """Yield the words that are no adverbs, which may be anywhere."""
    return (word for word in words if word not in ADVERBS and not word.endswith("ly"))


_DETERMINER = re.compile(r"\b(?:an?|the|this|that|my|your|our|their)$", re.IGNORECASE)


def _names(text: str, tokens: Iterable[re.Match[str]]) -> Iterator[str]:
    """Yield words with a capital that no sentence's beginning explains, identifiers and symbols."""
    for token in tokens:
        word = token[0]
        if len(word) == 1 and unicodedata.category(word) == "So" and word not in UNITS:
            yield word  # such as an emoji
        if word[0].isdigit() or not any(map(str.isalpha, word)):
            continue
        before = text[: token.start()].rstrip(" \t")
        first = not before or before.endswith(_SENTENCE_END)
        if (
            word.istitle()
            and word.casefold() in CAPITONYMS
            and (first or _DETERMINER.search(before))
        ):
            yield word.casefold()  # "the march" is not "the March"
            continue
        if word.casefold() in DATES or word.casefold() in NUMBERS:
            continue  # which are marks already
        if len(word) == 1 and word not in "aAiI":
            yield word.casefold()  # as in "hepatitis b"
            continue
        capital = word[0].isupper() and word != "I" and not first
        inner = any(map(str.isupper, word[1:])) or any(character in word for character in "_.@/+#")
        if capital or inner:
            yield _plain(word)


# ------------------------------------------------------------------------------ other languages
# Of German, French, Spanish, Italian and Portuguese, polite phrases, number words and units are
# known. All other words must be the same, in the same order: in these languages, negations, endings
# and the order of words carry too much to be guessed at. Of other languages nothing is known, so
# the whole text must be the same.

_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH = word_set(TABLES["frequent_in_english"])
_OTHERS = frozenset(
    word
    for name in ("german", "french", "spanish", "italian", "portuguese")
    for word in TABLES[f"frequent_in_{name}"].split()
)
_POLITE = re.compile(
    rf"\b(?:{patterns('polite_in_other_languages')})(?!\w)|\best-ce qu'", re.IGNORECASE
)
_FORMAL = word_set(TABLES["formal"])
_SAME = first_for_others("same_in_other_languages")
_MOSTLY = 0.5
_SOME = 0.3


@lru_cache(_REMEMBERED)
def _is_english(text: str) -> bool:
    """Return whether a question is in English, as far as its words show."""
    words = [word for word in _WORD.findall(text.lower()) if len(word) > 1]
    letters = "".join(words)
    if not letters:
        return not any(map(_is_foreign, text))
    if sum(map(_is_foreign, letters)) > _SOME * len(letters):
        return False
    english = sum(word in _ENGLISH for word in words)
    others = sum(word in _OTHERS for word in words)
    if english or others:
        return english > others
    return sum(map(is_english_word, words)) >= _MOSTLY * len(words)


def _is_foreign(letter: str) -> bool:
    """Return whether a character is a letter, and not a Latin one."""
    if letter.isascii() or not letter.isalpha():
        return False
    return not unicodedata.name(letter, "").startswith("LATIN")


def _words_of_other_languages(text: str) -> tuple[str, ...]:
    """Return what must be the same of a question that is not in English."""
    words = _WORD.findall(text.lower())
    if any(map(_is_foreign, text)) or _OTHERS.isdisjoint(words):
        return (" ".join(text.split()).rstrip("?.\u3002\uff1f "),)
    return tuple(_known_words(_POLITE.sub(" ", text)))


def _known_words(text: str) -> Iterator[str]:
    for match in TOKEN.finditer(text):
        word = match[0]
        # A capital at the beginning of a word says nothing, for which German has most.
        if word[1:].islower() or len(word) == 1:
            word = word if word in _FORMAL else word.lower()
        for part in word.split("'"):
            if part:
                yield _SAME.get(part, part)
