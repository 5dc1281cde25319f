"""Staged search beside FAISS's own: what stages cost, and how early the documents are there.

For IVF (1024 clusters as in RAGCache §7, flat and product-quantised) and HNSW, of 100,000 and a
million vectors: total time of all stages over that of the plain search, time to the first stage and
to the final documents, and the share of queries whose documents are final after each stage; by k,
by share of the vectors searched (12.5 % to 100 %), by number of stages, by ``efSearch`` and by
FAISS's number of threads (one for each query, and two that share its clusters).

The vectors are MiniLM embeddings of the passages that there are (the bundled sample's without
``--data``) and generated neighbours of them beyond, 384 dimensions; the queries are those of
questions, and generated neighbours. ``--record`` keeps the stages of a million vectors for
``speculation.py``. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from parts.speculation.recorded_stages import record, save
from parts.stats.tables import Cell, print_table
from parts.traffic.embedded import Embedder
from parts.traffic.questions import load_corpus
from parts.vector_search.exact_store import pad
from parts.vector_search.large_indexes import BUILD_BREADTH, LINKS, Kind, clusters, large_index
from parts.vector_search.staged_times import Compared, compare, threads

from ragcache_integrations.vector_search import StagedIndex, StagePlan

MILLION = 1_000_000
SHARES = (0.125, 0.25, 0.5, 1.0)
KS = (1, 2, 5, 10)
STAGES = (4, 8, 16)
EFS = (64, 256)
KINDS = ("ivf", "ivf_pq", "hnsw")
EIGHT = StagePlan(number=8)
K = 2
"""As in RAGCache §7."""
RECALL = 0.9
"""What a search of a graph is to find of the nearest vectors, where a recording is named for it."""


@dataclass
class Material:
    """Vectors and queries.

    Attributes:
        passages: Embeddings of real passages, shape (n, d).
        queries: Shape (queries, d); real ones first.
        real_queries: How many are real.
        few: How many queries are asked where each takes long.
    """

    passages: NDArray[np.float32]
    queries: NDArray[np.float32]
    real_queries: int
    few: int

    def index(self, kind: Kind, size: int) -> Any:
        """An index of so many vectors."""
        return large_index(kind, size, self.passages)


def material(options: argparse.Namespace) -> Material:
    """Embed what there is."""
    corpus = load_corpus(options.data)
    embed = Embedder(show_progress=not options.quick)
    passages = [text[:200] for text in corpus.passages[:250]] if options.quick else corpus.passages
    questions = [one.text for asked in corpus.questions.values() for one in asked]
    questions = questions[: 50 if options.quick else None]
    count = 500 if options.quick else options.queries
    real = embed(questions)
    queries = np.random.default_rng(1).permutation(pad(real, count, seed=1)[:count])
    return Material(embed(passages), queries, min(len(real), count), min(count, 300))


HEAD = (
    "stages", "equal", "plain ms", "staged ms", "ratio", "first ms", "final docs ms",
    "final after each stage",
)  # fmt: skip


def row(found: Compared) -> list[Cell]:
    """Cells of a table."""
    figures = found.as_dict()
    return [
        figures["stages"],
        figures["equal_share"],
        figures["plain_ms"],
        figures["staged_ms"],
        str(found.overhead),
        figures["first_stage_ms"],
        figures["final_documents_ms"],
        " ".join(f"{one:.2f}" for one in found.final_after[:8]),
    ]


def ivf(given: Material, kind: Kind, size: int, *, whole: bool) -> dict[str, Any]:
    """An index of clusters.

    Args:
        given: The material.
        kind: Flat or quantised.
        size: How many vectors.
        whole: Every k and number of stages, and all queries once.
    """
    index = given.index(kind, size)
    ours = StagedIndex(index)
    count = clusters(size)
    some = given.queries[: given.few]
    main = max(count // 8, 1)
    rows: list[list[Cell]] = []
    found: dict[str, Any] = {"clusters": count}

    def measure(
        name: str,
        probes: int = main,
        k: int = K,
        plan: StagePlan = EIGHT,
        queries: NDArray[np.float32] = some,
        parallel: int = 1,
    ) -> Compared:
        index.nprobe, index.parallel_mode = probes, 0 if parallel == 1 else 1
        with threads(parallel):
            compared = compare(ours, queries, k, plan)
        rows.append([name, probes, k, *row(compared)])
        found[name] = {"nprobe": probes, "k": k, **compared.as_dict()}
        return compared

    measure("main", queries=given.queries if whole else some)
    for share in SHARES:
        measure(f"share {share:g}", probes=max(1, round(count * share)))
    measure("two threads", parallel=2)
    if whole:
        for k in KS:
            measure(f"k {k}", k=k)
        for stages in STAGES:
            measure(f"stages {stages}", plan=StagePlan(number=stages))
        measure("two threads, all clusters", probes=count, parallel=2)
    print_table(
        f"{kind}, {size} vectors, {count} clusters, one thread unless said",
        ("what", "nprobe", "k", *HEAD),
        rows,
    )
    return found


def hnsw(given: Material, size: int, *, whole: bool) -> dict[str, Any]:
    """A graph; every search runs in one thread."""
    index = given.index("hnsw", size)
    ours = StagedIndex(index)
    rows: list[list[Cell]] = []
    found: dict[str, Any] = {"links": LINKS, "build_breadth": BUILD_BREADTH}
    some = given.queries[: 10 * given.few]

    def measure(
        name: str,
        efsearch: int,
        k: int = 10,
        plan: StagePlan = EIGHT,
        queries: NDArray[np.float32] = some,
    ) -> None:
        index.hnsw.efSearch = efsearch
        with threads(1):
            compared = compare(ours, queries, k, plan)
        rows.append([name, efsearch, k, *row(compared)])
        found[name] = {"efSearch": efsearch, "k": k, **compared.as_dict()}

    for efsearch in EFS:
        measure(f"ef {efsearch}", efsearch, queries=given.queries if whole else some)
    if whole:
        for k in KS[:-1]:
            measure(f"k {k}", EFS[-1], k)
        for stages in STAGES:
            measure(f"stages {stages}", EFS[-1], plan=StagePlan(number=stages))
        measure("one stage", EFS[-1], plan=StagePlan(number=1))
    print_table(
        f"hnsw, {size} vectors, M {LINKS}, efConstruction {BUILD_BREADTH}",
        ("what", "efSearch", "k", *HEAD),
        rows,
    )
    return found


def recall(index: Any, queries: NDArray[np.float32]) -> float:
    """Share of the nearest vectors that a graph's search finds; equal distances count as found."""
    nearest, _ = index.storage.search(queries, K)
    found, _ = index.search(queries, K)
    return float(np.isclose(found, nearest, rtol=1e-4, atol=1e-4).mean())


def keep_stages(given: Material, size: int, folder: Path) -> None:
    """Record stages for the speculation benchmark.

    The graph is searched twice: with the efSearch that finds enough (``RECALL``), as somebody would
    who otherwise searches all clusters, and hastily.
    """
    folder.mkdir(parents=True, exist_ok=True)
    queries = given.queries[: given.few]

    def keep(name: str, index: Any, about: dict[str, Any]) -> None:
        about = {"kind": name.partition("-")[0], "vectors": size, "dim": int(index.d), **about}
        with threads(1):
            recording = record(StagedIndex(index), queries, K, about, EIGHT)
        save(recording, folder / f"{name}.json")
        print(
            f"{name}: {about}, {len(queries)} searches, median {recording.seconds() * 1e3:.2f} ms, "
            f"first stage agrees with the final one in {recording.agreeing():.1%}",
            flush=True,
        )

    index = given.index("ivf", size)
    for share in SHARES:
        index.nprobe = max(1, round(clusters(size) * share))
        keep(f"ivf-{share:g}", index, {"nprobe": index.nprobe, "share": share})
    graph = given.index("hnsw", size)
    graph.hnsw.efSearch = EFS[-1]
    keep("hnsw-hasty", graph, {"efSearch": EFS[-1], "recall": recall(graph, queries)})
    while (reached := recall(graph, queries)) < RECALL:
        graph.hnsw.efSearch *= 2
    keep("hnsw", graph, {"efSearch": graph.hnsw.efSearch, "recall": reached})


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a cut of it, in less than a minute")
    parser.add_argument("--data", type=Path, help="folder with nq/ and pubmedqa/")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, MILLION])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of index")
    parser.add_argument("--queries", type=int, default=10_000, help="for the main figures")
    parser.add_argument("--record", type=Path, metavar="DIR", help="only keep stages there")
    options = parser.parse_args()
    given = material(options)
    sizes = [20_000] if options.quick else options.sizes
    real = min(len(given.passages), sizes[-1])
    print(
        f"{real} vectors are embeddings of passages, the others generated; {given.real_queries} of "
        f"{len(given.queries)} queries are embeddings of questions, the others generated",
        flush=True,
    )
    if options.record is not None:
        keep_stages(given, sizes[-1], options.record)
        return
    by_size: dict[str, Any] = {}
    for size in sizes:
        whole = size == sizes[-1] and not options.quick
        by_size[str(size)] = {
            kind: hnsw(given, size, whole=whole)
            if kind == "hnsw"
            else ivf(given, kind, size, whole=whole and kind == "ivf")
            for kind in options.kinds
        }
    last = by_size[str(sizes[-1])]
    result: dict[str, Any] = {"vectors": sizes[-1], "real_vectors": real}
    if "ivf" in last:
        figures = last["ivf"]["main"]
        result["ivf"] = {name: figures[name] for name in ("equal_share", "overhead")}
    if "hnsw" in last:
        graphs = [last["hnsw"][f"ef {efsearch}"] for efsearch in EFS]
        result["hnsw"] = {
            "equal_share": min(one["equal_share"] for one in graphs),
            "overhead": graphs[-1]["overhead"],
            "by_ef": {str(graph["efSearch"]): graph["overhead"] for graph in graphs},
        }
    print(json.dumps(result | {"by_size": by_size}))


if __name__ == "__main__":
    main()
