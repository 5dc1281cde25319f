"""The workflow: what its agents are asked, in which order, and what their graph says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragcache_integrations.engine import Prompt, PromptDocument
from ragcache_integrations.llms.steps import step_hints

__all__ = ["AGENTS", "AgentStep", "runs_of"]

AGENTS = ("planner", "writer", "critic")
EDGES = (
    *(("planner", "writer"), ("writer", "critic")),
    *(("critic", "writer"), ("critic", "planner")),  # again, or on to the next section
)
HINTS = step_hints(AGENTS, EDGES)
ROUNDS = 2
"""Texts of a section, until the critic lets it pass."""


@dataclass(frozen=True)
class AgentStep:
    """A request of an agent.

    Attributes:
        name: The agent.
        prompt: Its rules, the text so far, and what it is to do.
        next_steps: What the workflow's graph says comes next.
    """

    name: str
    prompt: Prompt
    next_steps: Mapping[str, int]


def runs_of(
    rules: Mapping[str, str], passages: Sequence[str], *, sections: int, seed: int
) -> Iterator[list[AgentStep]]:
    """Runs of the workflow without end, each on another text.

    Nothing in a prompt depends on an answer, so that all systems are asked the same.

    Args:
        rules: The fixed part of each agent's prompts, such as tools and examples.
        passages: What the texts are made of.
        sections: Of a run: planned, written, criticised, written again, criticised again.
        seed: The same seed gives the same runs.
    """
    dice = np.random.default_rng(seed)
    while True:
        text: list[PromptDocument] = []
        steps: list[AgentStep] = []
        for section in range(sections):
            steps.append(_step("planner", rules, text, f"Plan section {section}."))
            for number in range(ROUNDS):
                steps.append(_step("writer", rules, text, f"Write section {section}, {number}."))
                text.append(PromptDocument(passages[int(dice.integers(len(passages)))]))
                steps.append(_step("critic", rules, text, f"Is section {section} good, {number}?"))
        yield steps


def _step(
    name: str, rules: Mapping[str, str], text: Sequence[PromptDocument], order: str
) -> AgentStep:
    # As documents, so that the tree keeps them without hints, too.
    documents = [PromptDocument(rules[name], name), *text]
    prompt = Prompt.rag(order, documents, system=f"You are the {name}.")
    return AgentStep(name, prompt, HINTS[name].next_steps)
