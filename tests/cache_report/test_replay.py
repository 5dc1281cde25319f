"""Questions asked again: who is served by whom, and what is wrong about it."""

from __future__ import annotations

import numpy as np
import pytest

from ragcache_integrations.answers import AnswerCore, AnswerKnobs, Question
from ragcache_workbench.cache_report.replay import TOLERANCES, Count, prove, replay


def on_a_circle(*angles: float) -> np.ndarray:
    """Unit vectors; for small angles, their distances are the angles' differences."""
    return np.array([[np.cos(angle), np.sin(angle)] for angle in angles])


def test_the_nearest_question_that_was_missed_is_served() -> None:
    vectors = on_a_circle(0, 0.1, 0.25, 0.2, 0.24)
    replayed = replay(vectors, range(5), [0] * 5, [0, 0, 1, 0, 1], [0.0, 0.12, 0.2])

    assert replayed.sources.tolist() == [
        [-1, -1, -1, -1, -1],
        # 0.1 is served and not kept, so 0.2 is too far from 0 and near to 0.25.
        [-1, 0, -1, 2, 2],
        [-1, 0, -1, 2, 2],
    ]
    assert replayed.wrong.tolist()[1] == [False, False, False, True, False]
    assert replayed.wrong_counts() == [Count(0, 0), Count(1, 3), Count(1, 3)]


def test_the_same_words_are_served_at_tolerance_0_and_equal_embeddings_are_not() -> None:
    replayed = replay(on_a_circle(0, 0, 0), [7, 8, 7], [0] * 3, [0] * 3, [0.0, 0.02])
    assert replayed.hits.tolist() == [[False, False, True], [False, True, True]]


def test_only_questions_of_one_key_share_answers() -> None:
    replayed = replay(on_a_circle(0, 0, 0), [1] * 3, [1, 2, 1], [0] * 3, [0.1])
    assert replayed.sources.tolist() == [[-1, -1, 0]]


def test_hits_without_a_known_answer_on_both_sides_are_not_judged() -> None:
    replayed = replay(on_a_circle(0, 0, 1, 1), [1, 1, 2, 2], [0] * 4, [-1, 3, 4, -1], [0.1])
    assert replayed.hits.sum() == 2
    assert not replayed.judged.any()
    assert not replayed.wrong.any()


@pytest.mark.parametrize("tolerance", [0.0, 0.1, 0.4])
def test_a_replay_does_what_the_cache_does(tolerance: float) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(1200, 4))  # several blocks of distances
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    words, documents = rng.integers(900, size=1200), rng.integers(3, size=1200)
    vectors = vectors[words]  # the same words have the same embedding
    core = AnswerCore[int](AnswerKnobs(tolerance=tolerance, guard=False, capacity=2000))
    served = []
    for row in range(1200):
        text = f"w{words[row]}"
        question = Question(text, frozenset({(str(documents[row]), 0)}))
        entry = core.find(question)
        if entry is None and (near := core.nearest(question, vectors[row])) and near.served:
            entry = near.entry
        if entry is None:
            core.insert(question, vectors[row], row)
        served.append(-1 if entry is None else entry.answer)

    replayed = replay(vectors, words.tolist(), documents.tolist(), [0] * 1200, [tolerance])
    assert replayed.sources[0].tolist() == served
    assert 0 < replayed.hits.sum() < 1200


def drawn_half(rng: np.random.Generator) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Half of a log: embeddings, labels, and how probable each label differs from its topic's.

    The first questions are those of the topics. Of the others, each is the more probably another
    question the farther it is from its topic's.
    """
    topics, others, dim = 25, 400, 32
    centres = rng.normal(size=(topics, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    topic, radius = rng.integers(topics, size=others), rng.uniform(0, 0.6, others)
    steps = rng.normal(size=(others, dim))
    steps *= (radius / np.linalg.norm(steps, axis=1))[:, None]
    vectors = np.concatenate([centres, centres[topic] + steps])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    probable = np.concatenate([np.zeros(topics), 0.4 * (radius / 0.6) ** 3])
    label = np.concatenate([np.arange(topics), topic])
    unique = np.arange(len(label)) + topics
    labels = np.where(rng.random(len(label)) < probable, unique, label)
    return vectors, labels.tolist(), probable


def true_shares(vectors: np.ndarray, probable: np.ndarray, tolerances: list[float]) -> list[float]:
    """The expected shares of wrong hits, whatever labels were drawn."""
    count = len(vectors)
    replayed = replay(vectors, range(count), [0] * count, [0] * count, tolerances)
    right = (1 - probable) * (1 - probable[replayed.sources])
    return [float(1 - right[at][hits].mean()) for at, hits in enumerate(replayed.hits)]


def test_the_recommended_tolerance_holds_on_the_other_half_of_a_log() -> None:
    """Each split is of a log of its own: those of one log would share its luck."""
    error, splits = 0.05, 50
    broken = naively_broken = proven = 0
    for seed in range(splits):
        rng = np.random.default_rng(seed)
        (vectors, labels, _), (others, _, probable) = drawn_half(rng), drawn_half(rng)
        count = len(vectors)
        counts = replay(vectors, range(count), [0] * count, labels).wrong_counts()
        taken = prove(counts, error).taken
        seen = max(place for place, wrong in enumerate(counts) if wrong.share <= error)
        places = [seen] if taken is None else [taken, seen]
        shares = true_shares(others, probable, [TOLERANCES[place] for place in places])
        proven += taken is not None
        broken += taken is not None and shares[0] > error
        naively_broken += shares[-1] > error

    assert proven > 0.8 * splits
    assert broken <= 0.05 * splits
    assert naively_broken > 0.2 * splits
