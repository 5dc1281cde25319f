"""The default model: the reader where it is installed, else a tiny Llama with random weights.

Both are made on the spot and kept in the cache. The reader is SmolLM2 with what it was taught
(:mod:`ragcache_reader`).

The tiny one needs no download and computes like any other model of its size, so that timings,
caching and concurrency are real; what it says is noise. The weights are drawn so that the noise
depends on the whole prompt: different prompts give different answers even under greedy decoding, as
a test of a KV cache needs. Small ordinary initialisation would not do: attention would average over
the prompt, and every answer would be the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ModelNotFoundError
from ragcache_integrations.resources import load_passages, load_questions
from ragcache_integrations.resources.cache import build_once, cache_home

__all__ = [
    "default_model_path",
    "has_random_weights",
    "random_model_path",
    "reader_is_installed",
]

logger = logging.getLogger(__name__)

CHOICE = "RAGCACHE_DEFAULT_MODEL"
"""Environment variable: ``random`` selects random weights even if the reader is installed, and
``random-small`` a smaller model of that kind, for tests of applications: its steps take less time,
its KV cache takes as many bytes."""

BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (BOS, EOS, PAD, *(f"<|{role}|>" for role in ROLES))

# Only special tokens separate the turns, no white space: the text of a turn is tokenised as it
# would be alone. Tools are defined, and called, as in the templates of the Hermes family.
CHAT_TEMPLATE = "".join(
    files(__package__).joinpath("tiny_model.jinja").read_text("utf-8").splitlines()
)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Everything that decides what the model is; its hash names the folder.

    The spreads are standard deviations of what a matrix puts out for an input of unit variance.
    """

    revision: int = 1  # to be raised when the code below changes what comes out
    seed: int = 20250
    vocab_size: int = 4096
    max_positions: int = 8192
    hidden: int = 512
    intermediate: int = 1408
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10_000.0
    # Attention scores have the standard deviation query_spread * key_spread. In the first layer it
    # is so large that each head picks a few tokens among a thousand: that is what makes the answer
    # depend on the whole prompt. The later ones average, which keeps rounding errors from growing:
    # log-probabilities in float32 agree within 1e-5 however a prompt is split into chunks, also
    # where vectors are as short as AVX2's (with a second sharp layer, they did not).
    sharp_layers: int = 1
    sharp_query_spread: float = 4.0
    query_spread: float = 0.5
    key_spread: float = 1.5
    sharp_attention_spread: float = 2.0
    attention_spread: float = 1.0
    mlp_spread: float = 0.5
    logit_spread: float = 2.5
    # Added to logits, through one hidden dimension that is the same everywhere. Structured output
    # must come to its end: a string closes now and then, a number or a list stops, and white space,
    # of which JSON allows any amount, is rare. So are control characters and parts of characters.
    quote_bias: float = 5.5
    punctuation_bias: float = 3.0
    unprintable_bias: float = -10.0
    # Root mean square of the last hidden state before its norm, as it comes out of these spreads.
    last_hidden_size: float = 2.0


_RECIPES = {
    "random": _Recipe(),
    "random-small": _Recipe(hidden=256, intermediate=512, layers=3, kv_heads=4),
}


def reader_is_installed() -> bool:
    """Whether the default model is the reader: its distribution is installed (extra ``reader``).

    It is not where the environment variable ``RAGCACHE_DEFAULT_MODEL`` is ``random`` or
    ``random-small``.
    """
    return os.environ.get(CHOICE) not in _RECIPES and find_spec("ragcache_reader") is not None


def default_model_path() -> Path:
    """Folder of the bundled model, which is made on the first call.

    Returns:
        A folder in the format of Hugging Face transformers: config, tokenizer with chat template,
        weights in bfloat16 (the reader's) or float32. The same bytes on every machine of a kind.

    Raises:
        MissingExtraError: tokenizers or safetensors is not installed; vLLM brings both.
        ModelNotFoundError: What the reader is made from is missing or damaged; the message names
            the command that mends it.
        ConfigurationError: The cache folder cannot be written to, or has no room.
    """
    if reader_is_installed():
        return _reader_path()
    _notice()
    choice = os.environ.get(CHOICE, "")
    return random_model_path(choice if choice in _RECIPES else "random")


def random_model_path(name: str = "random") -> Path:
    """Folder of the tiny model with random weights, whether or not it is the default.

    Args:
        name: ``random``, or ``random-small`` for the smaller one.

    Raises:
        KeyError: There is no such model.
        MissingExtraError: tokenizers or safetensors is not installed; vLLM brings both.
        ConfigurationError: The cache folder cannot be written to, or has no room.
    """
    recipe = _RECIPES[name]
    return build_once(cache_home() / "models" / f"tiny-llama-{_digest(recipe)}", _Builder(recipe))


def has_random_weights(model: str | Path | None) -> bool:
    """Whether a model is the tiny one that says noise; ``None`` is the default model."""
    if reader_is_installed():
        return False
    return model is None or Path(model) == default_model_path()


def _reader_path() -> Path:
    reader = require("ragcache_reader", feature="the default model", extra="reader")

    def build(folder: Path) -> None:
        logger.warning(
            "No model was named: making the bundled reader, which takes 5 to 20 s, once. "
            "It is kept in %s (272 MB).",
            folder.parent,
        )
        reader.build(folder)

    try:
        return build_once(cache_home() / "models" / f"reader-{reader.digest()}", build)
    except reader.FilesError as error:
        raise ModelNotFoundError(str(error)) from error


@cache  # once per process
def _notice() -> None:
    logger.warning(
        "No model was named: using a tiny one with random weights. "
        "Its text is noise, its timings are real."
    )


def _training_text() -> list[str]:
    return [
        *(text for passage in load_passages() for text in (passage.title, passage.text)),
        *(question.text for question in load_questions()),
    ]


def _digest(recipe: _Recipe) -> str:
    what = [asdict(recipe), SPECIAL_TOKENS, CHAT_TEMPLATE, _training_text()]
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=8).hexdigest()


class _Builder:
    """Writes the model into a folder."""

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._rng = np.random.default_rng(recipe.seed)

    def __call__(self, folder: Path) -> None:
        safetensors = require(
            "safetensors.numpy", feature="the tiny default model", extra="vllm-cpu"
        )
        tokenizer = self._tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        _write_json(folder / "tokenizer_config.json", self._tokenizer_config())
        _write_json(folder / "config.json", self._config())
        _write_json(
            folder / "generation_config.json",
            {"bos_token_id": _special(BOS), "eos_token_id": _special(EOS), "do_sample": False},
        )
        weights = safetensors.save(self._weights(tokenizer.get_vocab()), metadata={"format": "pt"})
        (folder / "model.safetensors").write_bytes(weights)

    def _tokenizer(self) -> Any:
        tokenizers = require("tokenizers", feature="the tiny default model", extra="vllm-cpu")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=self._recipe.vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=_alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_training_text(), trainer)
        return tokenizer

    def _tokenizer_config(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self._recipe.max_positions,
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "extra_special_tokens": [f"<|{role}|>" for role in ROLES],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }

    def _config(self) -> dict[str, Any]:
        recipe = self._recipe
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": recipe.vocab_size,
            "hidden_size": recipe.hidden,
            "intermediate_size": recipe.intermediate,
            "num_hidden_layers": recipe.layers,
            "num_attention_heads": recipe.heads,
            "num_key_value_heads": recipe.kv_heads,
            "head_dim": recipe.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": recipe.max_positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": recipe.rope_theta,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": _special(BOS),
            "eos_token_id": _special(EOS),
            "pad_token_id": _special(PAD),
            "dtype": "float32",
        }

    def _weights(self, vocabulary: dict[str, int]) -> dict[str, NDArray[np.float32]]:
        recipe = self._recipe
        hidden, inner = recipe.hidden, recipe.intermediate
        queries, keys = recipe.heads * recipe.head_dim, recipe.kv_heads * recipe.head_dim
        ones = np.ones(hidden, np.float32)
        embeddings = self._matrix(recipe.vocab_size, hidden, hidden**0.5)
        head = self._matrix(recipe.vocab_size, hidden, recipe.logit_spread)
        head[: len(SPECIAL_TOKENS)] = 0  # unlikely: an answer is as long as it was asked to be
        embeddings[:, 0], head[:, 0] = 1, 0  # the dimension that no layer writes to
        for token, bias in self._biases():
            head[vocabulary[token], 0] = bias * recipe.last_hidden_size
        weights = {
            "model.embed_tokens.weight": embeddings,
            "model.norm.weight": ones,
            "lm_head.weight": head,
        }
        for layer in range(recipe.layers):
            sharp = layer < recipe.sharp_layers
            query_spread = recipe.sharp_query_spread if sharp else recipe.query_spread
            attention_spread = recipe.sharp_attention_spread if sharp else recipe.attention_spread
            attention_out = self._matrix(hidden, queries, attention_spread)
            mlp_out = self._matrix(hidden, inner, recipe.mlp_spread)
            attention_out[0] = mlp_out[0] = 0
            name = f"model.layers.{layer}."
            weights |= {
                name + "input_layernorm.weight": ones,
                name + "self_attn.q_proj.weight": self._matrix(queries, hidden, query_spread),
                name + "self_attn.k_proj.weight": self._matrix(keys, hidden, recipe.key_spread),
                name + "self_attn.v_proj.weight": self._matrix(keys, hidden, 1.0),
                name + "self_attn.o_proj.weight": attention_out,
                name + "post_attention_layernorm.weight": ones,
                name + "mlp.gate_proj.weight": self._matrix(inner, hidden, 1.0),
                name + "mlp.up_proj.weight": self._matrix(inner, hidden, 1.0),
                name + "mlp.down_proj.weight": mlp_out,
            }
        return weights

    def _biases(self) -> Iterator[tuple[str, float]]:
        recipe = self._recipe
        yield '"', recipe.quote_bias
        for token in ",:}]":
            yield token, recipe.punctuation_bias
        for token in _alphabet():  # one entry a byte; printable ASCII stands for itself
            if not "!" <= token <= "~":
                yield token, recipe.unprintable_bias

    def _matrix(self, rows: int, columns: int, spread: float) -> NDArray[np.float32]:
        matrix = self._rng.standard_normal((rows, columns), np.float32)
        matrix *= np.float32(spread / columns**0.5)
        return matrix


def _alphabet() -> list[str]:
    tokenizers = require("tokenizers", feature="the tiny default model", extra="vllm-cpu")
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def _special(token: str) -> int:
    return SPECIAL_TOKENS.index(token)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
