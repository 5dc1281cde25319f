"""Where things that are made on the spot are kept between runs."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ragcache_integrations.errors import ConfigurationError

__all__ = ["build_once", "cache_home"]

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What the system says where there is no room for a file."""


def cache_home() -> Path:
    """The cache folder: ``$RAGCACHE_HOME``, else our folder in the user's cache directory.

    The latter is ``$XDG_CACHE_HOME``, or ``~/.cache`` where that is unset
    (https://specifications.freedesktop.org/basedir/latest/). The folder need not exist.
    """
    home = os.environ.get("RAGCACHE_HOME")
    if home:
        return Path(home).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    # The specification says that a relative path is to be ignored.
    root = Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache"
    return root / "ragcache-integrations"


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Make a folder unless it is there; others see either nothing or the whole of it.

    Any number of threads and processes may call this at once: each builds into a folder of its
    own, the first to finish renames it into place, the others throw theirs away.

    Args:
        folder: What is to be there. Its name must change whenever its content would.
        build: Fills the empty folder that it is given.

    Returns:
        ``folder``.

    Raises:
        ConfigurationError: The place cannot be written to, or is full; nothing is left there.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        msg = f"cannot write to {folder.parent} ({error.strerror}): set RAGCACHE_HOME to a folder"
        raise ConfigurationError(msg) from error
    try:
        build(unfinished)
        _flush(unfinished)
        unfinished.chmod(0o755)  # mkdtemp lets nobody else read
        unfinished.rename(folder)
    except OSError as error:
        if folder.is_dir():  # somebody was quicker
            return folder
        if error.errno not in FULL:
            raise
        msg = f"no room for {folder} ({error.strerror}): set RAGCACHE_HOME to a folder elsewhere"
        raise ConfigurationError(msg) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _flush(folder: Path) -> None:
    """Have files reach the disk, so that the machine's crash leaves no half of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
