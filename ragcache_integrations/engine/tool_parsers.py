"""Which of vLLM's parsers reads the tool calls of a model, by its chat template.

Models write calls in forms of their own, and their templates write the calls of earlier turns in
the same form. vLLM has the parsers, under the names of ``--tool-call-parser``, but has the user
choose one.

Source: https://docs.vllm.ai/en/latest/features/tool_calling.html.
"""

from __future__ import annotations

__all__ = ["find_tool_parser"]

_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deepseek_v3", ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "```json")),
    ("deepseek_v31", ("<\uff5ctool\u2581calls\u2581begin\uff5c>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("gemma4", ("<|tool_call>",)),
    ("llama4_pythonic", ("<|python_start|>", "<|header_start|>")),
    ("llama3_json", ("<|python_tag|>", "<|start_header_id|>")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi4_mini_json", ("<|tool_call|>", "<|/tool_call|>")),
    ("granite", ("<|tool_call|>",)),
    ("internlm", ("<|action_start|>", "<|plugin|>")),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<tool_call>", "<function=")),
    ("hermes", ("<tool_call>", "arguments")),
)
"""Parsers, and what the templates of their families hold. The first that fits is taken."""


def find_tool_parser(template: str) -> str:
    """The name of the parser for models with a chat template.

    Args:
        template: The text of the template.

    Returns:
        The name; empty if no known family writes calls like this.
    """
    for name, marks in _FAMILIES:
        if all(mark in template for mark in marks):
            return name
    return ""
