"""A catalogue of near-duplicates: entries that differ in a number, a code or a name alone.

There are six kinds of them, 200 entries of each. Two questions about other entries of a kind are
nearer to each other than two wordings of the same question, so that distances alone say nothing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ragcache_integrations.embeddings.minilm import MiniLM

__all__ = ["KNOWN_DIM", "Catalogue", "catalogue", "check_catalogue"]

ENTRIES = 200
KNOWN_DIM = 384
"""Of the embeddings."""
MOST_LOST = 0.002
"""Of the documents that the store finds, the share that may be missing in answers of the cache."""

FIRST_NAMES = (
    *("Anna", "Bernd", "Clara", "Dmitri", "Elena", "Farid", "Grace", "Henrik", "Ines", "Jonas"),
    *("Karim", "Lucia", "Marta", "Nils", "Olga", "Pavel", "Rosa", "Stefan", "Tomas", "Yusuf"),
)
LAST_NAMES = (
    *("Albrecht", "Bianchi", "Costa", "Dubois", "Eriksen", "Fischer", "Gruber", "Hansen", "Ivanov"),
    "Jansen",
)
KINDS = {
    "models": (
        "The pump {entry} costs {a} euros and weighs {b} kg.",
        "what is the price of the pump {entry}",
        "What is the price of pump {entry}?",
    ),
    "errors": (
        "Error {entry}: the valve at position {a} did not close. Start again after {b} seconds.",
        "what does error {entry} mean",
        "What does the error {entry} mean?",
    ),
    "years": (
        "In {entry}, {a} ships entered the harbour, and {b} of them stayed over the winter.",
        "how many ships entered the harbour in {entry}",
        "How many ships came into the harbour in {entry}?",
    ),
    "people": (
        "{entry} works in room {a} and has the telephone number {b}.",
        "which room does {entry} work in",
        "In which room does {entry} work?",
    ),
    "invoices": (
        "Invoice {entry} amounts to {a} euros and was paid after {b} days.",
        "what is the amount of invoice {entry}",
        "What amount is invoice {entry} for?",
    ),
    "articles": (
        "Harbour Act, Article {entry}: a ship of more than {a} metres pays {b} euros a day.",
        "what does article {entry} of the harbour act say",
        "What does Article {entry} of the Harbour Act say?",
    ),
}
"""For each kind of entry, its document and two wordings of a question."""
OTHER_WORDS = 3
"""Of so many entries, one is asked for in both wordings, so that the cache has something right."""


@dataclass(frozen=True)
class Catalogue:
    """Documents, and questions about them in the order in which they are asked.

    Attributes:
        texts: The documents.
        questions: Each with its kind and the number of the document that answers it.
        vectors: Embeddings of all of them, by text.
    """

    texts: Sequence[str]
    questions: Sequence[tuple[str, str, int]]
    vectors: dict[str, list[float]]


@cache
def catalogue() -> Catalogue:
    """Return the catalogue; embedding it takes a while, which each process does once."""
    draw = random.Random(5)
    texts: list[str] = []
    questions: list[tuple[str, str, int]] = []
    for kind, entries in _entries().items():
        text, *wordings = KINDS[kind]
        for entry in entries:
            asked = wordings[: 1 if len(texts) % OTHER_WORDS else 2]
            questions += [(wording.format(entry=entry), kind, len(texts)) for wording in asked]
            a, b = draw.sample(range(2, 999), 2)
            texts.append(text.format(entry=entry, a=a, b=b))
    draw.shuffle(questions)
    everything = [*texts, *(question for question, _, _ in questions)]
    vectors = MiniLM().embed_batch(everything).tolist()
    return Catalogue(texts, questions, dict(zip(everything, vectors, strict=True)))


def _entries() -> dict[str, list[str]]:
    paragraphs = itertools.product(range(1, 1 + ENTRIES // 4), range(1, 5))
    return {
        "models": [f"KX-{number}" for number in range(1100, 1100 + ENTRIES)],
        "errors": [f"E{number}" for number in range(4000, 4000 + ENTRIES)],
        "years": [str(number) for number in range(1780, 1780 + ENTRIES)],
        "people": [" ".join(names) for names in itertools.product(FIRST_NAMES, LAST_NAMES)],
        "invoices": [f"2024-{number:05}" for number in range(1400, 1400 + ENTRIES)],
        "articles": [f"{article}({paragraph})" for article, paragraph in paragraphs],
    }


def check_catalogue(
    ask: Callable[[str], Sequence[str]],
    search: Callable[[str], Sequence[str]],
    hits: Callable[[], int],
) -> None:
    """Ask a retriever for everything, and check what its cache answers against the store.

    Args:
        ask: Returns the texts that the retriever finds.
        search: Returns those that the store itself finds.
        hits: Returns how many questions the cache has answered.
    """
    everything = catalogue()
    found, lost, answered = 0, [], 0
    for question, kind, number in everything.questions:
        text, served = everything.texts[number], ask(question)
        if hits() == answered:  # the answer is the store's own
            found += text in served
            continue
        answered += 1
        if text in search(question):
            found += 1
            lost += [] if text in served else [f"{kind}: {question}"]
    # Nothing would be lost, either, if the cache answered nothing.
    assert answered > ENTRIES / 4
    assert len(lost) <= MOST_LOST * found, f"{len(lost)} of {found}: {lost[:20]}"
