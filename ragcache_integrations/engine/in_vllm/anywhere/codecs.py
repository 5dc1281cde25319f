"""Documents' keys and values, and how they are kept in few bytes.

==============  ==============================  ====================
codec           keys and values                 bytes of float32's
==============  ==============================  ====================
``raw``         as they are in the KV cache     1
``int8``        8 bits each                     0.26
``int8-int4``   keys 8 bits, values 4           0.20
==============  ==============================  ====================

Keys are quantised before RoPE and by channel, over the tokens of a document: channels of keys have
ranges of their own, which RoPE would mix in pairs. Values are quantised by token and head. This is
KIVI's finding (https://arxiv.org/abs/2402.02750, §3.1), measured again on the bundled reader: keys
by token lose five times as much. Scales are float16 and rounded up, so no number is cut off.

Decoding does not return what was encoded, to the last bit, so exact prefixes are always ``raw``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ragcache_integrations.engine.in_vllm.kv_cache import windows
from ragcache_integrations.engine.protocol import KEY_BYTES

__all__ = ["CODECS", "RAW", "Codec", "Encoded", "Form", "Groups", "Part", "codec_of"]

Groups = tuple[tuple[int, int | None], ...]
"""For each group of layers how many these are, and how many of a document's last tokens they keep;
``None`` for all."""


@dataclass(frozen=True, slots=True)
class Form:
    """The keys and values of a model, on one worker.

    Attributes:
        groups: Its groups of layers.
        heads: Number of heads with keys and values of their own.
        size: Numbers of a head.
        dtype: Their type in the KV cache.
    """

    groups: Groups
    heads: int
    size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, kv_cache_config: Any) -> Form:
        """That of the model with this ``KVCacheConfig`` of vLLM."""
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        layers = (len(group.layer_names) for group in kv_cache_config.kv_cache_groups)
        first = specs[0]
        kept = (
            None if blocks is None else blocks * first.block_size
            for blocks in windows(kv_cache_config)
        )
        groups = tuple(zip(layers, kept, strict=True))
        return cls(groups, first.num_kv_heads, first.head_size, first.dtype)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(layers for layers, _ in self.groups)

    def rows(self, tokens: int) -> int:
        """Tokens of all layers together that are kept of a document."""
        return sum(
            layers * (tokens if kept is None else min(tokens, kept)) for layers, kept in self.groups
        )


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors of a codec's documents.

    Attributes:
        dtype: Its type.
        shape: What each token has of it in each layer, or each layer.
        by_token: Whether each token has one, or only each layer.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    by_token: bool = True

    def whole(self, form: Form, tokens: int) -> tuple[int, ...]:
        """Shape of the tensor of a document.

        Returns:
            ``(layers, tokens, ...)``, or ``(rows, ...)`` if the model has several groups of layers:
            the first group's layers and their tokens come first.
        """
        if not self.by_token:
            return form.layers, *self.shape
        if len(form.groups) > 1:
            return form.rows(tokens), *self.shape
        return form.layers, form.rows(tokens) // form.layers, *self.shape


class Codec:
    """``raw``: keys and values as they are in the KV cache.

    Keys of this codec have been turned by RoPE, and are turned on from there. Keys of the others
    are as they are before RoPE.
    """

    name: ClassVar[str] = "raw"
    turned: ClassVar[bool] = True
    version: ClassVar[int] = 1

    @property
    def label(self) -> str:
        """What files of this codec are marked with: its name and version."""
        return f"{self.name} {self.version}"

    def parts(self, form: Form) -> dict[str, Part]:
        """The tensors of a document, by their names."""
        part = Part(form.dtype, (form.heads, form.size))
        return {"keys": part, "values": part}

    def key(self, key: bytes) -> bytes:
        """The key of a document that is kept so; :func:`codec_of` knows it by that."""
        return key + (b"" if self is RAW else self.name.encode())

    def nbytes(self, form: Form, tokens: int) -> int:
        """Size of a document in bytes."""
        row, layer = self._row_and_layer(form)
        return form.rows(tokens) * row + form.layers * layer

    def tokens(self, form: Form, nbytes: int) -> int:
        """Length of a document of this size; 0 if there is none.

        If the model has several groups of layers, this is a mean over the layers.
        """
        row, layer = self._row_and_layer(form)
        rows, rest = divmod(nbytes - form.layers * layer, row)
        if rest or rows <= 0 or (len(form.groups) == 1 and rows % form.layers):
            return 0
        return -(-rows // form.layers)

    def _row_and_layer(self, form: Form) -> tuple[int, int]:
        """Bytes of a token in a layer, and of a layer itself."""
        sizes = [0, 0]
        for part in self.parts(form).values():
            sizes[not part.by_token] += prod(part.shape) * part.dtype.itemsize
        return sizes[0], sizes[1]

    def encode(self, keys: Tensor, values: Tensor) -> dict[str, Tensor]:
        """Encode layers of a document.

        Args:
            keys: Of shape ``(layers, tokens, heads, size)``.
            values: The same.

        Returns:
            Tensors of shape ``(layers, tokens, ...)`` or ``(layers, ...)``, by their names.

        Raises:
            ValueError: A number is not finite, or too large for this codec.
        """
        return {"keys": keys, "values": values}

    def decode_keys(self, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
        """Decode the keys of a layer.

        Args:
            parts: Of shape ``(tokens, ...)``, or what the layer has.
            out: Where they are put, of shape ``(tokens, heads, size)`` and in float32.
        """
        return out.copy_(parts["keys"])

    def decode_values(self, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
        """Decode the values of a layer, as :meth:`decode_keys` does; ``raw`` ones stay there."""
        del out
        return parts["values"]


class Int8(Codec):
    """``int8``: 8 bits a number."""

    name = "int8"
    turned = False

    def parts(self, form: Form) -> dict[str, Part]:
        """See :class:`Codec`."""
        numbers = Part(torch.int8, (form.heads, form.size))
        return {
            "keys": numbers,
            "key_scales": Part(torch.float16, (form.heads, form.size), by_token=False),
            "values": numbers,
            "value_scales": Part(torch.float16, (form.heads,)),
        }

    def encode(self, keys: Tensor, values: Tensor) -> dict[str, Tensor]:
        """See :class:`Codec`."""
        scales = _half(keys.abs().amax(1).float() / 127, up=True)
        return {
            "keys": _steps(keys, scales[:, None]).to(torch.int8),
            "key_scales": scales,
            **self._encode_values(values),
        }

    def _encode_values(self, values: Tensor) -> dict[str, Tensor]:
        scales = _half(values.abs().amax(-1).float() / 127, up=True)
        return {
            "values": _steps(values, scales[..., None]).to(torch.int8),
            "value_scales": scales,
        }

    def decode_keys(self, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
        """See :class:`Codec`."""
        return out.copy_(parts["keys"]).mul_(parts["key_scales"].float())

    def decode_values(self, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
        """See :class:`Codec`."""
        return out.copy_(parts["values"]).mul_(parts["value_scales"].float()[..., None])


class Int8Int4(Int8):
    """``int8-int4``: keys with 8 bits; values with 4, from the least to the greatest of a head.

    The low half of a byte is a number of the first half of a head, the high half its counterpart
    in the second half.
    """

    name = "int8-int4"

    def parts(self, form: Form) -> dict[str, Part]:
        """See :class:`Codec`."""
        limits = Part(torch.float16, (form.heads,))
        return {
            **super().parts(form),
            "values": Part(torch.uint8, (form.heads, form.size // 2)),
            "value_scales": limits,
            "value_lows": limits,
        }

    def _encode_values(self, values: Tensor) -> dict[str, Tensor]:
        lows = _half(values.amin(-1).float(), up=False)
        scales = _half((values.amax(-1).float() - lows.float()) / 15, up=True)
        numbers = _steps(values.float() - lows.float()[..., None], scales[..., None])
        first, second = numbers.to(torch.uint8).chunk(2, -1)
        return {"values": first | second << 4, "value_scales": scales, "value_lows": lows}

    def decode_values(self, parts: Mapping[str, Tensor], out: Tensor) -> Tensor:
        """See :class:`Codec`."""
        first, second = out.chunk(2, -1)
        first.copy_(parts["values"] & 15)
        second.copy_(parts["values"] >> 4)
        out.mul_(parts["value_scales"].float()[..., None])
        return out.add_(parts["value_lows"].float()[..., None])


RAW = Codec()
CODECS: Mapping[str, Codec] = {codec.name: codec for codec in (RAW, Int8(), Int8Int4())}


def codec_of(key: bytes) -> Codec:
    """The codec of a document, by the end of its key: the codec's name, or nothing for ``raw``.

    Raises:
        KeyError: It is no key of a document.
        UnicodeDecodeError: The same.
    """
    codec = CODECS[key[KEY_BYTES:].decode() or RAW.name]
    if codec.key(key[:KEY_BYTES]) != key:
        raise KeyError(key)
    return codec


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document's keys and values, or those of a group of its layers.

    Attributes:
        codec: How they are kept.
        parts: The codec's tensors, by their names.
        position: Of the first token; of no use if keys are as they are before RoPE.
    """

    codec: Codec
    parts: Mapping[str, Tensor]
    position: int

    @classmethod
    def join(cls, form: Form, groups: Sequence[Encoded], position: int) -> Encoded:
        """The document at this position with these groups of layers."""
        first = groups[0]
        if len(groups) == 1:
            return cls(first.codec, first.parts, position)
        parts = {}
        for name, part in first.codec.parts(form).items():
            tensors = [group.parts[name] for group in groups]
            parts[name] = torch.cat(
                [each.flatten(0, 1) for each in tensors] if part.by_token else tensors
            )
        return cls(first.codec, parts, position)

    def split(self, form: Form, tokens: int) -> list[Encoded]:
        """The groups of layers of a document with this many tokens."""
        row = layer = 0
        groups = []
        for layers, kept in form.groups:
            count = tokens if kept is None else min(tokens, kept)
            parts = {}
            for name, part in self.codec.parts(form).items():
                flat = self.parts[name].reshape(-1, *part.shape)
                if part.by_token:
                    rows = flat[row : row + layers * count]
                    parts[name] = rows.view(layers, count, *part.shape)
                else:
                    parts[name] = flat[layer : layer + layers]
            groups.append(Encoded(self.codec, parts, self.position + tokens - count))
            row, layer = row + layers * count, layer + layers
        return groups

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(part.nbytes for part in self.parts.values())


def _half(numbers: Tensor, *, up: bool) -> Tensor:
    """Round to float16 in one direction.

    Raises:
        ValueError: A number is not finite, or too large.
    """
    halves = numbers.half()
    wrong = halves < numbers if up else halves > numbers
    beyond = torch.full_like(halves, torch.inf if up else -torch.inf)
    halves = torch.where(wrong, torch.nextafter(halves, beyond), halves)
    if not bool(halves.isfinite().all()):
        raise ValueError(
            "keys or values are not finite, or too large to be quantised; document_dtype='raw' "
            "keeps documents as they are"
        )
    return halves


def _steps(numbers: Tensor, scales: Tensor) -> Tensor:
    """Numbers in whole steps of their scales; 0 if those are."""
    scales = scales.float()
    return (numbers * torch.where(scales > 0, 1 / scales, 0)).round_()
