"""What commands share: common options, checks of whole numbers, and files to write."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from ragcache_integrations.errors import ConfigurationError

__all__ = ["add_json", "add_kv_cache", "add_model", "at_least", "check_file", "check_folder"]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    words = "also write the results as JSON, on the last line"
    parser.add_argument("--json", action="store_true", help=words)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``MODEL``."""
    words = "path of the model, or its name on the Hugging Face hub (default: the bundled model)"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=words)


def add_kv_cache(parser: argparse.ArgumentParser) -> None:
    """Add ``--kv-cache-gib``."""
    words = "size of the KV cache in GiB (default: 1 on a CPU, as much as fits on a GPU)"
    parser.add_argument("--kv-cache-gib", type=float, metavar="G", help=words)


def at_least(smallest: int) -> Callable[[str], int]:
    """Return a function that reads a whole number, which must be at least ``smallest``."""

    def parse(text: str) -> int:
        number = int(text)
        if number < smallest:
            raise argparse.ArgumentTypeError(f"must be at least {smallest}, got {number}")
        return number

    parse.__name__ = "whole number"  # argparse: "invalid whole number value"
    return parse


def check_file(flag: str, path: Path) -> Path:
    """Return the absolute path of a file that an option names, if it can be written.

    Raises:
        ConfigurationError: It is a folder, or its own folder is missing or cannot be written to.
    """
    file = path.absolute()
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigurationError(f"{flag} must name a file in a folder that exists, got {path}")
    check_folder(file.parent, f"name another {flag}")
    return file


def check_folder(folder: Path, remedy: str) -> None:
    """Find out before a measurement, not after it, that nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        msg = f"cannot write to {folder} ({error.strerror}): {remedy}"
        raise ConfigurationError(msg) from error
