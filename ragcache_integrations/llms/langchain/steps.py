"""Steps of LangGraph's graphs: each call of a model in a node says which nodes may come next."""

from __future__ import annotations

from typing import Any, TypeVar

from langchain_core.runnables import ensure_config

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.steps import NO_STEP, StepHint, step_hints

__all__ = ["graph_step", "hint_steps"]

Graph = TypeVar("Graph")

HINTS = "__ragcache_steps"
"""Where a graph's configuration holds the hints. LangGraph writes no name like this into its
checkpoints, and LangChain no mapping into its traces."""
ENDS = frozenset({"__start__", "__end__"})


def hint_steps(graph: Graph) -> Graph:
    """Make calls of our LLM classes within a graph say what comes next.

    Every call in a node carries the node's name as ``step``, and as ``next_steps`` the nodes that
    the graph's edges lead to, with how many steps are before each. A condition counts all of its
    targets, the end of the graph nothing. What has its own ``step`` keeps it. No answer changes::

        graph = hint_steps(builder.compile())
        graph.invoke({"messages": [HumanMessage("A text on the moon.")]})

    A graph in a node of this one, or that a node's function or tool calls, counts as that node,
    even if it has hints of its own. A condition's targets are known by LangGraph's map, or by its
    annotation ``-> Literal[...]``. A node that goes somewhere by
    ``Command`` needs LangGraph's annotation ``Command[Literal[...]]``: its edges are known by it.

    Args:
        graph: A compiled graph of LangGraph, such as of ``StateGraph.compile()`` or
            ``create_agent()``.

    Returns:
        The graph with these hints; the argument stays as it is.

    Raises:
        ConfigurationError: This is no compiled graph, or the name of a node is empty or too long.
    """
    known: Any = graph
    if not hasattr(known, "nodes") or not hasattr(known, "get_graph"):
        raise ConfigurationError(
            "hint_steps takes a compiled graph, such as StateGraph(...).compile(), got "
            f"{type(graph).__name__}"
        )
    drawn = known.get_graph()
    hints = step_hints(
        (name for name in drawn.nodes if name not in ENDS),
        ((edge.source, edge.target) for edge in drawn.edges),
    )
    hinted: Graph = known.with_config(configurable={HINTS: hints})
    return hinted


def graph_step() -> StepHint:
    """The node of a graph in which this code is executed, if the graph has hints."""
    configurable = ensure_config().get("configurable") or {}
    hints = configurable.get(HINTS)
    if not isinstance(hints, dict):
        return NO_STEP
    # A place such as "writer:<task>|model:<task>", in which the hints of the outermost graph that
    # has some hold. A graph in one of its nodes may have nodes of the same names, as agents do.
    place = str(configurable.get("checkpoint_ns") or "")
    names = [part.partition(":")[0] for part in place.split("|")]
    hint = next((hints[name] for name in names if name in hints), NO_STEP)
    return hint if isinstance(hint, StepHint) else NO_STEP
