import re
from collections import Counter

import pytest

from ragcache_integrations.resources import load_questions
from ragcache_workbench.demo.run import zipf_stream

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
