"""The process ``ragcache``: runs the command line, and ends soon when it is interrupted."""

from __future__ import annotations

import signal
import sys

from ragcache_integrations.core.interrupts import INTERRUPTED, deadline, end_process

__all__ = ["main"]

NOTICED_SECONDS = 0.1
"""How long the deadline's thread may take to notice a signal."""


def main() -> int:
    """Run the command line with this process's arguments, and return its exit status."""
    end_soon = deadline()
    end_soon.watch()
    try:
        # Imported here: it takes long, and may be interrupted meanwhile.
        from .command import main as run_command  # noqa: PLC0415 - may be interrupted

        status = run_command()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BaseException:
        # A library has made another error of the interruption, or a server was still loading.
        if not end_soon.begun.wait(NOTICED_SECONDS):
            raise
        status = INTERRUPTED
    # Ctrl-C during what Python does at the end is for the deadline alone.
    signal.signal(signal.SIGINT, lambda *_: None)
    if status and end_soon.begun.wait(NOTICED_SECONDS):
        if end_soon.status == INTERRUPTED:
            sys.stderr.write("\nragcache: interrupted\n")
        end_process(end_soon.status or 0)
    return status
