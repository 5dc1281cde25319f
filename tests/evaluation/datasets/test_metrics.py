from __future__ import annotations

import json
import random
import re
import string
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score  # type: ignore[import-untyped]

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets.base import Answer, EvalQuestion, load_dataset
from ragcache_workbench.evaluation.datasets.choices import MMLU, format_example
from ragcache_workbench.evaluation.datasets.metrics import (
    choose_option,
    exact_match,
    k_recall,
    macro_f1,
    normalise_answer,
    option_in_text,
    option_logprobs,
    rouge_l,
    score_option,
    token_f1,
)

# SQuAD's evaluate-v1.1, written out from its published definition, step by step as it is there.


def official_normalise(text: str) -> str:
    def remove_articles(one: str) -> str:
        return re.sub(r"\b(a|an|the)\b", " ", one)

    def white_space_fix(one: str) -> str:
        return " ".join(one.split())

    def remove_punctuation(one: str) -> str:
        exclude = set(string.punctuation)
        return "".join(character for character in one if character not in exclude)

    return white_space_fix(remove_articles(remove_punctuation(text.lower())))


def official_f1(prediction: str, ground_truth: str) -> float:
    prediction_tokens = official_normalise(prediction).split()
    ground_truth_tokens = official_normalise(ground_truth).split()
    common = Counter(prediction_tokens) & Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def official_max(
    metric: Callable[[str, str], float], prediction: str, ground_truths: list[str]
) -> float:
    return max(metric(prediction, ground_truth) for ground_truth in ground_truths)


TEXTS = st.text(alphabet=" aAntheTHE.,-'xyz\u00e9\u2019\t\n12", max_size=40)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_exact_match_and_f1_are_squads_to_the_last_digit(
    answer: str, references: list[str]
) -> None:
    assert normalise_answer(answer) == official_normalise(answer)
    assert token_f1(answer, references) == official_max(official_f1, answer, references)
    matches = official_max(
        lambda one, other: official_normalise(one) == official_normalise(other), answer, references
    )
    assert exact_match(answer, references) == float(matches)


def test_on_real_answers() -> None:
    rng = random.Random(0)
    questions = load_dataset("nq").questions
    for question in questions:
        for answer in (
            rng.choice(questions).answers[0],
            f"The {question.answers[0]}.",
            f"{question.answers[0]} or {rng.choice(questions).answers[0]}",
        ):
            references = list(question.answers)
            assert token_f1(answer, references) == official_max(official_f1, answer, references)
    assert exact_match("The Röntgen!", ["röntgen"]) == 1
    assert token_f1("Wilhelm Röntgen", ["Wilhelm Conrad Röntgen"]) == pytest.approx(0.8)
    assert token_f1("the", ["the"]) == 0  # nothing is left of either: SQuAD counts no match
    assert exact_match("the", ["a"]) == 1


def longest_common_subsequence(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    @cache
    def length(first: int, second: int) -> int:
        if first == len(one) or second == len(other):
            return 0
        if one[first] == other[second]:
            return 1 + length(first + 1, second + 1)
        return max(length(first + 1, second), length(first, second + 1))

    return length(0, 0)


@given(
    st.lists(st.sampled_from("abc"), max_size=12),
    st.lists(st.sampled_from("abc"), max_size=12),
)
def test_rouge_l_is_that_of_the_definition(one: list[str], other: list[str]) -> None:
    common = longest_common_subsequence(tuple(one), tuple(other))
    expected = 0.0
    if common:
        precision, recall = common / len(one), common / len(other)
        expected = 2 * precision * recall / (precision + recall)
    assert rouge_l(" ".join(one), ["zzz", "  ".join(other)]) == expected


def test_rouge_l_of_the_papers_example() -> None:
    # Lin (2004), section 3.1: police killed the gunman / police kill the gunman / the gunman kill
    # police, with the F of precision and recall alike.
    assert rouge_l("police kill the gunman", ["police killed the gunman"]) == 0.75
    assert rouge_l("the gunman kill police", ["police killed the gunman"]) == 0.5


# MMLU's own code: the log-probabilities of " A" to " D", -100 for what is missing, NumPy's argmax.


def original_prediction(top: dict[str, float]) -> str:
    lprobs = []
    for ans in ("A", "B", "C", "D"):
        try:
            lprobs.append(top[f" {ans}"])
        except KeyError:
            lprobs.append(-100)
    return {0: "A", 1: "B", 2: "C", 3: "D"}[int(np.argmax(lprobs))]


@given(
    st.dictionaries(
        st.sampled_from([" A", " B", " C", " D", "A", " the", "\n"]),
        st.floats(-50, 0).map(lambda one: round(one, 1)),
        max_size=7,
    )
)
def test_mmlu_is_scored_as_by_its_own_code(top: dict[str, float]) -> None:
    question = EvalQuestion("one", "?", ("C",), options=("A", "B", "C", "D"))
    spaced = [top[f" {letter}"] for letter in "ABCD" if f" {letter}" in top]
    # Where a letter without a space is likelier than all of these, a turn begins with it.
    if spaced and max(spaced) >= top.get("A", -100):
        scored = score_option(question, Answer("D", top))
        assert scored.prediction == original_prediction(top)
        assert scored.scores == {"accuracy": float(original_prediction(top) == "C")}


def test_mmlu_in_a_chat_begins_a_turn_with_the_letter() -> None:
    assert option_logprobs({"B": -0.1, "A": -3.0, " the": -4.0}, "ABCD") == [-3.0, -0.1, -100, -100]
    # Letters after a space are among the likeliest tokens, too, far behind.
    likeliest = {"B": -0.1, " A": -12.0, " C": -14.0, "D": -3.0}
    assert option_logprobs(likeliest, "ABCD") == [-100, -0.1, -100, -3.0]
    assert option_logprobs({" B": -0.1, "A": -12.0}, "ABCD") == [-100, -0.1, -100, -100]
    assert option_logprobs({}, "") == []
    assert choose_option([-100.0, -1.0, -1.0]) == 1


def test_mmlu_without_log_probabilities_goes_by_the_text() -> None:
    question = EvalQuestion("one", "?", ("B",), options=("A", "B", "C", "D"))
    assert score_option(question, Answer("The answer is B, not A.")).prediction == "B"
    assert score_option(question, Answer("Because of a bad answer")).prediction is None
    assert score_option(question, Answer("")).scores == {"accuracy": 0.0}
    # None of the letters is among the likeliest: all are equal, and the first is taken.
    assert score_option(question, Answer("noise", {" x": -1.0})).prediction == "A"
    assert option_in_text("Maybe, but yes.", ("yes", "no", "maybe")) == 2
    assert option_in_text("nobody knows", ("yes", "no", "maybe")) is None


def test_the_prompt_of_mmlu_is_that_of_its_own_code() -> None:
    dataset = load_dataset("mmlu")
    assert isinstance(dataset, MMLU)
    question = next(one for one in dataset.questions if one.group == "high_school_geography")
    prompt = dataset.prompt(question, question.text)
    head = "The following are multiple choice questions (with answers) about  high school geography"
    assert prompt.before.startswith(f"{head}.\n\n")
    assert prompt.before.count("\nAnswer: ") == 5
    assert prompt.before.endswith("\n\n")
    solved = format_example(question, solved=True)
    assert solved == (
        f"{question.text}\nA. {question.choices[0]}\nB. {question.choices[1]}\n"
        f"C. {question.choices[2]}\nD. {question.choices[3]}\nAnswer: {question.answers[0]}\n\n"
    )
    assert prompt.after == solved[: -len(f" {question.answers[0]}\n\n")]
    assert prompt.system == ""


@given(st.lists(st.tuples(*[st.sampled_from(["yes", "no", "maybe"])] * 2), min_size=1))
def test_macro_f1_is_scikit_learns(pairs: list[tuple[str, str]]) -> None:
    predictions, labels = zip(*pairs, strict=True)
    assert macro_f1(predictions, labels) == pytest.approx(
        f1_score(labels, predictions, average="macro"), abs=1e-15
    )


def test_macro_f1_counts_no_answer_as_wrong() -> None:
    assert macro_f1([None, "yes"], ["no", "yes"]) == 0.5


def test_k_recall() -> None:
    assert k_recall(["a", "b", "x"], ["c", "b", "a"], 3) == pytest.approx(2 / 3)
    assert k_recall(["a", "b"], ["b", "a"], 2) == 1
    assert k_recall(["x", "a"], ["a"], 1) == 0  # the second is not among the first one
    assert k_recall(["a"], ["a"], 5) == 1  # the store has no more


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: exact_match("x", []), "at least one text"),
        (lambda: token_f1("x", "x"), "at least one text"),
        (lambda: rouge_l("x", ()), "at least one text"),
        (lambda: k_recall(["a"], [], 1), "0 documents"),
        (lambda: k_recall(["a"], ["a"], 0), "k=0"),
        (lambda: macro_f1([], []), "at least 1"),
        (lambda: macro_f1(["yes"], ["yes", "no"]), "1 predictions for 2 labels"),
        (lambda: choose_option([]), "at least one option"),
    ],
)
def test_bad_input(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        call()


def test_scores_are_json() -> None:
    scored = load_dataset("nq").score(load_dataset("nq").questions[0], Answer("x"))
    assert json.loads(json.dumps(scored.scores)) == scored.scores
