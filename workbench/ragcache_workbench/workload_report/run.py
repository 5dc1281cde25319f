"""From a file of traffic to the findings."""

from __future__ import annotations

from pathlib import Path

from ragcache_integrations.core.checks import check_int, check_number, or_none
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel, load_profile
from ragcache_workbench.simulation import (
    MOST_REPLICAS,
    characterise,
    load_workload,
)

from .model import read_model_facts
from .providers import REQUESTS_PER_DAY, provider_shares
from .replicas import compare_routings
from .summary import Findings

__all__ = ["REQUESTS_PER_DAY", "characterise_workload"]


def characterise_workload(
    path: Path,
    model: str | None = None,
    *,
    replicas: int | None = None,
    rate: float | None = None,
    requests_per_day: float = REQUESTS_PER_DAY,
    show_progress: bool = False,
) -> Findings:
    """Find out whether caching pays for the traffic in a file.

    Prefill times are those that ``ragcache profile`` has stored for the model on this machine,
    else those of the default cost model.

    Args:
        path: The log; :mod:`ragcache_workbench.simulation.workload` has the
            format.
        model: Folder or hub name of the model that answers; ``None`` for none in particular.
        replicas: Simulate this many replicas with a router in front, too.
        rate: Requests a second for all of them; ``None`` for 80 % of what they could serve without
            any cache.
        requests_per_day: How many requests like these a day has, which decides what a hosted
            model's prompt cache still holds.
        show_progress: Show a progress bar.

    Raises:
        ConfigurationError: The file is wrong, the model's folder is, or a number is out of range.
    """
    replicas = or_none(check_int)("replicas", replicas, 1, MOST_REPLICAS)
    rate = or_none(check_number)("rate", rate, 0, above=True, unit="requests a second")
    if model is not None:
        model = _resolved(model)
    facts = read_model_facts(model)
    workload = load_workload(path, facts.count_tokens)
    providers = provider_shares(workload.trace, requests_per_day)
    profile = None if model is None else load_profile(model, device_name())
    if profile is not None:
        times = f"Prefill times are those measured for {model} on {device_name()}."
    else:
        times = "Prefill times are the default cost model's, a 7B model on an NVIDIA A10G: " + (
            "no model was named." if model is None else f"{model} was not profiled here yet."
        )
    costs = profile or PrefillCostModel.default()
    result = characterise(workload.trace, prefill_seconds=costs, show_progress=show_progress)
    return Findings(
        name=path.name,
        workload=workload,
        result=result,
        requests_per_day=requests_per_day,
        providers=providers,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        origins=(times, *facts.notes),
        replicas=None
        if replicas is None
        else compare_routings(workload, result, costs, replicas=replicas, rate=rate),
    )


def _resolved(model: str) -> str:
    """The model's name as the engine and its profiles have it."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    if not model.strip() or model.startswith(("/", "./", "../", "~")):
        raise ConfigurationError(f"no model at {model!r}: there is no such folder")
    return model
