"""Answers of a model to the questions that were kept out to choose by, through the engine.

``python -m reader.teaching.kept_out --library FILE --cache FILE --out FILE`` asks them in full and
block by block over what a search finds, as ``reader.teaching.choose`` does while a model learns. A
run that was broken off goes on. ``reader.teaching.tabulate`` makes the model card's table of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ragcache_integrations.core.prompt import PromptDocument
from ragcache_integrations.engine import RAGCacheEngine, SamplingOptions

from .choose import cases
from .evaluate import ANSWER_TOKENS, BATCH, block_answers, prompt
from .library import load

LINKS = (16, 0)


def main() -> None:
    """Write them as JSON lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="keeps what the search finds")
    parser.add_argument("--model", default=None, help="a folder; the default model where none is")
    parser.add_argument("--questions", type=int, default=None, help="the first so many")
    parser.add_argument(
        "--exact-documents", type=int, default=0, help="first documents that are read exactly"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    asked = [case for case in cases(load(options.library), options.cache) if case[0].answers]
    asked = asked[: options.questions]
    done = options.out.read_text("utf-8").count("\n") if options.out.exists() else 0
    sampling = SamplingOptions(max_tokens=ANSWER_TOKENS)
    begins = f"{options.exact_documents} exact, " if options.exact_documents else ""
    with (
        RAGCacheEngine(
            options.model, reuse="anywhere", exact_documents=options.exact_documents
        ) as engine,
        options.out.open("a", encoding="utf-8") as file,
    ):
        for start in tqdm(range(done, len(asked), BATCH)):
            batch = asked[start : start + BATCH]
            prompts = [
                prompt(kept.text, [PromptDocument(text) for text in found])
                for kept, found, _ in batch
            ]
            # Of another tenant, or their exact KV caches would serve block by block, too.
            exact: dict[str, Any] = {"reuse": "prefix", "namespace": "exact"}
            streams = [engine.stream(one, sampling, **exact) for one in prompts]
            said = {"five": [stream.result().text.strip() for stream in streams]}
            for links, texts in block_answers(engine, prompts, LINKS).items():
                said[f"{begins}links {links}"] = texts
            for place, (kept, *_) in enumerate(batch):
                row = {"question": kept.text, "source": kept.source, "answers": kept.answers}
                row |= {way: texts[place] for way, texts in said.items()}
                file.write(f"{json.dumps(row)}\n")
            file.flush()


if __name__ == "__main__":
    main()
