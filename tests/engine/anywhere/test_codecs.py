"""Codecs of documents' keys and values: bytes, losses, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragcache_integrations.engine.in_vllm.anywhere.codecs import (
    CODECS,
    RAW,
    Codec,
    Encoded,
    Form,
    codec_of,
)
from ragcache_integrations.engine.protocol import DOCUMENT_DTYPES, CacheSettings, document_key
from ragcache_integrations.errors import ConfigurationError

CODEC = st.sampled_from([*CODECS.values()])
FORMS = st.builds(
    Form,
    st.lists(
        st.tuples(st.integers(1, 3), st.none() | st.integers(1, 9)), min_size=1, max_size=3
    ).map(tuple),
    st.integers(1, 3),
    st.sampled_from([2, 8, 10]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)


def numbers(form: Form, tokens: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of each group of layers; channels and tokens differ in size, some are 0."""
    dice = torch.Generator().manual_seed(seed)
    sides: tuple[list[Tensor], list[Tensor]] = [], []
    for layers, kept in form.groups:
        count = tokens if kept is None else min(tokens, kept)
        for side in sides:
            made = torch.randn(layers, count, form.heads, form.size, generator=dice)
            made *= 10 ** torch.randint(-3, 3, made.shape[2:], generator=dice)
            made[torch.rand(made.shape[:2], generator=dice) < 0.1] = 0
            side.append(made.to(form.dtype))
    return sides


def decoded(codec: Codec, group: Encoded, like: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = torch.empty(2, *like.shape)
    for number in range(len(like)):
        parts = {name: part[number] for name, part in group.parts.items()}
        keys[number] = codec.decode_keys(parts, torch.empty(like.shape[1:]))
        values[number] = codec.decode_values(parts, torch.empty(like.shape[1:]))
    return keys, values


@given(CODEC, FORMS, st.integers(1, 20), st.integers(0, 99))
def test_what_is_decoded_is_near_what_was_encoded(
    codec: Codec, form: Form, tokens: int, seed: int
) -> None:
    """Within half a step of its scale, in each group of layers, and of the size that was said."""
    keys, values = numbers(form, tokens, seed)
    groups = [Encoded(codec, codec.encode(*pair), 0) for pair in zip(keys, values, strict=True)]
    document = Encoded.join(form, groups, 7)
    for name, part in codec.parts(form).items():
        assert document.parts[name].shape == part.whole(form, tokens)
        assert document.parts[name].dtype == part.dtype
    assert document.nbytes == codec.nbytes(form, tokens)
    told = codec.tokens(form, document.nbytes)
    assert told == tokens if len(form.groups) == 1 and form.groups[0][1] is None else told > 0
    for group, *both in zip(document.split(form, tokens), keys, values, strict=True):
        key, value = (each.float() for each in both)
        assert group.position == 7 + tokens - key.shape[1]
        read_keys, read_values = decoded(codec, group, key)
        if codec is RAW:
            assert torch.equal(read_keys, key)
            assert torch.equal(read_values, value)
            continue
        steps = key.abs().amax(1, keepdim=True) / 127
        assert bool(((read_keys - key).abs() <= 0.51 * steps + 1e-7).all())
        spread = value.abs().amax(-1, keepdim=True) / 127
        if codec.name == "int8-int4":
            spread = (value.amax(-1, keepdim=True) - value.amin(-1, keepdim=True)) / 15
            spread += value.abs().amax(-1, keepdim=True) / 500  # the least is float16, too
        assert bool(((read_values - value).abs() <= 0.51 * spread + 1e-6).all())


@pytest.mark.parametrize(("name", "share"), [("raw", 1.0), ("int8", 0.27), ("int8-int4", 0.21)])
def test_bytes_of_the_bundled_reader_s_documents(name: str, share: float) -> None:
    form = Form(((30, None),), 3, 64, torch.float32)
    assert CODECS[name].nbytes(form, 118) <= share * RAW.nbytes(form, 118)


@pytest.mark.parametrize("codec", [codec for codec in CODECS.values() if codec is not RAW])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("side", [0, 1])
def test_what_can_t_be_quantised_is_refused(codec: Codec, wrong: float, side: int) -> None:
    """The document is then computed."""
    both = [torch.randn(2, 5, 3, 8), torch.randn(2, 5, 3, 8)]
    both[side][1, 3, 2, 4] = wrong
    with pytest.raises(ValueError, match="not finite, or too large"):
        codec.encode(*both)


def test_a_size_that_no_document_has_is_known() -> None:
    form = Form(((30, None),), 3, 64, torch.float32)
    for codec in CODECS.values():
        right = codec.nbytes(form, 40)
        assert [codec.tokens(form, right + more) for more in (-1, 0, 1)] == [0, 40, 0]
        assert codec.tokens(form, 0) == codec.tokens(form, -5) == 0


def test_a_key_names_its_codec() -> None:
    known = document_key("tenant", [1, 2, 3])
    assert [codec_of(codec.key(known)) for codec in CODECS.values()] == [*CODECS.values()]
    assert len({codec.key(known) for codec in CODECS.values()}) == len(CODECS)


def test_the_setting_allows_what_there_is() -> None:
    assert (*CODECS,) == DOCUMENT_DTYPES
    with pytest.raises(ConfigurationError, match=r"document_dtype.*int8-int4.*'int4'"):
        CacheSettings(document_dtype="int4")
