"""Steps of LlamaIndex's workflows: each call of an LLM in one says which steps may come next."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import MethodType
from typing import Any, TypeVar

from llama_index.core.workflow import Workflow

from ragcache_integrations.core.blocks import context_value
from ragcache_integrations.core.checks import check_type
from ragcache_integrations.llms.steps import NO_STEP, StepHint, step_hints

__all__ = ["hint_steps", "workflow_step"]

AnyWorkflow = TypeVar("AnyWorkflow", bound=Workflow)

_step: ContextVar[StepHint] = ContextVar("ragcache_step", default=NO_STEP)


def hint_steps(workflow: AnyWorkflow) -> AnyWorkflow:
    """Make calls of our LLM class within a workflow say what comes next.

    Every call in a step carries the step's name as ``step``, and as ``next_steps`` the steps that
    accept what it returns, those that accept what they return, and so on, with how many steps are
    before each. What has its own ``step`` keeps it. No answer changes::

        workflow = hint_steps(WriterWorkflow(timeout=60))
        await workflow.run(topic="the moon")

    Only the annotations of the steps are read: an event that a step sends by ``send_event`` counts
    if it is among its return types, too. The agents of an ``AgentWorkflow`` share their steps: give
    each of them an LLM with its own ``step`` and ``next_steps`` instead.

    Args:
        workflow: A workflow.

    Returns:
        The same workflow.

    Raises:
        ConfigurationError: This is no workflow, or the name of a step is too long.
    """
    check_type("workflow", workflow, Workflow, "a Workflow of LlamaIndex")
    steps = workflow._get_steps()  # noqa: SLF001 - LlamaIndex has no other list of them
    configs: dict[str, Any] = {name: step._step_config for name, step in steps.items()}  # noqa: SLF001 - the same
    edges = [
        (name, follower)
        for name, config in configs.items()
        for follower, other in configs.items()
        if any(_reaches(kind, other.accepted_events) for kind in config.return_types)
    ]
    for name, hint in step_hints(configs, edges).items():
        step: Any = steps[name]
        if inspect.ismethod(step):
            hinted: Any = MethodType(_in_step(step.__func__, hint), workflow)
        else:
            hinted = _in_step(step, hint)
        # Agents are pydantic models, which take no other attributes.
        object.__setattr__(workflow, name, hinted)
    return workflow


def workflow_step() -> StepHint:
    """The step of a workflow in which this code is executed, if the workflow has hints."""
    return _step.get()


def _reaches(produced: object, accepted: list[Any]) -> bool:
    """Whether a step that accepts these events may get what another returns."""
    kinds = tuple(kind for kind in accepted if isinstance(kind, type))
    return isinstance(produced, type) and issubclass(produced, kinds)


def _in_step(function: Callable[..., Any], hint: StepHint) -> Callable[..., Any]:
    """A step's function, in whose calls the hint holds."""

    @functools.wraps(function)
    def hinted(*args: Any, **kwargs: Any) -> Any:
        with context_value(_step, hint):
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with context_value(_step, hint):
            return await function(*args, **kwargs)

    return coroutine if inspect.iscoroutinefunction(function) else hinted
