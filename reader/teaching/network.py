"""A Llama whose weights stay as they are, and a low-rank delta to them that is learnt.

Many questions share a prompt's documents. Tokens of one page are packed: what all questions read,
then the questions one behind the other, each of which sees the former and itself. Attention is
computed for stretches of tokens that see the same (:class:`Stretch`), so that documents read whole
and documents encoded each by itself are the same code with other stretches.

Matrix products are in bfloat16, sums along the layers in float32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Delta", "Network", "Packed", "Rows", "Shape", "Stretch"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Numbers of ``config.json`` that the arithmetic needs."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    epsilon: float

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """From a model's folder."""
        facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(
            facts["num_hidden_layers"],
            facts["hidden_size"],
            facts["intermediate_size"],
            facts["num_attention_heads"],
            facts["num_key_value_heads"],
            facts["head_dim"],
            facts["rope_theta"],
            facts["rms_norm_eps"],
        )

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Name, outputs and inputs of each matrix of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "self_attn.q_proj", queries, self.hidden
        yield "self_attn.k_proj", keys, self.hidden
        yield "self_attn.v_proj", keys, self.hidden
        yield "self_attn.o_proj", self.hidden, queries
        yield "mlp.gate_proj", self.inner, self.hidden
        yield "mlp.up_proj", self.inner, self.hidden
        yield "mlp.down_proj", self.hidden, self.inner


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens that see the same others.

    Attributes:
        queries: The tokens, as a slice of what is shared.
        keys: What they see, as a slice of the same.
        unseen: Of shape ``(queries, keys)``, where a token does not see another.
    """

    queries: slice
    keys: slice
    unseen: Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """A page's tokens.

    Attributes:
        tokens: Ids: what is shared, then each question with its answer.
        places: At which position each stands.
        stretches: They cover what is shared.
        read: Which of the shared tokens questions see, as indices.
        lengths: Of the questions, answers included.
        said: Of the answers, their ends included.
        learnt: Indices of tokens from which the next one is to be foretold.
        next: That next token.
        weights: What each counts.
    """

    tokens: Tensor
    places: Tensor
    stretches: Sequence[Stretch]
    read: Tensor
    lengths: Sequence[int]
    said: Sequence[int]
    learnt: Tensor
    next: Tensor
    weights: Tensor

    @property
    def shared(self) -> int:
        """How many tokens all questions read, those included that they do not see."""
        return len(self.tokens) - sum(self.lengths)

    def to(self, device: torch.device) -> Packed:
        """The same with its tensors on a device."""
        stretches = [replace(part, unseen=part.unseen.to(device)) for part in self.stretches]
        return replace(self, stretches=stretches, **_moved(self, device))


@dataclass(frozen=True, slots=True)
class Rows:
    """Pages side by side in rows of one length, for devices that compute much at once.

    Attributes:
        tokens: Ids, of shape ``(rows, length)``, as are the next four.
        places: At which position of its page each stands.
        pages: Which page each belongs to; -1 where nothing stands.
        groups: Who belongs together within a page: 0 for what is computed in place,
            above it for each document that is encoded by itself, below it for each question.
        final: Whether what is computed in place, and questions, see it.
        said: Tokens of the answers, their ends included.
        learnt: Indices of tokens from which the next one is to be foretold, counted over all rows.
        next: That next token.
        weights: What each counts.
    """

    tokens: Tensor
    places: Tensor
    pages: Tensor
    groups: Tensor
    final: Tensor
    said: Sequence[int]
    learnt: Tensor
    next: Tensor
    weights: Tensor

    @classmethod
    def of(cls, packed: Sequence[Packed], length: int) -> Rows:
        """Put pages into as few rows as their order of size allows.

        Args:
            packed: The pages, none of which is longer than a row.
            length: Tokens of a row.
        """
        rooms: list[int] = []
        spots: list[tuple[int, Packed]] = []
        for page in sorted(packed, key=lambda page: -len(page.tokens)):
            row = next(
                (at for at, room in enumerate(rooms) if room >= len(page.tokens)), len(rooms)
            )
            if row == len(rooms):
                rooms.append(length)
            spots.append(((row + 1) * length - rooms[row], page))
            rooms[row] -= len(page.tokens)
        size = len(rooms) * length
        tokens, places, groups = (torch.zeros(size, dtype=torch.long) for _ in range(3))
        pages, final = torch.full((size,), -1), torch.zeros(size, dtype=torch.bool)
        for number, (first, page) in enumerate(spots):
            begin, whole = first, slice(first, first + len(page.tokens))
            tokens[whole], places[whole], pages[whole] = page.tokens, page.places, number
            for at, part in enumerate(page.stretches):
                # A document that is encoded by itself sees nothing from the page's beginning.
                own = at if part.keys.start else 0
                groups[begin + part.queries.start : begin + part.queries.stop] = own
            final[begin + page.read] = True
            begin += page.shared
            for at, question in enumerate(page.lengths):
                groups[begin : begin + question] = -1 - at
                begin += question
        shape = (len(rooms), length)
        return cls(
            tokens.view(shape),
            places.view(shape),
            pages.view(shape),
            groups.view(shape),
            final.view(shape),
            [length for _, page in spots for length in page.said],
            torch.cat([begin + page.learnt for begin, page in spots]),
            torch.cat([page.next for _, page in spots]),
            torch.cat([page.weights for _, page in spots]),
        )

    def to(self, device: torch.device) -> Rows:
        """The same with its tensors on a device."""
        return replace(self, **_moved(self, device))

    def seen(self) -> Tensor:
        """Of shape ``(rows, length, length)``: whether a token sees another."""
        groups, others = self.groups[:, :, None], self.groups[:, None, :]
        within = self.pages[:, :, None] == self.pages[:, None, :]
        before = self.places[:, :, None] >= self.places[:, None, :]
        return within & before & ((groups == others) | (self.final[:, None, :] & (groups <= 0)))


class Delta(nn.Module):
    """What is learnt: for each matrix the product of two of low rank.

    Args:
        shape: Of the network.
        rank: Of the products.
        seed: Draws the inner matrices; the outer ones begin with nothing.
    """

    def __init__(self, shape: Shape, rank: int, seed: int = 0) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(seed)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for layer in range(shape.layers):
            for name, outputs, inputs in shape.matrices():
                key = f"{layer}.{name}".replace(".", "/")
                drawn = torch.randn(rank, inputs, generator=dice) / inputs**0.5
                self.down[key] = nn.Parameter(drawn)
                self.up[key] = nn.Parameter(torch.zeros(outputs, rank))

    def pair(self, layer: int, name: str) -> tuple[Tensor, Tensor]:
        """The two matrices, the inner one first."""
        key = f"{layer}.{name}".replace(".", "/")
        return self.down[key], self.up[key]

    def tensors(self) -> dict[str, Tensor]:
        """All of them by names like ``0.mlp.up_proj.up``, to be saved."""
        named = {}
        for side, matrices in (("down", self.down), ("up", self.up)):
            for key, matrix in matrices.items():
                named[f"{key.replace('/', '.')}.{side}"] = matrix.detach()
        return named

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        for name, matrix in self.tensors().items():
            matrix.copy_(tensors[name])

    @property
    def rank(self) -> int:
        """Of the products."""
        return len(next(iter(self.down.values())))


@dataclass(frozen=True, slots=True)
class _Joined:
    """Matrices that read the same input, as one, with their deltas in bfloat16."""

    weight: Tensor
    down: Tensor
    ups: tuple[Tensor, ...]

    def __call__(self, values: Tensor) -> Tensor:
        within = functional.linear(values, self.down).chunk(len(self.ups), -1)
        changes = [functional.linear(part, up) for part, up in zip(within, self.ups, strict=True)]
        change = changes[0] if len(changes) == 1 else torch.cat(changes, -1)
        return functional.linear(values, self.weight) + change


class Network:
    """The network with a delta.

    Args:
        folder: The model whose weights stay, in the format of transformers.
        delta: What is added to them.
        kind: Of the numbers that are multiplied.
        device: Where it computes; the delta is there already.
    """

    def __init__(
        self,
        folder: Path,
        delta: Delta,
        kind: torch.dtype = torch.bfloat16,
        device: str = "cpu",
    ) -> None:
        self.shape, self.delta, self._kind = Shape.read(folder), delta, kind
        self.device = torch.device(device)
        weights = load_file(folder / "model.safetensors", device=device)
        self._weights = {name: weight.to(kind) for name, weight in weights.items()}
        self._embeddings = self._weights["model.embed_tokens.weight"]
        self._groups: dict[tuple[int, tuple[str, ...]], Tensor] = {}
        for layer in range(self.shape.layers):
            for names in _GROUPS:
                parts = [self._weights.pop(_full(layer, name)) for name in names]
                self._groups[layer, names] = torch.cat(parts)
        half = self.shape.head_dim // 2
        self._turns = self.shape.theta ** -(torch.arange(half, device=self.device) / half)

    def loss(self, page: Packed | Rows) -> tuple[Tensor, Tensor]:
        """Weighted sum of the losses, and which of the tokens would have been said, greedily."""
        page = page.to(self.device)
        hidden = self._hidden_of_rows(page) if isinstance(page, Rows) else self._hidden(page)[0]
        logits = functional.linear(hidden[page.learnt].to(self._kind), self._embeddings).float()
        losses = functional.cross_entropy(logits, page.next, reduction="none")
        return (losses * page.weights).sum(), logits.detach().argmax(-1) == page.next

    @torch.no_grad()
    def answers(self, page: Packed, end: int, most: int) -> list[list[int]]:
        """Answer each question greedily.

        Args:
            page: Questions without their answers.
            end: The token that ends an answer.
            most: Tokens of an answer.
        """
        page = page.to(self.device)
        hidden, caches = self._hidden(page)
        said, begin = [], page.shared
        for number, length in enumerate(page.lengths):
            begin += length
            own = [(keys[number], values[number]) for keys, values in caches[1]]
            cache = [
                (torch.cat([k, a[:, :length]], 1), torch.cat([v, b[:, :length]], 1))
                for (k, v), (a, b) in zip(caches[0], own, strict=True)
            ]
            tokens: list[int] = []
            state, place = hidden[begin - 1], int(page.places[begin - 1])
            while len(tokens) < most:
                logits = functional.linear(state.to(self._kind), self._embeddings)
                token = int(logits.float().argmax())
                if token == end:
                    break
                tokens.append(token)
                place += 1
                if len(tokens) < most:
                    state = self._step(token, place, cache)
            said.append(tokens)
        return said

    def _hidden(self, page: Packed) -> tuple[Tensor, tuple[list[_Pair], list[_Pair]]]:
        shape = self.shape
        cosine, sine = self._angles(page.places)
        state = functional.embedding(page.tokens, self._embeddings).float()
        index, valid, unseen = (made.to(self.device) for made in _padded(page.lengths, page.shared))
        keep = not torch.is_grad_enabled()
        caches: tuple[list[_Pair], list[_Pair]] = [], []
        for layer in range(shape.layers):
            queries, keys, values = self._projected(layer, state, cosine, sine)
            parts = [
                _attend(queries[part.queries], keys[part.keys], values[part.keys], part.unseen)
                for part in page.stretches
            ]
            seen = keys[page.read], values[page.read]
            own = keys[index], values[index]
            parts.append(_ask(queries[index], *seen, *own, unseen)[valid])
            mixed = torch.cat(parts)
            if keep:
                caches[0].append((seen[0].transpose(0, 1), seen[1].transpose(0, 1)))
                caches[1].append((own[0].transpose(1, 2), own[1].transpose(1, 2)))
            state = self._after(layer, state, mixed)
        return self._normed("model.norm", state), caches

    def _hidden_of_rows(self, rows: Rows) -> Tensor:
        """Of all rows, one behind the other."""
        shape, (count, length) = self.shape, rows.tokens.shape
        cosine, sine = self._angles(rows.places.flatten())
        state = functional.embedding(rows.tokens.flatten(), self._embeddings).float()
        scores = torch.zeros(count, 1, length, length, dtype=self._kind, device=self.device)
        scores = scores.masked_fill(~rows.seen()[:, None], -torch.inf)
        scores = scores.expand(-1, shape.heads, -1, -1)
        for layer in range(shape.layers):
            queries, keys, values = (
                part.view(count, length, -1, shape.head_dim).transpose(1, 2)
                for part in self._projected(layer, state, cosine, sine)
            )
            groups = shape.heads // shape.kv_heads
            mixed = functional.scaled_dot_product_attention(
                queries,
                keys.repeat_interleave(groups, 1),
                values.repeat_interleave(groups, 1),
                scores,
            )
            state = self._after(layer, state, mixed.transpose(1, 2).reshape(count * length, -1))
        return self._normed("model.norm", state)

    def _step(self, token: int, place: int, cache: list[_Pair]) -> Tensor:
        state = self._embeddings[token].float()[None]
        cosine, sine = self._angles(torch.tensor([place], device=self.device))
        for layer in range(self.shape.layers):
            queries, keys, values = self._projected(layer, state, cosine, sine)
            before = cache[layer]
            now = (
                torch.cat([before[0], keys.transpose(0, 1)], 1),
                torch.cat([before[1], values.transpose(0, 1)], 1),
            )
            cache[layer] = now
            mixed = _attend(queries, now[0].transpose(0, 1), now[1].transpose(0, 1), None)
            state = self._after(layer, state, mixed)
        return self._normed("model.norm", state)[0]

    def _projected(
        self, layer: int, state: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        normed = self._normed(_full(layer, "input_layernorm", ""), state).to(self._kind)
        joined = self._joined(layer, _GROUPS[0])(normed)
        joined = joined.view(len(joined), -1, shape.head_dim)
        heads = [shape.heads, shape.kv_heads, shape.kv_heads]
        queries, keys, values = torch.split(joined, heads, 1)
        return _turned(queries, cosine, sine), _turned(keys, cosine, sine), values

    def _after(self, layer: int, state: Tensor, mixed: Tensor) -> Tensor:
        state = state + self._joined(layer, _GROUPS[1])(mixed)
        normed = self._normed(_full(layer, "post_attention_layernorm", ""), state).to(self._kind)
        gate, up = self._joined(layer, _GROUPS[2])(normed).chunk(2, -1)
        return state + self._joined(layer, _GROUPS[3])(functional.silu(gate) * up)

    def _joined(self, layer: int, names: tuple[str, ...]) -> _Joined:
        downs, ups = zip(*(self.delta.pair(layer, name) for name in names), strict=True)
        return _Joined(
            self._groups[layer, names],
            torch.cat(downs).to(self._kind),
            tuple(up.to(self._kind) for up in ups),
        )

    def _normed(self, name: str, state: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"].float()
        return functional.rms_norm(state, state.shape[-1:], weight, self.shape.epsilon)

    def _angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        angles = places[:, None].float() * self._turns
        angles = torch.cat([angles, angles], -1)[:, None]
        return angles.cos(), angles.sin()

    @torch.no_grad()
    def merge(self) -> None:
        """Add the delta to the weights and round them, as they are served; it is nothing then."""
        merged = self.merged()
        for layer, names in self._groups:
            self._groups[layer, names] = torch.cat([merged[_full(layer, name)] for name in names])
        for outer in self.delta.up.values():
            outer.zero_()

    def merged(self) -> Mapping[str, Tensor]:
        """All weights, rounded, with the delta added, by their names in transformers."""
        named = dict(self._weights)
        sizes = {name: outputs for name, outputs, _ in self.shape.matrices()}
        for (layer, names), weight in self._groups.items():
            for name, part in zip(
                names, torch.split(weight, [sizes[one] for one in names]), strict=True
            ):
                down, up = self.delta.pair(layer, name)
                named[_full(layer, name)] = (part.float() + up.detach() @ down.detach()).to(
                    self._kind
                )
        return named


_Pair = tuple[Tensor, Tensor]
_GROUPS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Matrices with the same input."""


def _moved(holder: Packed | Rows, device: torch.device) -> dict[str, Any]:
    values = {field.name: getattr(holder, field.name) for field in fields(holder)}
    return {
        name: value.to(device, non_blocking=True)
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _full(layer: int, name: str, suffix: str = ".weight") -> str:
    return f"model.layers.{layer}.{name}{suffix}"


def _turned(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    exact = values.float()
    first, second = exact.chunk(2, -1)
    return (exact * cosine + torch.cat([-second, first], -1) * sine).to(values.dtype)


def _grouped(queries: Tensor, groups: int) -> Tensor:
    """Queries ``(..., tokens, heads, size)`` as ``(..., groups, heads of it * tokens, size)``.

    They are scaled: their products with keys are scores.
    """
    *outer, tokens, heads, size = queries.shape
    queries = queries.view(*outer, tokens, groups, heads // groups, size) * size**-0.5
    return queries.movedim(-4, -2).reshape(*outer, groups, -1, size)


def _ungrouped(mixed: Tensor, tokens: int) -> Tensor:
    """The reverse of :func:`_grouped`, with all heads of a token side by side."""
    *outer, groups, rows, size = mixed.shape
    mixed = mixed.view(*outer, groups, rows // tokens, tokens, size).movedim(-2, -4)
    return mixed.reshape(*outer, tokens, -1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, unseen: Tensor | None) -> Tensor:
    """Attention of tokens to those that they see; shapes ``(tokens, heads, size)``."""
    groups = keys.shape[1]
    scores = _grouped(queries, groups) @ keys.permute(1, 2, 0)
    if unseen is not None:
        view = scores.view(groups, -1, *unseen.shape).masked_fill(unseen, -torch.inf)
        scores = view.view(scores.shape)
    return _ungrouped(scores.softmax(-1) @ values.transpose(0, 1), len(queries))


def _ask(
    queries: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own: Tensor, unseen: Tensor
) -> Tensor:
    """Attention of questions to what is shared, and each to itself.

    Args:
        queries: Of shape ``(questions, length, heads, size)``.
        keys: Shared, of shape ``(tokens, groups, size)``.
        values: The same.
        own_keys: Of shape ``(questions, length, groups, size)``.
        own: Values of the same shape.
        unseen: Of shape ``(length, length)``.

    Returns:
        Of shape ``(questions, length, heads * size)``.
    """
    count, length = queries.shape[:2]
    groups, size = keys.shape[1:]
    grouped = _grouped(queries, groups)  # questions, groups, heads of it * length, size
    rows = grouped.shape[2]
    flat = grouped.transpose(0, 1).reshape(groups, -1, size)
    shared = (flat @ keys.permute(1, 2, 0)).view(groups, count, rows, -1)
    private = grouped @ own_keys.permute(0, 2, 3, 1)
    private = private.view(count, groups, -1, length, length).masked_fill(unseen, -torch.inf)
    private = private.view(count, groups, rows, length).transpose(0, 1)
    shares = torch.cat([shared, private], -1).softmax(-1)
    to_shared, to_own = shares[..., : len(keys)], shares[..., len(keys) :]
    mixed = (to_shared.reshape(groups, count * rows, -1) @ values.transpose(0, 1)).view(
        groups, count, rows, size
    ).transpose(0, 1) + to_own.transpose(0, 1) @ own.transpose(1, 2)
    return _ungrouped(mixed, length)


def _padded(lengths: Sequence[int], begin: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of questions' tokens as rows of one length, which are real, and a causal mask."""
    sizes = torch.tensor(lengths)
    longest = int(sizes.max())
    along = torch.arange(longest)
    valid = along < sizes[:, None]
    starts = begin + torch.cumsum(sizes, 0) - sizes
    index = torch.where(valid, starts[:, None] + along, starts[:, None])
    return index, valid, torch.ones(longest, longest, dtype=torch.bool).triu(1)
