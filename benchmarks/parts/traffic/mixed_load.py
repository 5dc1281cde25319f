"""The same mixed requests round after round: what a service meets in an hour.

Every round has the same requests in the same order, so that rounds can be compared. What must be
new in every round, documents and a tenant that nobody has seen before, is as long in each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ragcache_integrations.engine import Generation, Prompt, PromptDocument, SamplingOptions
from ragcache_integrations.llms.backend import Backend
from ragcache_integrations.resources import load_passages
from ragcache_integrations.speculation import Speculator, StageOfDocuments

__all__ = ["KINDS", "Job", "Kind", "MixedLoad", "Round"]

Kind = Literal[
    "plain",
    "stream",
    "short",
    "long",
    "batch",
    "choice",
    "sampled",
    "new documents",
    "new tenant",
    "given up",
    "cancelled",
    "speculative",
]

KINDS: dict[Kind, int] = {
    "plain": 10,
    "stream": 10,
    "short": 4,
    "long": 2,
    "batch": 1,
    "choice": 1,
    "sampled": 2,
    "new documents": 4,
    "new tenant": 1,
    "given up": 4,
    "cancelled": 3,
    "speculative": 4,
}
"""How many there are of each in a round."""

# Their answers are noted, to be compared with those of other rounds.
_REPEATED = frozenset(KINDS) - {"sampled", "new documents", "given up", "cancelled"}

SYSTEM = "Answer from the documents, and from nothing else."
DOCUMENTS = 60
WORDS = 60
OUTPUT_TOKENS = 8
LONG = 8
"""Documents in a long prompt; others have two."""
TENANTS = ("", "tenant a", "tenant b")
SEARCH_SECONDS = 0.03
LATEST_CANCEL = 0.08
TIMEOUT_SECONDS = 120.0
ERRORS_KEPT = 10

OPTIONS = SamplingOptions(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
MANY_TOKENS = SamplingOptions(max_tokens=256, ignore_eos=True)
CHOICE = SamplingOptions(max_tokens=OUTPUT_TOKENS, choice=("yes", "no", "maybe"))


@dataclass(frozen=True)
class Job:
    """A request.

    Attributes:
        place: In its round.
        kind: What is done.
        prompts: What is asked; a batch has several, speculation its wrong guess first.
        namespace: Tenant.
        options: How it is answered.
        delay: Seconds after which it is cancelled, where it is.
    """

    place: int
    kind: Kind
    prompts: tuple[Prompt, ...]
    namespace: str = ""
    options: SamplingOptions = OPTIONS
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """What became of a round; all that is kept of it, so that an hour fits little memory.

    Attributes:
        ended: Seconds since the load began.
        requests: How many there were.
        errors: How many of them went wrong.
        median: Of the latencies, in seconds: to the first token of a stream, to the end of others;
            what was given up has none.
        late: Their 95th percentile.
    """

    ended: float
    requests: int
    errors: int
    median: float
    late: float


@dataclass
class MixedLoad:
    """Sends rounds of requests.

    Args:
        backend: Who answers.
        speculator: For speculative requests; ``None`` leaves them out.
        seed: Decides the rounds.
        concurrency: Requests at a time.

    Attributes:
        rounds: What became of each.
        requests: How many there were of each kind.
        errors: How many went wrong.
        first_errors: The first of them, in words.
        changed: Answers that were not those of the first round, which asked the same.
    """

    backend: Backend
    speculator: Speculator | None = None
    seed: int = 0
    concurrency: int = 4
    rounds: list[Round] = field(default_factory=list)
    requests: Counter[Kind] = field(default_factory=Counter)
    errors: int = 0
    first_errors: list[str] = field(default_factory=list)
    changed: int = 0

    def __post_init__(self) -> None:
        self._words = " ".join(passage.text for passage in load_passages()).split()
        self._answers: dict[int, str] = {}

    def round(self, number: int) -> list[Job]:
        """The requests of a round."""
        rng = np.random.default_rng(self.seed)
        kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
        if self.speculator is None:
            kinds = [kind for kind in kinds if kind != "speculative"]
        order = rng.permutation(len(kinds)).tolist()
        return [self._job(place, kinds[at], number, rng) for place, at in enumerate(order)]

    async def run(self, seconds: float) -> None:
        """Send rounds until the time is over; the last one is sent to its end."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            jobs = iter(self.round(len(self.rounds)))
            errors, latencies = self.errors, list[float]()
            workers = (self._work(jobs, latencies) for _ in range(self.concurrency))
            count = sum(await asyncio.gather(*workers))
            median, late = np.quantile(latencies or [float("nan")], [0.5, 0.95]).tolist()
            ended = time.monotonic() - began
            self.rounds.append(Round(ended, count, self.errors - errors, median, late))

    async def _work(self, jobs: Iterator[Job], latencies: list[float]) -> int:
        """Send what is left of a round, one after another, and say how many."""
        count = 0
        for count, job in enumerate(jobs, 1):  # noqa: B007 - returned
            self.requests[job.kind] += 1
            try:
                seconds, said = await getattr(self, "_" + job.kind.replace(" ", "_"))(job)
            except Exception as error:  # noqa: BLE001 - every error is to be told
                self.errors += 1
                if len(self.first_errors) < ERRORS_KEPT:
                    self.first_errors.append(f"{job.kind}: {type(error).__name__}: {error}")
                continue
            if seconds is not None:
                latencies.append(seconds)
            if job.kind in _REPEATED:
                answer = _hash(said)
                self.changed += self._answers.setdefault(job.place, answer) != answer
        return count

    def _job(self, place: int, kind: Kind, number: int, rng: np.random.Generator) -> Job:
        count = {"short": 0, "long": LONG}.get(kind, 2)
        names = [[f"document {one}" for one in self._popular(rng, count)] for _ in range(4)]
        namespace = TENANTS[place % len(TENANTS)]
        if kind == "new documents":
            names[0] = [f"new {number} {place} {one}" for one in range(count)]
        if kind == "new tenant":
            namespace = f"newcomer {number}"
        options = {"given up": MANY_TOKENS, "cancelled": MANY_TOKENS, "choice": CHOICE}.get(kind)
        if kind == "sampled":
            options = SamplingOptions(max_tokens=OUTPUT_TOKENS, temperature=1.0, ignore_eos=True)
        wanted = {"batch": 4, "speculative": 2}.get(kind, 1)
        prompts = tuple(self._prompt(place, name) for name in names[:wanted])
        delay = float(rng.uniform(0, LATEST_CANCEL))
        return Job(place, kind, prompts, namespace, options or OPTIONS, delay)

    def _popular(self, rng: np.random.Generator, count: int) -> list[int]:
        """Numbers of different documents, by Zipf's law."""
        weights = np.arange(1, DOCUMENTS + 1, dtype=float) ** -1.0
        chances = weights / weights.sum()
        drawn: list[int] = rng.choice(DOCUMENTS, size=count, replace=False, p=chances).tolist()
        return drawn

    def _prompt(self, place: int, names: Sequence[str]) -> Prompt:
        documents = [PromptDocument(self._text(name), name) for name in names]
        return Prompt.rag(f"What is there about number {place}?", documents, system=SYSTEM)

    def _text(self, name: str) -> str:
        """Of so many words; the first are its own, so that no two begin alike."""
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "big") % (len(self._words) - WORDS)
        return f"{digest.hex()}: " + " ".join(self._words[start : start + WORDS])

    # One method for each kind: the seconds that it took, and what was generated.

    async def _plain(self, job: Job) -> tuple[float, list[Generation]]:
        began = time.perf_counter()
        generation = await asyncio.to_thread(
            self.backend.generate,
            job.prompts[0],
            job.options,
            namespace=job.namespace,
            timeout=TIMEOUT_SECONDS,
        )
        return time.perf_counter() - began, [generation]

    async def _short(self, job: Job) -> tuple[float, list[Generation]]:
        began = time.perf_counter()
        generation = await self.backend.agenerate(
            job.prompts[0], job.options, namespace=job.namespace, timeout=TIMEOUT_SECONDS
        )
        return time.perf_counter() - began, [generation]

    _long = _choice = _sampled = _new_documents = _new_tenant = _short

    async def _batch(self, job: Job) -> tuple[float, Sequence[Generation]]:
        began = time.perf_counter()
        generations = await asyncio.to_thread(
            self.backend.generate_batch,
            job.prompts,
            job.options,
            namespace=job.namespace,
            timeout=TIMEOUT_SECONDS,
        )
        return time.perf_counter() - began, generations

    async def _stream(self, job: Job) -> tuple[float, list[str]]:
        began = time.perf_counter()
        first = None
        texts = []
        stream: Any = await self.backend.astream(
            job.prompts[0], job.options, namespace=job.namespace, timeout=TIMEOUT_SECONDS
        )
        async with aclosing(stream):
            async for chunk in stream:
                first = first or time.perf_counter() - began
                texts.append(chunk.text)
        if first is None:
            raise RuntimeError("the stream ended without a chunk")
        return first, ["".join(texts)]

    async def _given_up(self, job: Job) -> tuple[None, list[str]]:
        """Read the first chunks and leave."""
        stream: Any = await self.backend.astream(
            job.prompts[0], job.options, namespace=job.namespace, timeout=TIMEOUT_SECONDS
        )
        async with aclosing(stream):
            for _ in range(2):
                await anext(stream)
        return None, []

    async def _cancelled(self, job: Job) -> tuple[None, list[str]]:
        """Cancel it at some moment, perhaps before the first token."""
        task = asyncio.ensure_future(
            self.backend.agenerate(job.prompts[0], job.options, namespace=job.namespace)
        )
        await asyncio.wait([task], timeout=job.delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None, []

    async def _speculative(self, job: Job) -> tuple[float, list[Generation]]:
        """A search whose first stage is wrong."""
        assert self.speculator is not None

        async def stages() -> AsyncGenerator[StageOfDocuments[Prompt], None]:
            for number, prompt in enumerate(job.prompts, 1):
                await asyncio.sleep(SEARCH_SECONDS)
                yield StageOfDocuments((prompt,), final=number == len(job.prompts))

        began = time.perf_counter()
        answer = await self.speculator.arun(
            stages(),
            lambda prompts: prompts[0],
            job.options,
            namespace=job.namespace,
            timeout=TIMEOUT_SECONDS,
        )
        return time.perf_counter() - began, [answer.generation]


def _hash(generations: Sequence[Generation | str]) -> str:
    texts = [
        generation if isinstance(generation, str) else generation.text for generation in generations
    ]
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).hexdigest()
