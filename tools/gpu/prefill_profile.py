"""What ``ragcache profile`` measures, T(cached, new), on the 8B shape, and how well it predicts.

The profile itself rises both ways, because it is made so. What was not fixed that way is checked:
prefills of lengths between the grid's are timed and compared with the prediction. The last line is
one JSON object.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from parts.stats.tables import print_table

from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.engine import Prompt, PromptDocument, RAGCacheEngine
from ragcache_integrations.engine.measurements import measure_prefill
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel
from tools.gpu.setting import Setting, Words, say

BETWEEN = ((0, 0.02), (0, 0.1), (0.05, 0.01), (0.1, 0.1), (0.3, 0.02), (0.3, 0.2), (0.6, 0.05))
"""Cached and new tokens of the checks, as shares of the longest prompt."""
REPEATS = 3
FIRST_TOKEN = SamplingOptions(max_tokens=1, ignore_eos=True)


def rises(profile: PrefillCostModel) -> bool:
    """Whether no time falls, both ways."""
    grid = [[profile(a, b) for b in profile.new_tokens] for a in profile.cached_tokens]
    lines = [*grid, *map(list, zip(*grid, strict=True))]
    return all(one <= other for line in lines for one, other in pairwise(line))


def check(
    engine: RAGCacheEngine, words: Words, profile: PrefillCostModel, cached: int, new: int
) -> tuple[int, int, float, float]:
    """Time a prefill.

    Returns:
        Tokens that were cached and new, seconds, and the predicted seconds.
    """
    chance = random.Random(cached + new)  # noqa: S311 - nothing secret
    engine.reset_cache()
    prefix = PromptDocument(words(cached, chance)) if cached else None
    if prefix is not None:
        engine.prefill(Prompt.raw(prefix))
    times, usages = [], []
    for _ in range(REPEATS):
        text = PromptDocument(words(new, chance))
        prompt = Prompt.raw(text if prefix is None else [prefix, text])
        engine.render(prompt)  # its tokens are remembered
        began = time.perf_counter()
        with engine.stream(prompt, FIRST_TOKEN) as stream:
            next(stream)
            times.append(time.perf_counter() - began)
            usages.append(stream.result().usage)
    usage = usages[-1]
    computed = usage.prompt_tokens - usage.cached_tokens
    predicted = profile(usage.cached_tokens, computed)
    return usage.cached_tokens, computed, statistics.median(times), predicted


def main() -> None:
    """Run and print."""
    setting = Setting.parse(__doc__, seconds=170.0)
    longest = 768 if setting.cpu else 8192 if setting.quick else 24576
    say(f"starting the engine, requests of at most {longest} tokens")
    with setting.engine(longest + 256, longest) as engine:
        began = time.monotonic()
        profile = measure_prefill(engine, repeats=1 if setting.cpu else 2)
        seconds = time.monotonic() - began
        say(f"measured in {seconds:.1f} s")
        words = Words(engine.count_tokens)
        checks = [
            check(engine, words, profile, int(cached * longest), int(new * longest))
            for cached, new in BETWEEN
        ]
    table = [[1e3 * profile(a, b) for b in profile.new_tokens] for a in profile.cached_tokens]
    print_table(
        "Time to the first token in ms, by cached tokens (down) and new tokens (across)",
        ["", *map(str, profile.new_tokens)],
        [[str(a), *row] for a, row in zip(profile.cached_tokens, table, strict=True)],
    )
    print_table(
        "Between the nodes",
        ("cached", "new", "measured ms", "predicted ms"),
        [(a, b, 1e3 * measured, 1e3 * predicted) for a, b, measured, predicted in checks],
    )
    errors = [abs(predicted / measured - 1) for _, _, measured, predicted in checks]
    result = setting.about() | {
        "longest": longest,
        "seconds": round(seconds, 1),
        "cached_tokens": profile.cached_tokens,
        "new_tokens": profile.new_tokens,
        "milliseconds": [[round(cell, 2) for cell in row] for row in table],
        "rises": rises(profile),
        "checks_ms": [[a, b, round(1e3 * m, 2), round(1e3 * p, 2)] for a, b, m, p in checks],
        "median_error": round(statistics.median(errors), 4),
        "largest_error": round(max(errors), 4),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
