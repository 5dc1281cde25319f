"""Figures of a delta on the questions that are kept out to choose by.

``python -m reader.teaching.choose --library FILE --base FOLDER --delta FILE --cache FILE`` answers
them over what a search finds (the nearest by all-MiniLM-L6-v2 among :data:`POOL` passages), in the
ways that are counted at the end. What the search finds is kept in the cache. The last line is one
JSON object. The bundled sample's questions are none of these.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ragcache_integrations.adaptive.synthesis import (
    DEFAULT_PROMPTS,
    NOT_FOUND,
    found_nothing,
)
from ragcache_workbench.evaluation.datasets.base import SYSTEM
from ragcache_workbench.evaluation.datasets.metrics import exact_match, token_f1

from .layout import Layout, Page, Question
from .lessons import ASK
from .library import Kept, Library, load
from .network import Delta, Network, Shape

POOL = 1200
FOUND = 5
LONGEST_ANSWER = 24
SUMMARY_WORDS, SUMMARY_TOKENS = 40, 56

Case = tuple[Kept, list[str], list[str]]
"""A question, what is found for it, and passages that do not answer it."""


def cases(library: Library, cache: Path) -> list[Case]:
    """The questions with what is found for them; those of Natural Questions and others in turns."""
    if not cache.exists():
        cache.write_text(json.dumps(_found(library)), encoding="utf-8")
    dice = random.Random(3)
    texts = sorted({_titled(one.title, one.passage) for one in library.kept})
    rows = []
    for kept, found in zip(library.kept, json.loads(cache.read_text("utf-8")), strict=True):
        own = _titled(kept.title, kept.passage)
        rows.append((kept, found, dice.sample([one for one in texts if one != own], 2)))
    dice.shuffle(rows)
    return rows


def _found(library: Library) -> list[list[str]]:
    from ragcache_integrations.embeddings.minilm import MiniLM  # noqa: PLC0415 - takes seconds

    corpus, dice = library.corpus, random.Random(2)
    model = MiniLM()
    own = list(dict.fromkeys(_titled(one.title, one.passage) for one in library.kept))
    others = [
        _titled(title, text)
        for title, text, source in zip(corpus.titles, corpus.passages, library.sources, strict=True)
        if source == "nq"
    ]
    pool = own + dice.sample(others, min(POOL, len(others)))
    passages = np.array(model.embed_batch(pool))
    questions = np.array(model.embed_batch([one.text for one in library.kept]))
    nearest = np.argsort(-questions @ passages.T, axis=1)[:, :FOUND]
    return [[pool[place] for place in row] for row in nearest]


def _titled(title: str, text: str) -> str:
    return f"{title}\n{text}" if title else text


class Asker:
    """Asks a network."""

    def __init__(self, network: Network, layout: Layout) -> None:
        self._network, self._layout = network, layout

    def usual(self, question: str, documents: Sequence[str], links: int | None = None) -> str:
        """As the demo and the evaluation ask."""
        return self._said(
            Page(
                tuple(documents),
                (Question(ASK.replace("{question}", question), ""),),
                SYSTEM,
                links=links,
            )
        )

    def plain(self, question: str, documents: Sequence[str]) -> str:
        """Without a system text."""
        return self._said(
            Page(tuple(documents), (Question(ASK.replace("{question}", question), ""),))
        )

    def map_reduce(self, question: str, documents: Sequence[str]) -> str:
        """As ``map_reduce`` does."""
        ask = DEFAULT_PROMPTS.summary.replace("{words}", str(SUMMARY_WORDS))
        summaries = [
            self._said(
                Page(
                    (document,),
                    (Question(ask.replace("{question}", question), ""),),
                    DEFAULT_PROMPTS.system,
                ),
                SUMMARY_TOKENS,
            )
            for document in documents
        ]
        ask = DEFAULT_PROMPTS.reduce.replace("{question}", question)
        read = tuple(one for one in summaries if one)
        return self._said(Page(read, (Question(ask, ""),), DEFAULT_PROMPTS.system))

    def _said(self, page: Page, most: int = LONGEST_ANSWER) -> str:
        packed = self._layout.packed(page, answered=False)
        if packed is None:
            return ""
        (tokens,) = self._network.answers(packed, self._layout.end, most)
        return str(self._layout.decode(tokens)).strip()


def figures(
    asker: Asker, asked: Sequence[Case], ways: Sequence[str], kept: dict[str, list[str]]
) -> dict[str, list[float]]:
    """F1 and share of exact answers of each way; for ``missing`` the share that says so.

    Args:
        asker: Who is asked.
        asked: The questions.
        ways: How.
        kept: Gets the answers of each way.
    """
    dice = random.Random(4)

    def beside(case: Case) -> list[str]:
        kept, _, others = case
        pair = [kept.passage, others[0].split("\n", 1)[-1]]
        dice.shuffle(pair)
        return pair

    every: dict[str, Callable[[Case], str]] = {
        "first": lambda case: asker.usual(case[0].text, case[1][:1]),
        "five": lambda case: asker.usual(case[0].text, case[1]),
        "reversed": lambda case: asker.usual(case[0].text, case[1][::-1]),
        "links 0": lambda case: asker.usual(case[0].text, case[1], 0),
        "links 8": lambda case: asker.usual(case[0].text, case[1], 8),
        "links 16": lambda case: asker.usual(case[0].text, case[1], 16),
        "links 32": lambda case: asker.usual(case[0].text, case[1], 32),
        "pair": lambda case: asker.plain(case[0].text, beside(case)),
        "map_reduce": lambda case: asker.map_reduce(case[0].text, case[1]),
        "missing": lambda case: asker.plain(case[0].text, case[2]),
    }
    scores = {}
    for way in ways:
        said = kept[way] = [every[way](case) for case in asked]
        answers = [case[0].answers or (NOT_FOUND,) for case in asked]
        if way == "missing":
            scores[way] = [round(float(np.mean([found_nothing(one) for one in said])), 3)]
            continue
        pairs = list(zip(said, answers, strict=True))
        scores[way] = [
            round(float(np.mean([score(*pair) for pair in pairs])), 3)
            for score in (token_f1, exact_match)
        ]
        scores[way].append(round(float(np.mean([found_nothing(one) for one in said])), 3))
        for case, one in list(zip(asked, said, strict=True))[:4]:
            print(f"  {way}: {case[0].text} -> {one!r} {list(case[0].answers[:2])}")
        print(way, scores[way], flush=True)
    return scores


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--delta", type=Path, help="the base alone where there is none")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="questions to leave out before")
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU such as cuda")
    parser.add_argument("--source", default="nq", help="which of the questions")
    parser.add_argument("--answers", type=Path, help="file that gets the answers")
    parser.add_argument("--ways", nargs="+", default=["first", "five", "links 16", "links 0"])
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    began = time.monotonic()
    library = load(options.library)
    asked = [
        case
        for case in cases(library, options.cache)
        if case[0].source.startswith(options.source) and case[0].answers
    ][options.first :][: options.questions]
    tensors = load_file(options.delta) if options.delta else {}
    rank = min(next(iter(tensors.values())).shape) if tensors else 1
    delta = Delta(Shape.read(options.base), rank)
    if tensors:
        delta.put(tensors)
    network = Network(options.base, delta.to(options.device), device=options.device)
    network.merge()
    asker = Asker(network, Layout(AutoTokenizer.from_pretrained(options.base)))
    kept: dict[str, list[str]] = {}
    scores = figures(asker, asked, options.ways, kept)
    if options.answers:
        rows = [
            {"question": case[0].text, "source": case[0].source, "answers": case[0].answers}
            | {way: said[place] for way, said in kept.items()}
            for place, case in enumerate(asked)
        ]
        options.answers.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    seconds = round(time.monotonic() - began)
    print(json.dumps({"questions": len(asked)} | scores | {"seconds": seconds}))


if __name__ == "__main__":
    main()
