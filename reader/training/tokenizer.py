"""The reader's tokenizer: byte-level BPE without case, in which a word is the same at any place.

Ordinary BPE has other pieces for a word behind a space than for the same word at the beginning of a
text, so that an answer is spelt otherwise than where it stands in a document. Here words are split
without their space; the space belongs to the first piece, and each piece has a twin with a space.
Digits stand alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

__all__ = ["CHAT_TEMPLATE", "SPECIAL_TOKENS", "build", "save", "twins"]

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (BEGIN, END, PAD, *(f"<|{role}|>" for role in ROLES))
SPACE = "Ġ"
# Special tokens alone part the turns, no white space: whatever stands in a turn is tokenised as if
# it stood by itself.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message.role not in " + str(list(ROLES)) + " %}"
    "{{ raise_exception('unknown role ' ~ message.role) }}"
    "{% endif %}"
    "{{ '<|' ~ message.role ~ '|>' ~ (message.content or '') ~ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build(texts: Iterable[str], vocab_size: int = 8192) -> tokenizers.Tokenizer:
    """Learn the pieces of words from texts.

    Args:
        texts: English text.
        vocab_size: The most tokens.
    """
    bare = tokenizers.Tokenizer(models.BPE())
    bare.normalizer = _normalizer()
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "removed"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = vocab_size - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=room // 2, initial_alphabet=alphabet, show_progress=False
    )
    bare.train_from_iterator(texts, trainer)
    learnt = json.loads(bare.to_str())["model"]
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    merges = [tuple(one) for one in learnt["merges"]]
    words = [piece for piece in pieces if piece != SPACE]
    names = [*SPECIAL_TOKENS, *pieces, *(SPACE + word for word in words)]
    model = models.BPE(
        vocab={name: number for number, name in enumerate(names)},
        merges=[*merges, *((SPACE, word) for word in words)],
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = _normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def twins(tokenizer: tokenizers.Tokenizer) -> list[tuple[int, int]]:
    """Pairs of tokens that are the same but for the space before the second."""
    vocabulary = tokenizer.get_vocab()
    return sorted(
        (number, vocabulary[SPACE + name])
        for name, number in vocabulary.items()
        if SPACE + name in vocabulary
    )


def save(tokenizer: tokenizers.Tokenizer, folder: Path, max_positions: int) -> None:
    """Write it in the format of Hugging Face transformers."""
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "extra_special_tokens": [f"<|{role}|>" for role in ROLES],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
