"""Evaluation, demo, reports and simulations for ragcache-integrations, with their commands."""

from ragcache_integrations import __version__ as _installed

__version__ = "0.1.0"

if __version__ != _installed:
    _message = (
        f"ragcache-workbench {__version__} needs ragcache-integrations {__version__}, but "
        f"{_installed} is installed: install both from the same clone, address or folder of wheels"
    )
    raise ImportError(_message)
