"""Folders of compiled code, which only the user can access.

torch, Triton, vLLM, Numba and CUDA load and run the code that an earlier start has compiled,
without checks, some of it by ``pickle``. torch's own choice is a folder of a known name among the
temporary files, which any user of the machine can create first.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import tempfile
from pathlib import Path

from ragcache_integrations.core.files import private_folder
from ragcache_integrations.resources.cache import cache_home

__all__ = ["compiler_caches"]

logger = logging.getLogger(__name__)

FOLDER = "compiled"
"""In the cache folder."""

VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "NUMBA_CACHE_DIR": "numba",
    "CUDA_CACHE_PATH": "cuda",
}


def compiler_caches(otherwise: str | os.PathLike[str]) -> dict[str, str]:
    """Environment variables that compilers read; those that the user has set are left out.

    Args:
        otherwise: A private folder, which is used with a warning if the cache folder is not safe.
    """
    unset = [name for name in VARIABLES if not _is_set_by_user(name)]
    if not unset:
        return {}
    place = _place(Path(otherwise))
    return {name: str(place / VARIABLES[name]) for name in unset}


def _is_set_by_user(name: str) -> bool:
    """Whether a variable is set, and not by torch in this very process."""
    value = os.environ.get(name, "")
    return value != "" and not Path(value).is_relative_to(_torchs_own_choice())


def _torchs_own_choice() -> Path:
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir(), f"torchinductor_{user}").absolute()


def _place(otherwise: Path) -> Path:
    try:
        return private_folder(cache_home() / FOLDER)
    except (OSError, RuntimeError) as error:  # there may be no home
        logger.warning(
            "what is compiled for this engine is not kept for the next one: %s. Set RAGCACHE_HOME "
            "to a folder that is yours alone, or %s",
            error,
            ", ".join(VARIABLES),
        )
        return otherwise / FOLDER
