"""How a model encodes positions, and how encoded tokens are moved to other positions.

Rotary embeddings (RoPE) turn a key by an angle proportional to its position, so a key encoded at p
moves to p' when it is turned by the difference. ALiBi adds a bias to attention scores and leaves
keys unchanged, so there is nothing to turn. A learned table adds a vector to the token before the
first layer, so its keys are valid only where they were encoded (Prompt Cache §4.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ragcache_integrations.errors import ConfigurationError

__all__ = ["Alibi", "Learned", "Positions", "Rotary"]


class Positions(ABC):
    """A kind of position encoding.

    Attributes:
        movable: Whether keys may be used at other positions than those they were encoded at.
    """

    movable = True

    @abstractmethod
    def place(self, keys: Tensor, into: Tensor, positions: Tensor, shift: int) -> None:
        """Copy keys into a buffer, moved by ``shift`` positions.

        Args:
            keys: Keys as they were encoded, ``[layers, heads, tokens, head_dim]``.
            into: Destination of the same shape, in other memory.
            positions: Positions at which the keys were encoded, ``[tokens]``.
            shift: Added to these positions.

        Raises:
            ConfigurationError: The model's keys cannot move.
        """


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


class Alibi(Positions):
    """Linear biases: keys are the same everywhere."""

    def place(
        self,
        keys: Tensor,
        into: Tensor,
        positions: Tensor,  # noqa: ARG002 - one signature for all
        shift: int,  # noqa: ARG002 - one signature for all
    ) -> None:
        """Copy the keys unchanged."""
        into.copy_(keys)


class Learned(Positions):
    """A table of learned vectors."""

    movable = False

    def place(self, keys: Tensor, into: Tensor, positions: Tensor, shift: int) -> None:  # noqa: ARG002 - one signature for all
        """Copy keys that stay at their positions."""
        if shift:
            msg = (
                f"a module was to be moved by {shift} positions, but the model has a learned table "
                "of positions: encode the module at the position where it is used, with shift=0"
            )
            raise ConfigurationError(msg)
        into.copy_(keys)
