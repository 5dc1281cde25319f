"""Says how to install the other distributions of this repository, none of which is on an index."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from importlib import metadata
from urllib.parse import unquote, urlsplit

__all__ = ["installation"]


def installation(*folders: str, extra: str = "") -> str:
    """Return the command that installs distributions from where this one was installed.

    pip records that place: a clone, an address, or a wheel, whose siblings are in the same folder.

    Args:
        folders: Their folders in the repository, such as ``minilm``.
        extra: An extra of this distribution that needs them; empty for none.
    """
    origin = _origin()
    url = str(origin.get("url", ""))
    path = unquote(urlsplit(url).path)
    names = [f"ragcache-{folder}" for folder in folders]
    options = []
    if "dir_info" in origin:
        names = [f"{path}/{folder}" for folder in folders]
    elif url and not path.endswith(".whl"):
        version = origin.get("vcs_info")
        address = url if version is None else f"{version['vcs']}+{url}@{version['commit_id']}"
        names = [f"ragcache-{folder} @ {address}#subdirectory={folder}" for folder in folders]
    elif folders:
        options = ["--find-links", path.rpartition("/")[0] or "FOLDER-OF-THE-WHEELS"]
    if extra:
        names.append(f"ragcache-integrations[{extra}]")
    return shlex.join(["pip", "install", *options, *names])


def _origin() -> dict[str, dict[str, str]]:
    """The record of where this distribution came from (PEP 610); empty for an index."""
    with suppress(metadata.PackageNotFoundError, ValueError):
        text = metadata.distribution("ragcache-integrations").read_text("direct_url.json")
        return dict(json.loads(text or "{}"))
    return {}
