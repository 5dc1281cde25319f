"""A prompt in the order of its positions, and which of its tokens are encoded already.

Everything here is arithmetic on an :class:`~ragcache_integrations.prompts.pml.layout.Assembly`; no
model is involved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.pml import Assembly, Fresh, Module, Placed

__all__ = ["Owners", "Plan", "Run", "plan_assembly", "served_offsets"]

Parts = tuple[Placed | Fresh, ...]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Owners:
    """The module that each part of a prompt belongs to: an argument belongs to the module it fills.

    Attributes:
        of_parts: Name of the module of each part; empty for new text.
        scaffolds: Name of the scaffold that serves a module, by the module's name.
    """

    of_parts: tuple[str, ...]
    scaffolds: Mapping[str, str]

    @classmethod
    def of(cls, parts: Parts) -> Owners:
        """Find the owners of a prompt's parts."""
        scaffolds = {
            member: part.module.name
            for part in parts
            if isinstance(part, Placed)
            for member in part.module.members
        }
        names = (
            scaffolds.get(part.fills, part.fills) if isinstance(part, Fresh) else part.module.name
            for part in parts
        )
        return cls(tuple(names), scaffolds)

    def check(self, what: str, names: Collection[str]) -> None:
        """Refuse names of modules that are not in the prompt.

        Args:
            what: Name of the argument, for the message.
            names: Names of modules.

        Raises:
            ConfigurationError: The prompt has no module of a name.
        """
        if isinstance(names, str):
            msg = f"{what} must be a collection of names, got the string {names!r}"
            raise ConfigurationError(msg)
        known = sorted({name for name in self.of_parts if name})
        for name in sorted(set(names) - set(known)):
            if name in self.scaffolds:
                msg = (
                    f"{what} names {name!r}, which serves within {self.scaffolds[name]!r}, whose "
                    "modules have seen each other: name that, or do without the scaffold"
                )
            else:
                there = ", ".join(map(repr, known)) or "none"
                msg = f"{what} names {name!r}, which the prompt has no module of; there are {there}"
            raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of a module that are consecutive in the prompt, too.

    Attributes:
        part: Number of the part, from 0.
        slot: Index of the first token in the prompt, in the order of positions.
        offset: Index of the first token among the module's tokens that serve.
        length: Number of tokens.
    """

    part: int
    slot: int
    offset: int
    length: int


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """The tokens of a prompt that serve, in the order of their positions.

    The arrays have one element per token.

    Attributes:
        token_ids: Ids in the model's vocabulary.
        positions: Positions, strictly increasing.
        parts: Number of the part that a token belongs to.
        fresh: Whether a token is computed for this prompt in any case.
        masked: Whether a token belongs to a module that other tokens must not see.
        placed: The module of each part; ``None`` for fresh parts.
        owners: The module that each part belongs to.
        runs: Where the modules' tokens are in the prompt.
    """

    token_ids: Ints
    positions: Ints
    parts: Ints
    fresh: Flags
    masked: Flags
    placed: tuple[Placed | None, ...]
    owners: Owners
    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def reusable(self) -> Flags:
        """Tokens that are encoded and may be seen; strategies choose from these."""
        return ~self.fresh & ~self.masked

    def chunks(self) -> Iterable[Ints]:
        """Indices of the reusable tokens, module by module, in the order of the prompt.

        A module without params at the beginning of the prompt is left out. Nothing comes before it,
        so its tokens were encoded exactly as full attention would compute them here.
        """
        reusable = self.reusable
        visible = np.flatnonzero(~self.masked)
        numbers, first = np.unique(self.parts[reusable], return_index=True)
        for number in numbers[np.argsort(first)].tolist():
            places = np.flatnonzero(reusable & (self.parts == number))
            placed = self.placed[number]
            leads = np.array_equal(places, visible[: len(places)])
            if leads and placed is not None and not placed.module.params:
                continue
            yield places


def served_offsets(module: Module) -> Ints:
    """Offsets of the module's tokens that serve: all except those of params."""
    if module.params:
        return np.asarray(module.served, dtype=np.int64)
    return np.arange(len(module.token_ids), dtype=np.int64)


def plan_assembly(
    assembly: Assembly, masked: Collection[str] = (), dropped: Collection[str] = ()
) -> Plan:
    """Put a prompt's tokens into the order of their positions.

    Args:
        assembly: The prompt.
        masked: Names of modules that other tokens must not see.
        dropped: Names of modules that are left out.

    Raises:
        ConfigurationError: The prompt cannot be served, or has no module of a name.
    """
    all_parts = _valid_parts(assembly)
    parts = _select_parts(all_parts, Owners.of(all_parts), masked, dropped)
    tokens = _tokens(parts)
    positions = tokens[1]
    order = np.argsort(positions, kind="stable")
    if len(order) and positions[order[0]] < 0:
        raise ConfigurationError(f"position {positions[order[0]]} is negative; allowed: 0 and more")
    twice = np.flatnonzero(np.diff(positions[order]) == 0)
    if len(twice):
        msg = f"two tokens of the prompt have position {positions[order[twice[0]]]}"
        raise ConfigurationError(msg)
    if order[-1] != len(order) - 1:
        raise ConfigurationError(
            f"the prompt's last token is at position {positions[-1]} and would not see the tokens "
            f"after it; allowed: above {positions[order[-1]]}, the highest of the others"
        )
    ids, positions, numbers, offsets = tokens[:, order]
    placed = tuple(None if isinstance(part, Fresh) else part for part in parts)
    hidden = np.array([part is not None and part.module.name in masked for part in placed])
    return Plan(
        token_ids=ids,
        positions=positions,
        parts=numbers,
        fresh=offsets < 0,
        masked=hidden[numbers],
        placed=placed,
        owners=Owners.of(parts),
        runs=_runs(numbers, offsets),
    )


def _valid_parts(assembly: Assembly) -> Parts:
    """The parts of a prompt, after checks that it can be served."""
    if not isinstance(assembly, Assembly):
        msg = f"a prompt to serve must be an Assembly, got {type(assembly).__name__}"
        raise ConfigurationError(msg)
    parts = assembly.parts
    if not parts or not isinstance(parts[-1], Fresh) or not parts[-1].token_ids:
        msg = "the last part of a prompt must be fresh tokens, at least one: they give the logits"
        raise ConfigurationError(msg)
    for part in parts:
        if isinstance(part, Fresh) and len(part.token_ids) != len(part.positions):
            raise ConfigurationError(
                f"a fresh part has {len(part.token_ids)} tokens and {len(part.positions)} "
                "positions; allowed: one position per token"
            )
    return parts


def _select_parts(
    parts: Parts, owners: Owners, masked: Collection[str], dropped: Collection[str]
) -> Parts:
    """The parts without dropped modules, and without arguments of masked or dropped modules."""
    for what, names in (("masked", masked), ("dropped", dropped)):
        owners.check(what, names)
    names = owners.of_parts
    if names[-1] in {*masked, *dropped}:
        raise ConfigurationError(
            f"the prompt ends in an argument of {names[-1]!r}, which is masked or dropped, so "
            "there is nothing to compute an answer from: end it with text or a turn"
        )
    return tuple(
        part
        for part, name in zip(parts, names, strict=True)
        if name not in dropped and (isinstance(part, Placed) or name not in masked)
    )


def _tokens(parts: Parts) -> Ints:
    """For each token: id, position, number of its part, and offset in the module; -1 for fresh."""
    tokens = []
    for number, part in enumerate(parts):
        of: Fresh | Module = part if isinstance(part, Fresh) else part.module
        table = np.full((4, len(of.token_ids)), number, dtype=np.int64)
        table[0], table[1] = of.token_ids, of.positions
        if isinstance(part, Fresh):
            table[3] = -1
        else:
            table = table[:, served_offsets(part.module)]
            table[1] += part.shift
            table[3] = np.arange(table.shape[1])
        tokens.append(table)
    return np.concatenate(tokens, axis=1)


def _runs(numbers: Ints, offsets: Ints) -> tuple[Run, ...]:
    """Split the prompt where the part changes or a module's offsets are not consecutive."""
    ends = (np.diff(numbers) != 0) | (np.diff(offsets) != 1)
    starts = np.concatenate([[0], np.flatnonzero(ends) + 1])
    stops = np.append(starts[1:], len(numbers))
    return tuple(
        Run(int(numbers[start]), int(start), int(offsets[start]), int(stop - start))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        if offsets[start] >= 0
    )
