"""What commands share: common options, checks of whole numbers, and files to write."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from ragcache_integrations.core.knobs import knob_names, meanings
from ragcache_integrations.errors import ConfigurationError

__all__ = ["add_fields", "add_json", "add_model", "at_least", "check_file", "check_folder"]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    words = "also write the results as JSON, on the last line"
    parser.add_argument("--json", action="store_true", help=words)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``MODEL``."""
    words = "path of the model, or its name on the Hugging Face hub (default: the bundled model)"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=words)


def add_fields(
    group: argparse._ActionsContainer, kind: type[BaseModel], *names: str, **defaults: object
) -> None:
    """Add options that set fields of a model, with the fields' types, defaults and sentences.

    A field that is true or false gets a flag and its opposite, a mapping an option that may be
    given several times; its value is a list of pairs.

    Args:
        group: Gets the options.
        kind: The model.
        names: The fields; all knobs if there are none.
        defaults: Default values of options that are not those of the fields.
    """
    for name in names or knob_names(kind):
        field = kind.model_fields[name]
        kinds = [get_origin(part) or part for part in get_args(field.annotation)]
        read = next((known for known in kinds or [field.annotation] if known in _READ), str)
        default = defaults.get(name, field.default)
        flag = f"--{name.replace('_', '-')}"
        given: dict[str, Any] = {"default": default, "help": _help(kind, name, default)}
        if read is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **given)
        elif read is Mapping:
            given |= {"type": _pair, "metavar": _pair.__name__, "dest": name}
            group.add_argument(flag.removesuffix("s"), action="append", **given)
        else:
            reader = _reader(read, optional=type(None) in kinds)
            metavar = "G" if name.endswith("_gib") else _READ[read]
            group.add_argument(flag, type=reader, metavar=metavar, **given)


_READ: dict[Any, str] = {bool: "", int: "N", float: "X", str: "NAME", Mapping: ""}
"""The types of options, and how the help calls their values."""


def _pair(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    return name, float(number)


_pair.__name__ = "NAME=NUMBER"  # argparse: "invalid NAME=NUMBER value"


def _reader(kind: Any, *, optional: bool) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        return None if optional and text.lower() == "none" else kind(text)

    read.__name__ = "whole number" if kind is int else "number"  # argparse: "invalid number value"
    return read


def _help(kind: type[BaseModel], name: str, default: object) -> str:
    """The sentence about a field as a command line writes it."""

    def spelled(code: re.Match[str]) -> str:
        option, is_set, value = code[1].partition("=")
        if option in kind.model_fields:
            return f"--{option.replace('_', '-')}" + is_set.replace("=", " ") + value.strip('"')
        return "none" if code[1] == "None" else code[1]

    said = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", meanings(kind)[name])
    said = re.sub(r"``(.+?)``", spelled, said).removesuffix(".").replace("%", "%%")
    if said[1].islower():
        said = said[0].lower() + said[1:]
    shown = f"{default:g}" if isinstance(default, float) else "none" if default is None else default
    return f"{said} (default: {shown})"


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
