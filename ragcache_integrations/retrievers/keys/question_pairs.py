"""What two questions in English differ in, word by word.

Marks (:mod:`.question_guard`) are what a single question says. Two questions can also be laid
side by side: if they are the same but for one word, one phrase or the order of their words, the
answer most likely turns on that. True rephrasings rarely have this shape:
they differ in several places, or in words that mean the same. So a difference in one place counts
unless the words are known to mean the same, and differences in several places don't, except for
names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .question_lexicon import (
    are_kin,
    are_synonyms,
    compared_word,
    forms_of,
    is_derived,
    is_english_word,
    part_of_speech,
)
from .question_reading import AFTER_VERBS, PERSONS, UNCHANGED, Reading, Word, read
from .question_words import (
    ACTIONS,
    ASIDES,
    AUXILIARIES,
    DATES,
    FILLERS,
    GENERIC,
    IMPLIED,
    KINDS,
    LIGHT,
    OPPOSITES,
    PLACING,
    PREPOSITIONS,
    RESTRICTING,
    UNITS,
    WEAK_PREPOSITIONS,
    word_set,
)

__all__ = ["english_difference"]


def english_difference(text: str, other: str) -> str | None:
    """Return in words how two questions in English differ, beyond their marks.

    Returns:
        ``None`` where they differ in nothing, or in several places that may be a rephrasing.
    """
    # Partners may be chosen in another way from the other side.
    turned = text > other
    one, two = (other, text) if turned else (text, other)
    found = _difference(read(one), read(two))
    if found is None:
        return None
    kind, *sides = found
    return f"{kind}: {' / '.join(side or 'none' for side in (sides[::-1] if turned else sides))}"


def _difference(one: Reading, two: Reading) -> tuple[str, str, str] | None:
    """Return the kind of difference, and what each question has of it."""
    partners = _matched(one.words, two.words, asking=bool(one.asks and two.asks))
    if partners is None:
        return "words", _listed(one.words), _listed(two.words)
    mine, theirs = partners
    modals = _drop_modal_words(one, two, mine, theirs)
    if -1 in mine or -1 in theirs:
        pairs = _pairs(one, two, mine)
        if one.frame != two.frame or any(_changes_form(*pair) for pair in pairs):
            _drop(one.words, mine, LIGHT)
            _drop(two.words, theirs, LIGHT)
    rest = [word for word, pair in zip(one.words, mine, strict=True) if pair < 0]
    others = [word for word, pair in zip(two.words, theirs, strict=True) if pair < 0]
    names = any(word.name for word in (*rest, *others))
    measures = _measures(one) and _measures(two)
    if not names and (
        (
            one.frame != two.frame
            and _is_one_more(rest, others, measures=measures, evaluates=one.dummy != two.dummy)
        )
        or (not measures and _are_other_parts(rest, others) and _is_reworded(one, two, mine))
    ):
        # "what is the job of a nurse" is "what does a nurse do"
        mine = [_DROPPED if partner < 0 else partner for partner in mine]
        theirs = [_DROPPED if partner < 0 else partner for partner in theirs]
        rest, others = [], []
    if names or _in_one_place(mine, theirs):
        return "names" if names else "words", _listed(rest), _listed(others)
    if not _same_modality(one, two, modals, mine):
        return "modality", " ".join(sorted(modals[0])), " ".join(sorted(modals[1]))
    for name, differs in _IN_ANY_FORM.items():
        if differs(one, two, mine):
            return name, _written(one.words), _written(two.words)
    return None if rest or others else _difference_of_form(one, two, mine)


def _is_reworded(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether questions have another form, or other words for the same in some place."""
    return _shape(one) != _shape(two) or _has_synonyms(one, two, mine)


def _shape(read: Reading) -> list[str]:
    """Return the words that hold a question together, without prepositions."""
    return [kind for kind in read.frame if kind not in PREPOSITIONS]


def _has_synonyms(one: Reading, two: Reading, mine: list[int]) -> bool:
    return any(not _are_inflections(*pair) for pair in _pairs(one, two, mine))


def _pairs(one: Reading, two: Reading, mine: list[int]) -> list[_Pair]:
    """Return the words that are partners, in the order of the first question."""
    return [
        (word, two.words[partner])
        for word, partner in zip(one.words, mine, strict=True)
        if 0 <= partner < _DROPPED
    ]


def _is_one_more(
    rest: Sequence[Word], others: Sequence[Word], *, measures: bool, evaluates: bool
) -> bool:
    """Return whether one question has a single word more, which restricts nothing.

    Nor may one that *measures* have a noun more, or "is it common to" say what "can I" does not.
    """
    added = [*rest, *others]
    return (
        len(added) == 1
        and added[0].forms.isdisjoint(RESTRICTING)
        # "how old is the owner of the house" is not "how old is the house"
        and not (measures and part_of_speech(added[0].text) != "r" and not _costs(added))
        and not (evaluates and part_of_speech(added[0].text) == "a")
    )


def _measures(reading: Reading) -> bool:
    """Return whether a question asks how old or how expensive something is."""
    return reading.asks == "how much" and (reading.copula or _costs(reading.words))


def _costs(words: Sequence[Word]) -> bool:
    return any("cost" in word.forms for word in words)


def _are_other_parts(rest: Sequence[Word], others: Sequence[Word]) -> bool:
    """Return whether words differ as those of two ways to put it do, and not those of two things.

    So "who do I ask" is "who is responsible", and "my timetable" is "the schedule of my lessons".
    One noun or adjective for another is another thing, and so is one more; one verb for another is
    another action if both are among the usual ones.
    """
    added = [*rest, *others]
    if not all(word.forms.isdisjoint(RESTRICTING) for word in added):
        return False
    parts = [part_of_speech(word.text) for word in added]
    if len(added) == 1:
        return parts[0] in {"v", "r"}
    if len(added) == 2 and rest and others:  # noqa: PLR2004 - one for another
        if parts == ["v", "v"]:
            return any(word.forms.isdisjoint(ACTIONS) for word in added)
        return parts[0] != parts[1]
    return bool(rest and others)


def _difference_of_form(one: Reading, two: Reading, mine: list[int]) -> tuple[str, str, str] | None:
    """Return what questions of the same words differ in."""
    asked = one.also_asks, two.also_asks
    if len(asked[0]) == len(asked[1]) and asked[0] != asked[1]:
        return "what is asked for", ", ".join(asked[0]), ", ".join(asked[1])
    if _scopes_differ(one, two, mine):
        return "order", _written(one.words), _written(two.words)
    if _order_differs(one, two, mine) or _persons_differ(one, two, mine):
        return "order", _listed(one.words), _listed(two.words)
    short = min(len(one.words), len(two.words)) <= _SHORT
    short = short and one.helped == two.helped
    if short and one.times and two.times and one.times.isdisjoint(two.times):
        return "time", " ".join(sorted(one.times)), " ".join(sorted(two.times))
    return None


def _amount_differs(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether one has *few* or *little*, and the other *a few* or *a little*."""
    return any(
        word.text == other.text
        and word.text in _SCARCE
        and (word.before == "a") != (other.before == "a")
        and _DETERMINERS.isdisjoint({word.before, other.before} - {"a"})
        for word, other in _pairs(one, two, mine)
    )


_SCARCE = word_set("few little")


def _voice_differs(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether what does something in one has it done to it in the other.

    "Who paid" is not "who was paid", but "when was it built" is "when did they build it".
    """
    return any(
        word.passive != other.passive
        and _are_verbs(word, other)
        and not (word.subject not in PERSONS and _is_both(word) and _is_both(other))
        and _is_same_subject(word.subject, other.subject)
        for word, other in (*_pairs(one, two, mine), *zip(one.refusals, two.refusals, strict=False))
    )


def _are_verbs(one: Word, other: Word) -> bool:
    """Return whether two words are forms of verbs, as *shot* and *shoot*, and not *shots*."""
    if one.text.endswith("able") or other.text.endswith("able"):
        return False
    passive, active = (one.text, other.text) if one.passive else (other.text, one.text)
    if active == f"{passive}s" and passive not in UNCHANGED:
        return False
    return _are_inflections(one, other) or part_of_speech(active) == "v"


def _turns_subject(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether what a verb is done to or with in one does it in the other.

    "How do I send it to Anna" is not "how does Anna send it".
    """
    return any(
        not (word.passive or other.passive)
        and (_are_inflections(word, other) or are_synonyms(word.text, other.text))
        and (_turns(two, other, one, word) or _turns(one, word, two, other))
        for word, other in _pairs(one, two, mine)
        if part_of_speech(word.text) == "v" and {word.subject, other.subject} & PERSONS.keys()
    )


def _turns(one: Reading, verb: Word, two: Reading, other: Word) -> bool:
    """Return whether a verb's subject is a name or a person after the other verb, or *with* it."""
    subject = any(
        word.text == verb.subject and (word.before in AUXILIARIES or word.before in _DETERMINERS)
        for word in one.words
        if word.place < verb.place
    )
    return subject and any(
        word.text == verb.subject
        and word.place > other.place
        and (word.name or word.by in _WITH or _is_person(word))
        for word in two.words
    )


_WITH = {"with", "to"}
_OF_PERSONS = {"teacher", "parent", "man", "seller", "host", "sender"}


def _is_person(word: Word) -> bool:
    return any(side.removesuffix("-") in _OF_PERSONS for side in OPPOSITES.get(word.text, ()))


def _is_both(word: Word) -> bool:
    """Return whether a verb says the same of a thing as its passive, as in "how do pearls form"."""
    return word.subject != "who" and not word.forms.isdisjoint(_OF_THEMSELVES)


_OF_THEMSELVES = word_set("begin end form release start")


def _is_same_subject(one: str, other: str) -> bool:
    if not (one and other):
        return False
    return one == other or not forms_of(one).isdisjoint(forms_of(other)) or are_synonyms(one, other)


def _complements_differ(one: Reading, two: Reading, _: list[int]) -> bool:
    """Return whether a verb has another meaning, as in "stop to eat" and "stop eating"."""
    return any(
        verb == other_verb and form != other_form
        for verb, form in one.complements
        for other_verb, other_form in two.complements
    )


def _scopes_differ(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether *only* or *not* speaks of others, as in "members can only".

    A verb may come before or after: "only pay by card" is "pay only by card".
    """
    said = [[word for word, _ in read.scopes] for read in (one, two)]
    if said[0] != said[1] or one.copula != two.copula:
        return False
    return any(
        (place < before) != (partner < other_before)
        for (_, before), (_, other_before) in zip(one.scopes, two.scopes, strict=True)
        for place, partner in enumerate(mine)
        if 0 <= partner < _DROPPED and part_of_speech(one.words[place].text) != "v"
    )


_SHORT = 4
"""Words of a question at most, for "was" or "is" to make another one of it."""


def _written(words: Sequence[Word]) -> str:
    return " ".join(word.written for word in words)


def _listed(words: Sequence[Word]) -> str:
    return " ".join(word.text for word in words)


def _same_modality(one: Reading, two: Reading, modals: Modals, partners: list[int]) -> bool:
    """Return whether both ask for what is, can, must or should be.

    Where a question word asks for the way, the place or the like, "how do I" is also "how can I"
    and "how should I". Elsewhere the modality is what is asked for, so that "may I" is "can I"
    alone; questions of another form may say so without a modal, as in "is there a way to".
    """
    differing = modals[0] ^ modals[1]
    # "May I record it" is not "is it possible", and "how long can it be" is not "how long is it".
    graded = all(read.asks == "how much" and "be" in read.frame for read in (one, two))
    if (
        differing == {"may", "should"}
        or ("may" in differing and one.possible != two.possible)
        or (differing and graded)
        or (differing - {"will"} and _measures(one) and _measures(two))
    ):
        return False
    mine, theirs = [{"can" if modal == "may" else modal for modal in said} for said in modals]
    able = any(_is_able(*pair) for pair in _pairs(one, two, partners))
    if able or mine == theirs:
        # "is it refundable" is "can it be refunded", and not "is it refunded"
        return mine ^ theirs == {"can"} if able and not (mine and theirs) else mine == theirs
    both = mine | theirs
    frames = [[kind for kind in read.frame if kind not in _VERBS] for read in (one, two)]
    differ = frames[0] != frames[1]
    if mine ^ theirs == {"will"} and "1" in one.persons and "1" in two.persons:
        return True  # "will I need a ticket" is "do I need a ticket"
    if one.asks and two.asks:
        both -= {"might"}
        if both <= {"must", "should"} or both <= {"can", "will"}:
            return True
        return both <= {"can", "will", "should"} and (
            not (mine and theirs) or {one.asks, two.asks} <= _OF_WAYS or differ
        )
    return both <= {"can", "will"} and (differ or _is_offered(one, two))


def _is_offered(one: Reading, two: Reading) -> bool:
    """Return whether "can you deliver it" or "can I get it" is "do you" or "will I"."""
    if one.persons == two.persons == "2":
        return True
    gets = all(any(word.text in _GETTING for word in reading.words) for reading in (one, two))
    return gets and "1" in one.persons and "1" in two.persons


def _is_able(word: Word, other: Word) -> bool:
    """Return whether one of two words says of the other that it can be, as *washable* of *wash*."""
    short, long = sorted((word.text, other.text), key=len)
    return (
        long.endswith(("able", "ible"))
        and len(long) - len(short) > 1
        and short[:_STEM] == long[:_STEM]
        and not _are_inflections(word, other)
    )


_STEM = 3
_GETTING = word_set("get receive obtain")
_OF_WAYS = {"how", "where", "who", "whom", "why"}
_VERBS = {"do", "be", "have"}


Modals = tuple[frozenset[str], frozenset[str]]
"""What may, must or shall be according to each question."""

_MODAL_WORDS = {
    "must": word_set("need require necessary mandatory compulsory obligatory oblige expect"),
    "can": word_set("allow permit possible okay able"),
    "may": word_set("allow permit possible okay"),
}
"""Other words that say what modals say."""


def _drop_modal_words(one: Reading, two: Reading, mine: list[int], theirs: list[int]) -> Modals:
    """Drop words such as *necessary* if the other question has *must*, and return the modals."""
    modals = one.modals, two.modals
    both = []
    for words, own, others, partners in (
        (one.words, *modals, mine),
        (two.words, *modals[::-1], theirs),
    ):
        said = set(own)
        for place, word in enumerate(words):
            for modal in others - own:
                meaning = _MODAL_WORDS.get(modal, frozenset())
                if partners[place] < 0 and not word.forms.isdisjoint(meaning):
                    partners[place] = _DROPPED
                    said.add(modal)
        both.append(frozenset(said))
    return both[0], both[1]


def _persons_differ(one: Reading, two: Reading, partners: list[int]) -> bool:
    """Return whether they do, as in "can I see your address" and "can you see my address"."""
    mine, theirs = one.persons, two.persons
    if (
        one.copula == two.copula
        and _DROPPED not in partners
        and not _has_synonyms(one, two, partners)
    ):
        turned = {who for who, acts in one.roles if (who, not acts) in two.roles - one.roles}
        if turned and not one.roles & two.roles:
            return True  # "who should I report to" is not "who should report to me"
    if {mine[:1], theirs[:1]} == {"1", "3"}:
        # "where can I get it" is "where do they sell it".
        other_words = _DROPPED in partners or _has_synonyms(one, two, partners)
        return not (one.asks and other_words)
    if {one.owner, two.owner} == {"1", "2"} and one.frame == two.frame:
        return True  # "where is my luggage" is not "where is your luggage"
    both = {"1", "2"} <= {*mine} & {*theirs}
    return both and (mine.index("1") < mine.index("2")) != (theirs.index("1") < theirs.index("2"))


# ------------------------------------------------------------------------------------- comparison


_MOST_COMPARED = 64
"""Words that are compared with each other, after those that are the same at both ends."""


def _matched(
    one: Sequence[Word], two: Sequence[Word], *, asking: bool
) -> tuple[list[int], list[int]] | None:
    """Return the place of each word's partner in the other question, or -1.

    Equal words are partners before words that mean the same. Where both questions are *asking*
    for something, and not whether something is so, fewer words matter.

    Returns:
        ``None`` where more words differ than are compared.
    """
    mine, theirs = [-1] * len(one), [-1] * len(two)
    shorter = min(len(one), len(two))
    start = 0
    while start < shorter and one[start].text == two[start].text:
        mine[start] = theirs[start] = start
        start += 1
    end = 1
    while end <= shorter - start and one[-end].text == two[-end].text:
        mine[-end], theirs[-end] = len(two) - end, len(one) - end
        end += 1
    if max(len(one), len(two)) - end + 1 - start > _MOST_COMPARED:
        return None
    for same in (_are_equal, _are_inflections, _mean_the_same, _are_kin):
        _match_with(same, one, two, mine, theirs)
    if -1 in mine or -1 in theirs:
        _match_compounds(one, two, mine, theirs)
        matched = [*mine], [*theirs]
        needless = FILLERS | ASIDES if asking else FILLERS
        if not (_only(one, mine, needless) and _only(two, theirs, needless)):
            _drop(one, mine, needless)
            _drop(two, theirs, needless)
        _drop_repeated(one, two, mine)
        _drop_repeated(two, one, theirs)
        _drop_implied(one, mine)
        _drop_implied(two, theirs)
        if -1 not in theirs:
            _drop(one, mine, GENERIC)
        elif -1 not in mine:
            _drop(two, theirs, GENERIC)
        if all(-1 in partners for partners in matched) and -1 not in mine and -1 not in theirs:
            return matched  # as of "my phone number" and "my account number"
    return mine, theirs


def _match_with(
    same: Callable[[Word, Word], bool],
    one: Sequence[Word],
    two: Sequence[Word],
    mine: list[int],
    theirs: list[int],
) -> None:
    """Match words that have no partner yet, with the one nearest to their place."""
    free = [number for number, partner in enumerate(theirs) if partner < 0]
    for place in [place for place, partner in enumerate(mine) if partner < 0]:
        candidates = [number for number in free if same(one[place], two[number])]
        if candidates:
            number = min(candidates, key=partial(_distance, place))
            mine[place], theirs[number] = number, place
            free.remove(number)


def _distance(place: int, other: int) -> int:
    return abs(place - other)


_DROPPED = 1 << 20
"""The partner of a word that needs none."""


def _only(words: Sequence[Word], partners: list[int], needless: frozenset[str]) -> bool:
    """Return whether there are words without a partner, and all of them are needless."""
    rest = [word for word, partner in zip(words, partners, strict=True) if partner < 0]
    return bool(rest) and all(_is_needless(word, needless) for word in rest)


def _is_needless(word: Word, needless: frozenset[str]) -> bool:
    if not word.forms.isdisjoint(needless):
        return True
    manner = (
        word.text.endswith("ly")
        and part_of_speech(word.text) == "r"
        and word.text not in RESTRICTING
    )
    return manner and needless > FILLERS


def _drop(words: Sequence[Word], partners: list[int], needless: frozenset[str]) -> None:
    for place, word in enumerate(words):
        restricts = _restricts(words, place, generic=needless is GENERIC)
        if partners[place] < 0 and not restricts and _is_needless(word, needless):
            partners[place] = _DROPPED


def _restricts(words: Sequence[Word], place: int, *, generic: bool) -> bool:
    """Return whether a word makes another thing of the noun next to it.

    "The online course" is one of the courses, and "register online" is to register. If the word is
    *generic*, "car insurance" is one of the insurances, and "the meeting room" is no meeting; but
    "the docker container" is docker.
    """
    following = next(iter(words[place + 1 : place + 2]), None)
    if following is not None and not following.by:
        if words[place].text in {"online", "used"}:
            return True
        if generic and not following.name and part_of_speech(following.text) == "n":
            return True
    if not generic or not place or words[place - 1].name:
        return False
    before = words[place - 1]
    beside = before.place == words[place].place - 1 and before.before in _DETERMINERS
    return beside or _modifies(words, place - 1)


def _drop_implied(words: Sequence[Word], partners: list[int]) -> None:
    """Drop words such as *swimming* in *swimming pool*, and *play* in *the play Macbeth*."""
    for place, word in enumerate(words):
        if partners[place] < 0 and (word.text in IMPLIED or word.text in KINDS):
            around = (*words[max(0, place - 1) : place], *words[place + 1 : place + 2])
            implying = IMPLIED.get(word.text, ())
            named = word.text in KINDS and any(other.name for other in around)
            if named or any(not other.forms.isdisjoint(implying) for other in around):
                partners[place] = _DROPPED


def _drop_repeated(words: Sequence[Word], others: Sequence[Word], partners: list[int]) -> None:
    """Drop words that only repeat what both questions say, if these are of some length."""
    if min(len(words), len(others)) <= _SHORT:
        return
    for place, word in enumerate(words):
        if partners[place] >= 0 or word.name:
            continue
        if any(not other.name and _mean_the_same(word, other) for other in others):
            partners[place] = _DROPPED


def _match_compounds(
    one: Sequence[Word], two: Sequence[Word], mine: list[int], theirs: list[int]
) -> None:
    """Match *pass word* with *password*, and the other way round."""
    for split, joined, left, right in ((one, two, mine, theirs), (two, one, theirs, mine)):
        for place in range(len(split) - 1):
            if left[place] >= 0 or left[place + 1] >= 0:
                continue
            whole = split[place].text + split[place + 1].text
            for number, word in enumerate(joined):
                if right[number] < 0 and whole in word.forms | {word.text}:
                    left[place], left[place + 1], right[number] = number, _DROPPED, place
                    break


def _are_kin(one: Word, other: Word) -> bool:
    return are_kin(one.text, other.text)


def _are_equal(one: Word, other: Word) -> bool:
    return one.text == other.text


def _are_inflections(one: Word, other: Word) -> bool:
    return not one.forms.isdisjoint(other.forms)


def _mean_the_same(one: Word, other: Word) -> bool:
    if one.name and other.name:
        return False
    return are_synonyms(one.text, other.text)


def _in_one_place(mine: list[int], theirs: list[int]) -> bool:
    """Return whether all words without a partner are in one place, side by side."""
    left = [place for place, partner in enumerate(mine) if partner < 0]
    right = [place for place, partner in enumerate(theirs) if partner < 0]
    if not left and not right:
        return False
    if not left or not right:
        return True
    return (_is_run(left) and _is_run(right)) or _same_frame(mine, theirs)


def _same_frame(mine: list[int], theirs: list[int]) -> bool:
    """Return whether words were exchanged one by one, with all the others in their places."""
    left = [-1 if partner < 0 else 0 for partner in mine if partner < _DROPPED]
    right = [-1 if partner < 0 else 0 for partner in theirs if partner < _DROPPED]
    order = [partner for partner in mine if 0 <= partner < _DROPPED]
    return left == right and order == sorted(order)


def _is_run(places: list[int]) -> bool:
    return not places or places[-1] - places[0] == len(places) - 1


_LONG = 5


def _case_differs(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether capitals make another word, as in *WHO* and *who*."""
    for word, partner in zip(one.words, mine, strict=True):
        if 0 <= partner < _DROPPED and _are_other_words(word, two.words[partner]):
            return True
    return False


def _are_other_words(word: Word, other: Word) -> bool:
    """Return whether two words that differ in their capitals alone are not the same."""
    one, two = word.written, other.written
    if one == two or one.lower() != two.lower():
        return False
    if one.lower() in UNITS:
        return one.lower() == "mw" or not {one, two} <= {one.lower(), one.upper()}
    shouts = [not text[1:].islower() for text in (one, two)] if len(one) > 1 else [False]
    if not any(shouts):
        return False
    if all(shouts) or {one, two} == {one.upper(), one.capitalize()}:
        return len(one) < _LONG or is_english_word(one.lower())
    return is_english_word(one.lower())


def _order_differs(one: Reading, two: Reading, mine: list[int]) -> bool:
    """Return whether the same words say something else by their order or their prepositions."""
    kept = [place for place, partner in enumerate(mine) if partner < _DROPPED]
    order = [mine[place] for place in kept]
    straight = order == sorted(order)
    if one.passive != two.passive:
        # "was Rome sued by Milan" is "did Milan sue Rome", with its words the other way round.
        return straight
    if one.asks in _SUBJECTS and (
        (one.does and not two.helped and one.persons == two.persons)
        or (two.does and not one.helped and one.persons == two.persons)
    ):
        return True  # "who did Anna hire" is not "who hired Anna"
    reworded = _is_reworded(one, two, mine)
    placing = any(not word.forms.isdisjoint(PLACING) for word in one.words)
    loose = reworded or _DROPPED in mine
    if not _go_together(one.stranded, two.stranded) and (
        not loose or (one.stranded and two.stranded)
    ):
        return True
    prepositions = [
        (_introduced(one.words, place, kept), _introduced(two.words, mate, order))
        for place, mate in zip(kept, order, strict=True)
    ]
    of_heads = [
        (_of_head(one.words, place, by), _of_head(two.words, mate, other))
        for place, mate, (by, other) in zip(kept, order, prepositions, strict=True)
    ]

    def fit(pair: tuple[str, str]) -> bool:
        # Another verb may have another preposition: "related to", "associated with".
        both = {*pair}
        return (
            _go_together(*pair)
            or (reworded and both <= _PARTICLES)
            or (placing and both <= _PLACES)
        )

    if not all(map(fit, prepositions)) and not all(map(fit, of_heads)):
        return True
    return not straight and not _is_harmless_move(one, two, kept, order)


def _introduced(words: Sequence[Word], place: int, kept: Sequence[int]) -> str:
    """Return the preposition of a word, or of one before it that is dropped: "after eating it"."""
    if words[place].listed and not words[place].by:
        return words[place].phrase
    while place and not words[place].by and place - 1 not in kept:
        place -= 1
    return words[place].by


def _of_head(words: Sequence[Word], place: int, by: str) -> str:
    """Return the preposition of a noun with others before it, such as *over* in "over a list".

    In "over a python list" it is that of *list*, and *python* has none.
    """
    if _modifies(words, place):
        return ""
    while place and not by and _modifies(words, place - 1):
        place -= 1
        by = words[place].by
    return by


def _modifies(words: Sequence[Word], place: int) -> bool:
    """Return whether a noun is followed by another one, as *python* does in "a python list"."""
    pair = words[place : place + 2]
    return (
        len(pair) > 1
        and pair[1].place == pair[0].place + 1
        and not pair[1].by
        and all(part_of_speech(word.text) == "n" for word in pair)
    )


_IN_ANY_FORM = {
    "quantifiers": _amount_differs,
    "complements": _complements_differ,
    "voice": _voice_differs,
    "subject": _turns_subject,
    "capitals": _case_differs,
}
"""Differences that count even if questions are of another form, or differ in other words too."""


_SUBJECTS = frozenset(("who", "what", "which", "whom"))


_LIKE = (
    {"", "to"},
    {"", "as"},
    {"to", "into"},
    {"to", "onto"},
    {"on", "onto"},
    {"in", "with"},
    {"", "with"},
    {"from", "off"},
    {"out", "away"},
)


_PLACES = {"", "to", "into", "onto", "in", "on", "at", "inside"}
_PARTICLES = {*AFTER_VERBS, "by", "from", "up", "out", "off", "down"}


def _go_together(one: str, other: str) -> bool:
    weak = {"", *WEAK_PREPOSITIONS}
    return one == other or {one, other} <= weak or {one, other} in _LIKE


def _is_harmless_move(one: Reading, two: Reading, kept: list[int], order: list[int]) -> bool:
    """Return whether all words that changed places may do so."""
    pairs = [(one.words[place], two.words[mate]) for place, mate in zip(kept, order, strict=True)]
    turned = one.frame != two.frame and one.acts == two.acts
    changed = any(_changes_form(*pair) for pair in pairs)
    if (one.copula != two.copula and changed) or (turned and one.asks not in {"", *_SUBJECTS}):
        return True  # "when was it built" is "when did they build it"
    if (turned or changed) and _moves_one(order):
        return True  # "is it safe to swim" is "is swimming safe"
    if _adjective_moves(one, two, order, pairs):
        return True
    return all(
        _may_swap(pairs[left], pairs[right])
        or _are_listed(pairs[left], pairs[right])
        or _is_participle_swap(pairs[left], pairs[right])
        for left, first in enumerate(order)
        for right in range(left + 1, len(order))
        if order[right] < first
    )


def _are_listed(one: _Pair, two: _Pair) -> bool:
    """Return whether two words are one after the other in both lists, as in "salt and pepper"."""
    (x, other_x), (y, other_y) = one, two
    return (
        (y.listed and other_x.listed)
        and y.place - x.place in _APART
        and other_x.place - other_y.place in _APART
    )


_APART = range(2, 4)
"""How far apart two words are with *and* between them, and perhaps an article."""


def _adjective_moves(one: Reading, two: Reading, order: list[int], pairs: list[_Pair]) -> bool:
    """Return whether an adjective or its verb moves, as in "is it hard to learn it", "is it hard".

    As in "is buying it worth it", and "is the grill easy to clean". Who does it must not change.
    """
    if not (one.dummy or two.dummy) or not (one.copula and two.copula and _moves_one(order)):
        return False
    if any(word.by == "for" for word in (*one.words, *two.words)):
        return False
    adjectives = [
        place for place, (word, _) in enumerate(pairs) if part_of_speech(word.text) == "a"
    ]
    rests = [[*order[:place], *order[place + 1 :]] for place in adjectives]
    return any(rest == sorted(rest) for rest in rests) or (
        bool(adjectives) and one.dummy != two.dummy
    )


_DETERMINERS = word_set("a an the my your our their any some this that these those")
_BEFORE_PARTICIPLES = word_set("i we you they he she it is are was were be been being got get")


def _is_participle_swap(one: _Pair, two: _Pair) -> bool:
    """Return whether a noun has its participle before or after it, as in "files I deleted"."""
    for (participle, other_participle), (noun, other_noun) in ((one, two), (two, one)):
        if participle.text != other_participle.text or not participle.text.endswith("ed"):
            continue
        for (a, b), (c, d) in (
            ((participle, noun), (other_participle, other_noun)),
            ((other_participle, other_noun), (participle, noun)),
        ):
            if (
                a.before in _DETERMINERS
                and b.place == a.place + 1
                and c.place > d.place
                and c.before in _BEFORE_PARTICIPLES | {d.text}
            ):
                return True
    return False


def _moves_one(order: list[int]) -> bool:
    """Return whether all but one word keep their order."""
    return any(
        rest == sorted(rest)
        for rest in ([*order[:place], *order[place + 1 :]] for place in range(len(order)))
    )


_Pair = tuple[Word, Word]
"""A word, and its partner in the other question."""


def _may_swap(one: _Pair, two: _Pair) -> bool:
    """Return whether two words say the same in the other order, and with other prepositions."""
    changed = _changes_form(*one), _changes_form(*two)
    if any(changed) or _is_free(*one) or _is_free(*two):
        return not all(changed)  # "block a caller" is not "call a blocked number"
    (a, b), (c, d) = [(word.phrase, other.phrase) for word, other in (one, two)]
    if a == b and c == d:
        return a != c  # "in Rome, who beat the team"
    if (a == b == d and c in WEAK_PREPOSITIONS) or (c == d == b and a in WEAK_PREPOSITIONS):
        return True  # "with a list in Python" is "with a Python list"
    # "the capital of France" is "the France capital"
    return ((a, b) in _LOOSE) != ((c, d) in _LOOSE)


def _is_free(word: Word, other: Word) -> bool:
    """Return whether a word may be anywhere, as in "which building is the tallest"."""
    if word.text != other.text:
        return False
    graded = compared_word(word.text)
    if part_of_speech(word.text) == "r" and word.forms.isdisjoint(RESTRICTING):
        return True
    return (
        (graded is not None and graded[1] == "est")
        or word.text in _MOST
        or (word.before == other.before and word.before in _MOST)
        or word.text in _FREE
        or word.text in DATES
        or (word.text.endswith("ly"))
    )


_MOST = word_set("most least")
_FREE = word_set(
    "or overnight long often much many far soon online default today tomorrow now abroad together"
)


def _changes_form(word: Word, other: Word) -> bool:
    """Return whether a verb is a participle or a noun in the other question."""
    one, two = word.text, other.text
    if one == two or word.name or other.name or one.rstrip("s") == two.rstrip("s"):
        return False
    if _are_inflections(word, other) or part_of_speech(word.text) != part_of_speech(other.text):
        return True
    return any(is_derived(form, another) for form in word.forms for another in other.forms)


_LOOSE = frozenset(pair for by in WEAK_PREPOSITIONS for pair in ((by, ""), ("", by)))
