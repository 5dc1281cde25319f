"""Encodes modules: each is run through the model once, on its own, and kept."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    GenerationTimeoutError,
    PromptTooLongError,
)
from ragcache_integrations.prompts.pml import Module

from .attention import Sight
from .decoders import Decoder
from .memory import BufferPool, Memory
from .plan import served_offsets
from .store import ModuleStore

__all__ = ["Cancelled", "Encoded", "ModuleEncoder", "Patience", "run_layers"]


class Cancelled(Exception):  # noqa: N818 - a request by the caller, not an error
    """The request was cancelled."""


class Patience:
    """The deadline of a request, and whether it was cancelled; checked before every layer.

    Args:
        timeout: Seconds from now; ``None`` for no limit.

    Attributes:
        cancelled: Whether the request was cancelled.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._until = None if timeout is None else time.monotonic() + timeout
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the request. Safe to call from any thread."""
        self.cancelled = True

    def check(self) -> None:
        """Return if the request may continue.

        Raises:
            Cancelled: The request was cancelled.
            GenerationTimeoutError: The deadline has passed.
        """
        if self.cancelled:
            raise Cancelled
        if self._until is not None and time.monotonic() > self._until:
            raise GenerationTimeoutError(f"no complete answer within {self._timeout:g} s")


@dataclass(frozen=True, eq=False, slots=True)
class Encoded:
    """Keys and values of the tokens of a module that serve.

    Attributes:
        data: ``[layers, 2, heads, tokens, head_dim]``.
        positions: Positions at which the tokens were encoded, ``[tokens]``.
    """

    data: Tensor
    positions: Tensor


def run_layers(
    decoder: Decoder,
    hidden: Tensor,
    positions: Tensor,
    memory: Memory,
    sight: Sight,
    patience: Patience,
    first: int = 0,
) -> Tensor:
    """Run tokens through the layers from ``first`` on.

    Args:
        decoder: The model.
        hidden: Input of the first layer, ``[batch, tokens, hidden]``.
        positions: Positions of the tokens, ``[batch, tokens]``.
        memory: Where keys and values are read and written.
        sight: Which token sees which.
        patience: Checked before every layer.
        first: Number of the first layer to run, from 0.

    Returns:
        The output of the last layer, ``[batch, tokens, hidden]``.
    """
    arguments = decoder.prepare(hidden, positions, sight)
    for layer in range(first, len(decoder.layers)):
        patience.check()
        hidden = decoder.run(layer, hidden, memory, arguments)
    return hidden


@dataclass(eq=False)
class ModuleEncoder:
    """Encodes modules and keeps them in the host's memory, and some of them on the device as well.

    Attributes:
        decoder: The model.
        pool: Allocates memory for encoding.
        store: Store in the host's memory.
        near: Store on the device; ``None`` for none.
        bytes_per_token: Bytes that the keys and values of a token take.
        closed: Whether nothing is encoded any more.
    """

    decoder: Decoder
    pool: BufferPool
    store: ModuleStore[Encoded]
    near: ModuleStore[Encoded] | None
    closed: bool = False

    def __post_init__(self) -> None:
        self._vocabulary: int = self.decoder.model.get_input_embeddings().num_embeddings
        self.bytes_per_token = math.prod(self.pool.shape) * self.pool.dtype.itemsize

    @contextlib.contextmanager
    def lease(self, module: Module, namespace: str, patience: Patience) -> Iterator[Encoded]:
        """Use an encoded module, which is encoded now if no store holds it.

        Args:
            module: The module.
            namespace: Tenant; modules are never shared across namespaces.
            patience: How long to wait.

        Raises:
            ConfigurationError: The module is larger than the store, or has a token the model
                doesn't know.
            PromptTooLongError: The module reaches beyond the model's last position.
            GenerationTimeoutError: It took too long, in this thread or in another that encodes it.
        """
        self.check(module)
        key = (namespace, module.token_ids, module.positions, module.params)
        tokens = len(served_offsets(module))
        size = tokens * self.bytes_per_token
        if self.near is None or size > self.near.capacity_bytes:
            with self._far(key, module, tokens, patience) as encoded:
                yield encoded
            return

        def bring() -> Encoded:
            with self._far(key, module, tokens, patience) as encoded:
                device = self.pool.device
                return Encoded(encoded.data.to(device), encoded.positions.to(device))

        check = patience.check
        with self.near.lease(key, module.name, size, tokens, bring, check) as encoded:
            yield encoded

    def check(self, module: Module) -> None:
        """Refuse a module that cannot be encoded.

        Raises:
            EngineClosedError: The model was closed.
            ConfigurationError: It is not a module, or has a token the model doesn't know.
            PromptTooLongError: It reaches beyond the model's last position.
        """
        if self.closed:
            raise EngineClosedError("the model was closed")
        if not isinstance(module, Module):
            msg = f"what is encoded must be a Module, got {type(module).__name__}"
            raise ConfigurationError(msg)
        if module.positions[-1] >= self.decoder.limit:
            raise PromptTooLongError(
                module.positions[-1] + 1, self.decoder.limit, f"module {module.name!r}"
            )
        self.check_tokens(module.token_ids)

    def check_tokens(self, token_ids: tuple[int, ...]) -> None:
        """Refuse tokens that the model does not know.

        Raises:
            ConfigurationError: A token is not in the vocabulary.
        """
        least, most = min(token_ids, default=0), max(token_ids, default=0)
        if least < 0 or most >= self._vocabulary:
            raise ConfigurationError(
                f"there is no token {least if least < 0 else most}; the vocabulary has "
                f"{self._vocabulary}"
            )

    def _far(
        self, key: object, module: Module, tokens: int, patience: Patience
    ) -> contextlib.AbstractContextManager[Encoded]:
        size = tokens * self.bytes_per_token
        make = partial(self._encode, module, patience)
        return self.store.lease(key, module.name, size, tokens, make, patience.check)

    def _encode(self, module: Module, patience: Patience) -> Encoded:
        """Run a module's tokens, which see only each other, and keep those that serve."""
        device = self.pool.device
        with torch.inference_mode():
            token_ids = torch.tensor([module.token_ids], device=device)
            positions = torch.tensor([module.positions], device=device)
            length = token_ids.shape[1]
            buffer = self.pool.empty(length)
            memory = Memory(buffer, slice(0, length), length)
            sight = Sight(positions, positions, triangle=True)
            hidden = self.decoder.embed(token_ids, positions)
            run_layers(self.decoder, hidden, positions, memory, sight, patience)
            data, where = buffer[:, :, 0], positions[0]
            if module.params:
                serving = torch.from_numpy(served_offsets(module)).to(device)
                data, where = data.index_select(3, serving), where[serving]
            if device.type != "cpu":
                # In pinned pages, so that the copy back to the device overlaps with other work.
                data = data.cpu().pin_memory()
            return Encoded(data, where.cpu())
