"""``ragcache lint``: what keeps prompts from reusing their KV caches."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.lint import lint_prompt
from ragcache_integrations.prompts.lint_requests import read_requests
from ragcache_integrations.prompts.lint_rules import MIN_TOKENS, LintReport
from ragcache_integrations.prompts.lint_tokens import CountTokens, approximate_tokens

__all__ = ["add_lint"]

FOUND = 1
"""Exit status where something was found."""

TEMPLATE_ENDINGS = (".txt", ".md", ".prompt", ".tmpl")

# By the framework that a prompt's class comes from.
_ADAPTERS = {
    "langchain_core": "ragcache_integrations.langchain",
    "llama_index": "ragcache_integrations.llama_index",
}


def add_lint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "lint",
        help="find what keeps prompts from reusing their KV caches",
        description=(
            "Say which part of a prompt breaks the prefix that requests have in common, at which "
            "token, what it costs in tokens that are computed again, and how to mend it. The exit "
            f"status is {FOUND} where something was found."
        ),
    )
    parser.set_defaults(command=_lint)
    parser.add_argument(
        "sources",
        metavar="FILE",
        nargs="+",
        help=(
            "requests as they were sent, in JSON lines or one JSON array (OpenAI, Anthropic); a "
            f"template with {{variables}} ({', '.join(TEMPLATE_ENDINGS)}); or MODULE:NAME, a "
            "LangChain or LlamaIndex prompt, whose module is imported"
        ),
    )
    parser.add_argument(
        "--flow",
        choices=["single_turn", "conversation"],
        help="what the prompts serve (default: conversations where there is a history)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="path or hub name of the model's tokenizer (default: estimate from the words)",
    )
    parser.add_argument(
        "--min-tokens",
        type=int,
        default=MIN_TOKENS,
        metavar="N",
        help=f"tokens per request that a finding must cost (default: {MIN_TOKENS})",
    )
    parser.add_argument(
        "--json", action="store_true", help="write one JSON object as the last line"
    )


def _lint(options: argparse.Namespace) -> int:
    count_tokens = _counter(options.tokenizer)
    reports: dict[str, LintReport] = {}
    for source in options.sources:
        given, lint = _read(source)
        reports[source] = lint(
            given, flow=options.flow, count_tokens=count_tokens, min_tokens=options.min_tokens
        )
    for source, report in reports.items():
        sys.stdout.write(f"{source}: {report}\n")
    if options.json:
        content = {source: report.as_dict() for source, report in reports.items()}
        sys.stdout.write(json.dumps(content) + "\n")
    return FOUND if any(report.findings for report in reports.values()) else 0


def _read(source: str) -> tuple[Any, Callable[..., LintReport]]:
    """What to lint, and the function that can."""
    path = Path(source)
    if path.suffix in TEMPLATE_ENDINGS and path.is_file():
        try:
            return path.read_text(encoding="utf-8"), lint_prompt
        except (OSError, UnicodeDecodeError) as error:
            msg = f"cannot read {path}: {error}"
            raise ConfigurationError(msg) from error
    if path.exists() or ":" not in source:
        return read_requests(path), lint_prompt
    prompt = _imported(source)
    packages = {base.__module__.split(".")[0] for base in type(prompt).__mro__}
    adapter = next((name for package, name in _ADAPTERS.items() if package in packages), None)
    if adapter is None:
        return prompt, lint_prompt
    return prompt, importlib.import_module(adapter).lint_prompt


def _imported(source: str) -> Any:
    module_name, _, name = source.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - what python -m has there, too
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in name.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"{source} is neither a file nor MODULE:NAME of a prompt: {error}"
        raise ConfigurationError(msg) from error
    return found


def _counter(tokenizer: str | None) -> CountTokens:
    if tokenizer is None:
        return approximate_tokens
    from ragcache_integrations.llms.token_counting import TokenCounter  # noqa: PLC0415 - an extra

    counter = TokenCounter("", tokenizer)
    counter.count("")  # finds out now whether there is one
    return counter.count
