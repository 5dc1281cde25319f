"""What a hit is worth in front of each vector store, at the default tolerance.

Two streams: real questions, each time in other words, with near-duplicates that ask for something
else (``rephrased``, as in ``query_cache.py``); and an invented catalogue in which every question is
asked once and looks like others that have other answers (``catalogue``). No default was chosen on
the catalogue.

Of every question that the cache answers: does the answer hold the passage that answers the
question (``served``), does the store's own answer to this very question (``store``), and which
share of the store's own documents is in the answer (``recall``). ``served_share`` is that of those
that the store itself has, with the lower end of its exact 95 % interval (Clopper and Pearson).
``calls_saved`` is the share of questions for which the store was not asked.

``unknown`` is a store of which nothing is known: strict by default, and re-ranked with
``vectors="embed"``. k = 5, MiniLM. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from parts.stats.tables import Cell, print_table
from parts.stores.catalogue import AskedOnce, catalogue
from parts.stores.stores import STORES, postgres
from parts.traffic.embedded import Embedder
from parts.traffic.question_streams import zipf_stream
from parts.traffic.questions import load_corpus
from scipy.stats import binomtest

from ragcache_integrations.langchain import ApproximateCacheRetriever

K = 5
EMBEDDED = "unknown, vectors='embed'"


class Table(Embeddings):
    """Embeddings that were computed beforehand.

    Args:
        vectors: By text.
    """

    def __init__(self, vectors: Mapping[str, list[float]]) -> None:
        self._vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text; some vector for one that stores try out dimensions with."""
        return self._vectors.get(text) or next(iter(self._vectors.values()))


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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("questions", "hits", "served_share", "served_low", "store_share", "calls_saved")
        cells = zip((*names, "recall"), self.row(), strict=True)
        return {name: round(cell, 4) if isinstance(cell, float) else cell for name, cell in cells}


def run(store: VectorStore, asked: AskedOnce, batch: int = 500, **knobs: Any) -> Counts:
    """Fill a store, ask all questions, and count.

    Args:
        store: An empty store.
        asked: The passages and the questions.
        batch: How many passages are added at once.
        **knobs: Of the retriever.
    """
    documents = [
        Document(text, metadata={"passage": name}) for name, text in asked.passages.items()
    ]
    for begin in range(0, len(documents), batch):
        store.add_documents(documents[begin : begin + batch])
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=K, annotate=True, **knobs)
    counts = Counts()
    for question, passage in asked.questions:
        answer = retriever.invoke(question)
        counts.questions += 1
        if not answer or not answer[0].metadata["query_cache"]["hit"]:
            continue
        served = [document.metadata["passage"] for document in answer]
        own = [document.metadata["passage"] for document in store.similarity_search(question, k=K)]
        counts.hits += 1
        counts.recall += len(set(served) & set(own)) / len(own)
        counts.answerable += bool(passage)
        counts.known += passage in own
        counts.served += passage in own and passage in served
    counts.calls = retriever.stats().store_calls
    return counts


def rephrased(data: Path | None, seed: int, *, quick: bool) -> AskedOnce:
    """Return real passages and questions, each time in other words.

    Args:
        data: Holds the full data sets; ``None`` for the bundled sample.
        seed: Draws the stream.
        quick: A small part of them.
    """
    corpus = load_corpus(data)
    questions = corpus.questions["nq"][: 25 if quick else 400]
    passages = list(dict.fromkeys([*(one.passage for one in questions), *corpus.passages]))
    passages = [text[:200] for text in passages[:250]] if quick else passages
    ids = {text: str(number) for number, text in enumerate(passages)}
    answers = {
        question.text: ids.get(question.passage[:200] if quick else question.passage, "")
        for question in questions
    }
    stream = zipf_stream(
        questions, 150 if quick else 2500, "medium", twins=len(questions) // 5, seed=seed
    )
    asked = [
        (text, answers.get(original, ""))
        for text, original in zip(stream.texts, stream.originals, strict=True)
    ]
    return AskedOnce({name: text for text, name in ids.items()}, asked)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small part, in under 90 s")
    parser.add_argument("--data", type=Path, help="folder with nq/ and pubmedqa/")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="streams of each kind")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    options = parser.parse_args()
    logging.getLogger("ragcache_integrations").setLevel(logging.ERROR)
    quick = options.quick
    seeds = range(1 if quick else options.seeds)
    streams: dict[str, list[AskedOnce]] = {
        "rephrased": [rephrased(options.data, seed, quick=quick) for seed in seeds],
        "catalogue": [catalogue(seed, models=2 if quick else 10) for seed in seeds],
    }
    every = [asked for stream in streams.values() for asked in stream]
    texts = list(
        dict.fromkeys(
            text
            for asked in every
            for text in (*asked.passages.values(), *(question for question, _ in asked.questions))
        )
    )
    rows = Embedder(show_progress=not quick)(texts)
    table = Table(dict(zip(texts, rows.tolist(), strict=True)))
    totals: dict[str, Counts] = {}
    head = ["store", "questions", "hits", "served", "at least", "store", "saved", "recall"]
    with tempfile.TemporaryDirectory() as folder, postgres(Path(folder, "postgres")) as uri:
        for title, stream in streams.items():
            shown: list[Sequence[Cell]] = []
            for name in _runs(options.stores):
                counts = Counts()
                for asked in stream:
                    place = Path(tempfile.mkdtemp(dir=folder))
                    store = STORES["unknown" if name == EMBEDDED else name](table, place, uri)
                    knobs: dict[str, Any] = {"vectors": "embed"} if name == EMBEDDED else {}
                    counts += run(store, asked, **knobs)
                totals[name] = totals.get(name, Counts()) + counts
                shown.append([name, *counts.row()])
            print_table(title, head, shown)
    print(json.dumps({name: counts.as_dict() for name, counts in totals.items()}))


def _runs(stores: Sequence[str]) -> list[str]:
    return [*stores, *([EMBEDDED] if "unknown" in stores else [])]


if __name__ == "__main__":
    main()
