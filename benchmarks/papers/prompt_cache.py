"""Prompt Cache §5: quality and TTFT by strategy of reuse (link tokens are EPIC's)."""

from __future__ import annotations

from ragcache_workbench.evaluation.report import measure

from .base import Cell, Claim, Form, Preset, Table, Tables, Variant, claims_table, quality_cell
from .results import Results

__all__ = ["PROMPT_CACHE"]

STOCK, EXACT = "stock vLLM", "exact reuse of prefixes"
LINK_TOKENS = (0, 8, 16, 32)
ANYWHERE: dict[str, dict[str, int]] = {
    **{
        f"reuse anywhere, {count} link tokens": {"link_tokens": count, "exact_documents": 0}
        for count in LINK_TOKENS
    },
    "reuse anywhere, 16 link tokens, first document exact": {
        "link_tokens": 16,
        "exact_documents": 1,
    },
}
OF_DOCUMENTS = ("document_cache_gib", "disk_cache_gib", "disk_cache_dir")
"""Exact prefixes would be written to the disk, too, where none of them is read again."""
OF_TREE = (*OF_DOCUMENTS, "host_cache_gib", "policy")


def _variants(form: Form) -> tuple[Variant, ...]:
    del form
    plain = {"retriever": "plain", "workload": "as_is"}
    anywhere = [
        Variant(name, {**plain, "knowledge_tree": True, "reuse": "anywhere", **knobs})
        for name, knobs in ANYWHERE.items()
    ]
    return (
        Variant(STOCK, {**plain, "knowledge_tree": False}, without=OF_TREE),
        Variant(EXACT, {**plain, "knowledge_tree": True, "reuse": "prefix"}, without=OF_DOCUMENTS),
        *anywhere,
    )


def _tables(results: Results) -> Tables:
    best = results.best(STOCK, ANYWHERE, lambda name: results.times_as_fast(STOCK, name, "ttft"))
    headline: dict[str, object] = {"quality": results.quality_name, "setting": best}
    if best is not None:
        headline |= {
            "equal_quality": results.is_equal(STOCK, best),
            "quality_difference": Cell(results.quality_difference(STOCK, best)).plain,
            "times_as_fast": Cell(results.times_as_fast(STOCK, best, "ttft")).plain,
        }
    claims = _claims(results, best)
    return Tables((_figures(results), claims_table("Prompt Cache", claims)), headline)


def _figures(results: Results) -> Table:
    rows = []
    for name in results.runs:
        is_base = name == STOCK
        difference = None if is_base else results.quality_difference(STOCK, name)
        rows.append(
            (
                Cell(name),
                quality_cell(results.quality(name)),
                Cell(difference, "difference"),
                Cell(results.mean(name, "ttft"), "ms"),
                Cell(None if is_base else results.times_as_fast(STOCK, name, "ttft"), "times"),
                Cell(results.mean(name, "cached_tokens"), "count"),
            )
        )
    columns = (
        *("strategy", measure(results.quality_name).words, "difference", "TTFT, ms"),
        *("times as fast", "tokens reused"),
    )
    note = (
        "With reuse anywhere, the documents are encoded before the first question, as Prompt Cache "
        "does; the other strategies begin with empty caches. Each question comes "
        f"{results.repeated(STOCK)}. A first document that is exact is computed, or read from "
        "where an earlier prompt left it."
    )
    return Table("Quality and time to first token", columns, tuple(rows), (note,))


QUALITIES = {
    "qmsum": "ROUGE-L 19.24 to 19.46 (Llama2 7B), 15.19 to 15.51 (MPT 7B)",
    "musique": "F1 7.31 to 8.57 (Llama2 7B), 7.38 to 7.32 (MPT 7B)",
    "triviaqa": "F1 13.04 to 12.33 (Llama2 7B), 10.57 to 9.17 (MPT 7B)",
    "2wikimultihopqa": "F1 16.63 to 13.95 (Llama2 7B), 10.44 to 13.70 (MPT 7B)",
}
"""Table 1: without and with Prompt Cache."""


def _claims(results: Results, best: str | None) -> tuple[Claim, ...]:
    fewest, *_, most, _ = ANYWHERE
    ratio = Cell("none at equal quality")
    if best is not None:
        ratio = Cell(results.times_as_fast(STOCK, best, "ttft"), "times")
    quality = QUALITIES.get(results.dataset)
    return (
        Claim(
            "quality from no reuse to reuse anywhere, without link tokens",
            quality or f"of other data sets, such as QMSum: {QUALITIES['qmsum']}",
            "table 1, §5.3",
            _qualities(results, fewest),
        ),
        Claim(
            f"quality from no reuse to {most}",
            "link tokens are EPIC's; no figure here",
            "-",
            _qualities(results, most),
        ),
        Claim(
            "TTFT, times lower at equal quality, modules in the memory of the host",
            "1.5 to 3 (GPUs); up to 70 (Intel CPU) and 20 (AMD CPU)",
            "figures 3 and 4, §5.2",
            ratio,
        ),
        Claim(
            "TTFT, times lower, modules in the memory of the GPU",
            "5 to 10",
            "figure 3, §5.2.1",
            Cell("not here: documents wait in the memory of the host"),
        ),
    )


def _qualities(results: Results, name: str) -> Cell:
    before, after = results.quality(STOCK), results.quality(name)
    if before is None or after is None:
        return quality_cell(None)
    difference = Cell(results.quality_difference(STOCK, name), "difference").text
    words = measure(results.quality_name).words
    return Cell(f"{words} {before.value:.3f} to {after.value:.3f} ({difference})")


PROMPT_CACHE = Preset(
    name="prompt-cache",
    paper="Prompt Cache §5",
    measures="quality and time to first token by strategy of reuse",
    datasets=("qmsum", "nq", "musique", "triviaqa", "2wikimultihopqa", "longbench"),
    setting=(
        "Llama2 7B and 13B, MPT 7B and Falcon 7B on RTX 4090, A40, A100, Intel i9-13900K and AMD "
        "Ryzen 9 7950X; LongBench, about 5,000 tokens a prompt"
    ),
    differs=(
        "Documents are retrieved and reused at any place, not laid out in a schema, and there are "
        "no scaffolds. Stock vLLM reuses equal beginnings of prompts."
    ),
    variants=_variants,
    tables=_tables,
    usual={"sample": 350, "corpus": "all"},
    usual_quick={"sample": 8},
)
