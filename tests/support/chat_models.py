"""Tokenizers of several kinds with the markup of ten model families, for the tests of chats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

WORDS = (
    "user assistant system model tool INST SYS think im_start Help. Hello, how are you? Cats purr "
    "when they are content. The knife-grinder's 12,345 naïve cafés <b>bold</b> {json: [1, 2]} "
)


@dataclass(frozen=True)
class Family:
    """A model family: its markup and a chat template in its manner.

    Attributes:
        special: Control tokens.
        plain: Tokens that are added but not declared special.
        template: Its chat template.
        swallowing: Whether its control tokens swallow the white space behind them.
        system: Whether it takes a system turn.
    """

    special: tuple[str, ...]
    template: str
    plain: tuple[str, ...] = ()
    swallowing: bool = False
    system: bool = True

    @property
    def markup(self) -> tuple[str, ...]:
        return (*self.special, *self.plain)


_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + "
    "m.content + '\n</tool_response><|im_end|>\n' }}{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN_3 = """\
{%- for m in messages %}
{%- set content = m.content if m.content is string else '' %}
{%- if m.role == 'assistant' %}
{%- set thoughts = '' %}
{%- if m.reasoning_content is string %}
{%- set thoughts = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.last or thoughts %}
{{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif %}
{{- content.lstrip('\\n') + '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""

FAMILIES = {
    "chatml": Family(("<|im_start|>", "<|im_end|>"), _CHATML),
    "llama-2": Family(
        ("<s>", "</s>"),
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
        "{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}"
        "{% for m in rest %}{% if m.role == 'user' %}"
        "{{ '<s>[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + ' </s>' }}{% endif %}{% endfor %}",
    ),
    "llama-3": Family(
        (
            *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            "<|python_tag|>",
        ),
        "{{ '<|begin_of_text|>' }}{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' + (m.content | tojson) }}"
        "{% else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
        "{{ m.content | trim }}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
    ),
    "qwen-2.5": Family(
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        _QWEN,
        plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "qwen-3": Family(
        ("<|im_start|>", "<|im_end|>"),
        _QWEN_3,
        plain=("<think>", "</think>", "<tool_call>", "<tool_response>", "</tool_response>"),
    ),
    "mistral": Family(
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}"
        "{% endif %}{{ '<s>' }}{% for m in rest %}{% if m.role == 'user' %}"
        "{{ '[INST] ' + (system if loop.last else '') + m.content + '[/INST]' }}"
        "{% elif m.role == 'tool' %}"
        "{{ '[TOOL_RESULTS] {\"content\": ' + (m.content | tojson) + '}[/TOOL_RESULTS]' }}"
        "{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}",
    ),
    "gemma": Family(
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "{{ '<bos>' }}{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else "
        "m.role %}{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{{ '<start_of_turn>model\n' }}",
        plain=("<unused0>", "\n\n", "  "),
        system=False,
    ),
    "phi": Family(
        ("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|end|>"),
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{{ '<|assistant|>\n' }}",
        swallowing=True,
    ),
    "deepseek": Family(
        ("<\uff5cbegin▁of▁sentence\uff5c>", "<\uff5cend▁of▁sentence\uff5c>"),
        "{{ '<\uff5cbegin▁of▁sentence\uff5c>' }}{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '<\uff5cUser\uff5c>' + m.content }}{% elif m.role == 'assistant' %}"
        "{% set content = m.content %}{% if '</think>' in content %}"
        "{% set content = content.split('</think>')[-1] %}{% endif %}"
        "{{ '<\uff5cAssistant\uff5c>' + content + '<\uff5cend▁of▁sentence\uff5c>' }}{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}{{ '<\uff5cAssistant\uff5c><think>\n' }}",
        plain=("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>", "</think>"),
    ),
    "command-r": Family(
        (
            *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"),
            *("<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
        ),
        "{{ '<BOS_TOKEN>' }}{% set names = {'user': '<|USER_TOKEN|>', 'tool': '<|SYSTEM_TOKEN|>', "
        "'assistant': '<|CHATBOT_TOKEN|>', 'system': '<|SYSTEM_TOKEN|>'} %}{% for m in messages %}"
        "{{ '<|START_OF_TURN_TOKEN|>' + names[m.role] + m.content + '<|END_OF_TURN_TOKEN|>' }}"
        "{% endfor %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}",
    ),
    "gpt-oss": Family(
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"),
        "{% for m in messages %}{% if '<|channel|>' in m.content %}"
        "{{ raise_exception('no channels') }}{% endif %}{{ '<|start|>' + m.role }}"
        "{% if m.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}"
        "{{ '<|message|>' + m.content + '<|end|>' }}{% endfor %}{{ '<|start|>assistant' }}",
    ),
}

KINDS = ("byte-level", "unigram", "legacy-llama", "wordpiece", "wordlevel")


def _bare(kind: str, family: Family) -> Tokenizer:
    """A vocabulary; where a model's conversion keeps control tokens in it, so does this one."""
    if kind == "byte-level":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: Any = trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        made.train_from_iterator([WORDS], trainer)
        made.decoder = decoders.ByteLevel()
        return made
    if kind == "unigram":
        pieces = {piece: -2.0 - len(piece) / 100 for piece in (*WORDS, "▁", "\n", ">", "|")}
        pieces |= {f"▁{word}": -1.5 for word in WORDS.split()}
        pieces |= dict.fromkeys(family.markup, 0.0)
        made = Tokenizer(models.Unigram([("<unk>", 0.0), *pieces.items()], 0, byte_fallback=False))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        return made
    if kind == "legacy-llama":
        made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        )
        made.train_from_iterator([WORDS], trainer)
        bare = Tokenizer(made.model)  # to which nothing is added
        bare.normalizer = made.normalizer
        return bare
    if kind == "wordpiece":
        letters = sorted(set(WORDS) | set("<>|[]/"))
        vocabulary = ["[UNK]", *letters, *(f"##{letter}" for letter in letters)]
        made = Tokenizer(
            models.WordPiece({word: at for at, word in enumerate(vocabulary)}, unk_token="[UNK]")
        )
        made.normalizer = normalizers.BertNormalizer(lowercase=False)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return made
    vocabulary = ["<unk>", *dict.fromkeys((*family.markup, *WORDS.split()))]
    made = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


@cache
def tokenizer_of(kind: str, name: str) -> Any:
    """A tokenizer of a kind with a family's markup and chat template."""
    family = FAMILIES[name]
    made = _bare(kind, family)
    unknown = None if kind == "byte-level" else ("[UNK]" if kind == "wordpiece" else "<unk>")
    made.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True, rstrip=family.swallowing)
            for text in (*((unknown,) if unknown else ()), *family.special)
        ]
    )
    made.add_tokens([AddedToken(text, normalized=False) for text in family.plain])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=family.template, unk_token=unknown
    )
