"""Figures of the default model on the bundled sample's questions, by greedy decoding.

``python -m reader.teaching.evaluate`` answers them through the engine, in full and block by block.
It writes ``reader/figures/sample.json``; ``tools/reader_card.py`` makes the model card's table from
the files there. None of these questions was learnt from or chosen by.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ragcache_integrations.adaptive.asker import EngineAsker
from ragcache_integrations.adaptive.synthesis import SynthesisSettings, found_nothing, synthesise
from ragcache_integrations.adaptive.types import SynthesisConfig
from ragcache_integrations.core.prompt import Prompt, PromptDocument
from ragcache_integrations.embeddings.minilm import MiniLM
from ragcache_integrations.engine import RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.resources import Question, load_passages, load_questions
from ragcache_workbench.demo.apps import SYSTEM, passage_text, question_part
from ragcache_workbench.evaluation.datasets.metrics import exact_match, token_f1
from ragcache_workbench.evaluation.scores import bootstrap_interval
from ragcache_workbench.evaluation.systems import cached_embeddings

__all__ = [
    "BLOCKS",
    "FIRST",
    "FIVE",
    "MISSING",
    "WAYS",
    "Case",
    "answers",
    "block_answers",
    "cases",
    "prompt",
    "reduced",
    "row",
]

FOLDER = Path(__file__).parents[1] / "figures"
FOUND = 5
"""Passages that are retrieved for a question."""
ANSWER_TOKENS, SUMMARY_WORDS = 24, 40
LINKS = (0, 8, 16, 32)
"""First tokens of each document that are computed again where documents are read block by block."""
BATCH = 16
"""Questions whose passages are encoded at once."""
SHOWN = 30
"""Answers that are shown, drawn at random."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question and what it is answered from.

    Attributes:
        question: The question.
        found: The passages that a search finds, nearest first.
        right: The passage that answers it.
        others: Two that do not.
    """

    question: Question
    found: tuple[PromptDocument, ...]
    right: PromptDocument
    others: tuple[PromptDocument, ...]


def cases(count: int | None = None) -> list[Case]:
    """The first questions of the bundled sample; all by default."""
    documents = [PromptDocument(passage_text(passage)) for passage in load_passages()]
    places = {passage.id: place for place, passage in enumerate(load_passages())}
    questions = load_questions()[:count]
    model, dice = MiniLM(), random.Random(0)
    vectors = cached_embeddings([document.text for document in documents], model.embed_batch)
    asked = np.array(model.embed_batch([question.text for question in questions]))
    nearest = np.argsort(-asked @ vectors.T, axis=1)[:, :FOUND]
    drawn = []
    for question, found in zip(questions, nearest.tolist(), strict=True):
        right = places[question.passage_id]
        others = [place for place in dice.sample(range(len(documents)), 3) if place != right][:2]
        drawn.append(
            Case(
                question,
                tuple(documents[place] for place in found),
                documents[right],
                tuple(documents[place] for place in others),
            )
        )
    return drawn


def prompt(question: str, documents: Sequence[PromptDocument]) -> Prompt:
    """The demo's prompt."""
    return Prompt.rag(question_part(question), documents, system=SYSTEM)


def _pair(case: Case) -> Sequence[PromptDocument]:
    pair = [case.right, case.others[0]]
    return pair if len(case.question.text) % 2 else pair[::-1]


FIVE, FIRST = "five passages that a search found", "the first of them"
MISSING = "two passages that do not answer"
WAYS: dict[str, Callable[[Case], Sequence[PromptDocument]]] = {
    FIVE: lambda case: case.found,
    FIRST: lambda case: case.found[:1],
    "the five in reverse order": lambda case: case.found[::-1],
    "the passage that answers, and another": _pair,
    MISSING: lambda case: case.others,
}
"""What questions are answered from, by names on the card."""
MAP_REDUCE = "the five, by `map_reduce`"
BLOCKS = {links: f"the five block by block, {links} link tokens" for links in LINKS}


def answers(
    engine: RAGCacheEngine, asked: Sequence[Case], ways: Iterable[str] = WAYS
) -> Iterator[tuple[str, list[str]]]:
    """Answer questions in some of :data:`WAYS`."""
    options = SamplingOptions(max_tokens=ANSWER_TOKENS)
    for way in ways:
        prompts = [prompt(case.question.text, WAYS[way](case)) for case in asked]
        streams = [engine.stream(prompt, options) for prompt in prompts]
        yield way, [stream.result().text.strip() for stream in tqdm(streams, desc=way)]


def reduced(engine: RAGCacheEngine, asked: Sequence[Case]) -> list[str]:
    """Answer questions from what a search finds by ``map_reduce``."""
    asker = EngineAsker(engine, SamplingOptions(max_tokens=ANSWER_TOKENS))
    config = SynthesisConfig("map_reduce", FOUND, SUMMARY_WORDS)
    settings = SynthesisSettings(max_tokens=ANSWER_TOKENS)
    return [
        synthesise(asker, case.question.text, case.found, config, settings).text.strip()
        for case in tqdm(asked, desc=MAP_REDUCE)
    ]


def block_answers(
    engine: RAGCacheEngine, prompts: Sequence[Prompt], links: Iterable[int] = LINKS
) -> dict[int, list[str]]:
    """Answer from documents that were encoded one by one, with each number of link tokens.

    Args:
        engine: One that reuses anywhere.
        prompts: The prompts.
        links: Numbers of link tokens.
    """
    options = SamplingOptions(max_tokens=ANSWER_TOKENS)
    said: dict[int, list[str]] = {count: [] for count in links}
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        # Encoded when they are wanted: all of them together need more memory.
        engine.encode([document for prompt in batch for document in prompt.documents])
        for count, texts in said.items():
            streams = [engine.stream(prompt, options, link_tokens=count) for prompt in batch]
            texts += [stream.result().text.strip() for stream in streams]
    return said


def row(way: str, asked: Sequence[Case], said: Sequence[str]) -> dict[str, Any]:
    """A row of the card: what was read, how many questions, and scores with 95 % intervals."""
    scores: Mapping[str, Sequence[float]]
    if way == MISSING:
        scores = {"said to be missing": [float(found_nothing(text)) for text in said]}
    else:
        pairs = [(text, case.question.answers) for text, case in zip(said, asked, strict=True)]
        scores = {
            "F1": [token_f1(*pair) for pair in pairs],
            "exact": [float(exact_match(*pair)) for pair in pairs],
        }
    return {
        "read": way,
        "questions": len(asked),
        "scores": {
            name: bootstrap_interval(np.mean, [values]).as_list(4)
            for name, values in scores.items()
        },
    }


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default=None, help="a folder; the default model where none is")
    parser.add_argument("--questions", type=int, default=len(load_questions()))
    parser.add_argument("--out", type=Path, default=FOLDER / "sample.json")
    options = parser.parse_args()
    began = time.monotonic()
    model = options.model or str(default_model_path())
    asked = cases(options.questions)
    # The arguments of the demo and of whoever names no model: float32 on a CPU.
    with RAGCacheEngine(options.model) as engine:
        every = dict(answers(engine, asked))
        every[MAP_REDUCE] = reduced(engine, asked)
    with RAGCacheEngine(options.model, reuse="anywhere") as engine:
        prompts = [prompt(case.question.text, case.found) for case in asked]
        every |= {BLOCKS[links]: said for links, said in block_answers(engine, prompts).items()}
    rows = [row(way, asked, said) for way, said in every.items()]
    usual = every[FIVE]
    shown = random.Random(0).sample(range(len(asked)), min(SHOWN, len(asked)))
    found = {
        "title": f"The {len(asked)} questions of the toolkit's bundled sample of Natural Questions",
        "command": "python -m reader.teaching.evaluate",
        "model": Path(model).name,
        "rows": rows,
        "answers": [
            [asked[place].question.text, usual[place], list(asked[place].question.answers)]
            for place in sorted(shown)
        ],
        "seconds": round(time.monotonic() - began),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
