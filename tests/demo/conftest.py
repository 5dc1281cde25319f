from __future__ import annotations

import random

import pytest

from ragcache_integrations.resources import load_passages
from ragcache_workbench.demo.apps import Observation
from ragcache_workbench.demo.run import DemoResult, FrameworkResult, stream
from ragcache_workbench.demo.settings import DemoSettings


def observation(rng: random.Random, *, hit: bool) -> Observation:
    embedding, retrieval = rng.uniform(5, 10), rng.uniform(0.3, 0.9) if hit else rng.uniform(30, 60)
    ttft, rest = rng.uniform(20, 90), rng.uniform(40, 90)
    return Observation(
        store_calls=0 if hit else 1,
        embedding_ms=embedding,
        retrieval_ms=retrieval,
        ttft_ms=ttft,
        first_token_ms=embedding + retrieval + ttft,
        end_to_end_ms=embedding + retrieval + ttft + rest,
        prompt_tokens=rng.randint(300, 900),
        cached_prompt_tokens=rng.randint(0, 300),
        hit=hit,
        document_ids=tuple(passage.id for passage in rng.sample(load_passages(), 3)),
        answer='<script>alert("noise")</script> & [bold]more[/bold]',
    )


@pytest.fixture(scope="session")
def result() -> DemoResult:
    """What a run might have measured; nothing was run."""
    rng = random.Random(0)
    settings = DemoSettings(questions=60, top_k=3)
    requests = stream(settings)
    frameworks = {
        name: FrameworkResult(
            before=tuple(observation(rng, hit=False) for _ in requests),
            after=tuple(observation(rng, hit=request.repeated) for request in requests),
            anywhere=tuple(observation(rng, hit=request.repeated) for request in requests),
            hit_recall=0.987,
        )
        for name in settings.frameworks
    }
    passages = {passage.id: passage for passage in load_passages()}
    return DemoResult(settings, requests, frameworks, passages, "tiny", 12.3)
