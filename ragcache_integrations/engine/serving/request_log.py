"""The log of requests: one JSON object a line, on the standard output.

What was asked and answered is not in it, unless that was asked for.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["RequestLog"]

STANDARD_OUTPUT = 1


class RequestLog:
    """Writes what happened.

    Args:
        stream: Where to; the process's standard output where ``None``.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        # Not sys.stdout, which vLLM may decorate with the names of its processes.
        self._stream = stream or os.fdopen(os.dup(STANDARD_OUTPUT), "w", encoding="utf-8")
        self._failed = False

    def write(self, event: str, **fields: Any) -> None:
        """Write one line; fields that are ``None`` are left out.

        Where it cannot be written, such as on a full disk, requests are served all the same.
        """
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        known = {name: value for name, value in fields.items() if value is not None}
        line = json.dumps({"time": time, "event": event, **known}) + "\n"
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: it was closed
            if not self._failed:
                sys.stderr.write(f"ragcache: the log of requests cannot be written: {error}\n")
            self._failed = True
        else:
            self._failed = False
