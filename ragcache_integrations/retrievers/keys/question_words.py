"""Words on which the answer to a question turns, for :mod:`.question_guard`.

A line of a table holds words that mean the same there; in :data:`OPPOSITES` a colon parts the words
of one side from those of the other.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

__all__ = [
    "ACTIONS",
    "ADVERBS",
    "ASIDES",
    "ASKED_FOR",
    "AUXILIARIES",
    "CAPITONYMS",
    "COMPARISONS",
    "DATES",
    "FILLERS",
    "FUNCTION_WORDS",
    "GENERIC",
    "GRAMMAR",
    "IMPLIED",
    "IRREGULAR",
    "KINDS",
    "LIGHT",
    "MODALS",
    "MODERN_WORDS",
    "NEGATIONS",
    "NUMBERS",
    "OPPOSITES",
    "OTHER_WORDS",
    "PLACING",
    "PREPOSITIONS",
    "QUESTION_WORDS",
    "RELATIONS",
    "RESTRICTING",
    "SAME_WORDS",
    "SCALES",
    "TABLES",
    "TENS",
    "UNITS",
    "WEAK_PREPOSITIONS",
    "asking_words",
    "first_for_others",
    "in_one_wording",
    "patterns",
    "phrases",
    "without_courtesies",
    "word_set",
]


TABLES = tomllib.loads(files(__package__).joinpath("question_words.toml").read_text("utf-8"))


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def _lines(name: str) -> list[tuple[str, ...]]:
    """Return the words of each line of a table; an indented line continues the one before it."""
    lines = re.sub(r"\n +", " ", TABLES[name].strip()).splitlines()
    return [tuple(line.split()) for line in lines]


def _first_of_line(name: str) -> dict[str, str]:
    """Return the first word of each word's line."""
    return {word: words[0] for words in _lines(name) for word in words}


def first_for_others(name: str) -> dict[str, str]:
    """Return the first word of the line for each of the other words."""
    return {word: first for first, *words in _lines(name) for word in words}


def patterns(name: str) -> str:
    """Return the patterns of a table as one, of which any may match."""
    return "|".join(TABLES[name].strip().splitlines())


def _meanings(name: str) -> dict[str, str]:
    """Return what stands for each phrase, by lines such as ``how come=reason``."""
    return dict(line.split("=") for line in TABLES[name].strip().splitlines())


def _groups(name: str) -> list[tuple[str, ...]]:
    """Return the groups of words that mean the same.

    ``end: stop cease`` is the groups ``end stop`` and ``end cease``.
    """
    groups: list[tuple[str, ...]] = []
    for words in _lines(name):
        first, *others = words
        if first.endswith(":"):
            groups += [(first[:-1], other) for other in others]
        else:
            groups.append(words)
    return groups


def _bases(name: str) -> dict[str, tuple[str, ...]]:
    """Return the first word of the lines that each word is on."""
    bases: dict[str, tuple[str, ...]] = {}
    for base, *forms in _lines(name):
        for word in forms:
            bases[word] = (*bases.get(word, ()), base)
    return bases


def _sides(name: str) -> dict[str, tuple[str, ...]]:
    """Return the sides that each word takes, such as ``enable`` and ``enable-`` of one line."""
    sides: dict[str, tuple[str, ...]] = {}
    for words in _lines(name):
        colon = words.index(":")
        for side, some in ((words[0], words[:colon]), (f"{words[0]}-", words[colon + 1 :])):
            for word in some:
                sides[word] = (*sides.get(word, ()), side)
    return sides


TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

SCALES = {word: int(number) for number, word in _lines("scales")}
"""Number words that multiply the number before them."""

NUMBERS = first_for_others("numbers")
"""Number words and Roman numerals as figures. Without *one* and *I*, which are pronouns."""

DATES = _first_of_line("dates")
"""Months, days, seasons and lengths of time. Without *May*, see the guard."""

NEGATIONS = word_set(TABLES["negations"])

OPPOSITES = _sides("opposites")

UNITS = _first_of_line("units")

ASKED_FOR = _meanings("asked_for")
"""What a question asks for, by the first of these words, or pairs of words, that it has."""

QUESTION_WORDS = word_set("who whom whose what which when where why how")


def asking_words(words: Sequence[str], place: int) -> tuple[str, int]:
    """Return what is asked for by the words at a place, and how many these are."""
    for length in (2, 1):
        asked_for = ASKED_FOR.get(" ".join(words[place : place + length]))
        if asked_for:
            return asked_for, length
    return "", 0


CAPITONYMS = word_set(TABLES["capitonyms"])
"""Words that with a capital are other ones, even if a capital may have another reason there."""

COURTESIES = re.compile(
    rf"\b(?:{patterns('courtesies')})\b|^\W*(?:{patterns('said_before')})\s*[,:;]"
    rf"|(?:[\s,;.-]+(?:{patterns('said_at_the_end')}))+(?=\W*$)",
    re.IGNORECASE,
)
"""What says nothing about the answer."""


def without_courtesies(text: str) -> str:
    """Return a question without :data:`COURTESIES`, of which one may hide another."""
    for _ in range(4):
        shorter = COURTESIES.sub(" ", text).strip(" ,;:")
        if shorter == text:
            break
        text = shorter
    return text


COMPARISONS = frozenset({"than", "versus", "vs", "between", "compared"})
"""Words that make the order of everything else matter."""

RELATIONS = word_set(TABLES["relations"])
"""What one does to another, who might do the same to the first."""

AUXILIARIES = word_set(
    "did do does is are was were has have had can could may might must shall should will would"
)

ADVERBS = word_set("also actually ever even first just most often once really still then yet")
"""What may be between these, and changes nothing of who is who."""

FUNCTION_WORDS = word_set(TABLES["function_words"])

# ------------------------------------------------------- for two questions laid side by side

GRAMMAR = word_set(TABLES["grammar"])
"""Words on which no answer turns."""

FILLERS = word_set(TABLES["fillers"])
"""Words that may be there or not."""

LIGHT = word_set(TABLES["light"])
"""Verbs that hold a question together, for which one of another form has other ones."""

ACTIONS = word_set(TABLES["actions"])
"""Verbs each of which does something else than the others, unless they are of one line above."""

ASIDES = word_set(TABLES["asides"])
"""Words that may be there or not if a question asks for something, and not whether it is so."""

KINDS = word_set(TABLES["kinds"])
"""Nouns that say nothing next to a name of that kind."""

PLACING = word_set(TABLES["placing"])
"""Verbs of putting something somewhere, which may be *in* or *to* that place."""

GENERIC = word_set(TABLES["generic"])
"""Nouns that often only say what kind of thing a name or a noun next to them is."""

MODALS = _first_of_line("modals")

PREPOSITIONS = word_set(TABLES["prepositions"])
WEAK_PREPOSITIONS = word_set(
    "of in on at for about during regarding within concerning among into per"
)
"""Those that stand for each other, and may be missing, if nothing else is different."""

IRREGULAR = _bases("irregular")
"""What a word is an irregular form of."""

MODERN_WORDS = word_set(TABLES["modern_words"])
"""Words that are younger than the list of English words."""

SAME_WORDS = _groups("same_words")
"""Groups of words that mean the same in most questions."""

OTHER_WORDS = _lines("other_words")
"""Lines of words that do not mean the same, although a dictionary has a sense in which they do."""

RESTRICTING = word_set(TABLES["restricting"])
"""Words that may not be missing in one of two questions."""

IMPLIED = _bases("implied")
"""The words that each word is implied by, if it is next to them."""


_PHRASES = _meanings("phrases")
_PARTICLES = word_set("up off out on in down away over back")


def _phrasal_verbs() -> dict[str, str]:
    """Return the phrases that begin with a verb and a particle, with other forms of the verb."""
    irregular: dict[str, list[str]] = {}
    for form, bases in IRREGULAR.items():
        for base in bases:
            irregular.setdefault(base, []).append(form)
    found: dict[str, str] = {}
    for phrase, meaning in _PHRASES.items():
        verb, *rest = phrase.split()
        if not rest or rest[0] not in _PARTICLES or verb in PREPOSITIONS:
            continue
        stem = verb.removesuffix("e")
        past = irregular.get(verb, [f"{stem}ed", f"{stem}{stem[-1]}ed"])
        for form in (f"{verb}s", f"{verb}es", f"{stem}ing", f"{stem}{stem[-1]}ing"):
            found[" ".join((form, *rest))] = meaning
        # So that "be called off" is "be cancelled".
        same, *others = meaning.split()
        regular = f"{same.removesuffix('e')}ed"
        participle = irregular.get(same, [regular])[-1]
        for form in past:
            found[" ".join((form, *rest))] = " ".join((participle, *others))
    return found


_SEPARATED = re.compile(
    r"\b(\w+) ((?:the|my|your|our|their|an?|this|that|these|those|it|them|him|her|me)\b"
    rf"(?: [\w'-]+){{0,3}}?|[a-z]+(?= \w+\W*$)) ({'|'.join(sorted(_PARTICLES))})\b"
    r"(?=\W*$|\W*[?.!,;:]| (?:in|on|at|for|with|when|if|to|before|after|from|by|while|during|again"
    r"|and|or|without|as|online|automatically|now)\b)",
    re.IGNORECASE,
)
"""A verb, what it is done to, and a particle, as in "turn the light off"."""


_FRACTION = r"and (?:an?|one) (half|quarter)\b"
_FRACTIONS = re.compile(
    rf"\b(an?|one|\d+|{'|'.join(NUMBERS)}) (?:{_FRACTION}|(\w+) {_FRACTION})\b", re.IGNORECASE
)
"""A number and a fraction, as in "two and a half hours" and "an hour and a half"."""


def _with_decimals(found: re.Match[str]) -> str:
    number, fraction, unit, fraction_of_unit = found.groups()
    whole = dict.fromkeys(("a", "an", "one"), "1") | NUMBERS
    figure = whole.get(number.lower(), number)
    if not figure.isdecimal():
        return found[0]
    decimal = ".5" if (fraction or fraction_of_unit).lower() == "half" else ".25"
    return f"{figure}{decimal} {unit or ''}".rstrip()


def in_one_wording(text: str) -> str:
    """Return a question with what has several wordings in one of them.

    Particles are next to their verbs, as in "turn off the light", fractions are figures, and "what
    is the height of it" is "how tall is it".
    """
    for pattern, wording in _WORDINGS:
        text = pattern.sub(wording, text)
    text = _AMOUNTS.sub(_asked_with_how, text)
    return _joined_verbs(_FRACTIONS.sub(_with_decimals, text))


_A_WAY = (
    r"what(?: is|'s) the (?:way to (?=\w+ )|(?:procedure|process) for (?=\w+ing ))"
    r"(\w+ (?:an?|the|my|your|our|their|this|that|these|those|it)\b|applying for\b)"
)
_ALLOWED = (
    r"(?:am|are|is) ((?:the |my |our )?(?:i|we|staff|employees?|guests?|members?|visitors?"
    r"|tenants?|customers?|users?|residents?|contractors?|interns?|students?|pupils?"
    r"|teachers?|managers?|nurses?|passengers?)) (?:allowed|permitted) to\b"
)
_WORDINGS = tuple(
    (re.compile(rf"\b{pattern}", re.IGNORECASE), wording)
    for pattern, wording in (
        (r"how frequently\b", "how often"),
        (r"what size is\b", "how big is"),
        (_A_WAY, r"how do i \1"),
        (_ALLOWED, r"may \1"),
        (r"is it possible (?:for me )?to\b", "can i"),
    )
)
"""Wordings, and others for the same, in which the guard reads what is asked for."""

_AMOUNTS = re.compile(
    r"\bwhat(?: (is|was|are|were)|('s)) the "
    r"(height|age|size|depth|width|weight|speed|price|population) of "
    r"((?:(?!\b(?:and|or|that|who|which|when|where|if|to)\b)[^,;?])+?)(?=[?.!\s]*$)",
    re.IGNORECASE,
)
_HOW = {
    "height": "tall",
    "age": "old",
    "size": "big",
    "depth": "deep",
    "width": "wide",
    "weight": "heavy",
    "speed": "fast",
}
_DOES = {"is": "does", "are": "do", "was": "did", "were": "did"}


def _asked_with_how(found: re.Match[str]) -> str:
    be, short, noun, of = found.groups()
    if noun.lower() == "population":
        past = (be or "").lower().startswith("w")
        return found[0] if past else f"how many people live in {of}"
    if noun.lower() == "price":
        return f"how much {_DOES[(be or 'is').lower()]} {of} cost"
    return f"how {_HOW[noun.lower()]} {'is' if short else be} {of}"


_NO_OBJECTS = (
    ADVERBS
    | PREPOSITIONS
    | QUESTION_WORDS
    | AUXILIARIES
    | NEGATIONS
    | word_set("am be been being i we you")
)
_STRANDED = re.compile(r"\b(?:what|which|where|who|whom)\b.* (?:in|on|off|over)\W*$", re.IGNORECASE)


def _joined_verbs(text: str) -> str:
    return _SEPARATED.sub(
        lambda found: (
            f"{found[1]} {found[3]} {found[2]}"
            if f"{found[1]} {found[3]}".lower() in _verbs_with_particles()
            and f"{found[2].split()[-1]} {found[3]}".lower() not in _PHRASES  # as in "a day off"
            and not {found[1].lower(), found[2].lower()} & _NO_OBJECTS
            # As in "which day do I hand essays in".
            and not (" " not in found[2] and _STRANDED.search(found.string))
            else found[0]
        ),
        text,
    )


@cache
def _verbs_with_particles() -> frozenset[str]:
    return frozenset(" ".join(phrase.split()[:2]) for phrase in _phrasal_verbs() | _PHRASES)


@cache
def phrases() -> tuple[re.Pattern[str], dict[str, str]]:
    """Return what finds phrases, and a word that means the same for each."""
    lines = _phrasal_verbs() | _PHRASES
    # Grouped by their first letter, because alternatives are tried one by one.
    rests: dict[str, list[str]] = {}
    for phrase in sorted(lines, key=len, reverse=True):
        rests.setdefault(phrase[0], []).append(re.escape(phrase[1:]))
    groups = "|".join(f"{first}(?:{'|'.join(others)})" for first, others in rests.items())
    return re.compile(rf"(?<![\w.])(?:{groups})(?!\w)", re.IGNORECASE), lines
