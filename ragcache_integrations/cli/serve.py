"""``ragcache serve``: vLLM's OpenAI-compatible server with the knowledge tree in it."""

from __future__ import annotations

import argparse

from ragcache_integrations.core.knobs import knob_names
from ragcache_integrations.engine.arguments import EngineKnobs, engine_settings
from ragcache_integrations.engine.protocol import TreeKnobs
from ragcache_integrations.engine.serving import ConnectionSettings, ServingSettings, serve

from .options import add_fields

__all__ = ["add_serve"]


ENGINE = ("kv_cache_gib", "knowledge_tree", *knob_names(TreeKnobs))
"""The knobs of an engine that the server's has, too; vLLM itself has options for the others."""


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
    own, *others = ENGINE
    add_fields(parser, EngineKnobs, own)
    add_fields(parser.add_argument_group("the knowledge tree"), EngineKnobs, *others)
    before = set(knob_names(ConnectionSettings))
    limits = parser.add_argument_group("limits and logs")
    add_fields(
        limits, ServingSettings, *(n for n in knob_names(ServingSettings) if n not in before)
    )
    bounds = parser.add_argument_group("limits before the API key is checked")
    add_fields(bounds, ConnectionSettings)


def _serve(options: argparse.Namespace) -> int:
    chosen = {name: getattr(options, name) for name in ENGINE}
    engine = engine_settings(**chosen | {"quotas": dict(options.quotas or ()) or None})
    limits = {name: getattr(options, name) for name in knob_names(ServingSettings)}
    return serve(options.more, engine, ServingSettings(**limits))
