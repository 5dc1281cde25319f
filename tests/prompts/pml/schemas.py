"""What the tests of Prompt Markup Language share: a real tokenizer, chat templates, schemas."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from hypothesis import strategies as st
from transformers import AutoTokenizer

from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.prompts.pml.compiled import CompiledSchema, Scope
from ragcache_integrations.prompts.pml.layout import Assembly, Fresh
from ragcache_integrations.prompts.pml.nodes import (
    Node,
    Role,
    SchemaModule,
    Slot,
    Text,
    Turn,
    Union,
)
from ragcache_integrations.prompts.pml.prompt import Import
from ragcache_integrations.prompts.pml.schema import Schema

# Templates in the manner of well-known models.
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama-2": (
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
        "{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}"
        "{% for m in rest %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
        "{% if m.role == 'user' %}"
        "{{ bos_token + '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "llama-3": (
        "{{ bos_token }}{% for m in messages %}"
        "{{ '<|start|>' + m.role + '<|end_header|>\n\n' + (m.content | trim) + '<|eot|>' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start|>assistant<|end_header|>\n\n' }}{% endif %}"
    ),
    # Ends a conversation in another way than a turn.
    "phi": (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    # Adds a system turn where there is none, and marks the last answer.
    "qwen": (
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}"
        "{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{{ '<turn>' + m.role + '\n' + m.content | trim + '<end>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"
    ),
    # Writes the system turn into the last turn of the user.
    "mistral": (
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}"
        "{% endif %}{{ bos_token }}{% for m in rest %}{% if m.role == 'user' %}"
        "{{ '[INST] ' + (system if loop.last else '') + m.content + '[/INST]' }}"
        "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
    ),
}


@cache
def tokenizer(template: str = "") -> Any:
    """The tiny model's tokenizer, with its own chat template or one of :data:`TEMPLATES`."""
    if not template:
        return AutoTokenizer.from_pretrained(default_model_path())
    other = copy.deepcopy(tokenizer())
    other.chat_template = None if template == "none" else TEMPLATES[template]
    return other


def shown(assembly: Assembly) -> list[str]:
    """The parts: ``name`` of a module, ``'text'@position`` of new tokens."""
    decode = tokenizer().decode
    return [
        f"{decode(part.token_ids)!r}@{part.positions[0]}"
        if isinstance(part, Fresh)
        else part.module.name
        for part in assembly.parts
    ]


def served(assembly: Assembly) -> dict[int, int]:
    """Tokens that serve, by position."""
    tokens: dict[int, int] = {}
    for part in assembly.parts:
        if isinstance(part, Fresh):
            pairs = list(zip(part.positions, part.token_ids, strict=True))
        else:
            module = part.module
            pairs = [(module.positions[at], module.token_ids[at]) for at in module.served]
        for position, token in pairs:
            assert position not in tokens, f"two tokens at {position}"
            tokens[position] = token
    return tokens


def text_of(assembly: Assembly) -> str:
    """What the model sees, in the order of the positions."""
    tokens = served(assembly)
    return str(tokenizer().decode([tokens[position] for position in sorted(tokens)]))


# Schemas at random

NAMES = st.from_regex(r"[a-z_][a-z0-9._-]{0,5}", fullmatch=True).filter(
    lambda name: name not in {"schema", "module", "param", "union", "scaffold", "prompt", "user"}
)
WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\ufffe\uffff")
    | st.sampled_from(" \n\t<>&'\"]\r"),
    max_size=12,
).filter(lambda text: all(char >= " " or char in "\t\n\r" for char in text))


@st.composite
def children(draw: st.DrawFn, depth: int = 2, *, in_turn: bool = False) -> tuple[Node, ...]:
    """Children of a module, whose names are their own."""
    names = iter(draw(st.lists(NAMES, min_size=12, max_size=12, unique=True)))
    return draw(_children(names, depth, in_turn=in_turn))


@st.composite
def _children(
    draw: st.DrawFn, names: Any, depth: int, *, in_turn: bool = False
) -> tuple[Node, ...]:
    kinds = ["text", "param"]
    if depth:
        kinds += ["module", "union"]
    if not in_turn:
        kinds.append("turn")
    found: list[Node] = []
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=4)):
        if kind == "text":
            found.append(Text(draw(WORDS)))
        elif kind == "param":
            found.append(Slot(next(names, "q") + "_", draw(st.integers(1, 5))))
        elif kind == "module":
            inner = draw(children(depth - 1, in_turn=in_turn))
            found.append(SchemaModule(next(names), inner))
        elif kind == "union":
            members = [
                SchemaModule(next(names), draw(children(depth - 1, in_turn=in_turn)))
                for _ in range(draw(st.integers(1, 2)))
            ]
            found.append(Union(tuple(members)))
        else:
            role: Role = draw(st.sampled_from(["system", "user", "assistant"]))
            found.append(Turn(role, draw(_children(names, 0, in_turn=True))))
    return tuple(found)


SCHEMAS = st.builds(Schema, st.just("any"), children())


@st.composite
def imports(draw: st.DrawFn, scope: Scope, compiled: CompiledSchema) -> tuple[Import, ...]:
    """Imports that a schema allows, in its order."""
    found: list[Import] = []
    chosen: set[int] = set()
    for name, child in scope.children.items():
        if not draw(st.booleans()) or child.union in chosen:
            continue
        if child.union is not None:
            chosen.add(child.union)
        arguments = draw(arguments_of(child, compiled))
        found.append(Import(name, arguments, draw(imports(child, compiled))))
    return tuple(found)


@st.composite
def arguments_of(draw: st.DrawFn, scope: Scope, compiled: CompiledSchema) -> dict[str, str]:
    """Arguments that fit."""
    found = {}
    for name, positions in scope.slots.items():
        text = draw(st.sampled_from(["", "a", "three days", "<user>", "a b c d e f g"]))
        if len(compiled.encoder.text(text)) <= len(positions):
            found[name] = text
    return found
