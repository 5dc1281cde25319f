"""The package ``ragcache_workbench.evaluation`` under its earlier name."""

from .core.extras import require

_home = require("ragcache_workbench.evaluation", feature=__name__, extra="eval")

from ragcache_workbench.evaluation import *  # noqa: E402, F403 - names the same things

__all__ = _home.__all__
