"""The knowledge tree for models whose layers see different parts of a prompt.

Tiny random models with the layers of Mistral 7B v0.1, Gemma 3 and gpt-oss answer 1,000 prompts of
each of three streams: with the tree, with stock vLLM in the same memory, and without any
cache. It prints the share of documents that were found whole, and how many answers differ from the
uncached ones. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from parts.layer_kinds.comparison import STOCK, STREAMS, TREE, compare
from parts.layer_kinds.models import SHAPES, make_model


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--requests", type=int, default=1000, help="of each stream")
    parser.add_argument("--blocks", type=int, default=150, help="of each KV cache, 32 tokens each")
    parser.add_argument("--host-cache-gib", type=float, default=0.0, help="with the tree")
    parser.add_argument("--quick", action="store_true", help="one model, one stream, 150 requests")
    options = parser.parse_args()
    if options.quick:
        options.shapes, options.streams, options.requests = ["gemma3"], ["skewed"], 150
    result: dict[str, dict[str, object]] = {}
    for shape in options.shapes:
        result[shape] = {}
        with tempfile.TemporaryDirectory() as folder:
            for stream, outcome in compare(
                make_model(shape, Path(folder)),
                options.streams,
                requests=options.requests,
                blocks=options.blocks,
                host_cache_gib=options.host_cache_gib,
            ):
                result[shape][stream] = asdict(outcome)
                print(
                    f"{shape}, {stream}: {outcome.hits[TREE]:.3f} of the documents found with the "
                    f"tree, {outcome.hits[STOCK]:.3f} with stock vLLM; answers that differ: "
                    f"{outcome.different[TREE]} and {outcome.different[STOCK]} of "
                    f"{options.requests}",
                    flush=True,
                )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
