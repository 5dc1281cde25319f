"""The parser of a model's tool calls, by what its chat template holds."""

from __future__ import annotations

import pytest

from ragcache_integrations.engine.arguments import find_tool_parser
from ragcache_integrations.engine.tiny_model import CHAT_TEMPLATE
from tests.support.chat_models import FAMILIES

# What the templates of these models hold around calls, as their makers publish them.
TEMPLATES = {
    "hermes": "<tool_call> {'name': {{ tool_call.name }}, 'arguments': {{ tool_call.arguments }}",
    "qwen3_coder": "<tool_call> '<function=' + tool_call.name '<parameter=' + args_name",
    "glm45": "<tool_call> + tc.name <arg_key>{{ k }}</arg_key> <arg_value> tc.arguments",
    "llama3_json": "<|start_header_id|>assistant<|end_header_id|> <|python_tag|> 'parameters'",
    "llama4_pythonic": "<|header_start|>assistant<|header_end|> <|python_start|> arguments",
    "mistral": "[TOOL_CALLS] tool_call.function arguments [TOOL_RESULTS]",
    "granite": "<|start_of_role|>assistant<|end_of_role|><|tool_call|> arguments",
    "phi4_mini_json": "<|tool|> <|tool_call|> arguments <|/tool_call|>",
    "deepseek_v3": "<\uff5ctool▁calls▁begin\uff5c> function ```json arguments",
    "deepseek_v31": "<\uff5ctool▁calls▁begin\uff5c> tool['function']['arguments']",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>{{ tool_call['id'] }} arguments",
    "minimax_m2": "<minimax:tool_call> <invoke name= arguments",
    "seed_oss": "<seed:tool_call> <function= arguments",
    "lfm2": "<|tool_call_start|>[ arguments <|tool_call_end|>",
    "functiongemma": "<start_function_call>call: arguments <end_function_call>",
    "gemma4": "<|tool_call>call: function['name'] arguments <tool_call|>",
    "internlm": "<|action_start|><|plugin|> arguments",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_family(name: str) -> None:
    assert find_tool_parser(TEMPLATES[name]) == name


def test_models_of_ours() -> None:
    assert find_tool_parser(CHAT_TEMPLATE) == "hermes"


def test_templates_without_tools() -> None:
    assert find_tool_parser("") == ""
    assert find_tool_parser(FAMILIES["chatml"].template) == ""
    assert find_tool_parser(FAMILIES["gemma"].template) == ""
