"""What a hit is worth in front of each vector store, at the default tolerance.

Streams of questions on which no default was chosen:

- ``rephrased``: questions of Natural Questions, drawn by Zipf's law, each time in other words, with
  near-duplicates that ask for something else (as in ``query_cache.py``, which uses other questions,
  if ``--data`` has more than the bundled ones);
- ``catalogue``: an invented catalogue in which every question is asked once and looks more like
  others that have other answers than like the other wording of its own;
- ``repeated``: as the first, but in the same words: what is left to save where nothing is
  re-ranked. For that, our retriever gets a function that asks the store in the store's place;
- ``guard``, if it is named: as the first, by how much the questions are rephrased, with the guard
  and without it: what the guard costs in hits.

All but the last ask without the guard, so that the distance alone decides.

Of every question that the cache answers: does the answer hold the passage that answers the question
(``served``), does the store's own answer to this very question (``store``), and which share of the
store's own documents is in the answer (``recall``). ``served`` is that of those that the store
itself has, with the lower end of its exact 95 % interval (Clopper and Pearson). ``saved`` is the
share of questions for which the store was not asked.

``unknown`` is a store of which nothing is known: strict by default, and re-ranked with
``vectors="embed"``. The other stores are those of LangChain where nothing else is said; those of
LlamaIndex are asked about the catalogue alone. k = 5, MiniLM, whose embeddings are kept in the
user's cache folder. The last line is one JSON object, of all that was asked of a store.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from parts.stats.tables import Cell, print_table
from parts.stores.catalogue import AskedOnce, catalogue
from parts.stores.langchain import STORES, LangChainStore, Table
from parts.stores.llama_index import INDEXES, LlamaIndexStore
from parts.stores.real import embedded, real
from parts.stores.servers import postgres
from scipy.stats import binomtest

from ragcache_workbench.evaluation.workloads import Kind

K = 5
STREAMS = ("rephrased", "catalogue", "repeated")
GUARD = "guard"
REPHRASED: tuple[Kind, ...] = ("slight", "light", "medium", "heavy")
EMBEDDED = "unknown, vectors='embed'"
UNRANKED = ", not re-ranked"


class Store(Protocol):
    """A store of either framework, and our retriever in front of it."""

    def add(self, passages: Mapping[str, str]) -> None:
        """Add texts by id."""

    def search(self, question: str) -> list[str]:
        """Return the ids that the store itself finds."""

    def retriever(self, **knobs: Any) -> Any:
        """Put our retriever in front of it."""

    def ask(self, retriever: Any, question: str) -> list[str]:
        """Return the ids that our retriever finds."""


@dataclass
class Counts:
    """What was counted for one store.

    Attributes:
        questions: Questions asked.
        hits: Those that the cache answered.
        known: Hits of which the answering passage is known, and the store's own answer holds it.
        served: Those whose answer holds it, too.
        answerable: Hits of which the answering passage is known.
        calls: Searches of the store.
        recall: Sum over the hits of the share of the store's own documents that were served.
    """

    questions: int = 0
    hits: int = 0
    known: int = 0
    served: int = 0
    answerable: int = 0
    calls: int = 0
    recall: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        return Counts(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def low(self) -> float | None:
        """Lower end of the interval of the share that was served."""
        if not self.known:
            return None
        return float(binomtest(self.served, self.known).proportion_ci(method="exact").low)

    def row(self) -> list[Cell]:
        """Cells of the table."""
        share = self.served / self.known if self.known else None
        store = self.known / self.answerable if self.answerable else None
        recall = self.recall / self.hits if self.hits else None
        saved = 1 - self.calls / self.questions
        return [self.questions, self.hits, share, self.low(), store, saved, recall]

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        _, _, served, _, store, saved, recall = self.row()
        figures: dict[str, Any] = {
            "served_share": served,
            "store_share": store,
            "calls_saved": saved,
            "recall": recall,
        }
        return {
            name: None if figure is None else round(figure, 4) for name, figure in figures.items()
        }


def run(store: Store, asked: AskedOnce, **knobs: Any) -> Counts:
    """Fill a store, ask all questions, and count.

    Args:
        store: An empty store.
        asked: The passages and the questions.
        **knobs: Of the retriever.
    """
    store.add(asked.passages)
    retriever = store.retriever(**knobs)
    counts, hits = Counts(), 0
    for question, passage in asked.questions:
        served = store.ask(retriever, question)
        counts.questions += 1
        before, hits = hits, retriever.stats().hits
        if hits == before:
            continue
        own = store.search(question)
        counts.hits += 1
        counts.recall += len(set(served) & set(own)) / len(own)
        counts.answerable += bool(passage)
        counts.known += passage in own
        counts.served += passage in own and passage in served
    counts.calls = retriever.stats().store_calls
    return counts


def runs(
    stream: str, part: str, chosen: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what is asked the questions of a stream: its name, the store, and the knobs."""
    if stream == GUARD:
        yield f"{part}, without", "faiss", {}
        yield f"{part}, with the guard", "faiss", {"guard": True}
        return
    for name in chosen:
        if stream == "catalogue" or (stream == "rephrased" and name in STORES):
            yield name, name, {}
            if name == "unknown":
                yield EMBEDDED, name, {"vectors": "embed"}
        elif name == "unknown":
            yield name, name, {}
        elif name in STORES:
            yield name + UNRANKED, name, {"wrapped": True}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part, in under 90 s")
    parser.add_argument("--data", type=Path, help="folder with nq/ and pubmedqa/")
    every = [*STORES, *INDEXES]
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="rephrased streams")
    parser.add_argument(
        "--only", nargs="+", choices=[*STREAMS, GUARD], default=STREAMS, metavar="STREAM"
    )
    parser.add_argument("--stores", nargs="+", choices=every, default=every)
    options = parser.parse_args()
    logging.getLogger("ragcache_integrations").setLevel(logging.ERROR)
    quick = options.quick
    make = partial(real, options.data, quick=quick)
    models, catalogues = (2, 1) if quick else (10, 5)
    seeds = range(1 if quick else options.seeds)
    made: dict[str, Callable[[], dict[str, list[AskedOnce]]]] = {
        "rephrased": lambda: {"": [make("medium", seed) for seed in seeds]},
        "catalogue": lambda: {"": [catalogue(seed, models=models) for seed in range(catalogues)]},
        "repeated": lambda: {"": [make("verbatim", 0)]},
        GUARD: lambda: {kind: [make(kind, seed) for seed in seeds] for kind in REPHRASED},
    }
    streams = {name: made[name]() for name in options.only}
    every_one = [one for parts in streams.values() for stream in parts.values() for one in stream]
    vectors = embedded(every_one, quick=quick)
    table, dim = Table(vectors), len(next(iter(vectors.values())))
    totals: dict[str, Counts] = {}
    head = ["store", "questions", "hits", "served", "at least", "store", "saved", "recall"]
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder, "postgres")) as uri:
        for title, parts in streams.items():
            shown: list[Sequence[Cell]] = []
            wanted = [(part, one) for part in parts for one in runs(title, part, options.stores)]
            for part, (name, kind, knobs) in wanted:
                counts = Counts()
                for asked in parts[part]:
                    place = Path(tempfile.mkdtemp(dir=folder))
                    store: Store = (
                        LangChainStore(STORES[kind](table, place, uri), K)
                        if kind in STORES
                        else LlamaIndexStore(INDEXES[kind](dim, place, uri), vectors, K)
                    )
                    counts += run(store, asked, **({"guard": False} | knobs))
                totals[name] = totals.get(name, Counts()) + counts
                shown.append([name, *counts.row()])
            print_table(title, head, shown)
    print(json.dumps({name: counts.as_dict() for name, counts in totals.items()}))


if __name__ == "__main__":
    main()
