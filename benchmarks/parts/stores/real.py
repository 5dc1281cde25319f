"""Real questions about real passages, on which no default was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parts.stores.catalogue import AskedOnce
from parts.traffic.embedded import Embedder
from parts.traffic.question_streams import zipf_stream
from parts.traffic.questions import load_corpus
from ragcache_workbench.evaluation.workloads import Kind

__all__ = ["embedded", "real"]

SEEN = 500
"""Questions of Natural Questions that other benchmarks use, by which defaults were chosen."""
TOPICS, LENGTH, LENGTH_REPEATED = 400, 2500, 1500
QUICK_TOPICS, QUICK_LENGTH = 25, 150
PASSAGES, QUICK_PASSAGES = 2500, 250
QUICK_CHARACTERS = 200


def real(data: Path | None, kind: Kind, seed: int, *, quick: bool) -> AskedOnce:
    """Return real passages, and real questions that come again and again.

    Args:
        data: Holds the full data sets; ``None`` for the bundled sample.
        kind: In which words they come again.
        seed: Draws the stream. The first ones have no question in common, if there are enough.
        quick: A small part of them.
    """
    corpus = load_corpus(data)
    known = corpus.questions["nq"]
    length = LENGTH_REPEATED if kind == "verbatim" else LENGTH
    topics, length = (QUICK_TOPICS, QUICK_LENGTH) if quick else (TOPICS, length)
    questions = known[SEEN + seed * topics :][:topics] or known[:topics]
    texts = [one.passage for one in known] + list(corpus.passages)
    if quick:
        texts = [text[:QUICK_CHARACTERS] for text in texts]
    passages = list(dict.fromkeys(texts))[: QUICK_PASSAGES if quick else PASSAGES]
    names = {text: str(number) for number, text in enumerate(passages)}
    answers = {
        one.text: names.get(one.passage[: QUICK_CHARACTERS if quick else None], "")
        for one in questions
    }
    stream = zipf_stream(questions, length, kind, twins=len(questions) // 5, seed=seed)
    asked = [
        (text, answers.get(original, ""))
        for text, original in zip(stream.texts, stream.originals, strict=True)
    ]
    return AskedOnce({name: text for text, name in names.items()}, asked)


def embedded(streams: Sequence[AskedOnce], *, quick: bool) -> dict[str, list[float]]:
    """Return the embeddings of all texts, by text."""
    vectors: dict[str, list[float]] = {}
    embed = Embedder(show_progress=not quick)
    for asked in streams:
        # Apart, since passages are the same in several streams, and are embedded once then.
        for texts in (list(asked.passages.values()), [text for text, _ in asked.questions]):
            vectors |= zip(texts, embed(texts).tolist(), strict=True)
    return vectors
