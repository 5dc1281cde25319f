"""Which functions read all that a run's configuration holds, and which only values by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.config import get_config as another_name

from ragcache_integrations.retrievers.keys.config_reads import reads_whole_config

CHAIN: Any = None


def user_of(config: Any) -> Any:
    return config["configurable"]["user"]


def dumped(_: Any, cfg: RunnableConfig) -> str:
    return json.dumps(cfg)


def imported_within(state: Any) -> str:
    from langgraph.config import get_config as within  # noqa: PLC0415 - the case

    if state:
        values = within()["configurable"]
        state = None
    else:
        values = {}
    return str(values)


def matched(_: Any, config: Any) -> Any:
    match config["configurable"]:
        case {"user": _, **rest}:
            return rest
    return None


def looped(_: Any, config: Any) -> Any:
    for name, value in config["configurable"].items():
        if name == "user":
            return value
    return None


def by_another_variable(_: Any, config: Any) -> str:
    other = config
    values = other["configurable"]
    return repr(values)


def of_the_variable(_: Any) -> str:
    return str(var_child_runnable_config.get())


def kept_by_an_object(self: Any, config: Any) -> None:
    self.config = config


def kept_in_a_list(state: Any, config: Any) -> None:
    state["list"] = config["configurable"]


WHOLE: list[Callable[..., Any]] = [
    lambda _, config: json.dumps(config["configurable"]),
    lambda _, config: json.dumps(config),
    lambda _, config: json.dumps(obj=config),
    lambda _: f"{get_config()['configurable']}",
    lambda _: f"{get_config()!r}",
    lambda _: next(iter(get_config()["configurable"].values())),
    lambda _: get_config()["configurable"] | {},
    lambda _: {} | get_config()["configurable"],
    lambda _: dict(get_config()["configurable"])["thread_id"],
    lambda _: str(ensure_config()["metadata"]),
    lambda _: str(another_name().get("metadata", {})),
    lambda _: [another_name()["configurable"][k] for k in another_name()["configurable"]],
    lambda name: get_config()["configurable"][name],
    lambda _, config: {**(config or {})},
    lambda _, config: (config.get("configurable") or {}).items(),
    lambda _, config: (config and config["configurable"]).items(),
    lambda _, run_manager: str(run_manager.metadata),
    lambda _, config: CHAIN.anything(config["configurable"]),
    lambda _, config: CHAIN.invoke(config["configurable"], config),
    lambda _, config: lambda: str(config),
    lambda _, config: "%s" % config,  # noqa: UP031 - the case
    lambda _, config: "{}".format(config["metadata"]),
    lambda _, config: sorted(config["configurable"]),
    lambda _, config: config["callbacks"].inheritable_metadata.items(),
    lambda _, config: config["configurable"] if _ else None,
    lambda _, config: [*config["configurable"].values()],
    lambda _, config: "".join(value for value in config["configurable"].values()),
    lambda _, config: config.copy(),
    lambda _, config: CHAIN(**config),
    lambda _, config: (yield config["metadata"]),
    lambda state: json.dumps(state["config"]["configurable"]),
    lambda _, config: config["configurable"] == {"thread_id": "1"},
    dumped,
    imported_within,
    matched,
    looped,
    by_another_variable,
    of_the_variable,
    kept_by_an_object,
    kept_in_a_list,
]


async def a_node(state: Any, config: RunnableConfig) -> Any:
    user = config["configurable"].get("user")
    if not user:
        return {}
    return [piece async for piece in CHAIN.astream(state["messages"], config)]


def another_node(state: Any, config: Any = None) -> Any:
    config = config or {}
    values = config.get("configurable", {})
    try:
        user = values["user"]
    except KeyError:
        user = None
    return {"found": f"{user} {state}"}


def of_its_own(state: Any) -> Any:
    config = {"configurable": {"thread_id": "1"}}
    return CHAIN.invoke(state, config)


def logged(state: Any, config: Any) -> Any:
    CHAIN.logger.info("asked by %s", config)
    if isinstance(config["configurable"], dict) and "user" in config["configurable"]:
        return state
    return None


BY_NAME: list[Callable[..., Any]] = [
    lambda _, config: config["configurable"]["user"],
    lambda _, config: f"balance of {config['configurable']['user']}",
    lambda state, config: CHAIN.invoke([state], config),
    lambda state, config: CHAIN.invoke(state, config=config),
    lambda _: get_config()["configurable"].get("user", "x").upper(),
    lambda _: (get_config().get("configurable") or {}).get("user"),
    lambda _, config: user_of(config),
    lambda documents: [document.metadata.items() for document in documents],
    lambda state: json.dumps(state["metadata"]),
    lambda state, run_manager: CHAIN.invoke(state, callbacks=run_manager.get_child()),
    lambda _, config: next(tag for tag in config["tags"] if tag.startswith("user:")),
    lambda _, run_manager: run_manager.metadata["user"],
    lambda state: json.dumps(dict(state)),
    a_node,
    another_node,
    of_its_own,
    logged,
]


@pytest.mark.parametrize("function", WHOLE)
def test_what_may_read_any_value(function: Any) -> None:
    assert reads_whole_config(function)


@pytest.mark.parametrize("function", BY_NAME)
def test_what_reads_values_by_name(function: Any) -> None:
    assert not reads_whole_config(function)
