"""The workflow of the benchmark, and how it is answered."""

from __future__ import annotations

import itertools

import pytest
from parts.traffic.corpora import bundled_documents, bundled_questions
from parts.workflows.agents import AGENTS, runs_of
from parts.workflows.serving import Schedule, serve_run

from ragcache_integrations.engine import Prompt, RAGCacheEngine

PASSAGES = list(bundled_documents().values())
RULES = dict(zip(AGENTS, PASSAGES, strict=False))


def test_agents_come_in_the_order_that_their_graph_says() -> None:
    runs = runs_of(RULES, PASSAGES, sections=2, seed=0)
    for run in (next(runs), next(runs)):
        assert [step.name for step in run] == ["planner", *["writer", "critic"] * 2] * 2
        for step, following in itertools.pairwise(run):
            assert step.next_steps[following.name] == 1
            ids = [document.id for document in step.prompt.documents]
            assert ids[0] == step.name
            assert following.prompt.documents[1 : len(ids)] == step.prompt.documents[1:]


def test_runs_differ_and_come_again_with_their_seed() -> None:
    first, again, another = (
        next(runs_of(RULES, PASSAGES, sections=1, seed=seed)) for seed in (0, 0, 1)
    )
    assert first == again != another


@pytest.mark.engine
def test_answers_are_the_same_with_hints(engine: RAGCacheEngine) -> None:
    (run,) = [next(runs_of(RULES, PASSAGES, sections=1, seed=0))]
    others = [Prompt.rag(question) for question in bundled_questions()[:4]]
    schedule = Schedule([0.0] * len(run), [0.0, 0.1, 0.1, 0.2])
    served = []
    for hints in (False, True, True):
        engine.reset_cache()
        served.append(serve_run(engine, run, others, schedule, 2, hints=hints))
    assert len({tuple(agents.tokens) for agents, _ in served}) == 1
    assert len({tuple(users.tokens) for _, users in served}) == 1
    assert [len(part.ttft) for part in served[0]] == [5, 4]
