"""Strategies: which encoded tokens are computed again, so that modules attend to each other.

A module is encoded on its own, so its tokens never saw what comes before it in a prompt. The
strategies differ in how much of that they repair, and at what cost:

- :class:`PromptCache` (Gim et al., 2024) computes nothing again;
- :class:`Epic` (Hu et al., 2024, LegoLink) the first tokens of each chunk, which would otherwise
  draw attention as if each chunk began the prompt;
- :class:`CacheBlend` (Yao et al., 2025) those whose keys and values differ most from what they
  would be;
- :class:`KVLink` (Yang et al., 2025) those at the end of each chunk, where its link tokens are;
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

from ragcache_integrations.core.checks import (
    check_choice,
    check_field,
    check_int,
    check_number,
)

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
"""Returns every token's deviation at the second layer, at the cost of computing the first layer."""


class Strategy(ABC):
    """Chooses encoded tokens to compute again.

    Attributes:
        name: Its key in :data:`STRATEGIES`.
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
            :attr:`~ragcache_modular.kv.plan.Plan.reusable` is.
        """


@dataclass(frozen=True, slots=True)
class PromptCache(Strategy):
    """Nothing is computed again (Prompt Cache §3.4)."""

    name: ClassVar[str] = "prompt_cache"

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """Choose no token."""
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
        check_field(self, check_int, "link_tokens", 0)

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """Choose the first tokens of each chunk."""
        chosen = np.zeros(len(plan), dtype=np.bool_)
        for places in plan.chunks():
            chosen[places[: self.link_tokens]] = True
        return chosen


@dataclass(frozen=True, slots=True)
class CacheBlend(Strategy):
    """The tokens whose keys and values deviate most from those of full attention (CacheBlend §4).

    The first layer is computed for all tokens. Its keys and values do not depend on other tokens,
    but its output does. From this output follow the keys and values that the second layer would
    have with full attention; these are compared with the encoded ones.

    Attributes:
        share: Share of the encoded tokens that is computed again, from 0 to 1; rounded up to whole
            tokens.
    """

    name: ClassVar[str] = "cacheblend"
    share: float = 0.15

    def __post_init__(self) -> None:
        check_field(self, check_number, "share", 0, 1)

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:
        """Choose the tokens that deviate most; of equal ones, the earlier."""
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
    """The last tokens of each chunk, computed with everything before them in sight (KVLink).

    KVLink adds link tokens after each document, and trains the model to gather there what the
    document lacks. This package includes no such training. The document's own last tokens replace
    the link tokens, at the positions that the paper uses, those of the whole prompt. A model that
    was trained this way has link tokens: pass them to
    :meth:`~ragcache_modular.model.ModularModel.assemble` and set ``link_tokens=0``.

    Attributes:
        link_tokens: How many tokens of each chunk are computed again, at least 0.
    """

    name: ClassVar[str] = "kvlink"
    link_tokens: int = 5

    def __post_init__(self) -> None:
        check_field(self, check_int, "link_tokens", 0)

    def choose(self, plan: Plan, deviations: Deviations) -> NDArray[np.bool_]:  # noqa: ARG002 - one signature for all
        """Choose the last tokens of each chunk."""
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
        """Choose all tokens."""
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
"""The strategies by name."""


def strategy_of(strategy: str | Strategy) -> Strategy:
    """A strategy by its name, with its default settings; an instance is returned unchanged.

    Raises:
        ConfigurationError: There is no strategy of that name.
    """
    if isinstance(strategy, Strategy):
        return strategy
    return STRATEGIES[check_choice("strategy", strategy, tuple(STRATEGIES), also="a Strategy")]()
