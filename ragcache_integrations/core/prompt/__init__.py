"""Prompts: their parts, documents and tools, and how they become tokens."""

from .chat_template import NO_TOOLS, Reasoning
from .hidden_values import ValueHider, texts_in
from .placeholders import ChangedContentError, Placeholders
from .prompt import LiteralText, MarkedText, Message, Part, Prompt, PromptDocument, part_text
from .rendering import (
    ENTRY_CHARACTERS,
    DocumentSpan,
    PromptRenderer,
    RenderedPrompt,
    Rendering,
    TokenMemo,
)
from .spans import (
    ENCODE,
    FOREVER,
    LINK_TOKENS,
    PIN,
    PIN_TICKET,
    SPAN_ARGS,
    Span,
    check_spans,
    extra_args_from_spans,
    spans_from_extra_args,
)
from .text_encoder import TemplateText, TextEncoder, leading_special_tokens
from .tools import (
    TOOL_CHOICES,
    Tool,
    ToolCall,
    ToolCallPiece,
    check_tool_choice,
    choice_name,
    join_calls,
    join_pieces,
    new_call_id,
    tools_of,
)

__all__ = [
    "ENCODE",
    "ENTRY_CHARACTERS",
    "FOREVER",
    "LINK_TOKENS",
    "NO_TOOLS",
    "PIN",
    "PIN_TICKET",
    "SPAN_ARGS",
    "TOOL_CHOICES",
    "ChangedContentError",
    "DocumentSpan",
    "LiteralText",
    "MarkedText",
    "Message",
    "Part",
    "Placeholders",
    "Prompt",
    "PromptDocument",
    "PromptRenderer",
    "Reasoning",
    "RenderedPrompt",
    "Rendering",
    "Span",
    "TemplateText",
    "TextEncoder",
    "TokenMemo",
    "Tool",
    "ToolCall",
    "ToolCallPiece",
    "ValueHider",
    "check_spans",
    "check_tool_choice",
    "choice_name",
    "extra_args_from_spans",
    "join_calls",
    "join_pieces",
    "leading_special_tokens",
    "new_call_id",
    "part_text",
    "spans_from_extra_args",
    "texts_in",
    "tools_of",
]
