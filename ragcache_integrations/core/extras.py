"""Imports optional dependencies when they are first needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ragcache_integrations.errors import MissingExtraError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["require"]


def require(module: str, *, feature: str, extra: str = "", package: str = "") -> ModuleType:
    """Import ``module``, or raise an error that names the extra or the package to install.

    Args:
        module: Dotted name of the module.
        feature: The feature that needs it, as the subject of the error message.
        extra: The extra of this distribution that installs it.
        package: The package that installs it, if no extra does.

    Raises:
        MissingExtraError: The module, or its top-level package, is not installed. An
            ``ImportError`` from inside an installed package passes through unchanged.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise MissingExtraError(feature, extra, package) from error
        raise
