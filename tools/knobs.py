"""Writes what is said of knobs in other places than their models, from the models.

These are the tables of docs/knobs.md, and the keyword arguments of functions with knobs, as type
checkers and editors read them. With ``--check`` it only says whether they are up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ragcache_integrations.answers import AnswerKnobs
from ragcache_integrations.chains.adaptive.knobs import AdaptiveKnobs
from ragcache_integrations.chains.speculative.knobs import SpeculationKnobs
from ragcache_integrations.chains.synthesis.knobs import MapReduceKnobs, SynthesisKnobs
from ragcache_integrations.core.knobs import Accepts, knob_names, meanings
from ragcache_integrations.engine.arguments import EngineKnobs
from ragcache_integrations.llms.knobs import LLMKnobs
from ragcache_integrations.prompts.history.policy import HistorySettings
from ragcache_integrations.prompts.order.knobs import OrderKnobs
from ragcache_integrations.prompts.order.settings import OrderSettings
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
    "Engine": EngineKnobs,
    "Synthesis": SynthesisKnobs,
    "Adaptive": AdaptiveKnobs,
    "Order": OrderKnobs,
    "History": HistorySettings,
    "Relevance": RelevanceSettings,
}
STUB = Path(__file__).parents[1] / "ragcache_integrations" / "_arguments.pyi"
ARGUMENTS: dict[str, tuple[type[BaseModel], str]] = {
    "CacheArguments": (CacheKnobs, ""),
    "AnswerArguments": (AnswerKnobs, ""),
    "StagedArguments": (StagedKnobs, ""),
    "SpeculationArguments": (SpeculationKnobs, ""),
    "MapReduceArguments": (MapReduceKnobs, ""),
    "AdaptiveArguments": (AdaptiveKnobs, ""),
    "OrderArguments": (OrderSettings, "order"),
    "OrderKnobArguments": (OrderKnobs, "order"),
    "HistoryArguments": (HistorySettings, "budget"),
}
"""Keyword arguments by name: their model, and its field that is an argument by itself."""
STUB_HEAD = "# Knobs as keyword arguments: for type checkers alone, written by tools/knobs.py."

LONGEST_DEFAULT = 60  # characters; a prompt's text would fill the table


def defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """Default value of each knob."""
    return {name: kind.model_fields[name].get_default() for name in knob_names(kind)}


def spelled(annotation: Any, modules: set[str]) -> str:
    """Source code of an annotation; the modules that it names are added to ``modules``."""
    arguments, origin = get_args(annotation), get_origin(annotation)
    if annotation is type(None) or annotation is None:
        return "None"
    if isinstance(annotation, list):
        return f"[{', '.join(spelled(part, modules) for part in annotation)}]"
    if origin is Annotated:
        return spelled(arguments[0], modules)
    if origin in {Union, UnionType}:
        return " | ".join(spelled(part, modules) for part in arguments)
    if origin is Literal:
        modules.add("typing")
        return f"typing.Literal[{', '.join(map(repr, arguments))}]"
    plain = origin or annotation
    name: str = plain.__qualname__
    if plain.__module__ != "builtins":
        modules.add(plain.__module__)
        name = f"{plain.__module__}.{name}"
    return name + (spelled(list(arguments), modules) if arguments else "")


def stub() -> str:
    """The keyword arguments of all models."""
    modules, classes = {"typing"}, []
    for name, (kind, left_out) in ARGUMENTS.items():
        classes.append(f"class {name}(typing.TypedDict, total=False):")
        for knob in knob_names(kind):
            field = kind.model_fields[knob]
            accepted = (each.kind for each in field.metadata if isinstance(each, Accepts))
            if knob != left_out:
                code = spelled(next(accepted, field.annotation), modules)
                classes.append(f"    {knob}: {code}")
    imports = [f"import {module}" for module in sorted(modules)]
    source = "\n".join([STUB_HEAD, *imports, *classes])
    for command in ("check --select I --fix", "format"):
        ruff = [sys.executable, "-m", "ruff", *command.split(), f"--stdin-filename={STUB}", "-"]
        made = subprocess.run(  # noqa: S603 - our own source
            ruff, input=source, capture_output=True, text=True, check=True
        )
        source = made.stdout
    return source


def shown(default: Any) -> str:
    """A default value as it stands in the table."""
    if default is PydanticUndefined:
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
    files = {PAGE: (before, written(before))}
    files[STUB] = (STUB.read_text(encoding="utf-8") if STUB.exists() else "", stub())
    for path, (before, after) in files.items():
        if before != after and "--check" in sys.argv[1:]:
            print(f"{path.name} is out of date: run `make docs`")
            return 1
        path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
