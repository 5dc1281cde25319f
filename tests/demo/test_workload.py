import random
from collections import Counter

import pytest

from ragcache_integrations.demo.workload import REPHRASINGS, rephrase, zipf_stream
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_questions

QUESTIONS = [question.text for question in load_questions()]


@pytest.mark.parametrize(
    ("rule", "text", "variant"),
    [
        ("opening", "who won", "please tell me who won"),
        ("closing", "who won", "who won please"),
        ("contraction", "what is a tree", "what's a tree"),
        ("contraction", "who's the king", "who is the king"),
        ("synonym", "when did the movie end", "when did the film end"),
        ("synonym", "what is it called", "what is it known as"),
        ("word order", "who won the cup in 1998", "in 1998 who won the cup"),
        ("word order", "who lost it all on the last day", "on the last day who lost it all"),
    ],
)
def test_rules(rule: str, text: str, variant: str) -> None:
    assert variant in REPHRASINGS[rule](text)


@pytest.mark.parametrize(
    ("rule", "text"),
    [("contraction", "who won"), ("synonym", "who won"), ("word order", "won in 1998")],
)
def test_rules_that_do_not_apply_give_nothing(rule: str, text: str) -> None:
    assert REPHRASINGS[rule](text) == []


def test_words_are_swapped_whole() -> None:
    assert REPHRASINGS["synonym"]("who uses filmed madeira") == []


def test_a_rephrased_question_is_another_text_that_shares_words() -> None:
    rng = random.Random(7)
    for text in QUESTIONS:
        for _ in range(5):
            other = rephrase(text, rng)
            assert other != text
            assert other == " ".join(other.split())
            kept = Counter(text.split()) & Counter(other.split())
            assert kept.total() >= len(text.split()) / 3


def test_every_rule_applies_to_some_bundled_question() -> None:
    for rule in REPHRASINGS.values():
        assert any(rule(text) for text in QUESTIONS)


def test_the_seed_decides_the_stream() -> None:
    assert zipf_stream(QUESTIONS, 150, seed=3) == zipf_stream(QUESTIONS, 150, seed=3)
    assert zipf_stream(QUESTIONS, 150, seed=3) != zipf_stream(QUESTIONS, 150, seed=4)


@pytest.mark.parametrize("length", [1, 40, 150, 1000])
def test_half_of_the_repeats_are_rephrased(length: int) -> None:
    stream = zipf_stream(QUESTIONS, length)
    assert len(stream) == length
    repeats = [request for request in stream if request.repeated]
    assert len(repeats) == length - len({request.topic for request in stream})
    assert sum(request.rephrased for request in stream) == len(repeats) // 2
    seen: set[int] = set()
    for request in stream:
        assert request.repeated == (request.topic in seen)
        assert request.rephrased == (request.text != QUESTIONS[request.topic])
        assert request.repeated or not request.rephrased
        seen.add(request.topic)


def test_popularity_follows_zipf() -> None:
    stream = zipf_stream(QUESTIONS, 20_000, seed=1)
    counts = [count for _, count in Counter(request.topic for request in stream).most_common()]
    total = sum(rank**-0.8 for rank in range(1, 301))
    for rank in (1, 2, 5, 10, 50):
        expected = 20_000 * rank**-0.8 / total
        assert counts[rank - 1] == pytest.approx(expected, rel=0.25)


def test_an_exponent_of_0_draws_all_alike() -> None:
    stream = zipf_stream(["a", "b"], 2000, exponent=0, rephrased_share=0)
    assert Counter(request.text for request in stream)["a"] == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(
    ("questions", "length", "exponent", "share"),
    [([], 5, 0.8, 0.5), (["a"], 0, 0.8, 0.5), (["a"], 5, -1.0, 0.5), (["a"], 5, 0.8, 1.5)],
)
def test_bad_streams(questions: list[str], length: int, exponent: float, share: float) -> None:
    with pytest.raises(ConfigurationError, match="a stream needs"):
        zipf_stream(questions, length, exponent=exponent, rephrased_share=share)
