"""Vector search in stages: results so far, then the final ones (RAGCache §5.3, §6).

:class:`StagedIndex` searches a FAISS index in stages, so that a caller that waits for the
documents can begin with the likely ones. It imports no framework.
"""

from __future__ import annotations

from .index import StagedIndex
from .searches import Filter, Found, Stage, StagePlan

__all__ = ["Filter", "Found", "Stage", "StagePlan", "StagedIndex"]
