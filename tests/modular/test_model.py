from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ragcache_integrations import modular
from ragcache_integrations.core.generation import Sampling
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    ModelNotFoundError,
    PromptTooLongError,
)
from ragcache_integrations.prompts.pml.layout import Assembly, Fresh, Module, Param, Placed
from ragcache_modular.documents import assemble_spans, document_name
from ragcache_modular.kv.plan import plan_assembly
from ragcache_modular.kv.strategies import (
    STRATEGIES,
    CacheBlend,
    Epic,
    Exact,
    KVLink,
    PromptCache,
)
from ragcache_modular.model import Batch, ModularModel, _Call

from .models import LIMIT, documents, fresh, make, module, served, some_tokens

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 4.0,
    "short_factor": [1.0] * 6,
    "long_factor": [2.0] * 6,
    "original_max_position_embeddings": 64,
}


def bundled(**settings: Any) -> ModularModel:
    return ModularModel(default_model_path(), **settings)


def test_importing_the_room_loads_no_torch() -> None:
    script = "import sys, ragcache_modular as m; m.Epic(); print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "False"


def test_every_name_that_the_room_exports_is_there() -> None:
    for name in modular.__all__:
        assert getattr(modular, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = modular.Nonsense


# Which models


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, "'dynamic'"),
        (LONGROPE, "'longrope'"),
    ],
)
def test_rope_that_depends_on_the_length_is_refused(rope: dict[str, Any], says: str) -> None:
    model = make("llama", attention="sdpa", rope_parameters=rope)
    with pytest.raises(ConfigurationError, match=says):
        ModularModel(model)
    assert model.config._attn_implementation == "sdpa"


def test_an_unknown_architecture_is_refused() -> None:
    untyped: Any = transformers
    config = transformers.GPTNeoXConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    with pytest.raises(
        ConfigurationError, match=r"'gpt_neox'.*allowed: causal models of type llama"
    ):
        ModularModel(untyped.GPTNeoXForCausalLM(config))
    with pytest.raises(ConfigurationError, match="'llama'"):
        ModularModel(make("llama").model)  # no head
    with pytest.raises(ConfigurationError, match="int"):
        ModularModel(5)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nothing-here"):
        ModularModel(str(tmp_path / "nothing-here"))


def test_a_model_is_loaded_from_its_folder() -> None:
    model = bundled(dtype="bfloat16")
    assert model._parts.pool.dtype == torch.bfloat16
    assert model.bytes_per_token == 6 * 2 * 2 * 64 * 2
    prompt = model.assemble("Be short.", ["One document.", "Another document."], "What is it?")
    answer = model.generate(prompt, "epic", max_tokens=4)
    assert answer.usage.completion_tokens == 4 or answer.finish_reason == "stop"
    assert 0 < answer.recomputed_share < 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"device": "abacus"}, "device"),
        ({"store_bytes": 0}, "bytes"),
        ({"device_store_bytes": -1}, "device_store_bytes"),
        ({"device_store_bytes": 2**20}, "accelerator"),
        ({"policy": "fifo"}, "policy"),
        ({"threads": 0}, "threads"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        ModularModel(make("llama", attention="sdpa"), **settings)


# Documents


def test_documents_become_modules_that_stand_anywhere() -> None:
    model = bundled()
    texts = ["The tower is in Paris.", "The bridge is in London.", "The wall is in Berlin."]
    first = model.assemble("Answer.", texts, "Where is the bridge?")
    second = model.assemble("Answer.", texts[::-1], "Where is the wall?")
    model.prefill(first).close()
    assert model.stats().store.misses == 4
    model.prefill(second).close()
    assert model.stats().store.misses == 4
    names = [part.module.name for part in first.parts[:-1] if isinstance(part, Placed)]
    assert names == ["system", *map(document_name, texts)]
    plan = plan_assembly(first)
    assert plan.positions.tolist() == list(range(len(plan)))
    whole = "".join(f"{text}\n\n" for text in ["Answer.", *texts]) + "Where is the bridge?"
    assert model.tokenizer.decode(plan.token_ids) == whole


def test_link_tokens_stand_behind_each_document() -> None:
    model = bundled()
    prompt = model.assemble("", ["One.", "Two."], "Which?", link_token_ids=(7, 8), separator="")
    kinds = [part.token_ids if isinstance(part, Fresh) else "module" for part in prompt.parts]
    assert kinds == ["module", (7, 8), "module", (7, 8), tuple(model.tokenize("Which?"))]


@pytest.mark.parametrize(
    ("documents", "query", "says"),
    [("one text", "q", "collection of strings"), (["a"], " ", "query"), ([], "", "query")],
)
def test_what_is_assembled_is_checked(documents: Any, query: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        bundled_once().assemble("", documents, query)


def bundled_once() -> ModularModel:
    return _BUNDLED.setdefault("model", bundled())


_BUNDLED: dict[str, ModularModel] = {}


def test_spans_of_documents() -> None:
    ids = list(some_tokens(30, 1))
    prompt = assemble_spans(ids, [("a", 5, 12), ("b", 14, 20)], movable=True)
    shapes = [
        (part.module.name, part.shift, len(part.module.token_ids))
        if isinstance(part, Placed)
        else len(part.token_ids)
        for part in prompt.parts
    ]
    assert shapes == [("system", 0, 5), ("a", 5, 7), 2, ("b", 14, 6), 10]
    assert plan_assembly(prompt).token_ids.tolist() == ids
    fixed = assemble_spans(ids, [("a", 5, 12)], movable=False)
    assert [part.shift for part in fixed.parts if isinstance(part, Placed)] == [0, 0]


@pytest.mark.parametrize("spans", [[("a", 5, 5)], [("a", 5, 9), ("b", 8, 12)], [("a", 5, 31)]])
def test_spans_that_cannot_be_are_refused(spans: list[tuple[str, int, int]]) -> None:
    with pytest.raises(ConfigurationError, match="in order"):
        assemble_spans(list(some_tokens(30, 1)), spans, movable=True)


def test_something_must_follow_the_last_document() -> None:
    with pytest.raises(ConfigurationError, match="must end with text"):
        assemble_spans(list(some_tokens(30, 1)), [("a", 5, 30)], movable=True)


# Strategies


def chosen(strategy: Any, prompt: Assembly) -> list[int]:
    plan = plan_assembly(prompt)
    away = np.arange(len(plan), dtype=float)[::-1].copy()
    places: list[int] = np.flatnonzero(strategy.choose(plan, lambda: away)).tolist()
    return places


def test_what_strategies_choose() -> None:
    prompt = documents(served("llama"), (5, 6, 3), 2, seed=1)  # 0-4, 5-10, 11-13, 14-15
    assert chosen(STRATEGIES["prompt_cache"](), prompt) == []
    assert chosen(STRATEGIES["exact"](), prompt) == list(range(14))
    assert chosen(Epic(2), prompt) == [5, 6, 11, 12]
    assert chosen(KVLink(2), prompt) == [9, 10, 12, 13]
    assert chosen(Epic(4), prompt) == [5, 6, 7, 8, 11, 12, 13]
    assert chosen(CacheBlend(0.2), prompt) == [0, 1, 2]
    assert chosen(CacheBlend(0), prompt) == chosen(Epic(0), prompt) == chosen(KVLink(0), prompt)
    assert chosen(KVLink(0), prompt) == []


def test_a_chunk_with_something_before_it_is_not_the_first() -> None:
    behind = Assembly((fresh(0, 2, 1), Placed(module("m", 2, 5, 2)), fresh(7, 2, 3)))
    assert chosen(Epic(2), behind) == [2, 3]
    nested = Module("outer", some_tokens(4, 1), (0, 1, 5, 6))
    inner = Placed(module("inner", 2, 3, 2))
    within = Assembly((Placed(nested), inner, fresh(7, 2, 3)))
    assert chosen(Epic(1), within) == [0, 2]


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: Epic(-1),
        lambda: KVLink(1.5),  # type: ignore[arg-type]
        lambda: CacheBlend(1.5),
        lambda: CacheBlend(float("nan")),
        lambda: served("llama").prefill(documents(served("llama"), (4,), 2, 1), "prompt-cache"),
        lambda: served("llama").prefill(documents(served("llama"), (4,), 2, 1), None),  # type: ignore[arg-type]
    ],
)
def test_strategies_are_checked(make_it: Any) -> None:
    with pytest.raises(ConfigurationError):
        make_it()


# Prompts that cannot be


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((), "last part"),
        ((Placed(module("m", 0, 5, 1)),), "last part"),
        ((Fresh((), ()),), "last part"),
        ((Placed(module("m", 0, 5, 1)), fresh(4, 2, 1)), "two tokens of the prompt have position"),
        ((Placed(module("m", 0, 5, 1), -2), fresh(9, 2, 1)), "position -2 is negative"),
        ((Placed(module("m", 7, 5, 1)), fresh(2, 3, 1)), r"at position 4.* above 11"),
        ((Fresh((1, 2), (0,)),), "2 tokens and 1 positions"),
        ((Fresh((5, 9999), (0, 1)),), "no token 9999"),
        ((Placed(Module("m", (9999,), (0,))), fresh(9, 2, 1)), "no token 9999"),
        ((Placed(Module("m", (-1,), (0,))), fresh(9, 2, 1)), "no token -1"),
    ],
)
def test_prompts_are_checked(parts: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        served("llama").prefill(Assembly(parts))


def test_a_prompt_must_be_an_assembly() -> None:
    with pytest.raises(ConfigurationError, match="Assembly, got str"):
        served("llama").generate("How high?")  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["masked", "dropped"])
def test_modules_to_leave_out_must_be_there(what: str) -> None:
    model = served("llama")
    prompt = documents(model, (5, 6), 3, 1)
    unknown: dict[str, Any] = {what: ["d7"]}
    no_collection: dict[str, Any] = {what: "d0"}
    with pytest.raises(ConfigurationError, match=r"'d7'.*'d0', 'd1'"):
        model.prefill(prompt, **unknown)
    with pytest.raises(ConfigurationError, match="the string 'd0'"):
        model.prefill(prompt, **no_collection)
    with (
        model.prefill(prompt) as prefilled,
        pytest.raises(ConfigurationError, match="mask names 'd7', which the prompt has no"),
    ):
        prefilled.mask(["d7"])


def slotted(*tail: Fresh) -> Assembly:
    """A module with an argument, another one, and what stands behind."""
    a = Module("a", some_tokens(8, 1), tuple(range(8)), (Param("who", 2, 4),))
    b = Module("b", some_tokens(8, 2), tuple(range(8, 16)), (Param("end", 4, 4),))
    who = Fresh(some_tokens(2, 3), (2, 3), "a")
    end = Fresh(some_tokens(4, 4), tuple(range(12, 16)), "b")
    return Assembly((Placed(a), who, Placed(b), *((end, *tail) if tail else (end,))))


def test_an_argument_goes_with_its_module() -> None:
    model, question = served("llama"), fresh(16, 3, 5)
    prompt = slotted(question)
    alone = Assembly(prompt.parts[2:])
    with (
        model.prefill(alone) as without,
        model.prefill(prompt, dropped=["a"]) as dropped,
        model.prefill(prompt, masked=["a"]) as masked,
        model.prefill(prompt) as later,
    ):
        assert dropped.positions.tolist() == without.positions.tolist() == [*range(8, 19)]
        assert masked.positions.tolist() == [0, 1, 6, 7, *range(8, 19)]
        assert torch.equal(dropped.logits(), without.logits())
        assert (masked.logits() - without.logits()).abs().max() < 1e-4
        later.drop(["a"])
        assert later.positions.tolist() == dropped.positions.tolist()
    with model.prefill(prompt) as prefilled:
        prefilled.mask(["a"])
        assert prefilled.seen is not None
        assert prefilled.positions[~prefilled.seen].tolist() == [0, 1, 2, 3, 6, 7]


def test_a_prompt_keeps_the_argument_that_it_ends_in() -> None:
    model = served("llama")
    for names in ({"masked": ["b"]}, {"dropped": ["b"]}):
        with pytest.raises(ConfigurationError, match="ends in an argument of 'b'"):
            model.prefill(slotted(), **names)  # type: ignore[arg-type]  # one or the other
    with model.prefill(slotted()) as prefilled:
        for take in (prefilled.mask, prefilled.drop):
            with pytest.raises(ConfigurationError, match="the prompt ends in"):
                take(["b"])
        assert prefilled.length == 14


def test_a_module_within_a_scaffold_cannot_go_alone() -> None:
    both = Module("scaffold(a b)", some_tokens(8, 1), tuple(range(8)), members=("a", "b"))
    argument = Fresh(some_tokens(1, 2), (8,), "a")
    prompt = Assembly((Placed(both), argument, fresh(9, 2, 3)))
    model = served("llama")
    with pytest.raises(ConfigurationError, match=r"'a', which serves within 'scaffold\(a b\)'"):
        model.prefill(prompt, dropped=["a"])
    with model.prefill(prompt, dropped=["scaffold(a b)"]) as prefilled:
        assert prefilled.positions.tolist() == [9, 10]


def test_what_reaches_beyond_the_last_position_is_refused() -> None:
    model = served("llama")
    with pytest.raises(PromptTooLongError, match=str(LIMIT)):
        model.prefill(Assembly((fresh(LIMIT - 1, 2, 1),)))
    with pytest.raises(PromptTooLongError, match="module 'm'"):
        model.encode([module("m", LIMIT - 3, 4, 1)])
    with pytest.raises(PromptTooLongError):
        model.generate(Assembly((fresh(0, 10, 1),)), max_tokens=LIMIT)
    with (
        model.prefill(Assembly((fresh(LIMIT - 2, 2, 1),))) as prefilled,
        pytest.raises(PromptTooLongError),
    ):
        prefilled.extend((3,))


def test_a_module_larger_than_the_store_is_refused() -> None:
    model = ModularModel(make("llama", attention="sdpa"), store_bytes=10 * 3 * 2 * 2 * 12 * 4)
    model.encode([module("fits", 0, 10, 1)])
    with pytest.raises(ConfigurationError, match=r"'large' takes .* bytes"):
        model.encode([module("large", 0, 11, 1)])
    prompt = Assembly((Placed(module("large", 0, 11, 1)), fresh(11, 2, 1)))
    with pytest.raises(ConfigurationError, match="raise store_bytes"):
        model.generate(prompt)
    model.generate(prompt, "exact", max_tokens=2)  # which needs no module


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigurationError, match="has no tokenizer"):
        served("llama").assemble("", [], "q")
    with pytest.raises(ConfigurationError, match="stop strings need a tokenizer"):
        served("llama").generate(documents(served("llama"), (4,), 2, 1), stop="x")


def test_a_closed_model_serves_nothing() -> None:
    with ModularModel(make("llama", attention="sdpa")) as model:
        prompt = documents(model, (5, 6), 3, 1)
        model.generate(prompt, max_tokens=2)
    assert model.stats().store.held_bytes == model.stats().buffer_bytes == 0
    for call in (model.generate, model.prefill):
        with pytest.raises(EngineClosedError):
            call(prompt)
    with pytest.raises(EngineClosedError):
        model.encode([module("m", 0, 4, 1)])


# Many threads


def test_threads_share_modules_and_get_the_answers_of_one() -> None:
    """A store with room for two modules of five, and prompts of any of them."""
    model = ModularModel(make("llama", attention="sdpa"), store_bytes=2 * 24 * 3 * 2 * 2 * 12 * 4)
    lengths = (18, 20, 22, 24, 16)
    ones = [module(f"d{number}", 0, length, number) for number, length in enumerate(lengths)]

    def prompt(seed: int) -> Assembly:
        picked = np.random.default_rng(seed).permutation(5)[:3]
        at, parts = 0, []
        for number in picked.tolist():
            parts.append(Placed(ones[number], at))
            at += lengths[number]
        return Assembly((*parts, fresh(at, 4, seed)))

    alone = ModularModel(make("llama", attention="sdpa"))
    strategies = ("prompt_cache", "epic", "cacheblend", "exact")
    expected = {
        seed: alone.generate(prompt(seed), strategies[seed % 4], max_tokens=5).token_ids
        for seed in range(16)
    }
    found: dict[int, Any] = {}

    def work(first: int) -> None:
        for seed in range(first, 16, 4):
            try:
                answer = model.generate(prompt(seed), strategies[seed % 4], max_tokens=5)
                found[seed] = answer.token_ids
            except BaseException as error:
                found[seed] = error

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected
    stats = model.stats().store
    assert stats.evictions
    assert not stats.pinned


def test_a_module_is_encoded_once_however_many_ask() -> None:
    model = ModularModel(make("llama", attention="sdpa"))
    one = module("m", 0, 200, 1)
    ready = threading.Barrier(6)

    def work() -> None:
        ready.wait()
        model.encode([one])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = model.stats().store
    assert (stats.misses, stats.hits) == (1, 5)


def test_rows_of_a_batch_hold_shared_modules_once() -> None:
    model = served("llama")
    first = documents(model, (30, 40), 5, 1)
    prompts = [first, Assembly((*first.parts[:2], fresh(70, 3, 9)))]
    for strategy, shared, own in ((PromptCache(), 70, 8), (Epic(4), 30, 88), (Exact(), 0, 148)):
        plans = [plan_assembly(prompt) for prompt in prompts]
        batch = Batch(model._parts, plans)
        for plan in plans:
            with model._prefill(plan, _Call.of(strategy), 0) as prefilled:
                batch.add(plan, prefilled, model._answer(prefilled, Sampling()))
        assert sum(len(positions) for _, positions in batch._shared.values()) == shared
        assert sum(len(row.positions) for row in batch._rows) == own
    assert model.generate_batch([]) == []
