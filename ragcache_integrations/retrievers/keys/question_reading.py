"""How a question in English is read before it is compared with another by `question_pairs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise

from .question_lexicon import forms_of, is_english_word, part_of_speech
from .question_words import (
    ADVERBS,
    DATES,
    GRAMMAR,
    IRREGULAR,
    MODALS,
    NEGATIONS,
    NUMBERS,
    PREPOSITIONS,
    QUESTION_WORDS,
    SCALES,
    TENS,
    UNITS,
    WEAK_PREPOSITIONS,
    asking_words,
    in_one_wording,
    phrases,
    without_courtesies,
    word_set,
)

__all__ = ["AFTER_VERBS", "PERSONS", "TOKEN", "UNCHANGED", "Reading", "Word", "read"]

_REMEMBERED = 4_096

TOKEN = re.compile(
    r"""
    (?<![^\s(\[`'"=])--?[^\W\d][\w-]*          # flags
    | (?<![^\s(\[`'"])[.@\#!]\w[\w.-]*         # .csv, @media, #include
    | \w+(?:[-_.'+\#@/:,]\w+)*[+\#]*            # words, numbers, identifiers
    | (?<=\w)[^\w\s,'()"\u2013\u2014]+(?=\w)    # a?.b
    | (?<!\S)(?![-,\u2013\u2014]\s|[?!,;:\u2026]+\W*$)[^\w\s]{1,4}(?!\S)  # ??, ::, "git add ."
    | [+*/^=<>%$&|~\\] | [^\w\s\x00-\x7f\u2010-\u2027\u00ab\u00bb\u00a1\u00bf\u3000-\u3003]
    """,
    re.VERBOSE,
)
"""What of a question is read: words and symbols, without its punctuation."""

_INNER = re.compile(r"[\d_.@/+#:\\]")
_DO = word_set("do does did")
_BE = word_set("is are was were be been being am")
PERSONS = {
    **dict.fromkeys(["i", "me", "my", "mine", "myself", "we", "us", "our", "ours"], "1"),
    **dict.fromkeys(("you", "your", "yours"), "2"),
    **dict.fromkeys(("they", "them", "their", "theirs"), "3"),
}
_OWNERS = word_set("my our your")
_BOUNDS = QUESTION_WORDS | _DO | _BE | MODALS.keys() | {"i", "we", "they"}
"""Words that end a phrase with a preposition."""
_TIMES = {
    **dict.fromkeys(("was", "were", "did", "had"), "past"),
    **dict.fromkeys(("is", "are", "do", "does", "am", "will", "shall"), "not past"),
}
_DETERMINERS = word_set("a an the my your our their")
_GRADED = word_set(
    "much many long often far old big large small tall high deep wide heavy fast late"
)
"""What asks for an amount after *how*, and not for a way."""
_CIRCUMSTANCES = word_set("place reason time year date")
_ASKING_NOUNS = _CIRCUMSTANCES | word_set("person people number")


@dataclass(frozen=True, slots=True)
class Word:
    """A word that says something.

    Attributes:
        text: The word in lower case.
        written: The word as it is written.
        by: The preposition that introduces it, if any.
        phrase: The preposition that introduces the phrase that it is in, if any.
        forms: The word, and the words that it is an inflection of.
        name: Whether it is a name, a code or the like: no English word.
        place: Its place in the question.
        before: The word before it in the question.
        listed: Whether *and* or *or* is before it, or before its article, and nothing of the same
            phrase after it.
        passive: Whether it is a participle that says what is done to its subject.
        subject: The noun, pronoun or question word before it, if it is a verb.
    """

    text: str
    written: str
    by: str
    phrase: str
    forms: frozenset[str]
    name: bool
    place: int
    before: str
    listed: bool
    passive: bool
    subject: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A question, read word by word.

    Attributes:
        words: Its words that say something, in their order.
        modals: What may, must or shall be.
        asks: The first question word.
        helped: Whether it has an auxiliary verb.
        does: Whether that is a form of *do*.
        passive: Whether it says who did it by *by*.
        copula: Whether its auxiliary is a form of *be*.
        stranded: A preposition at its end.
        frame: The words that hold it together.
        persons: Who is spoken of, each once in their order: 1 for *I* and *my*, 2 for *you*, 3 for
            *they*.
        owner: Of whom something is: 1 for *my*, 2 for *your*, if it is of one of them.
        times: Whether it says what was.
        acts: Whether *I* or *we* do something.
        dummy: Whether it has *it*, as in "is it safe to swim".
        also_asks: What is asked for by all question words but the first.
        roles: Of each pronoun, who it speaks of, and whether that is who does it.
        scopes: Each *only* or *not*, and how many of the words precede it.
        refusals: Its verbs that are negations, such as *refuse*.
        possible: Whether it asks what is possible.
        complements: Each verb such as *stop*, and whether *to* or *ing* follows it.
    """

    words: tuple[Word, ...]
    modals: frozenset[str]
    asks: str
    helped: bool
    does: bool
    passive: bool
    copula: bool
    stranded: str
    frame: tuple[str, ...]
    persons: str
    owner: str
    times: frozenset[str]
    acts: bool
    dummy: bool
    also_asks: tuple[str, ...]
    roles: frozenset[tuple[str, bool]]
    scopes: tuple[tuple[str, int], ...]
    refusals: tuple[Word, ...]
    possible: bool
    complements: frozenset[tuple[str, str]]


_Around = tuple[int, str, bool, bool, str]
"""Of a word, what its last attributes are."""

AFTER_VERBS = {"", "to", "with", "as", *WEAK_PREPOSITIONS}
"""Prepositions that an object may have, or none."""

_FRONTED = re.compile(
    r"^\W*((?:if|when|while|because|once|as|to|for|in|on|at|from|with|during|after|before|by)"
    r" [^,]+),"
    r" ((?:who|what|which|when|where|why|how|is|are|do|does|did|can|could|may|must|should|will|am)"
    r"\b.+?)[\s?.!]*$",
    re.IGNORECASE,
)
"""A phrase or a clause that may as well come after the question that it precedes."""
_STATED = re.compile(
    r"^\W*((?:i|we|my|our)\b[^,?]+), ((?:who|what|which|when|where|why|how|is|are|do|does|did|can"
    r"|could|may|must|should|will|am)\b.+?)[\s?.!]*$",
    re.IGNORECASE,
)
"""What is said to be so before a question, which then means the same as *if* after it."""


@lru_cache(_REMEMBERED)
def read(text: str) -> Reading:
    """Read a question in English, without its courtesies."""
    whole = in_one_wording(text)
    whole = _STATED.sub(r"\2 if \1", _FRONTED.sub(r"\2 \1", without_courtesies(whole)))
    found_phrases, replacements = phrases()
    whole = found_phrases.sub(lambda found: replacements[found[0].lower()], whole)
    tokens = list(_tokens(whole))
    plain = [token.lower() for token in tokens]
    # "IT", "US" and "the Who", unless everything is in capitals.
    acronyms = (
        set()
        if whole.isupper()
        else {
            token
            for place, (token, word) in enumerate(zip(tokens, plain, strict=True))
            if token != word
            and (word in GRAMMAR or word in QUESTION_WORDS or word in PREPOSITIONS)
            and ((token.isupper() and len(token) > 1) or (place and plain[place - 1] == "the"))
        }
    )
    variables = any(len(word) == 1 and word.isalpha() and word not in "aistdm" for word in plain)
    grammar = (GRAMMAR | QUESTION_WORDS) - ({"a"} if variables else set())
    words: list[Word] = []
    modals: set[str] = set()
    by, phrase, counts, stranded = "", "", False, ""
    following_words = [*plain[1:], ""]
    for place, (token, word) in enumerate(zip(tokens, plain, strict=True)):
        before, following = plain[place - 1] if place else "", following_words[place]
        around = (place, before, _is_listed(plain, place), *_voice(plain, place))
        phrase = "" if word in _BOUNDS else phrase
        if token in acronyms:
            words.append(_named(word, token, by, phrase, around))
            by = ""
        elif word in MODALS:
            modals.add(MODALS[word])
        elif _is_asked_for(word, plain, place):
            continue
        elif word in PREPOSITIONS and following in QUESTION_WORDS:
            stranded = word  # "from which gate does it leave"
        elif word in PREPOSITIONS:
            by = phrase = by if word == "of" and (by or counts) else word
            counts = False
        elif unit := _unit(plain, place):
            words.append(replace(_named(unit, token, by, phrase, around), name=False))
            by = ""
        elif word in grammar and not (word == "one" and _counts(plain, place)):
            by = _kept(by, word)
        elif _is_marked(word, plain, place):
            counts = word == "number"
        else:
            words.append(_word(token, word, by, phrase, around))
            by = ""
    return Reading(
        tuple(words),
        frozenset(modals),
        _asks(plain),
        stranded=by or stranded,
        persons="".join(dict.fromkeys(PERSONS[word] for word in plain if word in PERSONS)),
        owner="".join(sorted({PERSONS[word] for word in plain if word in _OWNERS})),
        times=frozenset(_times(plain)),
        acts=not {*plain}.isdisjoint(("i", "we")) or {*plain}.isdisjoint(("me", "us")),
        helped=not {*plain}.isdisjoint({*_DO, *_BE, *MODALS, "has", "have", "had"}),
        does=not {*plain}.isdisjoint(_DO),
        passive="by" in plain and not {*plain}.isdisjoint(_BE),
        copula=not {*plain}.isdisjoint(_BE) and {*plain}.isdisjoint(_DO),
        frame=tuple(_frame(plain)),
        dummy="it" in plain,
        also_asks=tuple(sorted(_asked_for(plain)[1:])),
        roles=frozenset(_roles(plain)),
        scopes=tuple(
            (_SCOPES[word], sum(other.place < place for other in words))
            for place, word in enumerate(plain)
            if word in _SCOPES
        ),
        possible=bool(_POSSIBLE.search(text)),
        refusals=tuple(_refusals(plain)),
        complements=frozenset(_complements(plain)),
    )


def _is_listed(words: Sequence[str], place: int) -> bool:
    """Return whether *and* or *or* is before a word or its article, and no noun after it."""
    if not {*words[place + 1 : place + 2]} <= PREPOSITIONS | GRAMMAR | _BOUNDS:
        return False
    while place and words[place - 1] in _DETERMINERS:
        place -= 1
    return place > 0 and words[place - 1] in {"and", "or"}


_BECOME = word_set("get gets got gotten getting become becomes became")
_HAVE = word_set("has have had")
UNCHANGED = word_set("put set cost cut hit hurt let shut beat cast read spread split come become")
"""Participles that are the verb itself."""
_NO_ENDING = re.compile(r"(?<!fr)(?<!gr)(?<!t)eed$")
_PAST = word_set(
    "arose ate awoke began bore blew broke came chose drank drew drove fell flew forbade forgot "
    "froze gave grew hid knew lay ran rang rode rose sang sank saw shook shrank spoke stole swam "
    "swore overtook withdrew rewrote took tore threw went woke wore wrote"
)
"""Irregular forms that are no participles."""
_NO_NOUNS = (
    _DO | _BE | _HAVE | _BECOME | MODALS.keys() | ADVERBS | word_set("not never to all so last")
)
"""Words between a verb and its subject."""


def _voice(words: Sequence[str], place: int) -> tuple[bool, str]:
    """Return whether a word is a passive participle, and the noun before it."""
    before = [*words[:place]]
    while before and (before[-1] in _NO_NOUNS or before[-1].endswith("ly")):
        before.pop()
    between = {*words[len(before) : place]}
    subject = before[-1] if before else ""
    does = not between.isdisjoint(_BE) or (_is_turned(before) and "there" not in before)
    if words[place].endswith("ing") and part_of_speech(subject) != "v" and not does:
        return False, ""  # as in "air conditioning"
    if subject in _PERSONS_ASKED_FOR and before[-2:-1] in (["what"], ["which"]):
        subject = "who"
    return _is_participle(words[place]) and (
        not between.isdisjoint(_BE | _BECOME) or _is_turned(before)
    ), "what" if subject == "which" else subject


def _refusals(words: Sequence[str]) -> Iterator[Word]:
    """Yield the verbs that are negations."""
    for place, word in enumerate(words):
        if word in NEGATIONS and part_of_speech(word) == "v":
            yield _word(word, word, "", "", (place, "", False, *_voice(words, place)))


def _times(words: Sequence[str]) -> Iterator[str]:
    """Yield whether a question says what was or what is: by its auxiliary verbs, or by its verb."""
    yield from (_TIMES[word] for word in words if word in _TIMES)
    if {*words}.isdisjoint(_DO | _BE | _HAVE | MODALS.keys()):
        verb = next((word for word in words if part_of_speech(word) == "v"), "")
        if verb and not verb.endswith("ing") and verb not in UNCHANGED:
            yield "past" if verb in _PAST or _is_participle(verb) else "not past"


_POSSIBLE = re.compile(r"\b(?:possible|able to)\b", re.IGNORECASE)
_PERSONS_ASKED_FOR = word_set("person people")


@cache
def _stand_ins() -> frozenset[str]:
    """Return the verbs that phrases are read as whose participle is the verb itself."""
    meanings = phrases()[1].items()
    return frozenset(
        meaning.split()[0] for phrase, meaning in meanings if phrase.split()[0] in UNCHANGED
    )


def _is_participle(word: str) -> bool:
    if word in UNCHANGED or word in _stand_ins():
        return True
    if word in _PAST or word.endswith(("s", "ing")):
        return False
    if word in IRREGULAR:
        return any(part_of_speech(base) == "v" for base in IRREGULAR[word])
    return word.endswith("ed") and part_of_speech(word) == "v" and not _NO_ENDING.search(word)


def _is_turned(words: list[str]) -> bool:
    """Return whether words end with a form of *be* and a subject, as in "when was the bridge"."""
    ends = (
        _BE
        | _BECOME
        | _DO
        | _HAVE
        | MODALS.keys()
        | QUESTION_WORDS
        | {"if", "that", "and", "or", "to"}
    )
    place = next((place for place in range(len(words) - 1, -1, -1) if words[place] in ends), -1)
    have = place > 0 and words[place] in _HAVE and words[place - 1] in PERSONS  # it repaired
    return (
        place >= 0
        and (have or words[place] in _BE | _BECOME)
        # As in "are the files I deleted".
        and not (words[-1] in _SUBJECTS and place < len(words) - 2)
    )


def _counts(words: Sequence[str], place: int) -> bool:
    """Return whether *one* is a number there, as in "one guest"."""
    before, following = words[place - 1] if place else "", words[place + 1 : place + 2]
    pronoun = before in {"which", "another", "this", "that", "the", "no", "each", "every"}
    return (
        not pronoun
        and bool(following)
        and following[0].isalpha()
        and not (
            following[0] in GRAMMAR
            or following[0] in QUESTION_WORDS
            or following[0] in PREPOSITIONS
        )
    )


def _kept(by: str, word: str) -> str:
    """Return a preposition, unless a pronoun ends what it introduces, as in "with you"."""
    return "" if word in PERSONS and by in AFTER_VERBS else by


def _frame(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that hold a question together, as far as they differ."""
    before = ""
    for word in words:
        if before == "what" and not (word in GRAMMAR or word in _FRAME or word in PREPOSITIONS):
            yield "what kind"
            before = ""
        kind = _FRAME.get(word, word if word in PREPOSITIONS or word in QUESTION_WORDS else "")
        if kind and kind != before:
            yield kind
            before = kind


_FRAME = {
    **dict.fromkeys((*_DO, *MODALS), "do"),
    **dict.fromkeys(_BE, "be"),
    **dict.fromkeys(("has", "have", "had"), "have"),
    **dict.fromkeys(("what", "which"), "what"),
    **dict.fromkeys((word for word, person in PERSONS.items() if person != "3"), "i"),
    **dict.fromkeys(WEAK_PREPOSITIONS, "of"),
    **dict.fromkeys(("there", "here"), "there"),
}


def _asks(words: Sequence[str]) -> str:
    for word, following in pairwise((*words, "")):
        if word == "how" and following in _GRADED:
            return "how much"
        if word in QUESTION_WORDS:
            return "when" if following in _CIRCUMSTANCES else word
    return ""


def _asked_for(words: Sequence[str]) -> list[str]:
    """Return what each question word asks for."""
    return [
        asking_words(words, place)[0] for place, word in enumerate(words) if word in QUESTION_WORDS
    ]


_SCOPES = {
    **{word: word for word in ("only", "not", "never", "without")},
    **dict.fromkeys(("just", "solely", "exclusively", "merely"), "only"),
}
"""Words that speak of what follows them."""

_OF_TWO_MEANINGS = word_set("stop remember forget try regret mean go")
"""Verbs of other meanings with *to* and with *ing*, as in "stop to eat" and "stop eating"."""


def _complements(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, word in enumerate(words):
        for verb in _OF_TWO_MEANINGS & forms_of(word):
            following = words[place + (2 if verb == "go" else 1) :][:1]
            if following == ["to"]:
                yield verb, "to"
            elif following and following[0].endswith("ing"):
                yield verb, "ing"


_SUBJECTS = {**dict.fromkeys(("i", "we"), "1"), "he": "he", "she": "she", "they": "3"}
_OBJECTS = {**dict.fromkeys(("me", "us"), "1"), "him": "he", "them": "3"}
_EITHER = {"you": "2"}


def _roles(words: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield of each pronoun who it speaks of, and whether it is a subject."""
    helping = _DO | _BE | MODALS.keys() | {"has", "have", "had"}
    for before, word in pairwise(("", *words)):
        if word in _EITHER:
            begins = before in helping or before in QUESTION_WORDS or before in {"", "if", "that"}
            yield _EITHER[word], begins
        elif word in _SUBJECTS or word in _OBJECTS:
            yield _SUBJECTS.get(word) or _OBJECTS[word], word in _SUBJECTS


def _tokens(text: str) -> Iterator[str]:
    for token in TOKEN.findall(text):
        bare = token.removesuffix("'s").removesuffix("'S")
        if bare != token and bare.lower() in _BEFORE_IS:
            yield from (bare, "is")
            continue
        if bare.lower() in _CONTRACTED_BE:
            yield from (bare[: bare.index("'")], _CONTRACTED_BE[bare.lower()])
            continue
        if "'" in bare:  # whose end says "not", which is a mark, or holds an auxiliary verb
            bare = _CONTRACTED.get(bare.lower()) or _REST.sub("", bare)
        if "-" in bare[1:] and not _INNER.search(bare) and not bare.startswith("-"):
            yield from filter(None, bare.split("-"))
        elif bare:
            yield bare


_BEFORE_IS = QUESTION_WORDS | word_set("it he she that there here")
_CONTRACTED = {"can't": "can", "won't": "will", "shan't": "shall"}
_CONTRACTED_BE = {"i'm": "am", "you're": "are", "we're": "are", "they're": "are"}
_REST = re.compile(r"(?:n't|'[a-z]*)$", re.IGNORECASE)
_FIGURE = re.compile(r"\d+(?:[.,:/-]\d+)*(?:st|nd|rd|th|[ap]m|[kmb])?")


def _is_marked(word: str, words: Sequence[str], place: int) -> bool:
    """Return whether a word is among the marks already, or only names what is asked for."""
    # "x" is a number in "henry x", and a variable elsewhere.
    if (word in NUMBERS and len(word) > 1) or word in SCALES or word in NEGATIONS:
        return True
    before = words[place - 1] if place else ""
    if _FIGURE.fullmatch(word) or (before in TENS and word in {"one", "first"}):
        return True
    if word in {"am", "pm"}:
        return before[:1].isdigit()
    if before == "how" and word in {"many", "much"}:
        return True
    begins = before in {"", "a", "the", "what", "which"}
    return word == "number" and begins and words[place + 1 : place + 2] == ["of"]


def _unit(words: Sequence[str], place: int) -> str:
    """Return a unit, a date or an ordinal in one way of writing; nothing for another word."""
    word = words[place]
    if word in UNITS or word in DATES:
        return UNITS.get(word) or DATES[word]
    return "" if place and words[place - 1] in TENS else _ordinal(word)


_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")


def _ordinal(word: str) -> str:
    """Return an ordinal in figures, such as ``1th``; nothing for another word."""
    figure = _ORDINAL.fullmatch(word)
    if figure:
        return f"{figure[1]}th" if len(figure[1]) == 1 else ""
    number = "1th" if word == "first" else NUMBERS.get(word, "")
    return number if number.endswith("th") and len(number) == 3 else ""  # noqa: PLR2004


def _is_asked_for(word: str, words: Sequence[str], place: int) -> bool:
    """Return whether a word only says what is asked for, as in "what place", "what is it like"."""
    if word == "like":
        return {*words[place + 1 : place + 2]} <= PREPOSITIONS
    return word in _ASKING_NOUNS and place > 0 and words[place - 1] in {"what", "which"}


def _named(text: str, token: str, by: str, phrase: str, around: _Around) -> Word:
    """Return a word that has no other forms, such as a name or a code."""
    return Word(text, token, by, phrase, frozenset((text,)), True, *around)  # noqa: FBT003 - it is a name


def _word(token: str, word: str, by: str, phrase: str, around: _Around) -> Word:
    if not token[0].isalnum():
        return _named(token, token, by, phrase, around)
    coded = bool(_INNER.search(word))
    forms = frozenset((word,)) if coded else forms_of(word)
    name = coded or not is_english_word(word)
    return Word(word, token, by, phrase, forms, name, *around)
