"""Prompt Markup Language: schemas, prompts, and their layout for a model (Prompt Cache §3).

Importing this loads neither torch nor vLLM.
"""

from .compiled import CompiledSchema
from .layout import Assembly, Fresh, Module, Param, Placed
from .markup import Limits, Where, escape, markup_error
from .nodes import ROLES, Node, Role, check_name
from .prompt import Import, Prompt
from .schema import Scaffold, Schema, SchemaModule, Slot, Text, Turn, Union
from .tokens import Encoder, Tokenizer, has_chat_template

__all__ = [
    "ROLES",
    "Assembly",
    "CompiledSchema",
    "Encoder",
    "Fresh",
    "Import",
    "Limits",
    "Module",
    "Node",
    "Param",
    "Placed",
    "Prompt",
    "Role",
    "Scaffold",
    "Schema",
    "SchemaModule",
    "Slot",
    "Text",
    "Tokenizer",
    "Turn",
    "Union",
    "Where",
    "check_name",
    "escape",
    "has_chat_template",
    "markup_error",
]
