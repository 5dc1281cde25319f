"""What the pipeline knows of a question until it is answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ragcache_integrations.core.prompt import PromptDocument

from .answers import Explanation
from .choice import ChunkFacts, PrunedSpace
from .profile import ProfileEstimate
from .synthesis import Answered
from .types import SynthesisConfig, Synthesised

__all__ = ["Job", "Profiled", "late_profile"]


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profiler's estimate, and how long it took in seconds."""

    estimate: ProfileEstimate | None
    seconds: float


@dataclass(slots=True, eq=False, weakref_slot=True)
class Job:
    """One question: times by the performance counter, what is known of it, what was decided."""

    question: str
    to_retrieve: int
    to_read: int
    golden: bool
    began: float = field(default_factory=time.perf_counter)
    documents: tuple[PromptDocument, ...] = ()
    retrieved: float = 0.0
    profiled: Profiled = Profiled(None, 0.0)
    estimated: float = 0.0
    space: PrunedSpace | None = None
    trusted: bool = False
    facts: ChunkFacts | None = None
    decided: float = 0.0
    chosen: float = 0.0
    answered: float = 0.0
    pace: float = 1.0
    ticket: int = 0
    cancelled: bool = False
    reader_seconds: float = 0.0
    tried: tuple[SynthesisConfig, ...] = ()
    insufficient: list[Synthesised] = field(default_factory=list)
    known: Answered = field(default_factory=dict)
    explanation: Explanation = field(init=False)

    @property
    def chunks(self) -> tuple[PromptDocument, ...]:
        """The chunks that the answer may read; golden feedback may read more."""
        return self.documents[: self.to_read]

    @contextmanager
    def timing_reader(self) -> Iterator[None]:
        """Surrounds a ``yield``: adds up the time that the stream's reader takes."""
        began = time.perf_counter()
        yield
        self.reader_seconds += time.perf_counter() - began

    @property
    def config(self) -> SynthesisConfig:
        """What is read now."""
        return self.explanation.config

    @property
    def is_step(self) -> bool:
        """Whether more may be read after what is read now."""
        return self.explanation.why == "enough"

    @property
    def read(self) -> int:
        """How many chunks were read before."""
        return self.tried[-1].num_chunks if self.tried else 0


def late_profile(job: Job) -> Profiled:
    """Return what stands for the profile of a question that did not come in time."""
    estimate = ProfileEstimate(None, "none", problem="the profiler did not answer in time")
    return Profiled(estimate, time.perf_counter() - job.began)
