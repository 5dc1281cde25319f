"""Writes the table of what each part gains into the README, from the page of benchmarks.

Every figure is read from the JSON line under the command that printed it. With ``--check`` it only
says whether the table is up to date.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- gains -->", "<!-- /gains -->"


@dataclass(frozen=True)
class Gain:
    """A row: what is said of a benchmark's results, and the command that prints them."""

    part: str
    arguments: str
    words: Callable[[Any], str]

    @property
    def command(self) -> str:
        """As the page of benchmarks has it."""
        script, *arguments = shlex.split(self.arguments)
        folder = "" if "/" in script else "benchmarks/"
        return shlex.join(["python", f"{folder}{script}.py", *arguments])


def times(interval: list[float]) -> str:
    """A ratio and its interval of 95 %."""
    middle, low, high = interval
    digits = 1 if middle >= 10 else 2  # noqa: PLR2004 - three digits in all
    return f"**{middle:.{digits}f}** [{low:.{digits}f}, {high:.{digits}f}]"


def percent(share: float) -> str:
    """A share, as exact as may be, and 100 % only where it is."""
    return f"{share:.1%}" if share < 1 else "100 %"


def _query_cache(found: Any) -> str:
    zipf, fast = found["zipf"], found["zipf"]["lsh_multi_probe"]
    return (
        f"of rephrased questions (by Zipf's law, {zipf['rephrasing']} changes) "
        f"**{percent(zipf['calls_saved'])}** do not reach the store, "
        f"{percent(fast['calls_saved'])} with an LSH index; recall of what is served "
        f"{zipf['hit_recall']:.5f}"
    )


def _proven(found: Any) -> str:
    rho = found["certified"]["by_store"]["100000"]["light"]["rho20"]
    return (
        f"with every hit proven exact, **{percent(rho['calls_saved'])}** do not reach a store of "
        f"100,000 documents (light changes); recall {rho['hit_recall']:.1f}"
    )


def _answer_cache(found: Any) -> str:
    ratio = times(found["lookup_ratio"]["0.5"]["query cache, flat"])
    return f"a lookup is {ratio} times as fast as GPTCache's, at the same share of hits"


def _staged(found: Any) -> str:
    ivf = found["by_size"]["1000000"]["ivf"]["main"]
    return (
        f"first documents after {ivf['first_stage_ms']:.1f} of {ivf['plain_ms']:.1f} ms (IVF, "
        f"1,000,000 vectors), the final ones are FAISS's own; the whole search takes "
        f"{times(found['ivf']['overhead'])} times FAISS's time"
    )


def _speculation(found: Any) -> str:
    return (
        f"first token {times(found['ttft_ratio_low_load'])} times sooner than search first, "
        f"generate then, at low load, {times(found['ttft_ratio_saturated'])} saturated; slow "
        "searches of 100 to 400 ms"
    )


def _tree(found: Any) -> str:
    return (
        f"first token compared with stock vLLM's prefix cache: "
        f"{times(found['ttft_ratio_best'])} times sooner at best, "
        f"{times(found['ttft_ratio_worst'])} at worst; on a CPU **no gain** where "
        f"stock vLLM is given the host tier's memory, too: "
        f"{times(found['ttft_ratio_same_total_memory'])}"
    )


def _host_tier(found: Any) -> str:
    alone, loaded = found["points"]["sequential"], found["points"]["load 0.8"]
    return (
        f"on one {found['device']}, a model of the shape {found['shape']}, room for 5 % of the "
        f"documents on the GPU: first token {times(alone['stock_over_ours']['median'])} times "
        f"sooner than with stock vLLM, {times(alone['offloading_over_ours']['median'])} times than "
        f"with its OffloadingConnector and as much host memory; "
        f"{times(loaded['stock_over_ours']['median'])} and "
        f"{times(loaded['offloading_over_ours']['median'])} under load"
    )


def _order(found: Any) -> str:
    ours, theirs = found["order_us"]["cached_first"], found["order_us"]["contextpilot"]
    share = found["cached_first_over_contextpilot"]["share"]
    return (
        f"{times(share)} times as many document tokens come from the cache as in ContextPilot's "
        f"order, which takes {theirs:.0f} us a request instead of {ours:.0f}"
    )


def _history(found: Any) -> str:
    ratio = times(found["history_engine"]["ttft_ratio"])
    return f"first token {ratio} times sooner than where the oldest turns are dropped one by one"


def _adaptive(found: Any) -> str:
    low, high = found["rates"]["1.25"], found["rates"]["1.5"]
    return (
        f"median delay {times(low['delay_ratio'])} to {times(high['delay_ratio'])} times shorter "
        f"than with the best fixed configuration that reads as much (`{low['closest_fixed']}`), "
        "at 1.25 and 1.5 times the rate that it bears"
    )


def _modular(found: Any) -> str:
    sizes = [size["lengths"]["5120"]["ratio"] for size in found["sizes"].values()]
    return (
        f"first token at 5,120 tokens {times(min(sizes))} to {times(max(sizes))} times sooner than "
        "computed in full, approximately, at any position of the documents"
    )


def _replicas(found: Any) -> str:
    by = found["questions"]["document"]
    return (
        f"two replicas, routed by document: hit rate {by['hit_rate']:.3f} instead of "
        f"{found['questions']['round robin']['hit_rate']:.3f}, first token "
        f"{times(by['ttft_ratio'])} times sooner than round robin"
    )


GAINS = [
    Gain("query cache", "query_cache --data data --only quality", _query_cache),
    Gain("query cache, proofs", "query_cache --data data --only certified", _proven),
    Gain("query cache", "answer_cache", _answer_cache),
    Gain("staged search", "staged_search --data data --sizes 1000000", _staged),
    Gain(
        "speculation",
        "speculation --data data --words 64 --chunk-tokens 256 --requests 8 --cancellations 5000",
        _speculation,
    ),
    Gain("knowledge tree", "knowledge_tree --only ttft", _tree),
    Gain("knowledge tree, host tier", "tools/gpu/host_tier", _host_tier),
    Gain("document order", "prompts --data data --only order", _order),
    Gain("chat history", "prompts --data data --only history", _history),
    Gain(
        "per-query configuration",
        "adaptive --rates 1.25 1.5 --requests 300 --seeds 1 --fixed 'stuff 2' 'map_rerank 2'",
        _adaptive,
    ),
    Gain("modular attention", "modular --sizes '4 x 256' '6 x 512'", _modular),
    Gain("routing", "replicas --only questions --seeds 3 --requests 60 --load 0.8", _replicas),
]


def results(page: str) -> dict[str, Any]:
    """What each command printed in its JSON line."""
    sections = re.split(r"^## `(.+)`$", page, flags=re.MULTILINE)[1:]
    lines = (re.findall(r"^\{.*\}$", text, re.MULTILINE) for text in sections[1::2])
    return {name: json.loads(line[-1]) for name, line in zip(sections[::2], lines, strict=True)}


def table(page: str) -> str:
    """The table in Markdown."""
    found = results(page)
    rows = ["| part | what was measured | by |", "| --- | --- | --- |"]
    for gain in GAINS:
        if gain.command not in found:
            sys.exit(f"docs/benchmarks.md has no section for {gain.command}")
        rows.append(f"| {gain.part} | {gain.words(found[gain.command])} | `{gain.command}` |")
    return "\n".join(rows)


def written(readme: str, page: str) -> str:
    """The README with a fresh table between its marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{table(page)}\n{END}{after}"


def main() -> int:
    """Write or check."""
    before = README.read_text(encoding="utf-8")
    after = written(before, RESULTS.read_text(encoding="utf-8"))
    if "--check" in sys.argv[1:]:
        if before != after:
            print("the table in README.md is out of date: run `python tools/gains.py`")
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
