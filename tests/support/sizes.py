"""How much a test tries, by the profile of Hypothesis: ``quick``, ``usual`` or ``thorough``.

``pytest --hypothesis-profile thorough`` chooses one; ``usual`` is what ``make test`` runs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

__all__ = ["examples", "register_profiles", "scaled"]

_WHOLE = 100


def register_profiles() -> None:
    """Make the three profiles known, and load the usual one.

    None has a deadline: how long an example takes says how busy the machine is, not whether the
    code is right.
    """
    settings.register_profile("quick", deadline=None, max_examples=10, stateful_step_count=15)
    settings.register_profile("usual", deadline=None, max_examples=50, stateful_step_count=40)
    settings.register_profile("thorough", deadline=None, max_examples=1000, stateful_step_count=80)
    settings.load_profile("usual")


def scaled(count: int) -> int:
    """A tenth of ``count`` under ``quick``, half of it as usual, ten times that if thorough."""
    return max(1, count * settings().max_examples // _WHOLE)


def examples(count: int, **others: Any) -> settings:
    """Settings for ``count`` examples, scaled by the profile; ``others`` are passed on."""
    return settings(max_examples=scaled(count), **others)
