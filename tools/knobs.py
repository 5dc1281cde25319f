"""Writes the knobs' tables into docs/knobs.md, from the code and its docstrings.

With ``--check`` it only says whether they are up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from ragcache_integrations.answers import AnswerKnobs
from ragcache_integrations.chains.adaptive.knobs import AdaptiveKnobs
from ragcache_integrations.chains.speculative.knobs import SpeculationKnobs
from ragcache_integrations.chains.synthesis.knobs import SynthesisKnobs
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.prompts.history.policy import HistorySettings
from ragcache_integrations.prompts.order.knobs import OrderKnobs
from ragcache_integrations.prompts.relevance import RelevanceSettings
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.staged.core import StagedKnobs

PAGE = Path(__file__).parents[1] / "docs" / "knobs.md"
SECTIONS = {
    "Retriever": CacheKnobs,
    "Answers": AnswerKnobs,
    "Staged": StagedKnobs,
    "Speculation": SpeculationKnobs,
    "LLM": LLMKnobs,
    "Engine": RAGCacheEngine,
    "Synthesis": SynthesisKnobs,
    "Adaptive": AdaptiveKnobs,
    "Order": OrderKnobs,
    "History": HistorySettings,
    "Relevance": RelevanceSettings,
}
LONGEST_DEFAULT = 60  # characters; a prompt's text would fill the table


def meanings(kind: type) -> dict[str, str]:
    """What a docstring says of each argument or attribute."""
    text = inspect.cleandoc(kind.__doc__ or "")
    section = "Args" if kind is RAGCacheEngine else "Attributes"
    match = re.search(rf"^{section}:\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    if match is None:
        sys.exit(f"{kind.__name__} has no section {section!r}")
    entries = re.split(r"^    (\w+): ", match[1], flags=re.MULTILINE)[1:]
    return {
        name: " ".join(meaning.split())
        for name, meaning in zip(entries[::2], entries[1::2], strict=True)
    }


def defaults(kind: Any) -> dict[str, Any]:
    """Default value of each knob."""
    if hasattr(kind, "model_fields"):
        shown = {name: field for name, field in kind.model_fields.items() if field.repr}
        return {name: field.get_default() for name, field in shown.items()}
    parameters = inspect.signature(kind).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters}


def shown(default: Any) -> str:
    """A default value as it stands in the table."""
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, str):
        return f'`"{default}"`' if len(default) <= LONGEST_DEFAULT else "a text"
    return f"`{default!r}`"


def table(kind: type) -> str:
    """A Markdown table of a class's knobs, in the order of its docstring."""
    told = meanings(kind)
    order = {name: place for place, name in enumerate(told)}
    rows = ["| knob | default | meaning |", "| --- | --- | --- |"]
    for name, value in sorted(defaults(kind).items(), key=lambda knob: order[knob[0]]):
        meaning = re.sub(r"``(.+?)``", r"`\1`", told[name])
        meaning = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", meaning)
        rows.append(f"| `{name}` | {shown(value)} | {meaning} |".replace("|`", "| `"))
    return "\n".join(rows)


def written(page: str) -> str:
    """The page with fresh tables between its marks."""
    for section, kind in SECTIONS.items():
        begin, end = f"<!-- knobs: {section} -->", "<!-- /knobs -->"
        pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(page):
            sys.exit(f"docs/knobs.md has no place for the knobs of {section!r}")
        fresh = f"{begin}\n{table(kind)}\n{end}"
        page = pattern.sub(fresh.replace("\\", r"\\"), page)
    return page


def main() -> int:
    """Write or check."""
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            print("docs/knobs.md is out of date: run `make docs`")
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
