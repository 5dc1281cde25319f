"""The log of requests: one JSON object per line, on standard output.

It contains no prompts and no answers; prompts only if the server's settings say so.
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
    """Writes the log.

    Args:
        stream: Stream to write to; the process's standard output if ``None``.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        # Not sys.stdout, which vLLM may decorate with the names of its processes.
        self._stream = stream or os.fdopen(os.dup(STANDARD_OUTPUT), "w", encoding="utf-8")
        self._failed = False

    def write(self, event: str, **fields: Any) -> None:
        """Write one line; fields that are ``None`` are left out.

        If it cannot be written, such as on a full disk, requests are served nevertheless.

        Args:
            event: What has happened.
            fields: Further values of the line.
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
