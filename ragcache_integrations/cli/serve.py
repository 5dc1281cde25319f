"""``ragcache serve``: vLLM's OpenAI-compatible server with the knowledge tree in it."""

from __future__ import annotations

import argparse

from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.engine.serving import ServingSettings, serve
from ragcache_integrations.engine.settings import CacheSettings
from ragcache_integrations.knowledge_tree.policies import POLICIES

__all__ = ["add_serve"]

CACHE = CacheSettings()
SERVING = ServingSettings()


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
    tree.add_argument(
        "--policy",
        default=CACHE.policy,
        metavar="P",
        help=f"what is evicted first: {', '.join(POLICIES)} (default: {CACHE.policy})",
    )
    tree.add_argument(
        "--host-cache-gib",
        type=float,
        default=CACHE.host_cache_gib,
        metavar="G",
        help="memory of the host to which evicted documents are copied, in GiB (default: none)",
    )
    tree.add_argument(
        "--reorder-window",
        type=_number_or_none,
        default=CACHE.reorder_window,
        metavar="N",
        help=(
            "how often a waiting request may be overtaken by those whose documents are cached; "
            f"none for the order of arrival (default: {CACHE.reorder_window})"
        ),
    )
    tree.add_argument(
        "--cache-depth",
        type=int,
        metavar="N",
        help="keep only the first N documents of a request (default: all)",
    )
    tree.add_argument(
        "--frequency-window",
        type=float,
        metavar="S",
        help="a document's popularity counts the requests of the last S seconds (default: all)",
    )
    limits = parser.add_argument_group("limits and logs")
    limits.add_argument(
        "--max-prompt-bytes",
        type=int,
        default=SERVING.max_prompt_bytes,
        metavar="N",
        help=f"largest request, in bytes; more is a 413 (default: {SERVING.max_prompt_bytes})",
    )
    limits.add_argument(
        "--new-tenants-per-minute",
        type=int,
        default=SERVING.new_tenants_per_minute,
        metavar="N",
        help=(
            "new cache salts a minute for each API key; more is a 429, 0 is no limit "
            f"(default: {SERVING.new_tenants_per_minute})"
        ),
    )
    limits.add_argument(
        "--drain-seconds",
        type=float,
        default=SERVING.drain_seconds,
        metavar="S",
        help=(
            "on SIGTERM, how long running requests may take to finish, in seconds "
            f"(default: {SERVING.drain_seconds:g})"
        ),
    )
    limits.add_argument(
        "--hang-timeout",
        type=_seconds_or_none,
        default=SERVING.hang_timeout,
        metavar="S",
        help=(
            "kill the engine and exit after this many seconds without a heartbeat; none for "
            f"no limit (default: {SERVING.hang_timeout:g})"
        ),
    )
    limits.add_argument(
        "--step-timeout",
        type=_seconds_or_none,
        default=SERVING.step_timeout,
        metavar="S",
        help=(
            "so is one that takes longer for a single step of the model; none for no limit "
            f"(default: {SERVING.step_timeout:g})"
        ),
    )
    limits.add_argument(
        "--log-prompts",
        action="store_true",
        help="log what was asked, too; it is left out otherwise",
    )
    _add_connections(parser)


def _add_connections(parser: argparse.ArgumentParser) -> None:
    bounds = parser.add_argument_group("what is taken before the key is checked")
    bounds.add_argument(
        "--max-header-bytes",
        type=int,
        default=SERVING.max_header_bytes,
        metavar="N",
        help=(
            "request line and headers together, in bytes; more is a 431 "
            f"(default: {SERVING.max_header_bytes})"
        ),
    )
    bounds.add_argument(
        "--max-headers",
        type=int,
        default=SERVING.max_headers,
        metavar="N",
        help=f"headers of a request; more is a 431 (default: {SERVING.max_headers})",
    )
    bounds.add_argument(
        "--header-seconds",
        type=_seconds_or_none,
        default=SERVING.header_seconds,
        metavar="S",
        help=(
            "within which a request's headers must have come, else it is a 408; none for no limit "
            f"(default: {SERVING.header_seconds:g})"
        ),
    )
    bounds.add_argument(
        "--body-seconds",
        type=_seconds_or_none,
        default=SERVING.body_seconds,
        metavar="S",
        help=(
            "the same for its body, and for a client that does not read its answer; none for no "
            f"limit (default: {SERVING.body_seconds:g})"
        ),
    )
    bounds.add_argument(
        "--max-connections-per-client",
        type=int,
        default=SERVING.max_connections_per_client,
        metavar="N",
        help=(
            "open connections of one IP address, such as a proxy's; more is a 429, 0 is no limit "
            f"(default: {SERVING.max_connections_per_client})"
        ),
    )


def _number_or_none(text: str) -> int | None:
    return None if text.lower() == "none" else int(text)


def _seconds_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


_seconds_or_none.__name__ = "number of seconds"
_number_or_none.__name__ = "whole number"  # argparse: "invalid whole number value"


def _serve(options: argparse.Namespace) -> int:
    engine = engine_settings(
        kv_cache_gib=options.kv_cache_gib,
        knowledge_tree=not options.no_knowledge_tree,
        policy=options.policy,
        host_cache_gib=options.host_cache_gib,
        reorder_window=options.reorder_window,
        cache_depth=options.cache_depth,
        frequency_window=options.frequency_window,
    )
    serving = ServingSettings(
        max_prompt_bytes=options.max_prompt_bytes,
        new_tenants_per_minute=options.new_tenants_per_minute,
        drain_seconds=options.drain_seconds,
        log_prompts=options.log_prompts,
        hang_timeout=options.hang_timeout,
        step_timeout=options.step_timeout,
        max_header_bytes=options.max_header_bytes,
        max_headers=options.max_headers,
        header_seconds=options.header_seconds,
        body_seconds=options.body_seconds,
        max_connections_per_client=options.max_connections_per_client,
    )
    return serve(options.more, engine, serving)
