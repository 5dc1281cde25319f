"""``ragcache serve``: vLLM's OpenAI-compatible server with the knowledge tree in it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.engine.protocol import CacheSettings
from ragcache_integrations.engine.serving import ServingSettings, serve
from ragcache_integrations.knowledge_tree.policies import POLICIES

from .options import add_kv_cache

__all__ = ["add_serve"]


# What the help says of settings; their types and defaults are those of the settings' fields.
TREE = {
    "policy": f"which documents are evicted first: {', '.join(POLICIES)}",
    "host_cache_gib": "host memory for evicted documents, in GiB (default: none)",
    "reorder_window": (
        "how often a waiting request may be overtaken by requests whose documents are cached; "
        "none for strict order of arrival"
    ),
    "cache_depth": "keep only the first N documents of a request (default: all)",
    "frequency_window": (
        "pgdsf, gdsf and lfu count only requests of the last S seconds (default: all)"
    ),
    "reuse": (
        "how documents' KV caches are reused if a request does not say: "
        "prefix (exact) or anywhere (approximate)"
    ),
    "link_tokens": "first tokens of each document that --reuse anywhere computes again",
    "exact_documents": "documents at the beginning of a prompt that --reuse anywhere leaves exact",
    "document_cache_gib": "host memory for documents that are reused anywhere, in GiB",
    "disk_cache_gib": "disk space for documents, which survive restarts, in GiB (default: none)",
    "disk_cache_dir": "folder for these documents (default: in the user's cache folder)",
}
LIMITS = {
    "max_prompt_bytes": "size of a request in bytes; a larger one gets a 413",
    "new_tenants_per_minute": (
        "new cache salts per minute for each API key; more get a 429; 0 for no limit"
    ),
    "drain_seconds": "seconds that running requests may take to finish after SIGTERM",
    "hang_timeout": (
        "kill the engine and exit after S seconds without a heartbeat; none for no limit"
    ),
    "step_timeout": (
        "the same if a single step of the model takes longer than S seconds; none for no limit"
    ),
}
CONNECTIONS = {
    "max_header_bytes": "size of request line and headers in bytes; larger ones get a 431",
    "max_headers": "number of headers of a request; more get a 431",
    "header_seconds": (
        "seconds in which a request's headers must arrive, else it gets a 408; none for no limit"
    ),
    "body_seconds": (
        "the same for its body, and for how long a client may not read its answer; none for no "
        "limit"
    ),
    "max_connections_per_client": (
        "open connections per IP address, such as a proxy's; more get a 429; 0 for no limit"
    ),
}


def add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line. What it does not know is for vLLM."""
    parser = commands.add_parser(
        "serve",
        help="serve a model with an OpenAI-compatible API",
        usage="ragcache serve [MODEL] [OPTION ...] [any option of `vllm serve` ...]",
        description=(
            "Run vLLM's OpenAI-compatible server, with a knowledge tree that keeps documents' KV "
            "caches. MODEL is a path or a name on the Hugging Face hub, and comes first; the "
            "default is the bundled model. All options that are not listed here are passed to "
            "vLLM, such as --host, --port, --api-key, --served-model-name, --max-model-len or "
            "--tensor-parallel-size. The server writes a line of JSON for each answer to standard "
            "output, and everything else to standard error."
        ),
        epilog="docs/serving.md explains how requests mark their documents.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_serve, takes_more=True)
    add_kv_cache(parser)
    tree = parser.add_argument_group("the knowledge tree")
    tree.add_argument(
        "--no-knowledge-tree",
        action="store_true",
        help="use vLLM's own prefix cache instead, for comparison",
    )
    _add_options(tree, CacheSettings(), TREE)
    tree.add_argument(
        "--quota",
        action="append",
        default=[],
        type=_quota,
        metavar="NAMESPACE=PART",
        help=(
            "part of the KV cache, up to 1, that belongs to a tenant (a cache salt); may be given "
            "several times (default: none)"
        ),
    )
    limits = parser.add_argument_group("limits and logs")
    _add_options(limits, ServingSettings(), LIMITS)
    limits.add_argument(
        "--log-prompts",
        action="store_true",
        help="log the text of prompts, too",
    )
    bounds = parser.add_argument_group("limits before the API key is checked")
    _add_options(bounds, ServingSettings(), CONNECTIONS)


def _number_or_none(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


def _seconds_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


def _quota(text: str) -> tuple[str, float]:
    name, _, part = text.rpartition("=")
    return name, float(part)


_quota.__name__ = "NAMESPACE=PART"
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
        quotas=dict(options.quota) or None,
        **{name: chosen[name] for name in TREE},
    )
    serving = ServingSettings(
        log_prompts=options.log_prompts,
        **{name: chosen[name] for name in (*LIMITS, *CONNECTIONS)},
    )
    return serve(options.more, engine, serving)
