"""What was found where peers ran on the same work in the same run; losses come first."""

from __future__ import annotations

from typing import Any

from tools.bench.gain_cells import Gain, percent, times

TREE = "knowledge_tree --only ttft --points 'host 0%' --requests 100"
TIERS = "knowledge_tree --only ttft"
STREAMS = "answers --only streams --pairs mqp.csv"
CONTEXT = "context --data data --only tokens"
ONCE_ANSWERED = "context --only repeated --data kept_out --questions 1028 --answers answers.json"
OFFLOADING = "tools/gpu/host_tier"


def _two_tiers(found: Any) -> str:
    return (
        "**no gain** on a CPU if a fixed number of blocks keeps two tiers, and it gets the memory "
        "of both: its time to the first token over ours "
        f"{times(found['ttft_ratio_same_total_memory'])}"
    )


def _faiss(found: Any) -> str:
    ratios = times(found["ivf"]["overhead"]), times(found["hnsw"]["overhead"])
    return (
        f"**slower**: a whole search in stages takes {ratios[0]} (IVF) and {ratios[1]} (HNSW) "
        "times FAISS's time; its documents are FAISS's own"
    )


def _fixed_written(found: Any) -> str:
    written = found["streams"]["written"]
    return (
        f"**fewer served**: of doctors' paraphrases {percent(written['hits'])} instead of "
        f"{percent(written['fixed_hits_at_same_error'])} with the best tolerance at the same share "
        "of wrong answers, chosen in hindsight"
    )


def _contextpilot_cut(found: Any) -> str:
    cut = found["tokens_saved_by_form"]["chat, cut at 5400"]
    return (
        "**fewer saved** by documents that are said once, where the history is cut to a budget: "
        f"{percent(cut['with'])} of the prompts' tokens instead of {percent(cut['ContextPilot'])}"
    )


def _contextpilot_answers(found: Any) -> str:
    theirs, ours = found["repeated"]["contextpilot"], found["repeated"]["f1"]
    more, ours_more = (
        "{:+.3f} [{:+.3f}, {:+.3f}]".format(*side["f1_difference"])
        for side in (theirs, found["repeated"])
    )
    return (
        "F1 of answers from passages that are only referred to, less that from passages in full: "
        f"{more} ({theirs['f1']:.3f}), with our documents once {ours_more} ({ours['with']:.3f}, "
        "the bundled reader)"
    )


def _contextpilot_first_token(found: Any) -> str:
    return (
        f"first token in conversations {times(found['contextpilot']['ttft_ratio'])} times sooner "
        f"than without either, with our documents once {times(found['ttft_ratio'])}"
    )


def _contextpilot_whole(found: Any) -> str:
    whole = found["tokens_saved_by_form"]["chat, whole"]
    return (
        f"with the whole history {percent(whole['with'])} of the prompts' tokens saved instead of "
        f"{percent(whole['ContextPilot'])}"
    )


def _contextpilot_order(found: Any) -> str:
    ours, theirs = found["order_us"]["cached_first"], found["order_us"]["contextpilot"]
    two = found["order_by_k"]["2"]["cached_first_over_contextpilot"]
    return (
        f"{times(found['cached_first_over_contextpilot']['share'])} times as many document tokens "
        f"from the cache with five documents, {times(two['share'])} with two; {ours:.0f} us a "
        f"request instead of {theirs:.0f}"
    )


def _same_memory(found: Any) -> str:
    return (
        "its time to the first token over ours in the same memory, on a CPU: "
        f"{times(found['ttft_ratio_same_total_memory'])} over {len(found['points'])} cache sizes "
        f"and kinds of requests, {times(found['ttft_ratio_worst'])} at worst and "
        f"{times(found['ttft_ratio_best'])} at best"
    )


def _offloading(found: Any) -> str:
    ratios = [
        times(found["points"][name]["offloading_over_ours"]["median"])
        for name in ("sequential", "load 0.5", "load 0.8")
    ]
    return (
        f"its time to the first token over ours with as much host memory, on one "
        f"{found['device']}: {ratios[0]} one request after another, {ratios[1]} and {ratios[2]} at "
        "half and at four fifths of the rate that stock vLLM bears"
    )


def _windows(found: Any) -> str:
    shapes = ", ".join(
        f"{name} **{streams['skewed']['hits']['tree']:.3f}** and "
        f"{streams['skewed']['hits']['stock']:.3f}"
        for name, streams in found.items()
    )
    return (
        "documents found whole in the same memory, ours and its own, for models whose layers have "
        f"sliding windows (skewed popularity): {shapes}"
    )


def _agents(found: Any) -> str:
    return (
        "its time to the first token over ours with hints of agents' next steps, and the memory of "
        f"both tiers: {times(found['stock_over_hints'])}; other users "
        f"{times(found['stock_over_hints_others'])}"
    )


def _wrong(found: Any, peer: str) -> str:
    name = next(name for name in found["peers"] if name.startswith(peer))
    theirs = found["peers"][name]
    return (
        f"{name} serves {percent(theirs['hits'])} of two streams of near-duplicates and "
        f"paraphrases, **{percent(theirs['wrong_share'], 3)}** of these wrongly; `AnswerCache` "
        f"{percent(found['hits'])} and {percent(found['wrong_share'], 3)}"
    )


def _gptcache(found: Any) -> str:
    return _wrong(found, "GPTCache")


def _vcache(found: Any) -> str:
    return _wrong(found, "vCache")


def _langchain(found: Any) -> str:
    return _wrong(found, "LangChain's InMemoryCache")


def _fixed(found: Any) -> str:
    return (
        f"{percent(found['fixed_hits_at_same_error'])} of both streams served with the best "
        f"tolerance at the same share of wrong answers; `AnswerCache` {percent(found['hits'])}"
    )


def _lookup(found: Any) -> str:
    ratio = times(found["lookup_ratio"]["0.5"]["query cache, flat"])
    return f"its lookup takes {ratio} times as long as the query cache's, at the same share of hits"


def _proximity(found: Any) -> str:
    keys = found["dim"], found["lsh_match_us"]["5120"], found["numpy_lsh_match_us"]
    return (
        f"a lookup by LSH among 5,120 keys of {keys[0]} dimensions: {keys[1]:.1f} us, and "
        f"{keys[2]:.1f} in NumPy"
    )


PEERS = [
    Gain("stock vLLM", TIERS, _two_tiers),
    Gain("FAISS", "staged_search --data data --sizes 1000000", _faiss),
    Gain("a fixed tolerance (redisvl's rule)", STREAMS, _fixed_written),
    Gain("ContextPilot", CONTEXT, _contextpilot_cut),
    Gain("ContextPilot", "context --data data --only ttft", _contextpilot_first_token),
    Gain("ContextPilot", ONCE_ANSWERED, _contextpilot_answers),
    Gain("ContextPilot", CONTEXT, _contextpilot_whole),
    Gain("ContextPilot", "prompts --data data --only order", _contextpilot_order),
    Gain("stock vLLM", TREE, _same_memory),
    Gain("vLLM's OffloadingConnector", OFFLOADING, _offloading),
    Gain("stock vLLM", "layer_kinds", _windows),
    Gain("stock vLLM", "agent_workflows", _agents),
    Gain("a fixed tolerance (redisvl's rule)", STREAMS, _fixed),
    Gain("LangChain's `InMemoryCache`", STREAMS, _langchain),
    Gain("GPTCache", STREAMS, _gptcache),
    Gain("GPTCache", "answer_cache", _lookup),
    Gain("vCache's algorithm", STREAMS, _vcache),
    Gain("Proximity's algorithm in NumPy", "query_cache --data data --only match", _proximity),
]
