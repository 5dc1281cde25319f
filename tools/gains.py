"""Writes what each part gains, from the recorded results of the benchmarks.

The short table and the badges go to ``README.md``, the long table to ``docs/gains.md``, and both
have the drawing; the table of peers goes to ``docs/comparison.md``. Every figure is read from what
its command printed, mostly from its JSON object.
With ``--check`` it only says which files are out of date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.bench.gain_cells import Gain, Results, command_of, percent, printed, result, times
from tools.bench.gain_drawing import Badge, Pair, draw_badges, draw_pairs
from tools.equal_quality import METIS, PROMPT_CACHE, PROXIMITY, equal_quality_table
from tools.peers import ONCE_ANSWERED, PEERS
from tools.results import FOLDER, link, saved

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "gains.md"
COMPARISON = ROOT / "docs" / "comparison.md"
DRAWING = ROOT / "docs" / "gains.svg"
BADGES = ROOT / "docs" / "badges.svg"

REPHRASED = "query_cache --data data --only quality"
GUARD = "stores --data data --only guard"
PROVEN = "query_cache --data data --only certified"
SLOW_SEARCH = (
    "speculation --data data --words 64 --chunk-tokens 256 --requests 8 --cancellations 5000"
)
TREE = "knowledge_tree --only ttft --points 'host 0%' --requests 100"
ANYWHERE = "anywhere --data data --only half --requests 8"
FIRST_EXACT = (
    "anywhere --data data --only half answers --requests 8 --questions 300 --exact-documents 1"
)
ANYWHERE_ANSWERS = "anywhere --data data --only answers --questions 300"
ONCE = "context --data data --only tokens"
ONCE_SOONER = "context --data data --only ttft"
HOST_TIER = "tools/gpu/host_tier"
RAGCACHE = (
    "papers/run ragcache nq --data kept_out --sample 250 --seeds 1 --rate 8 "
    "--set kv_cache_gib=0.5 --set max_model_len=4096"
)
LONG_CHAT = "prompts --data data --only history"


def _guarded(found: Any) -> str:
    """Say what the guard costs on the streams of the same kind of changes."""
    kind = found["zipf"]["rephrasing"]
    with_it, without = (
        percent(found[f"{kind}, {name}"]["calls_saved"]) for name in ("with the guard", "without")
    )
    return f"on NQ {with_it} with the guard, {without} without"


def _query_cache(found: Any) -> str:
    zipf, fast = found["zipf"], found["zipf"]["lsh_multi_probe"]
    return (
        f"of rephrased questions (by Zipf's law, {zipf['rephrasing']} changes) "
        f"**{percent(zipf['calls_saved'])}** do not reach the store if the distance alone decides, "
        f"{percent(fast['calls_saved'])} with an LSH index; recall of what is served "
        f"{zipf['hit_recall']:.5f}; {_guarded(found)}"
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


def _same_answers(found: Any) -> str:
    same, total = found["same_answers"]
    return f"{same} of {total} answers equal"


def _exact(found: Any) -> str:
    return f"{found['exact']['equal']} of {found['exact']['prompts']} answers equal"


def _speculation(found: Any) -> str:
    return (
        f"first token {times(found['ttft_ratio_low_load'])} times sooner than search first, "
        f"generate then, at low load, {times(found['ttft_ratio_saturated'])} saturated, with slow "
        f"searches of 100 to 400 ms; {times(found['ttft_ratio']['local search, load 0.2'])} with a "
        f"fast search on the same two cores; {_same_answers(found)}"
    )


def _tree(found: Any) -> str:
    return (
        f"first token compared with stock vLLM's prefix cache in the same memory, on a CPU: "
        f"{times(found['ttft_ratio_best'])} times sooner at best, "
        f"{times(found['ttft_ratio_worst'])} at worst, over {len(found['points'])} cache sizes "
        f"and kinds of requests {times(found['ttft_ratio_same_total_memory'])}; {_exact(found)}"
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


def _anywhere(found: Any) -> str:
    ratios, f1 = found["stream_ratio"], found["f1"]
    return (
        f"questions that come once, over five passages each: first token "
        f"{times(ratios['encoded'])} times sooner than with stock vLLM's prefix cache where "
        f"passages are encoded ahead, {times(ratios['met'])} where they are not; approximate: F1 "
        f"{f1['16'][0]:.3f} instead of {f1['full'][0]:.3f} (the bundled reader)"
    )


def _first_exact(found: Any) -> str:
    ratios, f1 = found["stream_ratio"], found["f1"]
    return (
        f"the same with the first passage of each prompt read exactly: {times(ratios['encoded'])} "
        f"times sooner, {times(ratios['met'])} where passages are not encoded; F1 "
        f"{f1['16'][0]:.3f} instead of {f1['full'][0]:.3f}"
    )


def _strategies(found: Any) -> str:
    headline = found["headline"]
    if headline["setting"] is None:
        return "**no gain** at equal quality"
    difference, low, high = headline["quality_difference"]
    setting = headline["setting"].partition(", ")[2]
    return (
        "questions that come once, over five passages each that are encoded ahead: first token "
        f"{times(headline['times_as_fast'])} times sooner than with stock vLLM's prefix cache, one "
        f"request after another ({setting}); difference in F1 of the answers {difference:+.3f} "
        f"[{low:+.3f}, {high:+.3f}] (the bundled reader)"
    )


def _once(found: Any) -> str:
    whole, cut = (
        found["tokens_saved_by_form"][form]["with"] for form in ("chat, whole", "chat, cut at 5400")
    )
    return (
        f"**{percent(whole)}** of the tokens of a conversation's prompts are not said again, "
        f"{percent(cut)} where its history is cut; first token {times(found['ttft_ratio'])} times "
        f"sooner; F1 of answers from passages that are only referred to "
        f"{found['repeated']['f1']['with']:.3f} instead of {found['repeated']['f1']['without']:.3f}"
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


def _answers(found: Any) -> str:
    peers = found["peers"]
    fixed = found["fixed_hits_at_same_error"]
    written = found["streams"]["written"]
    usual = next(name for name in peers if name.startswith("GPTCache"))
    return (
        f"**{percent(found['hits'])}** of questions are served an earlier answer, "
        f"{percent(found['wrong_share'], 3)} of these a wrong one, against {percent(fixed)} with "
        "the best fixed tolerance that is wrong as rarely, and "
        f"{percent(peers[usual]['wrong_share'])} wrong ones with {usual}; of doctors' paraphrases "
        f"alone {percent(written['hits'])} against "
        f"**{percent(written['fixed_hits_at_same_error'])}**"
    )


def _workflows(found: Any) -> str:
    answers, others = found["answers"], found["tree_over_hints_others"][0]
    return (
        f"three agents next to other users: first token {times(found['tree_over_hints'])} times "
        f"sooner than without hints of the next step, {times(found['lru_over_hints'])} times "
        f"sooner than with LRU; the other users **{others:.2f}** times as fast as without hints; "
        f"{answers['equal']} of {answers['prompts']} answers equal"
    )


def _replicas(found: Any) -> str:
    by = found["questions"]["document"]
    return (
        f"two replicas, routed by document: hit rate {by['hit_rate']:.3f} instead of "
        f"{found['questions']['round robin']['hit_rate']:.3f}, first token "
        f"{times(by['ttft_ratio'])} times sooner than round robin"
    )


def _gradual(found: Any) -> str:
    headline = found["headline"]
    own = headline["adaptive"]["adaptive, gradual"]
    difference, low, high = own["quality_difference"]
    return (
        f"reading gradually, until the answer is there: delay {times(own['times_as_fast'])} times "
        f"shorter than with {headline['best_fixed']}, the best of six fixed configurations; "
        f"difference in F1 {difference:+.3f} [{low:+.3f}, {high:+.3f}] (the bundled reader)"
    )


def _rates(found: Any) -> str:
    quarter, half, _ = found["headline"]["times_as_fast_as_stock"].values()
    return (
        "questions by Zipf's law, in other words, over a KV cache of 0.5 GiB: first token "
        f"{times(quarter)} times sooner than with stock vLLM in the same memory at 2 questions a "
        f"second, {times(half)} at 4"
    )


def _rephrased_answers(found: Any) -> str:
    zipf = found["headline"]["zipf_lsh"]
    if zipf["setting"] is None:
        return "**no gain** at equal quality, in other words by Zipf's law"
    saved, low, high = zipf["searches_saved"]
    difference, least, most = zipf["quality_difference"]
    return (
        f"of questions by Zipf's law, in other words, **{percent(saved)}** [{percent(low)}, "
        f"{percent(high)}] do not reach the store with {zipf['setting'].partition(', ')[2]}; "
        f"difference in F1 of the answers {difference:+.3f} [{least:+.3f}, {most:+.3f}]"
    )


GAINS = [
    Gain("query cache", REPHRASED, _query_cache, [GUARD]),
    Gain("query cache, answers", PROXIMITY, _rephrased_answers),
    Gain("query cache, proofs", PROVEN, _proven),
    Gain("query cache", "answer_cache", _answer_cache),
    Gain("answer cache", "answers --only streams --pairs mqp.csv", _answers),
    Gain("staged search", "staged_search --data data --sizes 1000000", _staged),
    Gain("speculation", SLOW_SEARCH, _speculation),
    Gain("knowledge tree", TREE, _tree),
    Gain("knowledge tree, rates", RAGCACHE, _rates),
    Gain("knowledge tree, host tier", HOST_TIER, _host_tier),
    Gain("steps of agents", "agent_workflows", _workflows),
    Gain("reuse anywhere", ANYWHERE, _anywhere, [ANYWHERE_ANSWERS]),
    Gain("reuse anywhere, first document exact", FIRST_EXACT, _first_exact),
    Gain("reuse anywhere, answers", PROMPT_CACHE, _strategies),
    Gain("documents once", ONCE, _once, [ONCE_SOONER, ONCE_ANSWERED]),
    Gain("document order", "prompts --data data --only order", _order),
    Gain("chat history", LONG_CHAT, _history),
    Gain(
        "per-query configuration",
        "adaptive --rates 1.25 1.5 --requests 300 --seeds 1 --fixed 'stuff 2' 'map_rerank 2'",
        _adaptive,
    ),
    Gain("per-query configuration, gradual", METIS, _gradual),
    Gain("modular attention", "modular --sizes '4 x 256' '6 x 512'", _modular),
    Gain(
        "routing",
        "servers/replicas --only questions --seeds 3 --requests 60 --load 0.8",
        _replicas,
    ),
]


def fewer(share: float) -> str:
    """How many fewer searches reach the store."""
    return f"**{percent(share)}** fewer"


def sooner(interval: list[float]) -> str:
    """How much sooner the first token comes."""
    return f"**{interval[0]:.{1 if interval[0] >= 10 else 2}f}x** sooner"  # noqa: PLR2004 - as times


def _short_query_cache(found: Any) -> str:
    zipf = found["zipf"]
    return (
        f"{fewer(zipf['calls_saved'])} | recall {zipf['hit_recall']:.5f}, never below "
        f"{zipf['worst_recall']:.1f} | new questions: nothing; {_guarded(found)}"
    )


def _short_proven(found: Any) -> str:
    light, heavy = (
        found["certified"]["by_store"]["100000"][kind]["rho20"] for kind in ("light", "heavy")
    )
    return (
        f"{fewer(light['calls_saved'])} | recall {light['hit_recall']:.1f} | heavily rephrased: "
        f"{percent(heavy['calls_saved'])}"
    )


def _short_speculation(found: Any) -> str:
    local = found["ttft_ratio"]["local search, load 0.2"]
    return (
        f"{sooner(found['ttft_ratio_low_load'])} | {_same_answers(found)} | fast local "
        f"search: {local[0]:.2f}x"
    )


def _short_tree(found: Any) -> str:
    return (
        f"{sooner(found['ttft_ratio_mean'])} than stock vLLM in the same memory | "
        f"{_exact(found)} | at worst {found['ttft_ratio_worst'][0]:.2f}x"
    )


def _short_host_tier(found: Any) -> str:
    alone = found["points"]["sequential"]
    return (
        f"{sooner(alone['stock_over_ours']['median'])} | exact reuse | vLLM's OffloadingConnector "
        f"with the same host memory: {alone['offloading_over_ours']['median'][0]:.2f}x"
    )


def _short_anywhere(found: Any) -> str:
    headline, ratios = found["headline"], found["stream_ratio"]
    difference, low, high = headline["quality_difference"]
    return (
        f"{sooner(headline['times_as_fast'])}, {ratios['encoded'][0]:.2f}x under load | "
        f"approximate: F1 {difference:+.3f} [{low:+.3f}, {high:+.3f}] | documents not encoded "
        f"ahead: {ratios['met'][0]:.2f}x"
    )


def _short_configuration(found: Any) -> str:
    adaptive = found["headline"]["adaptive"]
    own, all_at_once = adaptive["adaptive, gradual"], adaptive["adaptive, profiler: heuristic"]
    difference, low, high = own["quality_difference"]
    return (
        f"**{own['times_as_fast'][0]:.2f}x** shorter than with the best fixed configuration "
        f"({found['headline']['best_fixed']}) | F1 {difference:+.3f} [{low:+.3f}, {high:+.3f}] | "
        f"all at once: {all_at_once['times_as_fast'][0]:.2f}x"
    )


SHORT = [
    Gain(
        "searches, [rephrased questions](docs/query_cache.md)",
        REPHRASED,
        _short_query_cache,
        [GUARD],
    ),
    Gain("lightly rephrased, [proven exact](docs/howto/guarantees.md)", PROVEN, _short_proven),
    Gain("first token, [slow search](docs/speculation.md)", SLOW_SEARCH, _short_speculation),
    Gain("first token, [cache too small](docs/knowledge_tree.md)", TREE, _short_tree),
    Gain(
        "first token, [host tier](docs/knowledge_tree.md#two-tiers), on an H100",
        HOST_TIER,
        _short_host_tier,
    ),
    Gain(
        "first token, [documents in new company](docs/knowledge_tree.md#reuse-anywhere), the first "
        "one exact",
        PROMPT_CACHE,
        _short_anywhere,
        [FIRST_EXACT],
    ),
    Gain(
        "delay, [documents read gradually](docs/adaptive.md#from-the-question-to-the-choice)",
        METIS,
        _short_configuration,
    ),
]
"""The rows that the README has room for."""


def long_table(results: Results, first: str, rows: Sequence[Gain]) -> str:
    """Return a table of rows in Markdown, each with what was measured and where all of it is."""
    lines = [f"| {first} | what was measured | all figures |", "| --- | --- | --- |"]
    lines += [
        f"| {row.part} | {row.cells(results)} | {link(command_of(row.arguments))} |" for row in rows
    ]
    return "\n".join(lines)


def short_table(results: Results) -> str:
    """Return the table of the README in Markdown."""
    rows = ["| what | gain | quality | at its limits |", "| --- | --- | --- | --- |"]
    rows += [f"| {gain.part} | {gain.cells(results)} |" for gain in SHORT]
    return "\n".join(rows)


def pairs(results: Results) -> list[Pair]:
    """Return what the drawing shows, before and after, a loss included."""
    saved = result(results, REPHRASED).found["zipf"]["calls_saved"]
    slow = printed(results, SLOW_SEARCH, "ivf 200 ms ratio 100.0% load 0.2")
    alone = result(results, HOST_TIER).found["points"]["sequential"]
    oldest, half = (printed(results, LONG_CHAT, policy)[4] for policy in ("oldest", "half"))
    stock_anywhere, anywhere = (
        printed(results, FIRST_EXACT, side)[0] for side in ("stock", "encoded, 16")
    )
    points = result(results, TREE).found["points"]
    worst = min(points, key=lambda point: points[point]["stock"][0])
    stock, ours = printed(results, TREE, worst)[:2]
    return [
        Pair("Searches for 100 rephrased questions", 100, 100 * (1 - saved), ""),
        Pair("First token, with a slow search", slow[1], slow[2], "ms"),
        Pair(
            "First token, more documents than GPU cache (H100)",
            alone["stock"]["ttft_median_ms"],
            alone["ours"]["ttft_median_ms"],
            "ms",
        ),
        Pair("First token, in a long chat", oldest, half, "ms"),
        Pair(
            "First token, documents encoded ahead, in new company", stock_anywhere, anywhere, "ms"
        ),
        Pair(
            f"First token, worst of {len(points)} cache sizes and loads (CPU)",
            stock,
            ours,
            "ms",
        ),
    ]


def badges() -> list[Badge]:
    """Return the badges, from ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = [
        name.rpartition(" ")[2]
        for name in project["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
    ]
    (vllm,) = project["optional-dependencies"]["vllm"]
    bounds = re.fullmatch(r"vllm>=(\d+\.\d+),<(\d+)\.(\d+)", vllm)
    if bounds is None:
        sys.exit(f"pyproject.toml has other bounds than vllm>=A.B,<C.D: {vllm}")
    oldest, major, minor = bounds.groups()
    return [
        Badge("Python", f"{pythons[0]} to {pythons[-1]}"),
        Badge("vLLM", f"{oldest} to {major}.{int(minor) - 1}"),
        Badge("licence", project["license"]),
    ]


def between(text: str, mark: str, content: str) -> str:
    """Return a text with new content between ``<!-- mark -->`` and ``<!-- /mark -->``."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        sys.exit(f"there is no {begin} … {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def texts() -> dict[Path, str]:
    """Return what each file holds when it is up to date."""
    results = saved(FOLDER)
    named = ", ".join(f"{badge.name} {badge.value}" for badge in badges())
    readme = between(README.read_text(encoding="utf-8"), "badges", f"![{named}](docs/badges.svg)")
    page = between(PAGE.read_text(encoding="utf-8"), "equal quality", equal_quality_table(results))
    return {
        README: between(readme, "gains", short_table(results)),
        PAGE: between(page, "gains", long_table(results, "part", GAINS)),
        COMPARISON: between(
            COMPARISON.read_text(encoding="utf-8"), "peers", long_table(results, "peer", PEERS)
        ),
        DRAWING: draw_pairs(pairs(results)),
        BADGES: draw_badges(badges()),
    }


def main() -> int:
    """Write the files, or check them; the exit status."""
    stale = {
        path: text
        for path, text in texts().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.name} is out of date: run `python tools/gains.py`")
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
