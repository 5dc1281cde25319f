"""The figures of the reader, through the engine and by greedy decoding.

``python -m reader.training.evaluate FOLDER`` asks the questions of the bundled sample, which the
reader was not trained on, with the passage that answers each among one and four others, and without
it. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine, SamplingOptions
from ragcache_integrations.evaluation.datasets.metrics import exact_match, token_f1
from ragcache_integrations.resources import load_passages, load_questions
from reader.training.corpus import Asked
from reader.training.scores import not_found

__all__ = ["asked_among", "figures"]

LONGEST_ANSWER = 24


def asked_among(asked: Asked, documents: Sequence[str]) -> Prompt:
    """A question over documents, as :mod:`.examples` has it where the reader is judged."""
    return Prompt.rag(
        f"Question: {asked.text}\nAnswer:", [PromptDocument(one) for one in documents]
    )


def figures(
    engine: RAGCacheEngine,
    told: Sequence[tuple[Asked, str]],
    others: Sequence[str],
    seed: int = 0,
) -> dict[str, float]:
    """Scores of an engine's answers.

    Args:
        engine: Answers.
        told: Questions, and the passage that answers each.
        others: Passages to put beside it.
        seed: Draws them, and where the right one stands.
    """
    dice = random.Random(seed)
    scores: dict[str, float] = {}
    options = SamplingOptions(max_tokens=LONGEST_ANSWER)

    def answers(prompts: Sequence[Prompt]) -> list[str]:
        streams = [engine.stream(one, options) for one in prompts]
        return [stream.result().text.strip() for stream in streams]

    for beside in (1, 4):
        prompts = []
        for asked, passage in told:
            documents = dice.sample([one for one in others if one != passage], beside)
            documents.insert(dice.randint(0, beside), passage)
            prompts.append(asked_among(asked, documents))
        said = answers(prompts)
        pairs = list(zip(said, told, strict=True))
        for name, score in (("f1", token_f1), ("exact", exact_match)):
            sum_ = sum(score(one, asked.answers) for one, (asked, _) in pairs)
            scores[f"{name}_{beside}"] = round(sum_ / len(pairs), 4)
        if beside == 1:
            for one, (asked, _) in pairs[:8]:
                print(f"{asked.text} -> {one!r} ({asked.answers[0]!r})")
    prompts = [
        asked_among(asked, dice.sample([one for one in others if one != passage], 2))
        for asked, passage in told
    ]
    scores["not_found"] = round(sum(map(not_found, answers(prompts))) / len(told), 4)
    return scores


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--questions", type=int, default=len(load_questions()))
    options = parser.parse_args()
    texts = {one.id: one.text for one in load_passages()}
    every = [(Asked(one.text, one.answers, -1), texts[one.passage_id]) for one in load_questions()]
    told, passages = every[: options.questions], [passage for _, passage in every]
    began = time.monotonic()
    with RAGCacheEngine(model=str(options.model)) as engine:
        scores = figures(engine, told, passages)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"questions": len(told)} | scores | {"seconds": seconds}))


if __name__ == "__main__":
    main()
