"""RAG prompts without a schema: documents become modules.

The system text begins the prompt. Each document becomes a module, named by the hash of its content
and encoded on its own. If the position encoding allows it, the module is moved to its place in the
prompt. So the next prompt with this document finds it encoded, no matter what comes before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.pml import Assembly, Fresh, Module, Placed

__all__ = ["Documents", "document_name"]

Ids = tuple[int, ...]


def document_name(text: str) -> str:
    """Name of a document's module: a hash of its text, the same on every machine."""
    return content_id(text)


class Documents:
    """Lays out the pieces of a prompt one after the other.

    Args:
        movable: Whether modules may be used at other positions than those they are encoded at.
    """

    def __init__(self, *, movable: bool) -> None:
        self._movable = movable
        self._parts: list[Placed | Fresh] = []
        self._next = 0

    def module(self, name: str, token_ids: Ids) -> None:
        """Add tokens as a module, which is encoded on its own; do nothing if there are none."""
        if not token_ids:
            return
        start = 0 if self._movable else self._next
        positions = tuple(range(start, start + len(token_ids)))
        self._parts.append(Placed(Module(name, token_ids, positions), self._next - start))
        self._next += len(token_ids)

    def fresh(self, token_ids: Ids) -> None:
        """Add tokens that are computed for this prompt; do nothing if there are none."""
        if token_ids:
            positions = tuple(range(self._next, self._next + len(token_ids)))
            self._parts.append(Fresh(token_ids, positions))
            self._next += len(token_ids)

    def assembly(self) -> Assembly:
        """The prompt.

        Raises:
            ConfigurationError: The prompt ends with a module.
        """
        if not self._parts or not isinstance(self._parts[-1], Fresh):
            msg = "a prompt must end with text that is not part of a document, such as the question"
            raise ConfigurationError(msg)
        return Assembly(tuple(self._parts))


def assemble_spans(
    token_ids: Sequence[int], spans: Iterable[tuple[str, int, int]], *, movable: bool
) -> Assembly:
    """Make a prompt from its tokens and the spans of its documents.

    The text before the first document also becomes a module, because many prompts usually share it.
    Text between documents is computed.

    Args:
        token_ids: The whole prompt.
        spans: Name, start and end of each document; the end is the offset after its last token. In
            order and without overlap.
        movable: Whether modules may be used at other positions than those they are encoded at.

    Raises:
        ConfigurationError: A span is outside the prompt or overlaps another, or the prompt ends
            with a document.
    """
    ids = tuple(token_ids)
    documents = Documents(movable=movable)
    at = 0
    for name, start, end in spans:
        if not at <= start < end <= len(ids):
            raise ConfigurationError(
                f"document {name!r} has the span {start} to {end}; allowed: spans in order and "
                f"without overlap in a prompt of {len(ids)}"
            )
        if at == 0:
            documents.module("system", ids[:start])
        else:
            documents.fresh(ids[at:start])
        documents.module(name, ids[start:end])
        at = end
    documents.fresh(ids[at:])
    return documents.assembly()
