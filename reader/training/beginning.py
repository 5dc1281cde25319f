"""The weights that training begins with: some heads already look where a reader has to look.

A network that begins at random spends most of a short training on finding out that a token is best
foretold by what followed it elsewhere (induction heads; Olsson et al. 2022, "In-context Learning
and Induction Heads"), and that a question is about the words it shares with a document. Here such
heads are written down, as in mimetic initialisation (Trockman and Kolter 2023, "Mimetic
Initialization of Self-Attention Layers"), and training goes on from there.

The hidden dimensions are shared out: what a token is (random, so that no two are alike; rare ones
are louder), how it is used (see ``words.py``), what stood before it, what around it, which question
word was last, and what stood in the last twenty tokens. The first layer fills the last four; those
behind it look for equal tokens and for places where much stands that stands here, too. All else
begins at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reader.training.model import Reader, Shape

__all__ = ["begin", "repair_copying"]

SPREAD = 1.0
"""Of an embedding's numbers."""
LOUDNESS = 0.12
"""Weight of the last norm: a token that is copied has to stand out among all logits."""
MATCH = 20.0
"""Attention logit of two equal tokens."""
ALIKE = 8.0
"""Attention logit of two equal places."""
FAR = 600
"""Tokens that two equal ones may be apart."""


@dataclass(frozen=True)
class _Parts:
    """Hidden dimensions, by what they hold."""

    token: slice
    use: slice
    before: slice
    around: slice
    asked: slice
    recent: slice

    @classmethod
    def of(cls, hidden: int) -> _Parts:
        shares = (0.30, 0.48, 0.66, 0.74, 0.83, 1.0)
        begins = [0, *(round(share * hidden) for share in shares)]
        return cls(*(slice(*both) for both in itertools.pairwise(begins)))


class _Heads:
    """The heads of a layer, to be written into.

    Args:
        reader: The network.
        layer: Which.
    """

    def __init__(self, reader: Reader, layer: int) -> None:
        self._attention: Any = reader.model.layers[layer].self_attn
        self._size = reader.shape.head_dim
        self._group = reader.shape.heads // reader.shape.kv_heads

    def clear(self, name: str, head: int) -> tuple[Tensor, Tensor]:
        """Weights and bias of ``q_proj``, ``k_proj`` or ``v_proj``, with noughts in them."""
        projection = getattr(self._attention, name)
        span = slice(head * self._size, (head + 1) * self._size)
        projection.weight[span] = 0.0
        return projection.weight[span], projection.bias[span]

    def carry(self, head: int, what: slice, through: Tensor, strength: float) -> None:
        """Let a head read some dimensions of what it looks at, and write them where it is."""
        values, _ = self.clear("v_proj", head // self._group)
        values[:, what] = through
        self.write(head, what, strength * through.T)

    def write(self, head: int, where: slice, written: Tensor) -> None:
        """Let a head write what it has read into some dimensions."""
        weight = self._attention.o_proj.weight[:, head * self._size : (head + 1) * self._size]
        weight[:] = 0.0
        weight[where] = SPREAD * written


def begin(
    reader: Reader,
    twins: Sequence[tuple[int, int]],
    used: Tensor,
    rarity: Tensor,
    asking: Sequence[int],
    seed: int,
) -> None:
    """Write the weights.

    Args:
        reader: The network.
        twins: Pairs of tokens, the second of which is the first behind a space.
        used: How each token is used, of shape ``(vocab_size, n)``; see
            :func:`reader.training.words.vectors`.
        rarity: How rare each token is, from 0 to 1, of shape ``(vocab_size,)``.
        asking: Question words.
        seed: Draws what is random.
    """
    shape = reader.shape
    parts = _Parts.of(shape.hidden)
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        reader.model.norm.weight.fill_(LOUDNESS)
        _embed(reader.model.embed_tokens.weight, parts, twins, used, rarity, dice)
        reader.model.embed_tokens.weight[list(asking), parts.asked.start] = 4 * SPREAD
        kept = _rows(_width(parts.before), _width(parts.token), dice)
        _look_back(reader, parts, kept, dice)
        for layer in range(1, shape.layers):
            _look_for_equals(reader, layer, parts, kept, dice)


def _embed(
    embedding: Tensor,
    parts: _Parts,
    twins: Sequence[tuple[int, int]],
    used: Tensor,
    rarity: Tensor,
    dice: torch.Generator,
) -> None:
    embedding[:] = 0.0
    embedding[:, parts.token].normal_(0.0, SPREAD, generator=dice)
    count = min(used.shape[1], _width(parts.use))
    embedding[: len(used), parts.use.start : parts.use.start + count] = SPREAD * used[:, :count]
    if twins:
        bare, spaced = (torch.tensor(one) for one in zip(*twins, strict=True))
        space = torch.empty(_width(parts.token)).normal_(0.0, 0.5 * SPREAD, generator=dice)
        embedding[spaced] = embedding[bare]
        embedding[: len(rarity), parts.token] *= (0.25 + rarity)[:, None]
        embedding[spaced, parts.token] += 0.5 * space


def _look_back(reader: Reader, parts: _Parts, kept: Tensor, dice: torch.Generator) -> None:
    """In the first layer a head keeps the token before, others what the dimensions are for."""
    shape, heads = reader.shape, _Heads(reader, 0)
    half, group = shape.head_dim // 2, shape.heads // shape.kv_heads
    turns = _turns(shape)
    near = 1.0 * (turns <= 0.03) + 2.0 * ((turns > 0.03) & (turns <= 0.3))
    wide = 2.0 * ((turns > 0.01) & (turns <= 0.12))
    wider = 3.0 * ((turns > 0.004) & (turns <= 0.06))
    looks = [(1.0, torch.full_like(turns, 14.0)), (6.0, near), (9.0, wide), (9.0, wider)]
    # An embedding leaves dimensions empty, and the norm makes up for them.
    quiet = (parts.use.stop / shape.hidden) ** 0.5
    for head, (back, strength) in enumerate(looks[: shape.heads]):
        # Keys say hardly anything, so that how far away it is decides alone; the dimension that
        # turns least tells question words from others.
        keys, bias = heads.clear("k_proj", head // group)
        bias[:half] = 4.0
        bias[half - 1] = 0.0
        keys[half - 1, parts.asked.start] = 1.0
        values, _ = heads.clear("v_proj", head // group)
        _, bias = heads.clear("q_proj", head)
        bias[:half] = strength * (back * turns).cos()
        bias[half:] = -strength * (back * turns).sin()
        bias[half - 1] = 20.0 if head == 3 else 0.0
        width = len(kept)
        if head < 2:
            values[:width, parts.token] = quiet * kept
        else:
            values[:, parts.token] = quiet * _rows(shape.head_dim, _width(parts.token), dice)
        if head == 0:
            written = torch.eye(width, shape.head_dim)
            heads.write(head, parts.before, written)
        elif head == 1:
            mixed = torch.zeros(_width(parts.around), shape.head_dim)
            mixed[:, :width] = 2.0 * _rows(len(mixed), width, dice)
            heads.write(head, parts.around, mixed)
        else:
            what, loudness = (parts.recent, 4.0) if head == 2 else (parts.asked, 6.0)
            heads.write(head, what, loudness * _rows(_width(what), shape.head_dim, dice))


def _look_for_equals(
    reader: Reader, layer: int, parts: _Parts, kept: Tensor, dice: torch.Generator
) -> None:
    """What the heads behind the first layer look for.

    One says what followed this token elsewhere. Another says what stood around this token
    elsewhere; in the last layers it looks for places with the same words instead, and is to point
    at answers and say what it points at.
    """
    shape, heads = reader.shape, _Heads(reader, layer)
    turns, half = _turns(shape), shape.head_dim // 2
    # Tokens are to match from afar: only what hardly turns on the way compares them.
    slow = torch.nonzero(turns * FAR < 1.5).flatten()
    fast = torch.nonzero(turns * FAR >= 1.5).flatten()
    places = torch.cat((slow, slow + half))

    def comparison(width: int, logit: float) -> Tensor:
        strength: float = (logit * shape.head_dim**0.5 / min(width, len(places))) ** 0.5
        return strength * _rows(len(places), width, dice)

    queries, _ = heads.clear("q_proj", 0)
    keys, _ = heads.clear("k_proj", 0)
    compared = comparison(len(kept), MATCH)
    keys[places, parts.before] = compared
    queries[places, parts.token] = compared @ kept
    heads.carry(0, parts.token, _rows(shape.head_dim, _width(parts.token), dice), 0.7)
    if shape.kv_heads < 2:
        return
    group = shape.heads // shape.kv_heads
    queries, query_bias = heads.clear("q_proj", group)
    keys, key_bias = heads.clear("k_proj", 1)
    if layer < shape.layers - shape.pointers - 1:
        keys[places, parts.token] = queries[places, parts.token] = comparison(
            _width(parts.token), MATCH
        )
        both = slice(parts.before.start, parts.around.stop)
    else:
        alike = comparison(_width(parts.recent), ALIKE)
        keys[places, parts.recent] = queries[places, parts.recent] = alike
        both = slice(0, parts.around.stop)
    key_bias[fast], query_bias[fast] = 2.0, -2.0  # elsewhere: not nearby
    if layer >= shape.layers - shape.pointers:
        heads.carry(group, parts.token, _rows(shape.head_dim, _width(parts.token), dice), 1.5)
    else:
        heads.carry(group, both, _rows(shape.head_dim, _width(both), dice), 0.5)


def _turns(shape: Shape) -> Tensor:
    """By how much a step turns each pair of a head's dimensions."""
    return shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)


def _rows(count: int, columns: int, dice: torch.Generator) -> Tensor:
    """Orthogonal vectors of length one, as many as can be."""
    drawn = torch.empty(max(count, columns), min(count, columns)).normal_(generator=dice)
    orthogonal: Tensor = torch.linalg.qr(drawn)[0]
    return orthogonal if count >= columns else orthogonal.T


def _width(part: slice) -> int:
    return int(part.stop - part.start)


def repair_copying(reader: Reader, texts: Sequence[Tensor], loudness: float = 8.0) -> None:
    """Let the heads that point say again what they point at, in a network trained with faint words.

    Where embeddings are faint beside what the layers add, the last layers cannot tell which token
    stands where, and what they say is not what they point at. All embeddings become as loud as each
    other; the values of pointing heads are fitted to them, and those beside them keep what they
    said as well as they can (least squares).

    Args:
        reader: The network; changed in place, to be trained on.
        texts: Token ids of some passages, each of shape ``(length,)``.
        loudness: Length of an embedding.
    """
    shape, size = reader.shape, reader.shape.head_dim
    group, last = shape.heads // shape.kv_heads, shape.kv_heads - 1
    span = slice(last * size, (last + 1) * size)
    with torch.no_grad():
        embedding, norm = reader.model.embed_tokens.weight, reader.model.norm.weight
        embedding.mul_(loudness / embedding.norm(dim=1, keepdim=True).clamp(min=1e-3))
        norm.div_(loudness)
        words = torch.nn.functional.normalize(embedding * norm, dim=1)
        wanted = (words - words.mean(0))[torch.cat(list(texts))]
        for place in range(shape.layers - shape.pointers, shape.layers):
            attention: Any = reader.model.layers[place].self_attn
            seen = torch.cat([_inputs(reader, one)[place] for one in texts])
            fitted = _least_squares(seen, wanted, 1e-3)
            directions = torch.linalg.svd(seen @ fitted, full_matrices=False)[2][:size]
            values = (fitted @ directions.T).T
            old = seen @ attention.v_proj.weight[span].T + attention.v_proj.bias[span]
            values = values * (attention.v_proj.weight[span].norm() / values.norm())
            attention.v_proj.weight[span], attention.v_proj.bias[span] = values, 0.0
            new = seen @ values.T
            for head in range(last * group, shape.heads):
                written = attention.o_proj.weight[:, head * size : (head + 1) * size]
                if head == shape.heads - group:
                    heard = (new @ directions).norm(dim=1).mean()
                    written[:] = directions.T * (_POINTED_LOUDNESS / heard)
                else:
                    written[:] = _least_squares(new, old @ written.T, 1e-2).T


_POINTED_LOUDNESS = 30.0
"""Length of what a pointing head writes, about half that of all that stands there."""


def _inputs(reader: Reader, tokens: Tensor) -> list[Tensor]:
    """What each layer's attention reads, of shape ``(length, hidden)``."""
    x = reader.model.embed_tokens(tokens[None])
    turns = reader.cosine[: len(tokens)], reader.sine[: len(tokens)]
    read = []
    for place in range(reader.shape.layers):
        layer: Any = reader.model.layers[place]
        read.append(layer.input_layernorm(x)[0])
        x, _ = layer(x, turns, None)
    return read


def _least_squares(given: Tensor, wanted: Tensor, ridge: float) -> Tensor:
    square = given.T @ given + ridge * len(given) * torch.eye(given.shape[1])
    solved: Tensor = torch.linalg.solve(square, given.T @ wanted)
    return solved
