"""The process ``ragcache``: runs the command line, and ends soon when it is interrupted."""

from __future__ import annotations

import signal
import sys

from ragcache_integrations.core.interrupts import INTERRUPTED, deadline, end_process

__all__ = ["main"]


def main() -> int:
    """Run the command line with this process's arguments, and return its exit status."""
    end_soon = deadline()
    end_soon.watch()
    try:
        # The commands import much, and may be interrupted meanwhile.
        from .command import main as run_command  # noqa: PLC0415

        status = run_command()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit:
        if end_soon.status is None:
            raise
        status = end_soon.status  # a server that was still loading
    # Ctrl-C during what Python does at the end is for the deadline alone.
    signal.signal(signal.SIGINT, lambda *_: None)
    if status == INTERRUPTED:
        sys.stderr.write("\nragcache: interrupted\n")
    if end_soon.status is not None or status == INTERRUPTED:
        end_process(status)
    return status
