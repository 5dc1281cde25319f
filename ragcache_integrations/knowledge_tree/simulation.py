"""The package ``ragcache_workbench.simulation`` under its earlier name."""

from ragcache_integrations.core.extras import require

_home = require("ragcache_workbench.simulation", feature=__name__, extra="eval")

from ragcache_workbench.simulation import *  # noqa: E402, F403 - names the same things

__all__ = _home.__all__
