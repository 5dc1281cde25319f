"""Documents become modules: a RAG prompt without a schema.

The system text begins the prompt. Each document is a module of its own, named by the hash of its
content and encoded as if it stood alone; where positions allow it, it is moved to its place, so
that whoever retrieves it next finds it encoded, whatever stands before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragcache_integrations.core.ids import content_id
from ragcache_integrations.errors import ConfigurationError

from .layout import Assembly, Fresh, Module, Placed

__all__ = ["Documents", "document_name"]

Ids = tuple[int, ...]


def document_name(text: str) -> str:
    """Name of a document's module: a hash of its text, the same on every machine."""
    return content_id(text)


class Documents:
    """Lays tokens out, one piece behind the other.

    Args:
        movable: Whether modules may stand elsewhere than where they are encoded.
    """

    def __init__(self, *, movable: bool) -> None:
        self._movable = movable
        self._parts: list[Placed | Fresh] = []
        self._next = 0

    def module(self, name: str, token_ids: Ids) -> None:
        """Add tokens that are encoded by themselves; nothing, where there are none."""
        if not token_ids:
            return
        start = 0 if self._movable else self._next
        positions = tuple(range(start, start + len(token_ids)))
        self._parts.append(Placed(Module(name, token_ids, positions), self._next - start))
        self._next += len(token_ids)

    def fresh(self, token_ids: Ids) -> None:
        """Add tokens that are computed for this prompt."""
        if token_ids:
            positions = tuple(range(self._next, self._next + len(token_ids)))
            self._parts.append(Fresh(token_ids, positions))
            self._next += len(token_ids)

    def assembly(self) -> Assembly:
        """The prompt.

        Raises:
            ConfigurationError: Nothing stands behind the last module.
        """
        if not self._parts or not isinstance(self._parts[-1], Fresh):
            msg = "a prompt must end with text that is not part of a document, such as the question"
            raise ConfigurationError(msg)
        return Assembly(tuple(self._parts))


def assemble_spans(
    token_ids: Sequence[int], spans: Iterable[tuple[str, int, int]], *, movable: bool
) -> Assembly:
    """A prompt whose tokens are known, and where its documents stand.

    What stands before the first document is a module too, as it usually is the same in many
    prompts; what stands between documents is computed.

    Args:
        token_ids: The whole prompt.
        spans: Of each document its name, its first token and the one behind its last; in order and
            without overlap.
        movable: Whether modules may move.

    Raises:
        ConfigurationError: A span lies outside the prompt or overlaps another, or nothing stands
            behind the last one.
    """
    ids = tuple(token_ids)
    documents = Documents(movable=movable)
    at = 0
    for name, start, end in spans:
        if not at <= start < end <= len(ids):
            msg = (
                f"document {name!r} stands at tokens {start} to {end}; allowed: spans in order and "
                f"without overlap in a prompt of {len(ids)}"
            )
            raise ConfigurationError(msg)
        if at == 0:
            documents.module("system", ids[:start])
        else:
            documents.fresh(ids[at:start])
        documents.module(name, ids[start:end])
        at = end
    documents.fresh(ids[at:])
    return documents.assembly()
