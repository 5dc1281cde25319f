"""What must hold of any model, trained or not: float32, every architecture that is served."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.pml.layout import Assembly, Fresh, Module, Param, Placed
from ragcache_modular.kv.plan import plan_assembly
from ragcache_modular.kv.strategies import (
    CacheBlend,
    Epic,
    Exact,
    KVLink,
    PromptCache,
    Strategy,
)
from ragcache_modular.model import ModularModel
from tests.modular.models import (
    ALIBI,
    EVERY,
    LEARNED,
    ROTARY,
    documents,
    fresh,
    full_prefill,
    make,
    module,
    positions_of,
    served,
    some_tokens,
    stock,
    token_by_token,
)

ALL_AGAIN = (Epic(10**6), CacheBlend(1.0), KVLink(10**6), Exact())
SOME_AGAIN = (PromptCache(), Epic(3), CacheBlend(0.2), KVLink(2))


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    # Logits spread over several units.
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("name", EVERY)
def test_a_scaffold_over_all_modules_equals_full_prefill(name: str) -> None:
    gap = 0 if name in ALIBI else 7
    places = (*range(20), *range(20 + gap, 45 + gap))
    scaffold = Module("all", some_tokens(45, 1), places)
    prompt = Assembly((Placed(scaffold), fresh(45 + gap, 6, 2)))
    logits, data = full_prefill(name, prompt)
    with served(name).prefill(prompt) as prefilled:
        assert_close(prefilled.logits(), logits[-1])
        assert_close(prefilled.data, data)
        assert prefilled.about.recomputed_share == 0


@pytest.mark.parametrize("name", EVERY)
def test_a_single_leading_module_equals_prefix_caching(name: str) -> None:
    leading, question = module("first", 0, 30, 1), fresh(30, 5, 2)
    with torch.inference_mode():
        past = transformers.DynamicCache()
        stock(name)(
            input_ids=torch.tensor([leading.token_ids]), past_key_values=past, use_cache=True
        )
        behind = {} if name in ALIBI else {"position_ids": torch.tensor([question.positions])}
        answer = stock(name)(
            input_ids=torch.tensor([question.token_ids]),
            past_key_values=past,
            use_cache=True,
            **behind,
        )
    with served(name).prefill(Assembly((Placed(leading), question))) as prefilled:
        assert_close(prefilled.logits(), answer.logits[0, -1])


@pytest.mark.parametrize("strategy", ALL_AGAIN, ids=lambda one: one.name)
@pytest.mark.parametrize("name", EVERY)
def test_computing_all_again_equals_full_prefill(name: str, strategy: Strategy) -> None:
    model = served(name)
    prompt = documents(model, (17, 23, 9), 5, seed=3)
    # A text between modules, such as an argument.
    parts = (prompt.parts[0], fresh(49, 4, 8), *prompt.parts[1:3], fresh(53, 5, 9))
    logits, data = full_prefill(name, Assembly(parts))
    with model.prefill(Assembly(parts), strategy) as prefilled:
        assert_close(prefilled.logits(), logits[-1])
        assert_close(prefilled.data, data)


@pytest.mark.parametrize("strategy", SOME_AGAIN, ids=lambda one: one.name)
@pytest.mark.parametrize("name", EVERY)
def test_what_is_not_computed_again_serves_as_it_was_encoded(name: str, strategy: Strategy) -> None:
    model = served(name)
    prompt = documents(model, (17, 23, 9), 5, seed=4)
    with model.prefill(prompt, strategy) as prefilled:
        chosen = prefilled.about.recomputed
        assert_close(prefilled.logits(), token_by_token(name, prompt, chosen))
        # So that the test above can fail: reuse is an approximation, and one that shows.
        logits, _ = full_prefill(name, prompt)
        assert (prefilled.logits() - logits[-1]).abs().max() > 0.05
        assert prefilled.about.recomputed_tokens == chosen.sum()
        assert prefilled.about.encoded_tokens == 49
        assert prefilled.about.recomputed_share == pytest.approx(chosen.sum() / 49)


@pytest.mark.parametrize("name", EVERY)
def test_the_answer_depends_on_the_whole_prompt(name: str) -> None:
    """Without this, the other tests would compare constants."""
    prompt = Assembly((fresh(0, 50, 5),))
    logits, _ = full_prefill(name, prompt)
    for at in (3, 25):
        changed = list(some_tokens(50, 5))
        changed[at] = (changed[at] + 11) % 90 + 3
        other, _ = full_prefill(name, Assembly((Fresh(tuple(changed), tuple(range(50))),)))
        assert (other[-1] - logits[-1]).abs().max() > 0.02


@pytest.mark.parametrize(("start", "shift"), [(0, 1), (0, 300), (210, -210), (31, 400)])
@pytest.mark.parametrize("name", [*ROTARY, *ALIBI])
def test_a_moved_module_is_what_it_would_be_there(name: str, start: int, shift: int) -> None:
    model = served(name)
    question = fresh(600, 4, 1)
    there = Placed(module("m", start + shift, 30, 2))
    moved = Placed(module("m", start, 30, 2), shift)
    with (
        model.prefill(Assembly((moved, question))) as one,
        model.prefill(Assembly((there, question))) as other,
    ):
        assert_close(one.data, other.data)
        assert_close(one.logits(), other.logits())
        assert one.positions.tolist() == other.positions.tolist()


@pytest.mark.parametrize("name", LEARNED)
def test_a_module_with_learned_positions_cannot_move(name: str) -> None:
    prompt = Assembly((Placed(module("m", 0, 9, 2), 5), fresh(30, 4, 1)))
    assert not served(name).movable
    with pytest.raises(ConfigurationError, match="learned table"):
        served(name).prefill(prompt)


@pytest.mark.parametrize("name", EVERY)
def test_the_place_of_a_param_is_never_served(name: str) -> None:
    ids = list(some_tokens(20, 6))
    ids[8:12] = [0] * 4  # what stands for the unknown token
    slotted = Module("m", tuple(ids), tuple(range(20)), (Param("who", 8, 4),))
    plain = Module("m", tuple(ids), tuple(range(20)))
    argument = Fresh(some_tokens(2, 7), (8, 9))  # shorter than the param
    question = fresh(20, 3, 8)
    model = served(name)
    with (
        model.prefill(Assembly((Placed(slotted), argument, question))) as prefilled,
        model.prefill(Assembly((Placed(plain), question))) as with_unknowns,
    ):
        assert prefilled.positions.tolist() == [*range(10), *range(12, 23)]
        # Tokens behind the param keep the values they were encoded with, unknown tokens in sight.
        for ours, theirs in ((slice(0, 8), slice(0, 8)), (slice(10, 18), slice(12, 20))):
            assert_close(prefilled.data[:, :, :, ours], with_unknowns.data[:, :, :, theirs])
        unknowns = with_unknowns.data[:, 1, :, 8:12]
        values = prefilled.data[:, 1]
        distance = (values[:, :, :, None] - unknowns[:, :, None]).abs().amax(dim=(0, 1, 4))
        assert distance.min() > 0.1
        chosen = np.zeros(21, dtype=bool)
        if name not in ALIBI:  # stock code knows no gap there
            prompt = Assembly((Placed(slotted), argument, question))
            assert_close(prefilled.logits(), token_by_token(name, prompt, chosen))


def test_an_argument_sees_what_stands_before_it_and_is_seen_by_what_follows() -> None:
    slotted = Module("m", some_tokens(20, 6), tuple(range(20)), (Param("who", 8, 4),))
    prompt = Assembly((Placed(slotted), Fresh(some_tokens(4, 7), (8, 9, 10, 11)), fresh(20, 3, 8)))
    chosen = np.zeros(23, dtype=bool)
    with served("llama").prefill(prompt) as prefilled:
        assert_close(prefilled.logits(), token_by_token("llama", prompt, chosen))
    with served("llama").prefill(prompt, "exact") as prefilled:
        assert_close(prefilled.logits(), full_prefill("llama", prompt)[0][-1])


@pytest.mark.parametrize("strategy", ["prompt_cache", "epic", "cacheblend", "kvlink", "exact"])
@pytest.mark.parametrize("name", EVERY)
def test_masking_equals_dropping(name: str, strategy: str) -> None:
    model = served(name)
    prompt = documents(model, (12, 15, 11, 8), 5, seed=5)
    away = ("d1", "d3")
    with (
        model.prefill(prompt, strategy, masked=away) as masked,
        model.prefill(prompt, strategy, dropped=away) as dropped,
        model.prefill(prompt, strategy) as both,
    ):
        assert (masked.length, dropped.length) == (51, 28)
        assert_close(masked.logits(), dropped.logits())
        assert (masked.logits() - both.logits()).abs().max() > 0.02
        assert masked.about.encoded_tokens == dropped.about.encoded_tokens == 23
        assert model.generate(masked, max_tokens=6).token_ids == (
            model.generate(dropped, max_tokens=6).token_ids
        )


@pytest.mark.parametrize("name", EVERY)
def test_modules_can_go_when_the_prompt_is_there(name: str) -> None:
    model = served(name)
    prompt = documents(model, (12, 15, 11, 8), 5, seed=6)
    further = some_tokens(4, 7)
    with model.prefill(prompt) as one, model.prefill(prompt) as other:
        before = one.logits().clone()
        one.mask(["d0", "d2"])
        other.drop(["d0", "d2"])
        assert (one.length, other.length) == (51, 28)
        # The last token is computed again, as it had seen them.
        assert_close(one.logits(), other.logits())
        assert (one.logits() - before).abs().max() > 0.02
        assert_close(one.extend(further), other.extend(further))
        one.mask(["d1"])
        other.drop(["d1"])
        assert_close(one.logits(), other.logits())
        assert model.generate(one, max_tokens=5).token_ids == (
            model.generate(other, max_tokens=5).token_ids
        )
        assert one.next_position == other.next_position


@pytest.mark.parametrize("strategy", ["prompt_cache", "epic", "cacheblend", "exact"])
@pytest.mark.parametrize("name", EVERY)
def test_batched_equals_single(name: str, strategy: str) -> None:
    model = served(name)
    first = documents(model, (14, 20, 11), 5, seed=7)
    second = Assembly((*first.parts[:2], fresh(34, 9, 5)))
    third = documents(model, (14,), 3, seed=8)
    fourth = Assembly((first.parts[0], fresh(14, 1, 6)))
    prompts = [first, second, third, fourth]
    single = [
        model.generate(prompt, strategy, max_tokens=7, ignore_eos=True, logprobs=0)
        for prompt in prompts
    ]
    batched = model.generate_batch(prompts, strategy, max_tokens=7, ignore_eos=True, logprobs=0)
    for one, other in zip(single, batched, strict=True):
        assert one.token_ids == other.token_ids
        assert one.usage == other.usage
        assert one.recomputed_share == other.recomputed_share
        assert [token.logprob for token in one.logprobs] == pytest.approx(
            [token.logprob for token in other.logprobs], abs=1e-3
        )


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "bloom"])
def test_cacheblend_takes_the_tokens_that_deviate_most(name: str) -> None:
    model = served(name)
    prompt = documents(model, (17, 23, 9), 5, seed=9)
    _, full = full_prefill(name, prompt)
    with model.prefill(prompt) as reused, model.prefill(prompt, CacheBlend(0.3)) as blended:
        away = (full[1] - reused.data[1]).square().sum(dim=(0, 1, 3))[:49]
        most = sorted(away.topk(15).indices.tolist())
        assert np.flatnonzero(blended.about.recomputed).tolist() == most
        assert away[:17].max() < 1e-4  # nothing stands before the first module
        assert min(most) >= 17


def test_layers_that_slide_serve_within_their_window() -> None:
    model = ModularModel(make("mistral", attention="sdpa", sliding_window=40))
    assert model.max_model_len == 40
    prompt = documents(model, (12, 15), 5, seed=1)
    wide = served("mistral")
    with model.prefill(prompt) as one, wide.prefill(prompt) as other:
        assert_close(one.logits(), other.logits())


def test_a_model_with_one_layer_has_nothing_to_blend() -> None:
    model = ModularModel(make("llama", attention="sdpa", num_hidden_layers=1))
    prompt = documents(model, (12, 15), 5, seed=1)
    with model.prefill(prompt, CacheBlend(0.2)) as prefilled:
        assert prefilled.about.recomputed_tokens == 6


@pytest.mark.parametrize("name", ["llama", "bloom", "opt"])
def test_greedy_generation_is_that_of_transformers(name: str) -> None:
    prompt = Assembly((fresh(0, 20, 3),))
    ours = served(name).generate(prompt, max_tokens=12, ignore_eos=True).token_ids
    theirs = stock(name).generate(
        input_ids=torch.tensor([prompt.parts[0].token_ids]),  # type: ignore[union-attr]
        attention_mask=torch.ones(1, 20, dtype=torch.long),
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    assert list(ours) == theirs[0, 20:].tolist()


def test_a_given_model_still_serves_ordinary_calls() -> None:
    model = make("llama", attention="sdpa")
    ModularModel(model)
    ids = torch.tensor([some_tokens(20, 3)])
    with torch.inference_mode():
        ours = model(input_ids=ids).logits
        theirs = stock("llama")(input_ids=ids).logits
    assert_close(ours, theirs)


def test_the_helpers_agree_with_each_other() -> None:
    prompt = documents(served("llama"), (9, 8), 4, seed=2)
    plan = plan_assembly(prompt)
    every = np.ones(len(plan), dtype=bool)
    assert_close(token_by_token("llama", prompt, every), full_prefill("llama", prompt)[0][-1])
    assert positions_of("bloom", range(3)) == {}
