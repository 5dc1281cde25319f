"""``ragcache lint``: what keeps prompts from reusing their KV caches."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from ragcache_integrations.cli.options import add_json
from ragcache_integrations.errors import RAGCacheError
from ragcache_integrations.prompts.lint import (
    MIN_TOKENS,
    CountTokens,
    LintReport,
    Template,
    TemplatePiece,
    approximate_tokens,
    jinja_pieces,
    lint_prompt,
    mustache_pieces,
    pieces_of,
)
from ragcache_integrations.prompts.provider_caches import PROVIDERS, provider_cost
from ragcache_workbench.logs import Log, read_requests, read_text

from .shared import WORDS, add_command, add_options, imported

__all__ = ["add_lint"]

FOUND = 1
"""Exit status where everything could be read and something was found."""

UNREADABLE = 2
"""Exit status where something could not be read, even if the rest has findings."""

TEMPLATES: dict[str, Callable[[str], list[TemplatePiece]]] = {
    **dict.fromkeys((".txt", ".md", ".prompt", ".tmpl"), pieces_of),
    **dict.fromkeys((".jinja", ".jinja2", ".j2"), jinja_pieces),
    ".mustache": mustache_pieces,
}
"""How templates are read, by the ending of the file's name."""

# By the framework that a prompt's class comes from.
_ADAPTERS = {
    "langchain_core": "ragcache_integrations.langchain",
    "llama_index": "ragcache_integrations.llama_index",
}


def add_lint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "lint", _lint)
    parser.add_argument(
        "sources",
        metavar="FILE",
        nargs="+",
        help=(
            "recorded requests as JSON lines or a JSON array, plain or gzipped (OpenAI, "
            "Anthropic, Gemini, LiteLLM's rows, exports of Langfuse and LangSmith); a template, "
            f"whose syntax follows from the end of its name ({', '.join(TEMPLATES)}); or "
            "MODULE:NAME for a LangChain or LlamaIndex prompt, whose module is imported"
        ),
    )
    add_options(parser, WORDS["lint"]["options"])
    parser.add_argument(
        "--provider",
        choices=PROVIDERS,
        help="say what this provider's prompt cache holds of a log, and what its prompts cost",
    )
    add_options(parser, WORDS["lint"]["costs"])
    parser.set_defaults(min_tokens=MIN_TOKENS)
    add_json(parser)


def _lint(options: argparse.Namespace) -> int:
    count_tokens = _counter(options.tokenizer)
    content: dict[str, dict[str, Any]] = {}
    for source in options.sources:
        try:
            prompt, lint = _read(source)
            report = lint(
                prompt, flow=options.flow, count_tokens=count_tokens, min_tokens=options.min_tokens
            )
        except RAGCacheError as error:
            content[source] = {"error": str(error)}
            _write(sys.stderr, f"ragcache: {error}")
        else:
            content[source] = report.as_dict()
            _write(sys.stdout, f"{source}: {report}")
            if options.provider and isinstance(prompt, Log):
                cost = provider_cost(
                    prompt.requests,
                    PROVIDERS[options.provider],
                    requests_per_day=options.requests_per_day,
                    price=options.price,
                    count_tokens=count_tokens,
                )
                content[source]["provider"] = asdict(cost)
                _write(sys.stdout, str(cost))
    if options.json:
        _write(sys.stdout, json.dumps(content))
    if any("error" in result for result in content.values()):
        return UNREADABLE
    return FOUND if any(result["findings"] for result in content.values()) else 0


def _write(stream: TextIO, line: str) -> None:
    """Write a text in characters that the stream can take and that steer no terminal."""
    encoding = stream.encoding or "utf-8"
    plain = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in line)
    stream.write(plain.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _read(source: str) -> tuple[Any, Callable[..., LintReport]]:
    """What to lint, and the function that can."""
    path = Path(source)
    if path.suffix in TEMPLATES and path.is_file():
        return Template(TEMPLATES[path.suffix](read_text(path))), lint_prompt
    if path.exists() or ":" not in source:
        return read_requests(path), lint_prompt
    prompt = imported(source, f"{source} is neither a file nor MODULE:NAME of a prompt")
    packages = {base.__module__.split(".")[0] for base in type(prompt).__mro__}
    adapter = next((name for package, name in _ADAPTERS.items() if package in packages), None)
    if adapter is None:
        return prompt, lint_prompt
    return prompt, importlib.import_module(adapter).lint_prompt


def _counter(tokenizer: str | None) -> CountTokens:
    if tokenizer is None:
        return approximate_tokens
    from ragcache_integrations.llms.openai import TokenCounter  # noqa: PLC0415 - an extra

    counter = TokenCounter("", tokenizer)
    counter.count("")  # finds out now whether there is one
    return counter.count
