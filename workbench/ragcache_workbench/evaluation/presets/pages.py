"""Names of the pages of presets, chosen so that none replaces the page of other settings."""

from __future__ import annotations

import json
from pathlib import Path

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import BUNDLED
from ragcache_workbench.evaluation.evaluate import digest_name
from ragcache_workbench.evaluation.records import read_json_file

from .plan import PresetPlan

__all__ = ["page_name"]


def page_name(plan: PresetPlan, folder: Path, *, data: str = BUNDLED, label: str = "") -> str:
    """Name the page of a preset's tables, without a suffix.

    The usual form is ``PRESET-DATASET``, with ``-quick`` if small. If the folder has such a page
    of other data, and for other knobs, a number of seeds or a label, the name says which, and ends
    with their hash: the same settings replace their own page, and no other. ::

        page_name(plan_preset("nq", "metis", sample=5), Path("runs"))
        # metis-nq-quick-sample=5-1f2e3d4c

    Args:
        plan: What was run.
        folder: Where the page will be.
        data: The source of the data set.
        label: The label of the runs.
    """
    usual = f"{plan.preset.name}-{plan.form.dataset}{'-quick' if plan.form.quick else ''}"
    if not plan.changed and not label and _is_free(folder, usual, data):
        return usual
    knobs = dict(plan.changed)
    if data != BUNDLED:
        knobs["data"] = Path(data).name
    words = [usual, *([label] if label else []), *(f"{name}={knobs[name]}" for name in knobs)]
    content = json.dumps([label, data, plan.changed], sort_keys=True, default=str)
    return digest_name("-".join(words), content)


def _is_free(folder: Path, name: str, data: str) -> bool:
    """Whether there is no page of this name, or it is of the same data."""
    page, content = folder / f"{name}.md", folder / f"{name}.json"
    if not page.exists() and not content.exists():
        return True
    try:
        known = read_json_file(content, links=True)
    except ConfigurationError:
        return False
    return isinstance(known, dict) and known.get("data") == data
