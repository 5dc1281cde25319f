"""Run the examples of Prompt Cache: figures 2, 6, 7 and 8.

    python examples/pml/run.py [MODEL]

MODEL is a model for vLLM. Without one, the bundled model serves.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ragcache_integrations.engine import RAGCacheEngine, SamplingOptions
from ragcache_integrations.prompts.pml import Prompt, Schema

HERE = Path(__file__).parent
EXAMPLES = ("cities", "game", "learner", "travel")


def read(name: str) -> tuple[Schema, Prompt]:
    """A schema and a prompt of it, from this folder."""
    schema, prompt = (HERE / f"{name}.{kind}.xml" for kind in ("schema", "prompt"))
    return (
        Schema.from_pml(schema.read_text(encoding="utf-8"), source=schema.name),
        Prompt.from_pml(prompt.read_text(encoding="utf-8"), source=prompt.name),
    )


def examples() -> dict[str, tuple[Schema, Prompt]]:
    """Every example by its name."""
    return {name: read(name) for name in EXAMPLES}


def main() -> None:
    """Answer each prompt with its modules encoded ahead."""
    model = sys.argv[1] if len(sys.argv) > 1 else None
    with RAGCacheEngine(model, kv_cache_gib=0.5, reuse="anywhere", link_tokens=0) as engine:
        for name, (schema, prompt) in examples().items():
            compiled = schema.compile(engine.tokenizer)
            engine.encode(compiled.documents())
            answer = engine.generate(compiled.render(prompt), SamplingOptions(max_tokens=16))
            print(f"{name}: {answer.text!r}")


if __name__ == "__main__":
    main()
