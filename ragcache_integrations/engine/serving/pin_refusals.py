"""Reports to the middleware that the scheduler, in a process of its own, can't pin documents.

vLLM's outputs have no field for that. So the middleware makes an empty file for each request that
pins, and the scheduler writes its reason into that file before the request's first output. The
middleware looks for it before it passes on the answer, and removes the file when the request ends,
however it ends. The scheduler makes no file: what it reports after that is lost with the request.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

__all__ = ["await_pin_refusal", "forget_pin_refusal", "read_pin_refusal", "refuse_pin"]

_TICKET = re.compile(r"[0-9a-f]{32}")


def await_pin_refusal(folder: str, ticket: str) -> None:
    """Make the file for a request that pins documents.

    Args:
        folder: Folder in which the schedulers and the middleware exchange files; empty for none.
        ticket: The request's ticket.
    """
    if folder:
        with contextlib.suppress(OSError):
            (Path(folder) / ticket).touch()


def refuse_pin(folder: str, ticket: object, why: str) -> bool:
    """Report that a request's documents can't be pinned.

    Args:
        folder: Folder in which the schedulers and the middleware exchange files.
        ticket: The request's ticket, from the middleware.
        why: The reason.

    Returns:
        Whether it is reported; not if the request has ended.
    """
    if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
        return False
    try:
        file = os.open(Path(folder) / ticket, os.O_WRONLY)
    except OSError:
        return False
    with os.fdopen(file, "wb") as opened:
        opened.write(why.encode())
    return True


def read_pin_refusal(folder: str, ticket: str) -> str | None:
    """Why a request's documents can't be pinned; ``None`` if nothing is known."""
    with contextlib.suppress(OSError):
        return (Path(folder) / ticket).read_text(encoding="utf-8") or None
    return None


def forget_pin_refusal(folder: str, ticket: str) -> None:
    """Remove the file of a request that has ended."""
    with contextlib.suppress(OSError):
        (Path(folder) / ticket).unlink()
