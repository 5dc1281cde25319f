"""The reader's network: a small Llama in plain torch, which compiles and trains fast.

Its weights have the names and shapes of Hugging Face's ``LlamaForCausalLM``, so that transformers
and vLLM load them as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Beside", "Looks", "Reader", "Shape", "read", "write"]

Looks = tuple[Tensor, Tensor]
"""Queries and keys of a head, turned by their places; or the cosines and sines that turn them."""


@dataclass(frozen=True)
class Beside:
    """How questions stand beside each other, behind documents that all of them read.

    Attributes:
        documents: Tokens of documents, padding included.
        block: Tokens of each question with its answer, padding included.
        padding: Which of the documents' tokens are padding, of shape ``(batch, documents)``.
    """

    documents: int
    block: int
    padding: Tensor


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults are for a GPU."""

    vocab_size: int = 8192
    hidden: int = 384
    intermediate: int = 1024
    layers: int = 10
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    positions: int = 4096
    rope_theta: float = 1_000_000.0
    eps: float = 1e-5
    pointers: int = 2
    """Last layers of which one head is taught to look at where an answer stands; one in the layer
    before is taught to look near it."""


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, queries)
        self.k_proj = nn.Linear(shape.hidden, keys)
        self.v_proj = nn.Linear(shape.hidden, keys)
        self.o_proj = nn.Linear(queries, shape.hidden)

    def forward(self, x: Tensor, turns: Looks, beside: Beside | None) -> tuple[Tensor, Looks]:
        batch, length, _ = x.shape
        size = self.shape.head_dim

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, -1, size).transpose(1, 2)

        queries = _turned(heads(self.q_proj(x)), turns)
        keys, values = _turned(heads(self.k_proj(x)), turns), heads(self.v_proj(x))
        end = length if beside is None else beside.documents
        out = functional.scaled_dot_product_attention(
            queries[:, :, :end],
            keys[:, :, :end],
            values[:, :, :end],
            is_causal=True,
            enable_gqa=True,
        )
        if beside is not None:
            out = torch.cat((out, _asked(queries, keys, values, beside)), 2)
        projected: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        # The first of the heads that share the last keys.
        pointer = self.shape.heads // self.shape.kv_heads
        return projected, (queries[:, -pointer], keys[:, -1])


def _asked(queries: Tensor, keys: Tensor, values: Tensor, beside: Beside) -> Tensor:
    """What questions see: all documents, and their own block up to where each token stands.

    Nothing is computed of what one question would see of another, which is most of what there is.
    """
    batch, heads, _, size = queries.shape
    documents, block, shared = beside.documents, beside.block, keys.shape[1]
    # Heads that share keys stand behind each other, as more questions would.
    mine = queries[:, :, documents:].reshape(batch, shared, -1, size)
    others, told = keys[:, :, :documents], values[:, :, :documents]
    blocks = shared, 1, -1, block, size
    own, own_told = (one[:, :, documents:].reshape(batch, *blocks) for one in (keys, values))
    scores = (mine @ others.mT).masked_fill(beside.padding[:, None, None], -torch.inf)
    grouped = mine.view(batch, shared, heads // shared, -1, block, size)
    later = torch.ones(block, block, dtype=torch.bool, device=queries.device).triu(1)
    near = (grouped @ own.mT).masked_fill(later, -torch.inf)
    every = torch.cat((scores.view(*near.shape[:-1], documents), near), -1)
    weights = (every.float() * size**-0.5).softmax(-1).to(values.dtype)
    far = weights[..., :documents].reshape(batch, shared, -1, documents) @ told
    heard: Tensor = far.view(grouped.shape) + weights[..., documents:] @ own_told
    return heard.reshape(batch, heads, -1, size)


class _MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = _Norm(shape.hidden, shape.eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = _Norm(shape.hidden, shape.eps)
        self.mlp = _MLP(shape)

    def forward(self, x: Tensor, turns: Looks, beside: Beside | None) -> tuple[Tensor, Looks]:
        attended, looks = self.self_attn(self.input_layernorm(x), turns, beside)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), looks


class _Trunk(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.hidden, shape.eps)


class Reader(nn.Module):
    """The network.

    Args:
        shape: Its sizes.
        twins: Pairs of tokens, the second of which is the first behind a space. They begin as the
            same vector but for one direction, so that an answer is spelt as a document spells it.
        seed: Draws the weights.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(
        self, shape: Shape, twins: list[tuple[int, int]] | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.shape = shape
        self.model = _Trunk(shape)
        place = torch.arange(shape.positions, dtype=torch.float32)
        steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.outer(place, shape.rope_theta**-steps).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        self._draw(twins or [], torch.Generator().manual_seed(seed))

    @property
    def parameter_count(self) -> int:
        """How many numbers are learnt."""
        return sum(one.numel() for one in self.parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        """The hidden states behind the last norm.

        Args:
            tokens: Token ids, of shape ``(batch, length)``.

        Returns:
            Of shape ``(batch, length, hidden)``.
        """
        return self.read(tokens)[0]

    def read(
        self, tokens: Tensor, places: Tensor | None = None, beside: Beside | None = None
    ) -> tuple[Tensor, list[Looks]]:
        """The hidden states, and what the heads look at that are to point at answers.

        Args:
            tokens: Token ids, of shape ``(batch, length)``.
            places: Their positions, of the same shape; one after the other where there are none.
            beside: How questions stand beside each other; where there is none, each token sees
                itself and those before.

        Returns:
            Hidden states of shape ``(batch, length, hidden)``; of each pointing head its queries
            and keys, both of shape ``(batch, length, head_dim)``.
        """
        x = self.model.embed_tokens(tokens)
        at = torch.arange(tokens.shape[1], device=x.device) if places is None else places[:, None]
        turns = self.cosine[at].to(x.dtype), self.sine[at].to(x.dtype)
        looks = []
        for layer in self.model.layers:
            x, look = layer(x, turns, beside)
            looks.append(look)
        return self.model.norm(x), looks[-self.shape.pointers - 1 :]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, of shape ``(..., vocab_size)``; the head is the embedding."""
        return functional.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    def _draw(self, twins: list[tuple[int, int]], dice: torch.Generator) -> None:
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if name.endswith(".bias"):
                    weight.zero_()
                if weight.dim() < 2:
                    continue
                spread = 0.02
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    spread /= (2 * self.shape.layers) ** 0.5
                weight.normal_(0.0, spread, generator=dice)
            embedding = self.model.embed_tokens.weight
            if twins:
                bare, spaced = (torch.tensor(one) for one in zip(*twins, strict=True))
                space = torch.empty(self.shape.hidden).normal_(0.0, 0.02, generator=dice)
                embedding[spaced] = embedding[bare] + space


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


_NAMES = {
    "vocab_size": "vocab_size",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "positions": "max_position_embeddings",
    "eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
}
"""What Hugging Face's configuration calls a shape's sizes."""


def write(reader: Reader, folder: Path) -> None:
    """Write weights, in bfloat16, and configuration as transformers reads them."""
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in reader.named_parameters()
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    shape = reader.shape
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{theirs: getattr(shape, ours) for ours, theirs in _NAMES.items()},
        "hidden_act": "silu",
        "attention_bias": True,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "dtype": "bfloat16",
    }
    # Servers take the temperature from here where a client names none.
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False, "temperature": 0.0}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Reader:
    """Read what :func:`write` wrote, in float32."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    reader = Reader(Shape(**{ours: config[theirs] for ours, theirs in _NAMES.items()}))
    weights = load_file(str(folder / "model.safetensors"))
    reader.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return reader
