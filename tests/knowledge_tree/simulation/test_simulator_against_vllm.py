"""The simulated stock memory does what vLLM's own KV cache manager does, request by request."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_workbench.simulation.simulator import simulate
from ragcache_workbench.simulation.traces import Trace, TraceRequest
from tests.support.programs import run_program

BLOCK_SIZE = 4
OUTPUT_TOKENS = 6
CASES = 150


def make_trace(rng: random.Random) -> Trace:
    """A few short documents and questions, in all combinations."""
    lengths = {name: length for length, name in enumerate("abcdefgh", start=3)}

    def request() -> TraceRequest:
        names = rng.sample(sorted(lengths), rng.randint(0, 3))
        return TraceRequest(
            tuple((name, lengths[name]) for name in names),
            question_tokens=rng.randint(1, 6),
            question=rng.choice([None, "x", "y"]),
        )

    return Trace(tuple(request() for _ in range(rng.randint(1, 60))), rng.randint(0, 9))


class Tokens:
    """Gives each text its own token ids."""

    def __init__(self) -> None:
        self._texts: dict[object, range] = {}

    def __call__(self, text: object, length: int) -> list[int]:
        start = len(self._texts) << 10
        return list(self._texts.setdefault((text, length), range(start, start + length)))

    def prompt(self, number: int, request: TraceRequest, system_tokens: int) -> Iterator[int]:
        yield from self("system", system_tokens)
        for name, tokens in request.documents:
            yield from self(("document", name), tokens)
        yield from self(("question", request.question or number), request.question_tokens)


def as_case(trace: Trace, gpu_blocks: int) -> dict[str, object]:
    """A trace as the script takes it. The same prompt always gets the same answer."""
    tokens = Tokens()
    prompts = [
        list(tokens.prompt(number, request, trace.system_tokens))
        for number, request in enumerate(trace.requests, start=1)
    ]
    return {
        "prompts": prompts,
        "answers": [tokens(tuple(prompt), OUTPUT_TOKENS) for prompt in prompts],
        "gpu_blocks": gpu_blocks,
        "block_size": BLOCK_SIZE,
    }


@pytest.mark.engine
def test_it_finds_what_vllm_finds(tmp_path: Path) -> None:
    rng = random.Random(0)
    cases = [(make_trace(rng), rng.randint(13, 60)) for _ in range(CASES)]
    script = Path(__file__).with_name("vllm_manager.py")
    written = tmp_path / "cases.json"
    written.write_text(json.dumps([as_case(*case) for case in cases]))
    ran = run_program(script, str(written))
    assert ran.returncode == 0, ran.stderr
    real = json.loads(ran.stdout)

    simulated = [
        simulate(
            trace,
            gpu_blocks=gpu_blocks,
            block_size=BLOCK_SIZE,
            policy="vllm",
            output_tokens=OUTPUT_TOKENS,
        )
        for trace, gpu_blocks in cases
    ]
    assert [list(one.cached_tokens) for one in simulated] == real
    assert sum(map(sum, real)) > 0
    assert sum(one.stats.gpu_evicted_blocks for one in simulated) > 0
