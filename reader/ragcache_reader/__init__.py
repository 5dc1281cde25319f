"""The default model of ragcache-integrations: SmolLM2, taught to answer from documents.

``README.md`` is its model card.
"""

from __future__ import annotations

from .building import FilesError, build, check, digest

__all__ = ["FilesError", "build", "check", "digest"]

__version__ = "0.3.0"
