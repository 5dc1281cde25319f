"""A server whose model follows a script: it calls tools, and has a prefix cache as real ones do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ragcache_integrations.core.prompt import ToolCall, new_call_id

from .doubles import Exchange, StubServer

Script = Callable[[dict[str, Any]], str | list[ToolCall]]
"""Answers a request: with a text, or with calls of tools."""

PIECE = 5
CHARACTERS_PER_TOKEN = 4


class ScriptedModel:
    """Replies to the requests of a :class:`StubServer` as a script says, whole or in pieces.

    It refuses what OpenAI's servers refuse: results without their calls, calls without results, and
    arguments that are no JSON.

    Args:
        script: What the model answers.
        reason: Why its answers end; what fits if empty.
    """

    def __init__(self, script: Script, reason: str = "") -> None:
        self._script = script
        self._reason = reason
        self._known: set[str] = set()

    def __call__(self, exchange: Exchange) -> None:
        problem = history_problem(exchange.body["messages"])
        if problem:
            exchange.send({"error": {"message": problem}}, 400)
            return
        answer = self._script(exchange.body)
        text, calls = (answer, []) if isinstance(answer, str) else ("", answer)
        usage = self._usage(exchange.body, text + "".join(call.arguments for call in calls))
        reason = self._reason or ("tool_calls" if calls else "stop")
        if exchange.body.get("stream"):
            _send_pieces(exchange, text, calls, reason, usage)
            return
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [_whole(call) for call in calls]
        choice = {"index": 0, "message": message, "finish_reason": reason}
        exchange.send({"choices": [choice], "usage": usage})

    def _usage(self, body: dict[str, Any], answer: str) -> dict[str, Any]:
        """Counts, with the longest beginning of the prompt that an earlier one had, too."""
        prompt = [body.get("tools"), *body["messages"]]
        beginnings, text = [], ""
        for part in prompt:
            text += json.dumps(part)
            beginnings.append(text)
        cached = max((len(known) for known in beginnings if known in self._known), default=0)
        self._known.update(beginnings)
        return {
            "prompt_tokens": len(text) // CHARACTERS_PER_TOKEN,
            "completion_tokens": 1 + len(answer) // CHARACTERS_PER_TOKEN,
            "total_tokens": 1 + (len(text) + len(answer)) // CHARACTERS_PER_TOKEN,
            "prompt_tokens_details": {"cached_tokens": cached // CHARACTERS_PER_TOKEN},
        }


def history_problem(messages: list[dict[str, Any]]) -> str:
    """What is wrong with a conversation; empty if nothing is."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"no call for the result {message}"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"no result for the calls {waiting}"
        for call in message.get("tool_calls") or ():
            try:
                json.loads(call["function"]["arguments"])
            except ValueError:
                return f"the arguments of {call} are no JSON"
            waiting.append(call["id"])
    return f"no result for the calls {waiting}" if waiting else ""


def results(body: dict[str, Any]) -> list[str]:
    """The results of tools since the user's last message."""
    said: list[str] = []
    for message in body["messages"]:
        if message["role"] == "user":
            said = []
        elif message["role"] == "tool":
            said.append(str(message["content"]))
    return said


def question(body: dict[str, Any]) -> str:
    """The user's last message."""
    texts = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return str(texts[-1])


def helpful(body: dict[str, Any]) -> str | list[ToolCall]:
    """Call the tool that fits once for every message of the user, with arguments that fit."""
    formatted = body.get("response_format")
    if formatted:
        return json.dumps(_sample(formatted["json_schema"]["schema"], question(body)))
    choice = body.get("tool_choice", "auto")
    tools = [tool["function"] for tool in body.get("tools") or ()]
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool["name"] == choice["function"]["name"]]
    if not tools or choice == "none" or results(body):
        return "Hello, here you are."
    arguments = _sample(tools[0]["parameters"], question(body))
    written = json.dumps(arguments, ensure_ascii=False)
    return [ToolCall(new_call_id(), tools[0]["name"], written)]


def _sample(schema: dict[str, Any], said: str) -> Any:
    """A value that satisfies a schema: for texts what is in quotation marks, and 3 for numbers."""
    for several in ("anyOf", "allOf"):
        if several in schema:
            return _sample(schema[several][0], said)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _sample(part, said) for name, part in schema.get("properties", {}).items()}
    quoted = re.search("'([^']+)'", said)
    samples: dict[str, Any] = {"integer": 3, "number": 3, "boolean": True, "array": []}
    return samples.get(kind, quoted[1] if quoted else said)


def scripted(server: StubServer, script: Script) -> str:
    """Make a server follow a script; returns its address."""
    server.reply = ScriptedModel(script)
    return server.base_url


def _whole(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _send_pieces(
    exchange: Exchange, text: str, calls: list[ToolCall], reason: str, usage: dict[str, Any]
) -> None:
    def send(delta: dict[str, Any], **more: Any) -> None:
        exchange.send_event({"choices": [{"index": 0, "delta": delta, **more}]})

    exchange.start_events()
    send({"role": "assistant", "content": ""})
    for start in range(0, len(text), PIECE):
        send({"content": text[start : start + PIECE]})
    for index, call in enumerate(calls):
        begun = _whole(ToolCall(call.id, call.name, ""))
        send({"tool_calls": [{"index": index, **begun}]})
        for start in range(0, len(call.arguments), PIECE):
            piece = {"arguments": call.arguments[start : start + PIECE]}
            send({"tool_calls": [{"index": index, "function": piece}]})
    send({}, finish_reason=reason)
    if exchange.body.get("stream_options", {}).get("include_usage"):
        exchange.send_event({"choices": [], "usage": usage})
    exchange.send_event("[DONE]")
