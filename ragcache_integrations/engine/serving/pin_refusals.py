"""Reports to the middleware that the scheduler, in a process of its own, can't pin documents.

vLLM's outputs have no field for that. So the scheduler writes its reason to a file before the
request's first output, and the middleware looks for it before it passes on the answer.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

__all__ = ["refuse_pin", "take_pin_refusal"]

_TICKET = re.compile(r"[0-9a-f]{32}")


def refuse_pin(folder: str, ticket: object, why: str) -> bool:
    """Report that a request's documents can't be pinned.

    Args:
        folder: Folder in which the schedulers and the middleware exchange files.
        ticket: The request's ticket, from the middleware.
        why: The reason.

    Returns:
        Whether it is reported.
    """
    if not isinstance(ticket, str) or not _TICKET.fullmatch(ticket):
        return False
    path = Path(folder) / ticket
    new = path.with_suffix(".new")
    try:
        new.write_text(why, encoding="utf-8")
        new.replace(path)
    except OSError:
        return False
    return True


def take_pin_refusal(folder: str, ticket: str) -> str | None:
    """Why a request's documents can't be pinned, once; ``None`` if nothing is known."""
    path = Path(folder) / ticket
    with contextlib.suppress(OSError):
        why = path.read_text(encoding="utf-8")
        path.unlink()
        return why
    return None
