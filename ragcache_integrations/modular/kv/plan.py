"""A prompt in the order of its positions: which tokens are encoded already, which are not.

Everything here is arithmetic on an :class:`~ragcache_integrations.modular.layout.Assembly`; no
model is involved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.modular.layout import Assembly, Fresh, Module, Placed

__all__ = ["Owners", "Plan", "Run", "plan_assembly", "served_offsets"]

Parts = tuple[Placed | Fresh, ...]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Owners:
    """Which module each part of a prompt goes with: its own, or the one whose param it fills.

    Attributes:
        of_parts: Names of modules, one per part; empty for new text.
        scaffolds: By the names of modules that were encoded together, the name that they go by.
    """

    of_parts: tuple[str, ...]
    scaffolds: Mapping[str, str]

    @classmethod
    def of(cls, parts: Parts) -> Owners:
        """Those of a prompt's parts."""
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
        """Refuse names that the prompt has no module of.

        Raises:
            ConfigurationError: There is one.
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
    """Neighbouring tokens of a module that stand beside each other in the prompt too.

    Attributes:
        part: Number of the part.
        slot: Of the first token, in the order of the prompt.
        offset: Of the first token, among those of the module that serve.
        length: How many.
    """

    part: int
    slot: int
    offset: int
    length: int


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """The tokens of a prompt that serve, in the order of their positions.

    Attributes:
        token_ids: One per token.
        positions: Increasing.
        parts: Number of the part that each belongs to.
        fresh: Which are computed for this prompt anyway.
        masked: Which belong to modules that nothing may see.
        placed: The modules by number of part; ``None`` for fresh parts.
        owners: Which modules the parts go with.
        runs: How the modules' tokens lie in the prompt.
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
        """Tokens that are encoded already and may be seen: those a strategy chooses from."""
        return ~self.fresh & ~self.masked

    def chunks(self) -> Iterable[Ints]:
        """Places of the reusable tokens, module by module, in the order of the prompt.

        The module that nothing stands before is left out where its tokens are what they would be
        in this prompt alone: there is nothing to win by computing them again.
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
    """Offsets of a module's tokens that serve."""
    if module.params:
        return np.asarray(module.served, dtype=np.int64)
    return np.arange(len(module.token_ids), dtype=np.int64)


def plan_assembly(
    assembly: Assembly, masked: Collection[str] = (), dropped: Collection[str] = ()
) -> Plan:
    """Put a prompt's tokens into the order of their positions.

    Args:
        assembly: The prompt.
        masked: Names of modules that nothing may see.
        dropped: Names of modules that are left out.

    Raises:
        ConfigurationError: The prompt is not one that can be served, or has no module of a name.
    """
    given = _checked(assembly)
    parts = _kept(given, Owners.of(given), masked, dropped)
    ids, positions, numbers, offsets = _tokens(parts)
    order = np.argsort(positions, kind="stable")
    if len(order) and positions[order[0]] < 0:
        msg = f"position {positions[order[0]]} is negative; allowed: 0 and more"
        raise ConfigurationError(msg)
    twice = np.flatnonzero(np.diff(positions[order]) == 0)
    if len(twice):
        msg = f"two tokens of the prompt stand at position {positions[order[twice[0]]]}"
        raise ConfigurationError(msg)
    if order[-1] != len(order) - 1:
        msg = (
            f"the prompt's last token stands at position {positions[-1]}, behind which it would "
            f"see nothing; allowed: above {positions[order[-1]]}, the highest of the others"
        )
        raise ConfigurationError(msg)
    ids, positions, numbers, offsets = (
        array[order] for array in (ids, positions, numbers, offsets)
    )
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


def _checked(assembly: Assembly) -> Parts:
    if not isinstance(assembly, Assembly):
        msg = f"a prompt to serve must be an Assembly, got {type(assembly).__name__}"
        raise ConfigurationError(msg)
    parts = assembly.parts
    if not parts or not isinstance(parts[-1], Fresh) or not parts[-1].token_ids:
        msg = "the last part of a prompt must be fresh tokens, at least one: they give the logits"
        raise ConfigurationError(msg)
    for part in parts:
        if isinstance(part, Fresh) and len(part.token_ids) != len(part.positions):
            msg = (
                f"a fresh part has {len(part.token_ids)} tokens and {len(part.positions)} "
                "positions; allowed: as many"
            )
            raise ConfigurationError(msg)
    return parts


def _kept(parts: Parts, owners: Owners, masked: Collection[str], dropped: Collection[str]) -> Parts:
    """The parts that are left: the arguments of modules that nothing may see go with them."""
    for what, names in (("masked", masked), ("dropped", dropped)):
        owners.check(what, names)
    names = owners.of_parts
    if names[-1] in {*masked, *dropped}:
        msg = (
            f"the prompt ends in an argument of {names[-1]!r}, which nothing may see, so there is "
            "nothing to compute an answer from: end it with text or a turn"
        )
        raise ConfigurationError(msg)
    return tuple(
        part
        for part, name in zip(parts, names, strict=True)
        if name not in dropped and (isinstance(part, Placed) or name not in masked)
    )


def _tokens(parts: Parts) -> tuple[Ints, Ints, Ints, Ints]:
    """Ids, positions, numbers of parts, and offsets among a module's serving tokens or -1."""
    ids, positions, numbers, offsets = [], [], [], []
    for number, part in enumerate(parts):
        if isinstance(part, Fresh):
            some = np.asarray(part.token_ids, dtype=np.int64)
            where = np.asarray(part.positions, dtype=np.int64)
            offset = np.full(len(some), -1, dtype=np.int64)
        else:
            serving = served_offsets(part.module)
            some = np.asarray(part.module.token_ids, dtype=np.int64)[serving]
            where = np.asarray(part.module.positions, dtype=np.int64)[serving] + part.shift
            offset = np.arange(len(some), dtype=np.int64)
        ids.append(some)
        positions.append(where)
        numbers.append(np.full(len(some), number, dtype=np.int64))
        offsets.append(offset)
    return (
        np.concatenate(ids),
        np.concatenate(positions),
        np.concatenate(numbers),
        np.concatenate(offsets),
    )


def _runs(numbers: Ints, offsets: Ints) -> tuple[Run, ...]:
    ends = (np.diff(numbers) != 0) | (np.diff(offsets) != 1)
    starts = np.concatenate([[0], np.flatnonzero(ends) + 1])
    stops = np.append(starts[1:], len(numbers))
    return tuple(
        Run(int(numbers[start]), int(start), int(offsets[start]), int(stop - start))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        if offsets[start] >= 0
    )
