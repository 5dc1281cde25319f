"""What our retrievers and LLM classes add to the frameworks' own, call by call.

For LangChain (over ``InMemoryVectorStore``) and LlamaIndex (over ``VectorStoreIndex``), sync and
async: the time of a question that misses the cache (``miss``), of the same question asked again
(``hit``) and of its rephrasing (``rephrased``, a hit that is re-ranked), over the time that the
framework's own plain retriever of the same store takes for the same question in the same run. The
same for the chat classes over a backend that answers at once, beside the framework's fake model.

Embedding and search are subtracted on both sides, by a stopwatch around the embedding model and
around the store's own search: what every search of it ends in, by whichever way it was called.
Embeddings are looked up in a table. A miss finds, and keeps for re-ranking, four times as many
documents as the plain retriever; with ``--rerank-factor 1``, as many.

Each ratio is one of medians, with a 95% interval. ``calls`` and ``files`` are calls into this
package's code and the number of its files that they enter, in all threads. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from parts.overhead import langchain, llama_index
from parts.overhead.call_counts import CallCounter
from parts.overhead.contests import KINDS, Counts, Times, count_calls, ratio_of, time_calls
from parts.overhead.subtraction import vectors_of
from parts.stats.tables import Cell, print_table

FRAMEWORKS = {"langchain": langchain, "llama_index": llama_index}
DIM = 384
DOCUMENTS = 100
SENTENCE = "A sentence about cats. "
WARM_UP = 20
COUNTED = 5
"""Questions until the calls of the last one are counted."""


class Bench:
    """What is asked, at the size that was asked for.

    Args:
        options: The command line's.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.seeds = range(1 if options.quick else options.seeds)
        self.questions = 30 if options.quick else options.questions
        self.rerank_factor = options.rerank_factor
        self.texts = [
            f"Passage {number}. " + "A sentence about cats. " * 20 for number in range(DOCUMENTS)
        ]

    async def retrievers(self, framework: str, *, asynchronous: bool) -> tuple[list[Times], Counts]:
        """Time and count a framework's retrievers."""
        times = []
        for seed in self.seeds:
            questions = [f"What is {number}?" for number in range(WARM_UP + self.questions)]
            contest = self._contest(framework, questions, seed, asynchronous=asynchronous)
            times.append(await time_calls(contest, questions, WARM_UP, seed))
        counter, questions = CallCounter(), [f"What is {number}?" for number in range(COUNTED)]
        with counter.watching():
            contest = self._contest(framework, questions, 0, asynchronous=asynchronous)
            return times, await count_calls(counter, contest.ours, questions)

    async def llms(self, framework: str, *, asynchronous: bool) -> tuple[list[Times], Counts]:
        """Time and count a framework's chat models."""
        contest = FRAMEWORKS[framework].llms(asynchronous=asynchronous)
        questions = [f"What is {number}?" for number in range(WARM_UP + self.questions)]
        times = [await time_calls(contest, questions, WARM_UP, seed) for seed in self.seeds]
        return times, await count_calls(CallCounter(), contest.ours, questions[:COUNTED])

    def _contest(
        self, framework: str, questions: list[str], seed: int, *, asynchronous: bool
    ) -> Any:
        vectors = vectors_of([*questions, *self.texts], DIM, seed)
        module = FRAMEWORKS[framework]
        return module.retrievers(
            vectors, self.texts, rerank_factor=self.rerank_factor, asynchronous=asynchronous
        )


async def measure(bench: Bench, framework: str) -> dict[str, Any]:
    """Measure one framework; the keys of the coroutines begin with ``async_``."""
    figures: dict[str, Any] = {}
    rows: list[list[Cell]] = []
    for prefix, asynchronous in (("", False), ("async_", True)):
        times, counts = await bench.retrievers(framework, asynchronous=asynchronous)
        llm_times, llm_counts = await bench.llms(framework, asynchronous=asynchronous)
        for kind in KINDS:
            figures |= _figures(f"{prefix}{kind}", times, counts, kind, rows)
        # A chat model has no cache: every question is a new one.
        figures |= _figures(f"{prefix}llm", llm_times, llm_counts, "hit", rows)
    head = ["", "ratio [95% interval]", "ours, µs", "plain, µs", "calls", "files"]
    print_table(f"{framework}: ours over the framework's own", head, rows)
    return figures


def _figures(
    name: str, times: list[Times], counts: Counts, kind: str, rows: list[list[Cell]]
) -> dict[str, Any]:
    ratio, (calls, files) = ratio_of(times, kind), counts[kind]
    ours, plain = (
        sorted(seconds for run in times for seconds in run[kind][side]) for side in (0, 1)
    )
    rows.append(
        [name, str(ratio), ours[len(ours) // 2] * 1e6, plain[len(plain) // 2] * 1e6, calls, files]
    )
    return {
        f"{name}_ratio": round(ratio.value, 3),
        f"{name}_interval": [round(ratio.low, 3), round(ratio.high, 3)],
        f"{name}_calls": calls,
        f"{name}_files": files,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=300, help="timed, for each seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--rerank-factor",
        type=int,
        default=4,
        help="times as many documents of a miss are kept as the plain retriever finds",
    )
    parser.add_argument("--quick", action="store_true", help="few questions, one seed")
    bench = Bench(parser.parse_args())
    results = {framework: asyncio.run(measure(bench, framework)) for framework in FRAMEWORKS}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
