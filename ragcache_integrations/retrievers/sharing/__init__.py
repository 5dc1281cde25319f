"""State that copies and rebuilt objects share."""

from .rebuilding import FinishedRetriever, Rebuildable
from .shared_state import Identity, SharedState

__all__ = [
    "FinishedRetriever",
    "Identity",
    "Rebuildable",
    "SharedState",
]
