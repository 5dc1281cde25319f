"""Tokenizers that change text, and what a grammar needs of them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ragcache_integrations.engine.in_vllm.driver import keeping_text

PREPEND = normalizers.Prepend("▁")


def tokenizer(normalizer: Any) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def round_trip(tokens: PreTrainedTokenizerFast, text: str) -> str:
    return str(tokens.decode(tokens.encode(text)))


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Lowercase(),
        normalizers.NFC(),
        normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
        normalizers.Sequence([normalizers.Sequence([normalizers.NFKD()]), normalizers.Strip()]),
        normalizers.BertNormalizer(),
    ],
)
def test_text_is_kept_and_the_models_own_tokenizer_stays_as_it_was(normalizer: Any) -> None:
    text = " Name e\u0301 ﬁ "
    own = tokenizer(normalizer)
    before = round_trip(own, text)
    assert before != text
    assert round_trip(keeping_text(own), text) == text
    assert round_trip(own, text) == before


def test_what_changes_nothing_is_the_same_tokenizer() -> None:
    for normalizer in (None, PREPEND):
        own = tokenizer(normalizer)
        assert keeping_text(own) is own
    other = object()
    assert keeping_text(other) is other


def test_what_else_a_tokenizer_does_stays() -> None:
    kept = keeping_text(tokenizer(normalizers.Sequence([PREPEND, normalizers.Lowercase()])))
    assert round_trip(kept, "Name") == "▁Name"
