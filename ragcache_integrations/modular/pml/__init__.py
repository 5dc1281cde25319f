"""Prompt Markup Language: schemas, prompts, compilation."""

from .chat_roles import has_chat_template
from .compiled import CompiledSchema
from .markup import Limits, Where, escape, markup_error
from .nodes import ROLES, Node, Role, check_name
from .prompt import Import, Prompt
from .schema import Scaffold, Schema, SchemaModule, Slot, Text, Turn, Union

__all__ = [
    "ROLES",
    "CompiledSchema",
    "Import",
    "Limits",
    "Node",
    "Prompt",
    "Role",
    "Scaffold",
    "Schema",
    "SchemaModule",
    "Slot",
    "Text",
    "Turn",
    "Union",
    "Where",
    "check_name",
    "escape",
    "has_chat_template",
    "markup_error",
]
