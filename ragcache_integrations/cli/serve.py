"""``ragcache serve``: vLLM's OpenAI-compatible server with the knowledge tree in it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.engine.protocol import REUSES, CacheSettings
from ragcache_integrations.engine.serving import ServingSettings, serve
from ragcache_integrations.knowledge_tree.policies import POLICIES

__all__ = ["add_serve"]


# What the help says of settings; their types and defaults are those of the settings' fields.
TREE = {
    "policy": f"what is evicted first: {', '.join(POLICIES)}",
    "host_cache_gib": (
        "memory of the host to which evicted documents are copied, in GiB (default: none)"
    ),
    "reorder_window": (
        "how often a waiting request may be overtaken by those whose documents are cached; "
        "none for the order of arrival"
    ),
    "cache_depth": "keep only the first N documents of a request (default: all)",
    "frequency_window": (
        "a document's popularity counts the requests of the last S seconds (default: all)"
    ),
    "reuse": (
        "where a document's KV cache is reused if a request does not say: "
        f"{' or '.join(REUSES)}, which is approximate"
    ),
    "link_tokens": "first tokens of each document that are computed with --reuse anywhere",
    "document_cache_gib": "memory of the host for documents that are reused anywhere, in GiB",
    "disk_cache_gib": "room on disk for these documents, in GiB (default: none)",
    "disk_cache_dir": "folder in which they are kept (default: in the user's cache folder)",
}
LIMITS = {
    "max_prompt_bytes": "largest request, in bytes; more is a 413",
    "new_tenants_per_minute": (
        "new cache salts a minute for each API key; more is a 429, 0 is no limit"
    ),
    "drain_seconds": "on SIGTERM, how long running requests may take to finish, in seconds",
    "hang_timeout": (
        "kill the engine and exit after this many seconds without a heartbeat; none for no limit"
    ),
    "step_timeout": (
        "so is one that takes longer for a single step of the model; none for no limit"
    ),
}
CONNECTIONS = {
    "max_header_bytes": "request line and headers together, in bytes; more is a 431",
    "max_headers": "headers of a request; more is a 431",
    "header_seconds": (
        "within which a request's headers must have come, else it is a 408; none for no limit"
    ),
    "body_seconds": (
        "the same for its body, and for a client that does not read its answer; none for no limit"
    ),
    "max_connections_per_client": (
        "open connections of one IP address, such as a proxy's; more is a 429, 0 is no limit"
    ),
}


def add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line. What it does not know is for vLLM."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP as OpenAI does, to any number of applications",
        usage="ragcache serve [MODEL] [OPTION ...] [any option of `vllm serve` ...]",
        description=(
            "vLLM's OpenAI-compatible server, with the KV caches of documents kept by the "
            "knowledge tree. MODEL, a path or hub name, comes first; without one, the bundled "
            "model is served. Every option that is not listed here goes to "
            "vLLM as it is, such as --host, --port, --api-key, --served-model-name, "
            "--max-model-len or --tensor-parallel-size. One JSON object per line on the standard "
            "output describes each answer; everything else is on the standard error."
        ),
        epilog="docs/serving.md: how requests say which part of them is which document.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_serve, takes_more=True)
    parser.add_argument(
        "--kv-cache-gib",
        type=float,
        metavar="G",
        help="KV cache in GiB (default: 1 on a CPU, what fits on a GPU)",
    )
    tree = parser.add_argument_group("the knowledge tree")
    tree.add_argument(
        "--no-knowledge-tree",
        action="store_true",
        help="vLLM's own prefix cache, for comparison",
    )
    _add_options(tree, CacheSettings(), TREE)
    limits = parser.add_argument_group("limits and logs")
    _add_options(limits, ServingSettings(), LIMITS)
    limits.add_argument(
        "--log-prompts",
        action="store_true",
        help="log what was asked, too; it is left out otherwise",
    )
    bounds = parser.add_argument_group("what is taken before the key is checked")
    _add_options(bounds, ServingSettings(), CONNECTIONS)


def _number_or_none(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


def _seconds_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


_seconds_or_none.__name__ = "number of seconds"
_number_or_none.__name__ = "whole number"  # argparse: "invalid whole number value"

_KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "str": (str, "P"),
    "str | None": (str, "DIR"),
    "int": (int, "N"),
    "float": (float, "S"),
    "int | None": (_number_or_none, "N"),
    "float | None": (_seconds_or_none, "S"),
}
"""What reads an option, and its name in the help, by the annotation of the setting's field."""


def _add_options(
    group: argparse._ArgumentGroup,
    settings: CacheSettings | ServingSettings,
    words: Mapping[str, str],
) -> None:
    annotations = {field.name: str(field.type) for field in fields(settings)}
    for name, text in words.items():
        read, metavar = _KINDS[annotations[name]]
        default = getattr(settings, name)
        shown = f"{default:g}" if isinstance(default, float) else default
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=read,
            default=default,
            metavar="G" if name.endswith("_gib") else metavar,
            help=text if "(default: " in text else f"{text} (default: {shown})",
        )


def _serve(options: argparse.Namespace) -> int:
    chosen = vars(options)
    engine = engine_settings(
        kv_cache_gib=options.kv_cache_gib,
        knowledge_tree=not options.no_knowledge_tree,
        **{name: chosen[name] for name in TREE},
    )
    serving = ServingSettings(
        log_prompts=options.log_prompts,
        **{name: chosen[name] for name in (*LIMITS, *CONNECTIONS)},
    )
    return serve(options.more, engine, serving)
