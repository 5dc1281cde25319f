"""The machine on which the engine computes: its name, OpenMP, folders of compiled code."""

from .compiler_caches import compiler_caches
from .device import (
    IN_ONE_PROCESS,
    WAITING,
    computes_on_cpu,
    device_name,
    openmp_environment,
    unbound_while_loading,
)

__all__ = [
    "IN_ONE_PROCESS",
    "WAITING",
    "compiler_caches",
    "computes_on_cpu",
    "device_name",
    "openmp_environment",
    "unbound_while_loading",
]
