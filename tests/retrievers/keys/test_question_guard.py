"""Differences that an answer turns on are seen; wordings, courtesies and spellings are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.retrievers.keys import may_share, question_difference, question_marks
from ragcache_integrations.retrievers.keys.question_guard import KINDS
from ragcache_integrations.retrievers.keys.question_words import word_set
from tests.support.sizes import examples

DIFFERENT = [
    ("spelling", "what is the value of G", "what is the value of g"),
    ("spelling", "is CO poisonous", "is Co poisonous"),
    ("spelling", "how many watts are 5 MW", "how many watts are 5 mW"),
    ("spelling", "what does ssh -V print", "what does ssh -v print"),
    ("spelling", "what does %M mean", "what does %m mean"),
    ("spelling", "what does \\W match", "what does \\w match"),
    ("spelling", "what does getID() do", "what does getId() do"),
    ("spelling", "the default of X.maxSize", "the default of X.MaxSize"),
    ("spelling", "what is ?? in JavaScript", "what is ?. in JavaScript"),
    ("spelling", "what is the set C", "what is the set \u2102"),
    ("numbers", "revenue in 2023", "revenue in 2024"),
    ("numbers", "who won the 2nd race", "who won the 3rd race"),
    ("numbers", "a discount of 10 items", "a discount of 10,000 items"),
    ("numbers", "version 3.5 of the driver", "version 3.6 of the driver"),
    ("numbers", "causes of world war i", "causes of world war ii"),
    ("numbers", "is two enough", "is three enough"),
    ("numbers", "what changed in gpt-4", "what changed in gpt-5"),
    ("dates", "opening hours on monday", "opening hours on friday"),
    ("dates", "sales in march", "sales in may"),
    ("dates", "average salary per month", "average salary per year"),
    ("negations", "which plans include support", "which plans do not include support"),
    ("negations", "is it safe with insurance", "is it safe without insurance"),
    ("negations", "why doesn't it start", "why does it start"),
    ("opposites", "how to enable two-factor login", "how to disable two-factor login"),
    ("opposites", "who was the first president", "who was the last president"),
    ("opposites", "the largest city of Peru", "the smallest city of Peru"),
    ("opposites", "what happened before the war", "what happened after the war"),
    ("opposites", "flights north then south", "flights south then north"),
    ("opposites", "the benign form", "the malignant form"),
    ("comparison", "is python faster than java", "is java faster than python"),
    ("comparison", "trains from rome to paris", "trains from paris to rome"),
    ("numbers", "two hundred people", "two thousand people"),
    ("numbers", "1.5 million users", "1.5 billion users"),
    ("numbers", "two hundred and five", "two hundred and six"),
    ("comparison", "did France beat Germany", "did Germany beat France"),
    ("comparison", "why does stress cause insomnia", "why does insomnia cause stress"),
    ("comparison", "was Rome sued by Milan", "was Milan sued by Rome"),
    ("units", "how far is it in km", "how far is it in miles"),
    ("units", "price in $", "price in €"),
    ("names", "the capital of France", "the capital of Spain"),
    ("names", "how to use read_csv here", "how to use read_json here"),
    ("what is asked for", "who invented the telephone", "when was the telephone invented"),
    ("what is asked for", "how many goals did he score", "how did he score goals"),
    ("what is asked for", "what city is it in", "what country is it in"),
    ("numbers", "how much is 10²", "how much is 102"),
    ("numbers", "how much is 5!", "how much is 5"),
    ("numbers", "how much is 5 + 3", "how much is 5 * 3"),
    ("numbers", "how much is 5 - 3", "how much is 3 - 5"),
    ("numbers", "is x ≤ y", "is x ≥ y"),
    ("numbers", "at -5 degrees", "at 5 degrees"),
    ("numbers", "at \u22125 degrees", "at 5 degrees"),
    ("numbers", "what is 2 to the power of 3", "what is 3 to the power of 2"),
    ("numbers", "events of 2023-01-05", "events of 2023-05-01"),
    ("numbers", "python 3.10 changes", "python 3.1 changes"),
    ("numbers", "twenty-one people", "twenty-two people"),
    ("numbers", "the twenty-first century", "the twenty-second century"),
    ("numbers", "the thirtieth of them", "the fortieth of them"),
    ("numbers", "music of the nineties", "music of the eighties"),
    ("numbers", "henry xxi", "henry xxii"),
    ("numbers", "a run of 5k", "a run of 5m"),
    ("numbers", "三 apples", "四 apples"),
    ("dates", "is it open at 10am", "is it open at 10 pm"),
    ("negations", "is it healthy", "is it unhealthy"),
    ("negations", "paid plans", "unpaid plans"),
    ("negations", "how to follow a topic", "how to unfollow a topic"),
    ("negations", "a read-only disk", "a read-write disk"),
    ("negations", "is it for adults", "is it only for adults"),
    ("opposites", "how do I log in", "how do I log out"),
    ("opposites", "how to show a column", "how to hide a column"),
    ("opposites", "weather at minus 5", "weather at 5"),
    ("opposites", "laws since 2020", "laws until 2020"),
    ("opposites", "art of pre-war times", "art of post-war times"),
    ("opposites", "signs of hyperthyroidism", "signs of hypothyroidism"),
    ("units", "convert 5 usd to eur", "convert 5 eur to usd"),
    ("names", "a test for hepatitis b", "a test for hepatitis c"),
    ("names", "what does \U0001f534 mean", "what does \U0001f7e2 mean"),
]
SAME = [
    ("who wrote the iliad", "please tell me who wrote the iliad?"),
    ("who wrote the iliad", "which person wrote the iliad"),
    ("when did it end", "in what year did it finish"),
    ("how many members are there", "what number of members are there"),
    ("how many members are there", "the number of members that there are"),
    ("the biggest bank", "the largest bank"),
    ("how to turn 1,000 pounds into 5.50", "how to turn 1000 pounds into 5.50"),
    ("when did the film come out", "help me find out when the film did come out"),
    ("sales of twenty-one", "sales of 21"),
    ("sales of twenty one", "sales of 21"),
    ("the twenty-first century", "the 21st century"),
    ("two hundred people", "200 people"),
    ("two thousand and five", "2005"),
    ("a million users", "1,000,000 users"),
    ("1.5 million users", "1500000 users"),
    ("3 million two hundred five thousand and six", "3205006"),
    ("two dozen eggs", "24 eggs"),
    ("two hundred and a few", "200 and a few"),
    ("did Rome really sue Milan", "did Rome sue Milan"),
    ("was Rome sued by Milan", "did Milan sue Rome"),
    ("who beat the team in Rome", "please, in Rome, who beat the team"),
    ("events of Jan 5", "events of 5 January"),
    ("is it open at 10am", "is it open at 10 am"),
    ("who understands units of the union until now", "who understands units of the union till now"),
    ("what is world war 2", "what is world war two"),
    ("isn\u2019t it open", "is it not open"),
    ("why does the app start slowly", "good morning, why does the app launch slowly, thanks"),
    ("What is FAISS?", "what is FAISS"),
    ("the capital of France", "what's the capital of France?".removeprefix("what's ")),
]


@pytest.mark.parametrize(("kind", "one", "other"), DIFFERENT)
def test_a_difference_that_matters(kind: str, one: str, other: str) -> None:
    difference = question_difference(one, other)
    assert difference is not None
    assert difference.startswith(f"{kind}: ")
    assert question_difference(other, one) is not None


@pytest.mark.parametrize(("one", "other"), SAME)
def test_other_words_for_the_same(one: str, other: str) -> None:
    assert question_difference(one, other) is None


def test_the_difference_is_named() -> None:
    assert question_difference("sales in 2023", "sales in 2024") == "numbers: 2023 / 2024"
    assert question_difference("is it open", "is it not open") == "negations: none / not"


@examples(200)
@given(st.text(max_size=300))
def test_any_text_has_marks_of_all_kinds_and_equals_itself(text: str) -> None:
    marks = question_marks(text)
    assert len(marks) == len(KINDS) + 1
    assert all(isinstance(mark, str) for kind in marks for mark in kind)
    assert question_difference(text, text) is None


@examples(100)
@given(st.text(max_size=80), st.text(max_size=80))
def test_questions_that_are_the_same_have_the_same_marks(one: str, other: str) -> None:
    difference = question_difference(one, other)
    assert (difference is None) == (question_difference(other, one) is None)
    assert difference is not None or question_marks(one) == question_marks(other)


WORDS = st.sampled_from(
    sorted(
        word_set(
            "who what does did is was the a of by to from in not Anna anna rome paris price prices "
            "cost buy bought largest biggest 5 five km can must my your they WHO who? C# C++ -o -O"
        )
    )
)


@examples(300)
@given(st.lists(WORDS, max_size=9), st.lists(WORDS, max_size=9))
def test_the_order_of_two_questions_makes_no_difference(one: list[str], other: list[str]) -> None:
    texts = " ".join(one), " ".join(other)
    there, back = question_difference(*texts), question_difference(*reversed(texts))
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        kind, _, sides = there.partition(": ")
        assert back == f"{kind}: {' / '.join(reversed(sides.split(' / ')))}"


def pairs_of(name: str) -> list[list[str]]:
    lines = Path(__file__).with_name(name).read_text("utf-8").splitlines()
    return [line.split(" | ") for line in lines if not line.startswith("#")]


MINIMAL = pairs_of("minimal_pairs.txt")


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "it", "pt"])
def test_minimal_pairs(language: str) -> None:
    pairs = [pair for kind, *pair in MINIMAL if kind.startswith(language)]
    assert len(pairs) >= 25
    assert [pair for pair in pairs if may_share(*pair)] == []
    assert [text for pair in pairs for text in pair if not may_share(text, f" {text}  ")] == []


def test_rephrasings() -> None:
    pairs = pairs_of("rephrasings.txt")
    served = sum(may_share(*pair) for pair in pairs)
    assert served / len(pairs) > SHARE_OF_REPHRASINGS


SHARE_OF_REPHRASINGS = 0.92
"""Of those that marks and the largest tolerance let pass."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Wo ist Köln, bitte?", "wo ist köln"),
        ("wie weit sind 5 km?", "Wie weit sind fünf Kilometer"),
        ("Est-ce que je peux annuler ?", "je peux annuler s'il vous plaît"),
        ("¿Cómo cancelo mi pedido?", "como cancelo mi pedido por favor"),
        ("Quanto costano due biglietti?", "quanto costano 2 biglietti, grazie"),
        ("Quanto custam dois bilhetes?", "olá, quanto custam 2 bilhetes"),
        ("电池可以更换吗?", "电池可以更换吗?"),
    ],
)
def test_polite_phrases_and_numbers_of_other_languages(one: str, other: str) -> None:
    assert question_difference(one, other) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("czy mogę anulować", "czy nie mogę anulować"),
        ("можно ли отменить", "нельзя ли отменить"),
        ("电池可以更换吗", "电池不可以更换吗"),
        ("เปิดกี่โมง", "ปิดกี่โมง"),
        ("iPhone 15 電池", "iPhone 15 屏幕"),
        ("mogę anulować zamówienie", "zamówienie mogę anulować"),
    ],
)
def test_in_languages_that_it_does_not_know_only_the_same_text_is_the_same(
    one: str, other: str
) -> None:
    assert question_difference(one, other) is not None


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("names", "how do i use git add .", "how do i use git add"),
        ("names", "where was angela born", "where was helmut born"),
        ("words", "what is the colour of it", "what is the shape of it"),
        ("words", "does the drug have effects", "does the drug have side effects"),
        ("modality", "can i do it", "must i do it"),
        ("order", "who hired anna", "who did anna hire"),
        ("order", "the effect of tea on sleep", "the effect of sleep on tea"),
        ("order", "can i see your address", "can you see my address"),
        ("order", "where is my luggage", "where is your luggage"),
        ("subject", "how do i share it with anna", "how does anna share it with me"),
        ("modality", "how should i pay", "how may i pay"),
        ("modality", "how long can i stay", "how long should i stay"),
        ("words", "how do i change my phone number", "how do i change my account number"),
        ("words", "how much is the course", "how much is the online course"),
        ("time", "who is the president", "who was the president"),
        ("voice", "who paid for the repair", "who was paid for the repair"),
        ("quantifiers", "is there a fee for few of them", "is there a fee for a few of them"),
        ("complements", "did he stop to check it", "did he stop checking it"),
        ("subject", "can i call the doctor", "can the doctor call me"),
    ],
)
def test_differences_that_only_a_comparison_shows(kind: str, one: str, other: str) -> None:
    assert question_marks(one) == question_marks(other)
    difference = question_difference(one, other)
    assert difference is not None
    assert difference.startswith(f"{kind}: ")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("how do I buy the film", "how can I purchase the movie"),
        ("which colour is availabel", "which color is available"),
        ("what is the pass word", "what is the password"),
        ("which firm is accountable", "which company is responsible"),
        ("when was the tower built", "when did they build the tower"),
        ("what is the tallest building in rome", "which building is the tallest in rome"),
        ("the capital of france", "france's capital"),
        ("in rome, who beat the team", "who beat the team in rome"),
        ("where can i find my order, any idea?", "quick question: where is my order"),
        ("can i renew it in rome", "is there any way to renew it in rome"),
        ("how often should i feed a cat", "how often do i have to feed a cat"),
        ("has my payment been received", "did you receive my payment"),
        (
            "in winter, how often should i water orchids",
            "how often should orchids be watered in winter",
        ),
        (
            "to open an account, what documents do i need",
            "what documents do i need to open an account",
        ),
        ("is a permit needed for a fence", "do i need a permit for a fence"),
        ("how can i pay my bill", "how do i make a payment of my bill"),
        ("who do i ask about school meals", "who is responsible for school meals"),
        ("how do i pay my bill", "how do i pay my bill online"),
        ("which vaccines are needed in rome", "what vaccines do i need in rome"),
        ("how do i turn off notifications", "how do i turn notifications off"),
        ("how often do you clean it", "how frequently do you clean it"),
        ("how tall is the tower", "what is the height of the tower"),
        ("how much does the basic plan cost", "what's the price of the basic plan"),
        ("how many people live in rome", "what is the population of rome"),
        ("can i cancel at any time", "is it possible to cancel at any time"),
        ("how do i book a room", "what's the way to book a room"),
        ("how do i apply for leave", "what is the procedure for applying for leave"),
        ("can employees work at night", "are employees allowed to work at night"),
        ("is an hour and a half enough", "are one and a half hours enough"),
        ("is an hour and a half enough", "is 1.5 hours enough"),
        ("when was the parcel picked up", "when did you pick up the parcel"),
    ],
)
def test_rephrasings_that_a_comparison_knows(one: str, other: str) -> None:
    assert question_difference(one, other) is None


def test_long_texts_are_compared_in_a_bounded_time() -> None:
    words = " ".join(f"word{number}" for number in range(400))
    others = " ".join(f"word{number}" for number in range(400, 800))
    assert question_difference(f"what is {words}", f"what is {others}") is not None


def test_a_text_too_long_to_be_read_is_the_same_as_itself_alone() -> None:
    long = "what is it " * 1000
    assert question_difference(long, long) is None
    assert question_difference(long, f"{long} ") is not None
