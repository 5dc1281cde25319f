"""Conversations of agents with two tools and a retriever, and what must hold for each request."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from typing import Any

import jsonschema

from ragcache_integrations.core.prompt import Prompt, ToolCall, new_call_id
from tests.llms.retrieving import TEXTS, TOPICS
from tests.llms.scripted import history_problem, question, results

CONVERSATIONS = int(os.environ.get("AGENT_CONVERSATIONS", "2"))
"""How many run over each kind of backend and in each way."""
TURNS = 3

SYSTEM = "You are the clerk of a library. You add up numbers, and you look topics up."
ANSWER = "That is what I have found out for you, all in all."

_SUM = re.compile(r"add (\d+) and (\d+)")
_TOPIC = re.compile(r"look up (topic \d+)")
_WORDS = re.compile(r"count the words of '([^']+)'")


def questions(number: int) -> list[str]:
    """What the user says in a conversation; each turn needs other tools."""
    topic = f"topic {number % TOPICS}"
    return [
        f"Conversation {number}: look up {topic}, please.",
        f"Now add {number} and {number + 1}, and count the words of 'one {topic}'.",
        f"Please add {number} and 40, and look up topic {(number + 1) % TOPICS}.",
    ]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def clerk(body: dict[str, Any]) -> str | list[ToolCall]:
    """The script: call what the user's last message asks for, then answer."""
    if results(body):
        return ANSWER
    said = question(body)
    calls: list[tuple[str, dict[str, Any]]] = [
        *(("search", _searched(body, topic)) for topic in _TOPIC.findall(said)),
        *(("add", {"a": int(a), "b": int(b)}) for a, b in _SUM.findall(said)),
        *(("count_words", {"text": text}) for text in _WORDS.findall(said)),
    ]
    return [ToolCall(new_call_id(), name, json.dumps(arguments)) for name, arguments in calls]


def _searched(body: dict[str, Any], topic: str) -> dict[str, Any]:
    """The arguments of the retriever's tool, which the frameworks name in their own way."""
    schema = next(
        tool["function"]["parameters"]
        for tool in body["tools"]
        if tool["function"]["name"] == "search"
    )
    return {next(iter(schema["properties"])): topic}


def check_bodies(bodies: list[dict[str, Any]]) -> None:
    """Check the requests of one conversation: valid calls, a history that only grows."""
    for body in bodies:
        assert not history_problem(body["messages"])
        check_calls(
            body["tools"],
            [call for m in body["messages"] for call in m.get("tool_calls") or ()],
        )
    for before, after in pairwise(bodies):
        assert after["tools"] == before["tools"]
        assert after["messages"][: len(before["messages"])] == before["messages"]


def check_calls(tools: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    """Check that the arguments of calls satisfy the schemas of their tools."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    for call in calls:
        function = call["function"]
        jsonschema.validate(json.loads(function["arguments"]), schemas[function["name"]])


def check_prompts(prompts: list[Prompt]) -> None:
    """The same for the prompts of a local engine."""
    bodies = [
        {
            "tools": [tool.definition() for tool in prompt.tools],
            "messages": [
                {
                    "role": message.role,
                    "content": message.text,
                    "tool_call_id": message.tool_call_id,
                    "tool_calls": [
                        {"id": c.id, "function": {"name": c.name, "arguments": c.arguments}}
                        for c in message.tool_calls
                    ],
                }
                for message in prompt.messages
            ],
        }
        for prompt in prompts
    ]
    check_bodies(bodies)


def found_documents(prompt: Prompt) -> set[str]:
    """The documents in results of tools that the model knows as such."""
    texts = {document.text for document in prompt.documents}
    assert texts <= set(TEXTS)
    return texts


def embedding(text: str) -> list[float]:
    """By the number of the topic, of whatever a model calls the search with."""
    topic = re.search(r"topic (\d+)", text)
    number = int(topic[1]) % TOPICS if topic else len(text) % TOPICS
    return [*(float(n == number) for n in range(TOPICS)), len(text) / 1e6]


def check_growth(cached: list[int]) -> None:
    """Check that each turn reuses more than the one before, and no step less than the last.

    Two steps may reuse the same: what lies between them may not fill a block.

    Args:
        cached: Cached tokens of each step; a turn has two, a call of tools and an answer.
    """
    assert cached == sorted(cached), cached
    for step in range(2):
        turns = cached[step::2]
        assert turns == sorted(set(turns)), cached
