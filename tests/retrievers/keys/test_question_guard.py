"""Differences that an answer turns on are seen; wordings, courtesies and spellings are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.retrievers.keys import question_difference, question_marks
from ragcache_integrations.retrievers.keys.question_guard import KINDS
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
@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=80))
def test_being_the_same_is_an_equivalence(one: str, other: str, third: str) -> None:
    texts = (one, other, third)
    same = {(a, b): question_difference(a, b) is None for a in texts for b in texts}
    assert all(same[a, b] == same[b, a] for a, b in same)
    assert same[one, third] or not (same[one, other] and same[other, third])


def test_a_text_too_long_to_be_read_is_the_same_as_itself_alone() -> None:
    long = "what is it " * 1000
    assert question_difference(long, long) is None
    assert question_difference(long, f"{long} ") is not None
