"""The supported architectures, each split into embeddings, layers and logits.

The layers are the model's own. This package decides which tokens go through them, what the tokens
see, and where keys and values are stored. An architecture that is not listed is refused: without
its factor on the embeddings, for example, a model would not fail but answer wrongly.

Encoded tokens are moved to other positions as the model encodes positions. Rotary embeddings (RoPE)
turn a key by an angle proportional to its position, so a key encoded at p moves to p' when it is
turned by the difference. ALiBi adds a bias to attention scores and leaves keys unchanged, so there
is nothing to turn. A learned table adds a vector to the token before the first layer, so its keys
are valid only where they were encoded (Prompt Cache §4.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ragcache_integrations.engine.in_vllm.kv_cache import ROPES
from ragcache_integrations.errors import ConfigurationError

from .attention import ATTENTION, Sight, attend

__all__ = [
    "DECODERS",
    "Decoder",
    "Learned",
    "Positions",
    "Rotary",
    "decoder_of",
]

ENDLESS = 2**31 - 1


class Positions:
    """A kind of position encoding. With linear biases (ALiBi), keys are the same everywhere.

    Attributes:
        movable: Whether keys may be used at other positions than those they were encoded at.
    """

    movable = True

    def place(self, keys: Tensor, into: Tensor, positions: Tensor, shift: int) -> None:  # noqa: ARG002 - one signature for all
        """Copy keys into a buffer, moved by ``shift`` positions.

        Args:
            keys: Keys as they were encoded, ``[layers, heads, tokens, head_dim]``.
            into: Destination of the same shape, in other memory.
            positions: Positions at which the keys were encoded, ``[tokens]``.
            shift: Added to these positions.

        Raises:
            ConfigurationError: The model's keys cannot move.
        """
        into.copy_(keys)


class Rotary(Positions):
    """RoPE whose frequencies do not depend on the length of the prompt.

    Args:
        frequencies: Radians per position, ``[head_dim / 2]``, in float32, as the model uses them.
    """

    def __init__(self, frequencies: Tensor) -> None:
        self._frequencies = frequencies.float()

    def place(self, keys: Tensor, into: Tensor, positions: Tensor, shift: int) -> None:
        """Turn keys by ``shift`` positions.

        A model rounds the angle of a position to float32. Turning by the difference of two rounded
        angles gives what the model would have computed at the new position, at any distance.
        """
        if shift == 0:
            into.copy_(keys)
            return
        frequencies = self._frequencies.to(into.device)
        before = positions.to(into.device)[:, None].float() * frequencies
        after = (positions.to(into.device) + shift)[:, None].float() * frequencies
        angles = after.double() - before.double()
        cos, sin = angles.cos().float(), angles.sin().float()
        keys = keys.to(into.device, non_blocking=True)
        if into.dtype == torch.float32:
            _turn(keys, into, cos, sin)
        else:
            turned = torch.empty(keys.shape, dtype=torch.float32, device=into.device)
            _turn(keys.float(), turned, cos, sin)
            into.copy_(turned)


def _turn(keys: Tensor, into: Tensor, cos: Tensor, sin: Tensor) -> None:
    half = keys.shape[-1] // 2
    first, second = keys[..., :half], keys[..., half:]
    torch.mul(first, cos, out=into[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=into[..., half:]).addcmul_(first, sin)


class Learned(Positions):
    """A table of learned vectors."""

    movable = False

    def place(self, keys: Tensor, into: Tensor, positions: Tensor, shift: int) -> None:
        """Copy keys that stay at their positions."""
        if shift:
            raise ConfigurationError(
                f"a module was to be moved by {shift} positions, but the model has a learned table "
                "of positions: encode the module at the position where it is used, with shift=0"
            )
        super().place(keys, into, positions, shift)


class Decoder(ABC):
    """A causal model, split into embeddings, layers and logits.

    Args:
        model: A ``...ForCausalLM`` of transformers.

    Attributes:
        body_path: Where the model has its embeddings, layers and last norm.
        layer_list: The name of its layers there.
        last_norm: The name of its last norm there.
        body: What is there.
        layers: The model's layers, in order.
        heads: Number of heads of keys and values.
        head_dim: Size of a head.
        limit: Number of positions.
        positions: Its position encoding.
        shares: Whether its attention accepts keys and values that a batch holds once.
    """

    body_path = "transformer"
    layer_list = "h"
    last_norm = "ln_f"
    shares = True

    def __init__(self, model: Any) -> None:
        self.model = model
        config = model.config
        self.limit: int = getattr(config, "max_position_embeddings", None) or ENDLESS
        self.heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_dim: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.body: Any = attrgetter(self.body_path)(model)
        self.layers: list[Any] = list(getattr(self.body, self.layer_list))
        self.positions = self._positions()

    @abstractmethod
    def _positions(self) -> Positions:
        """The position encoding.

        Raises:
            ConfigurationError: Its kind is not supported.
        """

    @abstractmethod
    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """The input of the first layer, ``[batch, tokens, hidden]``."""

    def prepare(self, hidden: Tensor, positions: Tensor, sight: Sight) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        """Further arguments of the layers; all layers get the same."""
        return {"attention_mask": sight}

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the vocabulary, from the output of the last layer."""
        scores: Tensor = self.model.lm_head(getattr(self.body, self.last_norm)(hidden))
        return scores

    def run(self, layer: int, hidden: Tensor, memory: Any, arguments: Mapping[str, Any]) -> Tensor:
        """Run a layer; ``memory`` stores its keys and values and returns those of all tokens."""
        output: Tensor = self.layers[layer](
            hidden, past_key_values=memory, use_cache=True, **arguments
        )
        return output


class RotaryDecoder(Decoder):
    """Llama, Mistral, Qwen2 and Qwen3."""

    body_path = "model"
    layer_list = "layers"
    last_norm = "norm"

    def _positions(self) -> Positions:
        rotary, config = self.body.rotary_emb, self.model.config
        # ``dynamic`` and ``longrope`` are not among them. Transformers recomputes their frequencies
        # from the highest position of the prompt, so keys encoded in a short text differ from those
        # in a long one.
        if rotary.rope_type not in ROPES:
            raise ConfigurationError(
                f"the model's RoPE is of type {rotary.rope_type!r}; keys can be moved where "
                f"frequencies do not depend on the length: {', '.join(ROPES)}"
            )
        if 2 * rotary.inv_freq.numel() != self.head_dim:
            raise ConfigurationError(
                f"the model rotates {2 * rotary.inv_freq.numel()} of {self.head_dim} dimensions of "
                "a head; allowed: all"
            )
        # Within the window, sliding attention is full attention.
        windows = getattr(config, "layer_types", None)
        if getattr(config, "sliding_window", None) and (
            windows is None or "sliding_attention" in windows
        ):
            self.limit = min(self.limit, config.sliding_window)
        _use_our_attention(self.model)
        return Rotary(rotary.inv_freq)

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:  # noqa: ARG002 - one signature for all
        hidden: Tensor = self.body.embed_tokens(token_ids)
        return hidden

    def prepare(self, hidden: Tensor, positions: Tensor, sight: Sight) -> dict[str, Any]:
        return {
            "attention_mask": sight,
            "position_ids": positions,
            "position_embeddings": self.body.rotary_emb(hidden, position_ids=positions),
        }


class Gpt2Decoder(Decoder):
    """GPT-2: a learned table of positions."""

    def _positions(self) -> Positions:
        _use_our_attention(self.model)
        return Learned()

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        hidden: Tensor = self.body.wte(token_ids) + self.body.wpe(positions)
        return hidden


class OptDecoder(Gpt2Decoder):
    """OPT: a learned table of positions."""

    body_path = "model.decoder"
    layer_list = "layers"

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        body = self.body
        hidden = body.embed_tokens(token_ids)
        if body.project_in is not None:
            hidden = body.project_in(hidden)
        placed: Tensor = hidden + body.embed_positions(None, 0, position_ids=positions)
        return placed

    def logits(self, hidden: Tensor) -> Tensor:
        for last in (self.body.final_layer_norm, self.body.project_out):
            hidden = hidden if last is None else last(hidden)
        scores: Tensor = self.model.lm_head(hidden)
        return scores


class AlibiDecoder(Decoder):
    """BLOOM and MPT: biases that grow with the distance."""

    shares = False

    def _positions(self) -> Positions:
        biases = self._two_biases()
        self._slopes = (biases[:, 0, 1] - biases[:, 0, 0]).to(self.model.device)
        return Positions()

    @abstractmethod
    def _two_biases(self) -> Tensor:
        """The model's own biases for a prompt of two tokens, ``[heads, 1, 2]``."""

    def _biases(self, hidden: Tensor, sight: Sight) -> Tensor:
        """The biases of all tokens, ``[batch, heads, 1, keys]``, in the type of ``hidden``."""
        biases = self._slopes[:, None, None] * sight.keys.float()[:, None, None, :]
        return biases.to(hidden.dtype)

    def run(self, layer: int, hidden: Tensor, memory: Any, arguments: Mapping[str, Any]) -> Tensor:
        output: Tensor = self.layers[layer](hidden, layer_past=memory, **arguments)[0]
        return output


class BloomDecoder(AlibiDecoder):
    """BLOOM: ALiBi."""

    def _two_biases(self) -> Tensor:
        two = torch.ones(1, 2, dtype=torch.long)
        heads = self.model.config.n_head
        biases: Tensor = self.body.build_alibi_tensor(two, heads, torch.float32)
        return biases

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:  # noqa: ARG002 - one signature for all
        words = self.body.word_embeddings(token_ids)
        hidden: Tensor = self.body.word_embeddings_layernorm(words)
        return hidden

    def prepare(self, hidden: Tensor, positions: Tensor, sight: Sight) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        return {
            "attention_mask": sight.bias(hidden.dtype),
            "alibi": self._biases(hidden, sight).flatten(0, 1),
        }


class MptDecoder(AlibiDecoder):
    """MPT: ALiBi."""

    layer_list = "blocks"
    last_norm = "norm_f"

    def _two_biases(self) -> Tensor:
        self.limit = self.model.config.max_seq_len
        biases: Tensor = self.body.build_mpt_alibi_tensor(self.model.config.n_heads, 2)
        return biases

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:  # noqa: ARG002 - one signature for all
        hidden: Tensor = self.body.wte(token_ids)
        return hidden

    def prepare(self, hidden: Tensor, positions: Tensor, sight: Sight) -> dict[str, Any]:  # noqa: ARG002 - one signature for all
        # The layers take biases of all rows alike, so several rows' ones go with the mask's shape.
        return {"attention_mask": ~sight.visible, "position_bias": self._biases(hidden, sight)}

    def run(self, layer: int, hidden: Tensor, memory: Any, arguments: Mapping[str, Any]) -> Tensor:
        biases = arguments["position_bias"]
        if len(biases) == 1:
            return super().run(layer, hidden, memory, {**arguments, "position_bias": biases[0]})
        # Row by row, because a layer of MPT takes one set of biases for the whole batch.
        rows = [
            self.layers[layer](
                hidden[row : row + 1],
                layer_past=memory.row(row),
                position_bias=bias,
                attention_mask=arguments["attention_mask"][row : row + 1],
            )[0]
            for row, bias in enumerate(biases)
        ]
        return torch.cat(rows)


DECODERS: Mapping[str, type[Decoder]] = MappingProxyType(
    {
        "llama": RotaryDecoder,
        "mistral": RotaryDecoder,
        "qwen2": RotaryDecoder,
        "qwen3": RotaryDecoder,
        "bloom": BloomDecoder,
        "mpt": MptDecoder,
        "gpt2": Gpt2Decoder,
        "opt": OptDecoder,
    }
)
"""The decoders by the ``model_type`` of the configuration."""


def decoder_of(model: Any) -> Decoder:
    """The decoder of a model.

    Args:
        model: A ``...ForCausalLM`` of transformers.

    Raises:
        ConfigurationError: Its architecture or its position encoding is not supported.
    """
    kind: Any = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in DECODERS or not hasattr(model, "lm_head"):
        raise ConfigurationError(
            f"a {type(model).__name__} of type {kind!r} cannot be served module by module, as its "
            f"position encoding is not known here; allowed: causal models of type "
            f"{', '.join(DECODERS)}"
        )
    return DECODERS[kind](model)


def _use_our_attention(model: Any) -> None:
    """Let the layers call our attention, which passes calls that are not ours on to SDPA."""
    import transformers  # noqa: PLC0415 - loaded with the model
    from transformers.masking_utils import sdpa_mask  # noqa: PLC0415 - loaded with the model

    transformers.AttentionInterface.register(ATTENTION, attend)
    transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)
