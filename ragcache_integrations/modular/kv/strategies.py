"""Which encoded tokens are computed again, so that a prompt's modules know of each other.

A module is encoded by itself, so its tokens know nothing of what stands before it in a prompt. The
strategies differ in how much of that they make good, and at what price:

- :class:`PromptCache` (Gim et al., 2024) computes nothing again;
- :class:`Epic` (Hu et al., 2024, LegoLink) the first tokens of each chunk, which would otherwise
  draw attention as if each chunk began the prompt;
- :class:`CacheBlend` (Yao et al., 2025) those whose keys and values differ most from what they
  would be;
- :class:`KVLink` (Yang et al., 2025) those at the end of each chunk, where its link tokens stand;
- :class:`Exact` all: full prefill.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError

from .plan import Plan

__all__ = [
    "STRATEGIES",
    "CacheBlend",
    "Epic",
    "Exact",
    "KVLink",
    "PromptCache",
    "Strategy",
    "strategy_of",
]

Deviations = Callable[[], NDArray[np.float64]]
"""Gives every token's deviation at the second layer, at the price of computing the first one."""


class Strategy(ABC):
    """Chooses encoded tokens to compute again.

    Attributes:
        name: What it is chosen by.
    """

    name: ClassVar[str]

    @abstractmethod
    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:
        """Choose tokens.

        Args:
            plan: The prompt.
            deviations: How far each token's keys and values at the second layer are from those of
                full attention: the sum of squared differences, 0 for tokens that are not reused.

        Returns:
            For each token of the plan, whether to compute it again; true only where
            :attr:`~ragcache_integrations.modular.kv.plan.Plan.reusable` is.
        """


@dataclass(frozen=True, slots=True)
class PromptCache(Strategy):
    """Nothing is computed again (Prompt Cache §3.4)."""

    name: ClassVar[str] = "prompt_cache"

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """Choose none."""
        return np.zeros(len(plan), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Epic(Strategy):
    """The first tokens of each chunk but the one that begins the prompt (EPIC, LegoLink).

    Attributes:
        link_tokens: How many tokens of each chunk are computed again, at least 0.
    """

    name: ClassVar[str] = "epic"
    link_tokens: int = 16

    def __post_init__(self) -> None:
        _check_count("link_tokens", self.link_tokens)

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """Choose the first tokens of each chunk."""
        chosen = np.zeros(len(plan), dtype=np.bool_)
        for places in plan.chunks():
            chosen[places[: self.link_tokens]] = True
        return chosen


@dataclass(frozen=True, slots=True)
class CacheBlend(Strategy):
    """The tokens whose keys and values deviate most from those of full attention (CacheBlend §4).

    The first layer is computed for all tokens: its keys and values do not depend on other tokens,
    what it puts out does. With that the second layer's keys and values are known as full attention
    would have them, and are compared with the encoded ones.

    Attributes:
        share: Of the encoded tokens, from 0 to 1; rounded up to whole tokens.
    """

    name: ClassVar[str] = "cacheblend"
    share: float = 0.15

    def __post_init__(self) -> None:
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0 <= self.share <= 1:
            msg = f"share must be a number from 0 to 1, got {self.share!r}"
            raise ConfigurationError(msg)

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:
        """Those that deviate most; of equal ones, the earlier."""
        chosen = np.zeros(len(plan), dtype=np.bool_)
        places = np.flatnonzero(plan.reusable)
        count = math.ceil(self.share * len(places))
        if 0 < count < len(places):
            order = np.argsort(-deviations()[places], kind="stable")
            places = places[order[:count]]
        if count:
            chosen[places] = True
        return chosen


@dataclass(frozen=True, slots=True)
class KVLink(Strategy):
    """The last tokens of each chunk, computed behind all that stands before them (KVLink).

    KVLink puts link tokens of its own behind each document and trains the model to gather there
    what the document lacks. No such training comes with this package: here a document's own last
    tokens stand in for them, at the positions that the paper gives, those of the whole prompt. A
    model that was trained for it brings link tokens: give them to
    :meth:`~ragcache_integrations.modular.model.ModularModel.assemble` and set ``link_tokens=0``.

    Attributes:
        link_tokens: How many tokens of each chunk are computed again, at least 0.
    """

    name: ClassVar[str] = "kvlink"
    link_tokens: int = 5

    def __post_init__(self) -> None:
        _check_count("link_tokens", self.link_tokens)

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """The last of each chunk."""
        chosen = np.zeros(len(plan), dtype=np.bool_)
        if self.link_tokens:
            for places in plan.chunks():
                chosen[places[-self.link_tokens :]] = True
        return chosen


@dataclass(frozen=True, slots=True)
class Exact(Strategy):
    """All tokens: full prefill, which needs no encoded module and loses nothing."""

    name: ClassVar[str] = "exact"

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """All."""
        return plan.reusable


STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType(
    {
        "prompt_cache": PromptCache,
        "epic": Epic,
        "cacheblend": CacheBlend,
        "kvlink": KVLink,
        "exact": Exact,
    }
)
"""By name."""


def strategy_of(strategy: str | Strategy) -> Strategy:
    """A strategy by its name with its default settings; an instance as it is.

    Raises:
        ConfigurationError: There is none of that name.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        msg = f"unknown strategy {strategy!r}: allowed are {', '.join(STRATEGIES)}"
        raise ConfigurationError(msg)
    return STRATEGIES[strategy]()


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = f"{name} must be a whole number of at least 0, got {value!r}"
        raise ConfigurationError(msg)
