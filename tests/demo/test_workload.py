import re
from collections import Counter

import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.resources import load_questions
from ragcache_workbench.demo.workload import zipf_stream

QUESTIONS = [question.text for question in load_questions()]


def test_a_rephrased_question_is_another_text_that_shares_words() -> None:
    stream = zipf_stream(QUESTIONS, 3000, seed=7)
    rephrased = [request for request in stream if request.rephrased]
    assert len({request.text for request in rephrased}) == len(rephrased) > 1000
    for request in rephrased:
        words = Counter(QUESTIONS[request.topic].split())
        kept = words & Counter(re.findall(r"[^\s,?.]+", request.text))
        assert kept.total() >= words.total() / 2


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
    ("questions", "length", "exponent", "share", "words"),
    [
        ([], 5, 0.8, 0.5, "a stream needs at least one question"),
        (["a"], 0, 0.8, 0.5, "length must be a whole number of at least 1, got 0"),
        (["a"], 5, -1.0, 0.5, "exponent must be a number of at least 0"),
        (["a"], 5, 0.8, 1.5, "rephrased_share must be a number of at least 0 and at most 1"),
    ],
)
def test_bad_streams(
    questions: list[str], length: int, exponent: float, share: float, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        zipf_stream(questions, length, exponent=exponent, rephrased_share=share)
