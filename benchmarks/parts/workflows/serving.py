"""Answers a run of the workflow while other users' requests arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from parts.servers.serving import Served
from ragcache_integrations.engine import Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.protocol import EngineCallOptions

from .agents import AgentStep

__all__ = ["Schedule", "serve_run"]


@dataclass(frozen=True)
class Schedule:
    """When requests arrive, in seconds after the start.

    Attributes:
        steps: When each step of the run may begin: its agent's tools have answered. It begins later
            if the step before has not ended.
        others: When other users' requests arrive.
    """

    steps: Sequence[float]
    others: Sequence[float]


def serve_run(
    engine: RAGCacheEngine,
    steps: Sequence[AgentStep],
    others: Sequence[Prompt],
    schedule: Schedule,
    output_tokens: int,
    *,
    hints: bool,
) -> tuple[Served, Served]:
    """Answer the steps of a run one after another, and other users' requests as they arrive.

    Args:
        engine: Who answers.
        steps: The run.
        others: The other requests.
        schedule: When they come.
        output_tokens: Length of every answer.
        hints: Whether the steps say what comes next.

    Returns:
        What the steps got, and what the others got.
    """
    options = SamplingOptions(max_tokens=output_tokens, ignore_eos=True)
    return asyncio.run(_serve(engine, steps, others, schedule, options, hints=hints))


async def _serve(
    engine: RAGCacheEngine,
    steps: Sequence[AgentStep],
    others: Sequence[Prompt],
    schedule: Schedule,
    options: SamplingOptions,
    *,
    hints: bool,
) -> tuple[Served, Served]:
    began = time.perf_counter()
    agents, users = Served(), Served()

    async def answer(served: Served, prompt: Prompt, call: EngineCallOptions) -> None:
        submitted = time.perf_counter()
        stream = await engine.astream(prompt, options, **call)
        await anext(stream)
        ttft = time.perf_counter() - submitted
        generation = await stream.aresult()
        served.ttft.append(ttft)
        served.tokens.append(generation.token_ids)
        served.cached.append(generation.usage.cached_tokens)
        served.prompted.append(generation.usage.prompt_tokens)

    async def wait(until: float) -> None:
        await asyncio.sleep(max(0.0, began + until - time.perf_counter()))

    async def work() -> None:
        for step, start in zip(steps, schedule.steps, strict=True):
            await wait(start)
            call: EngineCallOptions = {}
            if hints:
                call = {"step": step.name, "next_steps": step.next_steps}
            await answer(agents, step.prompt, call)

    async def other(prompt: Prompt, arrival: float) -> Served:
        await wait(arrival)
        own = Served()
        await answer(own, prompt, {})
        return own

    requests = map(other, others, schedule.others)
    _, *answers = await asyncio.gather(work(), *requests)
    for own in answers:
        if own is not None:
            users.extend(own)
    return agents, users
