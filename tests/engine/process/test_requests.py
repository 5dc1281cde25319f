"""What is remembered of a request, so that it can be asked again."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ragcache_integrations.core.generation import TokenLogprob
from ragcache_integrations.core.prompt import ToolCallPiece, join_calls
from ragcache_integrations.engine import SamplingOptions
from ragcache_integrations.engine.process.requests import DivergedError, PendingRequest
from ragcache_integrations.engine.protocol import Output, Submit, ToolUse

ANSWER = tuple(range(100, 120))


def pending(**options: Any) -> PendingRequest:
    return PendingRequest(
        lambda received: None, Submit(7, [1, 2, 3], SamplingOptions(**options), "", ())
    )


def outputs(submit: Submit, answer: tuple[int, ...], dice: random.Random) -> list[Output]:
    """What a process sends for a request, some tokens at a time; token 105 is ``<105>``."""
    known = submit.emitted
    assert answer[: len(known)] == known
    left, begin = [], len(known)
    while begin < len(answer):
        end = min(len(answer), begin + dice.randint(1, 3))
        tokens = answer[begin:end]
        left.append(
            Output(
                7,
                "".join(f"<{token}>" for token in tokens),
                tokens,
                tuple(TokenLogprob(str(token), token, -1.0) for token in tokens),
                "length" if end == len(answer) else None,
                dice.randint(0, 3),
                submit.attempt,
            )
        )
        begin = end
    return left


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0},
        {"temperature": 1.0, "seed": 3},
        {"json_schema": {"type": "string"}},
        {"choice": ("yes", "no"), "temperature": 0.5},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1.0, "temperature": 0.7},
        {"repetition_penalty": 1.2},
    ],
)
def test_nothing_is_repeated_or_lost_however_often_it_is_interrupted(
    options: dict[str, Any],
) -> None:
    for seed in range(200):
        dice = random.Random(seed)
        request = pending(**options)
        got: list[Output] = []
        while not (got and got[-1].finish_reason):
            arriving = outputs(request.message(), ANSWER, dice)
            stop = len(arriving) if dice.random() < 0.4 else dice.randint(0, len(arriving) - 1)
            got += [new for one in arriving[:stop] if (new := request.take(one)) is not None]
            assert request.begun == bool(got)
            stale = [one for one in arriving[stop:] if dice.random() < 0.5]
            if not (got and got[-1].finish_reason):
                following = request.message()
                assert [request.take(one) for one in stale] == [None] * len(stale)
                arriving = outputs(following, ANSWER, dice)
                got += [new for one in arriving[:1] if (new := request.take(one)) is not None]
        assert sum((one.token_ids for one in got), ()) == ANSWER
        assert "".join(one.text for one in got) == "".join(f"<{token}>" for token in ANSWER)
        assert [t.token_id for one in got for t in one.logprobs] == list(ANSWER)


def test_greedy_and_unseeded_ones_go_on_behind_what_came() -> None:
    for options in ({}, {"temperature": 0.7}, {"repetition_penalty": 1.2}):
        request = pending(**options)
        arriving = outputs(request.message(), ANSWER, random.Random(1))
        first = request.take(arriving[0])
        assert first is not None
        again = request.message()
        assert (again.emitted, again.attempt) == (first.token_ids, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "seed": 3},
        {"choice": ("a", "b")},
        {"json_schema": {}},
        {"frequency_penalty": -0.1},
        {"presence_penalty": 0.1},
    ],
)
def test_seeded_constrained_and_penalised_ones_are_answered_again_from_the_start(
    options: dict[str, Any],
) -> None:
    request = pending(**options)
    request.take(outputs(request.message(), ANSWER, random.Random(1))[0])
    assert request.message().emitted == ()


@pytest.mark.parametrize("options", [{"choice": ("a", "b")}, {"presence_penalty": 0.1}])
def test_a_whole_and_sampled_one_gets_a_seed_to_be_repeatable_by(options: dict[str, Any]) -> None:
    request = pending(temperature=1.0, **options)
    seed = request.message().options.seed
    assert seed is not None
    assert request.message().options.seed == seed
    assert pending(temperature=1.0, **options).message().options.seed != seed
    assert pending(temperature=1.0).message().options.seed is None


@pytest.mark.parametrize("what", ["other tokens", "an earlier end"])
def test_an_answer_that_does_not_come_out_the_same_is_noticed(what: str) -> None:
    request = pending(temperature=1.0, seed=2**63 - 1)
    dice = random.Random(1)
    for output in outputs(request.message(), ANSWER, dice)[:4]:
        request.take(output)
    other = ANSWER[:1] if what == "an earlier end" else (*ANSWER[:2], 7, *ANSWER[3:])
    arriving = outputs(request.message(), other, dice)
    with pytest.raises(DivergedError):
        assert {request.take(output) for output in arriving} == {None}
    assert request.resume_differently()
    following = request.message()
    assert following.emitted == ANSWER[: len(following.emitted)] != ()
    assert following.options.seed not in {None, 2**63 - 1}
    constrained = pending(choice=("a", "b"))
    assert not constrained.resume_differently()


def test_the_cached_tokens_are_those_of_the_attempt_that_brought_the_first_token() -> None:
    request = pending()
    request.message()
    first = request.message()  # the one before brought nothing
    taken = request.take(Output(7, "a", (1,), (), None, 64, first.attempt))
    assert taken is not None
    assert taken.cached_tokens == 64
    again = request.message()
    taken = request.take(Output(7, "b", (2,), (), "stop", 96, again.attempt))
    assert taken is not None
    assert taken.cached_tokens == 64


WRITTEN = ("first", '{"a": 1, "b": "two"}'), ("second", '{"c": []}')


def called(submit: Submit, sizes: random.Random) -> list[Output]:
    """An answer that calls two tools, under ids of its own, in pieces of any size."""
    ids = iter(f"{submit.attempt}-{index}" for index in range(len(WRITTEN)))
    made = []
    token = 0
    for index, (name, arguments) in enumerate(WRITTEN):
        begun, rest = True, arguments
        while rest or begun:
            size = sizes.randint(0 if begun else 1, 4)
            piece = ToolCallPiece(
                index, rest[:size], next(ids) if begun else "", name if begun else ""
            )
            begun, rest = False, rest[size:]
            token += 1
            made.append((token, piece))
    return [
        Output(7, "", (token,), (), None, 0, submit.attempt, (piece,)) for token, piece in made
    ] + [Output(7, "", (token + 1,), (), "stop", 0, submit.attempt)]


@pytest.mark.parametrize("seed", range(30))
def test_calls_are_read_again_and_passed_on_once(seed: int) -> None:
    dice = random.Random(seed)
    use = ToolUse(({},), "auto", parallel=True, parser="hermes")
    request = PendingRequest(lambda _: None, Submit(7, [1], SamplingOptions(), "", (), tools=use))
    pieces: list[ToolCallPiece] = []
    for last in (False, False, True):
        submit = request.message()
        assert submit.emitted == ()  # the reading of calls can't be entered in the middle
        answer = called(submit, random.Random(seed))
        end = len(answer) if last else dice.randint(0, len(answer) - 1)
        for output in answer[:end]:
            taken = request.take(output)
            pieces += taken.tool_calls if taken else ()
    first, second = join_calls(pieces)
    assert [(call.name, call.arguments) for call in (first, second)] == [*WRITTEN]
    # The id that was passed on first is the call's for good.
    named = [piece.index for piece in pieces if piece.name]
    assert named == [0, 1]
