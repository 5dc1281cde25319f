"""Which requests should meet on one replica: a value for routers.

Every replica of a server has separate KV caches. A router that hashes this value consistently sends
requests with the same first documents to the same replica. This divides the knowledge tree among
the replicas by its first level; ``docs/scaling.md`` has the routers' configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ragcache_integrations.core.checks import check_int, check_text, check_type
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument

__all__ = ["AFFINITY_HEADER", "affinity_headers", "affinity_key"]

AFFINITY_HEADER = "X-RAGCache-Affinity"
"""The request header with the value."""

DIGEST_BYTES = 8


def affinity_key(prompt: Prompt, *, namespace: str = "", session: str = "", depth: int = 1) -> str:
    """A value that requests for the same replica share, equal in every process and on any machine.

    It is derived from the first of these that a request has:

    - its session;
    - its first ``depth`` documents, in the order of the prompt and from the first turn: a
      conversation stays on its replica when later turns have other documents;
    - the user's first message, if documents come later or not at all: the text before them belongs
      to this conversation alone.

    Args:
        prompt: The request's prompt.
        namespace: The tenant. Tenants share no KV cache, so that their requests need not meet.
        session: Name of a conversation or a user; empty for none.
        depth: How many documents count, at least 1. 2 divides the requests about one popular
            document among more replicas, each of which then computes it.

    Returns:
        16 hexadecimal digits, which reveal nothing about documents, session or tenant to anyone who
        does not know them; empty if a replica makes no difference: raw text without documents.

    Raises:
        ConfigurationError: ``namespace`` or ``session`` is no string, or ``depth`` is below 1.
    """
    check_type("the prompt", prompt, Prompt, "a Prompt")
    check_text("namespace", namespace)
    check_text("session", session)
    depth = check_int("depth", depth, 1, unit="documents")
    if session:
        return _digest("session", namespace, session)
    leading = [document.id for document in _first_documents(prompt)][:depth]
    if leading:
        return _digest("documents", namespace, *leading)
    opening = next((message.text for message in prompt.messages if message.role == "user"), "")
    return _digest("conversation", namespace, opening) if opening else ""


def affinity_headers(
    prompt: Prompt,
    *,
    namespace: str = "",
    session: str = "",
    depth: int = 1,
    header: str = AFFINITY_HEADER,
) -> dict[str, str]:
    """Headers for a request; none where :func:`affinity_key` is empty.

    For the ``openai`` package: ``create(..., extra_headers=affinity_headers(prompt))``.

    Args:
        prompt: As for :func:`affinity_key`, which raises what this raises.
        namespace: The tenant.
        session: Names a conversation, or a user; empty for none.
        depth: How many of the first documents count, at least 1.
        header: Name of the header; ``X-Session-ID`` for ``vllm-router``, which knows no other.
    """
    key = affinity_key(prompt, namespace=namespace, session=session, depth=depth)
    return {header: key} if key else {}


def _first_documents(prompt: Prompt) -> Iterator[PromptDocument]:
    """Documents of the first turn, before which only text shared by requests comes."""
    if prompt.parts:
        yield from prompt.documents
    for message in _first_turn(prompt):
        yield from (part for part in message.parts if isinstance(part, PromptDocument))


def _first_turn(prompt: Prompt) -> Iterator[Message]:
    user_spoke = False
    for message in prompt.messages:
        if user_spoke and message.role in {"assistant", "tool"}:
            return
        user_spoke = user_spoke or message.role == "user"
        yield message


def _digest(*fields: str) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for field in fields:
        content = field.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
