"""Text without markup, for tokenizers that make it hard."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from ragcache_integrations.core.prompt import TemplateText, TextEncoder
from ragcache_integrations.errors import ConfigurationError


def words(vocabulary: str, *, added: list[AddedToken], **special: str) -> Any:
    """A tokenizer that knows whole words, apart from characters of a bracket."""
    known = {word: at for at, word in enumerate(vocabulary.split(" "))}
    made = Tokenizer(models.WordLevel(known, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_tokens(added)
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def letters(*, added: list[AddedToken], normalizer: Any = None, **special: str) -> Any:
    """A tokenizer of single characters, from " " to "~"."""
    known = {chr(code): code - 32 for code in range(32, 127)} | {"\x7f": 95}
    made = Tokenizer(models.WordLevel(known, unk_token="\x7f"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_tokens(added)
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def test_a_vocabulary_that_holds_a_control_token_as_a_word() -> None:
    tokenizer = words("? a [END]", added=[AddedToken("[END]", special=True)])
    encoder = TextEncoder(tokenizer)
    assert encoder.encode("a [END]") == [1, 2]
    assert encoder.literal("a [END]") == [1, 0, 0]
    assert encoder.literal("[END]") == [0, 0]
    assert encoder.mixed([["a ", TemplateText("[END]"), "[END] a"]]) == [[1, 2, 0, 0, 1]]


def test_a_character_that_is_a_control_token_only_is_refused() -> None:
    tokenizer = words("? a \x02", added=[AddedToken("\x02", special=True)])
    encoder = TextEncoder(tokenizer)
    assert encoder.mixed([[TemplateText("\x02"), "a"]]) == [[2, 1]]
    with pytest.raises(ConfigurationError, match="as a control token only"):
        encoder.literal("a \x02")


def test_an_unknown_character_that_would_end_the_text_is_refused() -> None:
    tokenizer = words("? a", added=[AddedToken("?", special=True)], eos_token="?", unk_token="?")
    with pytest.raises(ConfigurationError, match="as a control token only"):
        TextEncoder(tokenizer).literal("b")
    harmless = words("? a", added=[AddedToken("?", special=True)], unk_token="?")
    assert TextEncoder(harmless).literal("b") == [0]


def test_a_normaliser_makes_no_markup() -> None:
    tokenizer = letters(
        added=[AddedToken("<think>", normalized=True), AddedToken("<|x|>", special=True)],
        normalizer=normalizers.NFKC(),
    )
    encoder = TextEncoder(tokenizer)
    wide = "\uff1cthink\uff1e"
    think = tokenizer.convert_tokens_to_ids("<think>")
    assert tokenizer.encode(wide) == [think]
    assert encoder.literal(wide) == encoder.literal("<think>")
    assert tokenizer.decode(encoder.literal(wide)).replace(" ", "") == "<think>"
    assert encoder.holds_markup(wide)
    assert encoder.holds_markup("a <|x|>")
    assert not encoder.holds_markup("a <|x|")


def test_added_tokens_that_are_text_stay() -> None:
    added = [
        *(AddedToken("<a>", special=True), AddedToken("   "), AddedToken("\n\n")),
        *(AddedToken("{"), AddedToken("<b>"), AddedToken("\t\t")),
    ]
    tokenizer = letters(added=added)
    encoder = TextEncoder(tokenizer)
    text = "a   b\n\n{c}\t\t"
    assert encoder.literal(text) == tokenizer.encode(text)
    assert encoder.literal(f"<b>{text}")[3:] == tokenizer.encode(text)
    assert encoder.markup == {"<a>", "<b>"}


def test_byte_tokens_are_text() -> None:
    made = Tokenizer(
        models.BPE(
            {f"<0x{byte:02X}>": byte for byte in range(256)} | {"<": 256, "0": 257},
            [],
            byte_fallback=True,
        )
    )
    made.add_special_tokens([f"<0x{byte:02X}>" for byte in range(256)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    assert TextEncoder(tokenizer).literal("a") == [ord("a")]
    assert TextEncoder(tokenizer).literal("<0x0A>") == [256, 257, *b"x", 257, *b"A>"]


def test_the_first_number_may_be_a_control_token() -> None:
    made = Tokenizer(models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<s>"])
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=made))
    assert encoder.mixed([[TemplateText("a <s> a"), " a <s>"]]) == [[1, 0, 1, 1, 1, 1]]
    assert encoder.holds_markup("a <s>")
    assert not encoder.holds_markup("a a < s>")


def test_stretches_and_what_stands_first() -> None:
    made = Tokenizer(models.WordLevel({"?": 0, "\u2581a": 1, "a": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.add_special_tokens(["<s>"])
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=made))
    assert encoder.literal("a") == [1]
    assert encoder.literal("a", first=False) == [2]
    written = TemplateText("<s>")
    assert encoder.mixed([["a"], ["a"], [], ["a", written, "a"]]) == [[1], [2], [], [2, 3, 2]]
    assert encoder.mixed([[written, "a", written]]) == [[3, 2, 3]]
    assert encoder.mixed([["a"]], first=False) == [[2]]
    assert encoder.mixed([]) == []


@pytest.mark.parametrize("text", ["a \ud800", "\udfff"])
def test_a_lone_surrogate_is_named(text: str) -> None:
    encoder = TextEncoder(words("? a", added=[]))
    for encode in (encoder.literal, encoder.encode, lambda one: encoder.mixed([[one]])):
        with pytest.raises(ConfigurationError, match=r"lone surrogate \(U\+D"):
            encode(text)


class Characters(PreTrainedTokenizer):
    """A tokenizer written in Python: one token for each character."""

    def __init__(self, **kwargs: Any) -> None:
        self._known = {chr(code): code for code in range(128)} | {"<s>": 128, "\u2603": 129}
        super().__init__(**kwargs)  # type: ignore[no-untyped-call] # transformers'

    @property
    def vocab_size(self) -> int:
        return len(self._known)

    def get_vocab(self) -> dict[str, int]:
        return {**self._known, **self.added_tokens_encoder}

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        # As some do, it takes a control token for a word of its vocabulary.
        return ["<s>"] if text == "<s>" else list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self._known.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return next((text for text, id_ in self._known.items() if id_ == index), "")


def test_a_tokenizer_written_in_python() -> None:
    tokenizer = Characters(bos_token="<s>")
    tokenizer.add_tokens([AddedToken("<think>", rstrip=True), AddedToken("\u2603", special=True)])
    encoder = TextEncoder(tokenizer)
    ids: Any = tokenizer.convert_tokens_to_ids(["<s>", "<think>"])
    bos, think = ids
    for text in ("<s>", "a<s>b", "<think> <s>"):
        assert encoder.literal(text) == list(text.encode())
    pieces: list[str | TemplateText] = [
        TemplateText("<s>a<think>"),
        " <s>",
        TemplateText(" <think>\n"),
        "<think>",
    ]
    expected = [bos, 97, think, *b" <s> ", think, *b"<think>"]
    assert encoder.mixed([pieces]) == [expected]
    assert encoder.encode("<s>a") == [bos, 97]
    with pytest.raises(ConfigurationError, match="as a control token only"):
        encoder.literal("a \u2603")


def test_many_occurrences_cost_few_rounds() -> None:
    tokenizer = letters(added=[AddedToken("<a>", special=True)])
    text = "<a>" * 10_000
    assert TextEncoder(tokenizer).literal(text) == [ord(char) - 32 for char in text]
    hostile = words("? a <a>", added=[AddedToken("<a>", special=True)])
    assert TextEncoder(hostile).literal("<a> " * 10_000) == [0] * 20_000
