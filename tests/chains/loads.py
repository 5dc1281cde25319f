"""Sources of an engine's load that say what a test needs."""

from __future__ import annotations

from dataclasses import replace

from ragcache_integrations.adaptive import MemoryLoad

__all__ = ["Busy", "Memory"]


class Memory:
    """Has room for so many tokens."""

    def __init__(self, free: int) -> None:
        self.free = free

    def read(self) -> MemoryLoad:
        return MemoryLoad(self.free, self.free)

    async def aread(self) -> MemoryLoad:
        return self.read()


class Busy(Memory):
    """Is never idle."""

    def read(self) -> MemoryLoad:
        return replace(super().read(), running_requests=1)
