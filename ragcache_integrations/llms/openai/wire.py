"""Our requests in the OpenAI protocol's words; its answers: :mod:`.answers`.

Source: https://platform.openai.com/docs/api-reference/chat and .../completions; the fields beyond
it (``top_k``, ``repetition_penalty``, ``cache_salt``, ``structured_outputs``, ``ignore_eos``,
``vllm_xargs``) are vLLM's
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html), and content parts that are
documents are our own server's.

Every replica of a server has separate KV caches. A request's affinity is a value that a router can
hash consistently to send requests with the same first documents to the same replica. This divides
the knowledge tree among the replicas by its first level; ``docs/scaling.md`` has the routers'
configuration.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import SecretStr

from ragcache_integrations.core.checks import check_int, check_text, check_type
from ragcache_integrations.core.generation import SamplingOptions, Usage
from ragcache_integrations.core.prompt import (
    TOOL_CHOICES,
    Message,
    Part,
    Prompt,
    PromptDocument,
    RenderedPrompt,
    Tool,
    extra_args_from_spans,
    part_text,
)
from ragcache_integrations.core.schemas import strict_schema
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.engine.protocol import EngineCallOptions
from ragcache_integrations.engine.serving import content_parts
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "AFFINITY_HEADER",
    "REASONING",
    "REFUSAL",
    "Request",
    "ServerCallOptions",
    "affinity_headers",
    "affinity_key",
    "build_request",
    "extra_texts",
    "noted_reasoning",
    "require_unicode",
    "strict_form",
    "usage_fields",
]

logger = logging.getLogger(__name__)


AFFINITY_HEADER = "X-RAGCache-Affinity"
"""The request header with the value."""

DIGEST_BYTES = 8


def affinity_key(prompt: Prompt, *, namespace: str = "", session: str = "", depth: int = 1) -> str:
    """A value that requests for the same replica share, equal in every process and on any machine.

    It is derived from the first of these that a request has:

    - its session;
    - its first ``depth`` documents, in the order of the prompt and from the first turn: a
      conversation stays on its replica when later turns have other documents;
    - the user's first message, if documents come later or not at all: the text before them belongs
      to this conversation alone.

    Args:
        prompt: The request's prompt.
        namespace: The tenant. Tenants share no KV cache, so that their requests need not meet.
        session: Name of a conversation or a user; empty for none.
        depth: How many documents count, at least 1. 2 divides the requests about one popular
            document among more replicas, each of which then computes it.

    Returns:
        16 hexadecimal digits, which reveal nothing about documents, session or tenant to anyone who
        does not know them; empty if a replica makes no difference: raw text without documents.

    Raises:
        ConfigurationError: ``namespace`` or ``session`` is no string, or ``depth`` is below 1.
    """
    check_type("the prompt", prompt, Prompt, "a Prompt")
    check_text("namespace", namespace)
    check_text("session", session)
    depth = check_int("depth", depth, 1, unit="documents")
    if session:
        return _digest("session", namespace, session)
    leading = [document.id for document in _first_documents(prompt)][:depth]
    if leading:
        return _digest("documents", namespace, *leading)
    opening = next((message.text for message in prompt.messages if message.role == "user"), "")
    return _digest("conversation", namespace, opening) if opening else ""


def affinity_headers(
    prompt: Prompt,
    *,
    namespace: str = "",
    session: str = "",
    depth: int = 1,
    header: str = AFFINITY_HEADER,
) -> dict[str, str]:
    """Headers for a request; none where :func:`affinity_key` is empty.

    For the ``openai`` package: ``create(..., extra_headers=affinity_headers(prompt))``.

    Args:
        prompt: As for :func:`affinity_key`, which raises what this raises.
        namespace: The tenant.
        session: Names a conversation, or a user; empty for none.
        depth: How many of the first documents count, at least 1.
        header: Name of the header; ``X-Session-ID`` for ``vllm-router``, which knows no other.
    """
    key = affinity_key(prompt, namespace=namespace, session=session, depth=depth)
    return {header: key} if key else {}


def _first_documents(prompt: Prompt) -> Iterator[PromptDocument]:
    """Documents of the first turn, before which only text shared by requests comes."""
    if prompt.parts:
        yield from prompt.documents
    for message in _first_turn(prompt):
        yield from (part for part in message.parts if isinstance(part, PromptDocument))


def _first_turn(prompt: Prompt) -> Iterator[Message]:
    user_spoke = False
    for message in prompt.messages:
        if user_spoke and message.role in {"assistant", "tool"}:
            return
        user_spoke = user_spoke or message.role == "user"
        yield message


def _digest(*fields: str) -> str:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for text in fields:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


# What vLLM refuses in a cache salt.
MAX_SALT_CHARACTERS = 128
# Options of the same name in the protocol, and with the same default.
_PLAIN_OPTIONS = (
    *("top_p", "top_k", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("seed", "ignore_eos"),
)
_DEFAULTS = SamplingOptions()

_NO_SALT = re.compile(r"[@/\\\x00\ud800-\udfff]")


class ServerCallOptions(EngineCallOptions, total=False):
    """Arguments of a call to a server besides prompt and options.

    ``namespace`` has an effect only on vLLM; ``timeout`` is in seconds for each attempt, the
    ``openai`` package's ten minutes if ``None``. ``priority`` is vLLM's own field. The others are
    for ``ragcache serve``, and are as its options say by default.

    Attributes:
        headers: HTTP headers of this request, which override those of all requests.
    """

    headers: Mapping[str, SecretStr] | None


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the server takes it.

    Attributes:
        path: Path after the base URL.
        body: The JSON body.
        prompt: The prompt in the body.
        headers: Headers in addition to those of every request.
        timeout: Seconds that each attempt may take; the client's limit if ``None``.
    """

    path: str
    body: dict[str, Any]
    prompt: Prompt
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None

    @property
    def prompt_text(self) -> str:
        """The whole prompt as one text, roles left out."""
        if self.prompt.messages:
            return "".join(message.text for message in self.prompt.messages)
        return "".join(map(part_text, self.prompt.parts))

    def with_headers(self, headers: Mapping[str, SecretStr] | None) -> Request:
        """The same request with further headers, which win over its own."""
        revealed = {name: value.get_secret_value() for name, value in (headers or {}).items()}
        named = {name.lower() for name in revealed}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in named}
        return replace(self, headers=kept | revealed)

    def streaming(self) -> Request:
        """The same request, answered chunk by chunk and with usage at the end."""
        extra = {"stream": True, "stream_options": {"include_usage": True}}
        return replace(self, body={**self.body, **extra})


def build_request(
    model: str,
    prompt: Prompt,
    options: SamplingOptions,
    namespace: str = "",
    *,
    documents: bool = False,
    rendered: RenderedPrompt | None = None,
) -> Request:
    """Translate a request for the server.

    Only options that differ from the protocol's defaults are sent, because servers refuse unknown
    ones.

    Args:
        model: The name under which the server serves the model.
        prompt: The prompt, with its documents.
        options: How the answer is generated.
        namespace: The tenant.
        documents: Whether the server understands documents; otherwise they are sent as the text
            they are.
        rendered: The prompt in the server's own tokens, where they are at hand.

    Raises:
        ConfigurationError: The prompt holds text that is no valid Unicode.
    """
    body: dict[str, Any] = {
        "model": model,
        **(
            _prompt_fields(prompt, options, documents)
            if rendered is None
            else _token_fields(rendered)
        ),
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
    }
    chat = "messages" in body
    if chat and options.max_tokens is None:
        # Text completions need the null: without the field, a server takes 16 tokens.
        del body["max_tokens"]
    plain = {name: getattr(options, name) for name in _PLAIN_OPTIONS}
    body |= {name: v for name, v in plain.items() if v != getattr(_DEFAULTS, name)}
    optional: dict[str, Any] = {
        "stop": list(options.stop) or None,
        "response_format": _response_format(options),
        "structured_outputs": {"choice": list(options.choice)} if options.choice else None,
        "cache_salt": _salt(namespace) or None,
    }
    if options.logprobs is not None:
        optional["logprobs"] = True if chat else options.logprobs
        optional["top_logprobs"] = options.logprobs if chat else None
    body |= {name: value for name, value in optional.items() if value is not None}
    path = "/chat/completions" if chat else "/completions"
    return Request(path, body, prompt, affinity_headers(prompt, namespace=namespace))


def _prompt_fields(prompt: Prompt, options: SamplingOptions, documents: bool) -> dict[str, Any]:
    if prompt.messages:
        turns = [
            {
                "role": message.role,
                "content": _content(message.parts, documents),
                **_tool_fields(message),
                **_reasoning_field(message),
            }
            for message in prompt.messages
        ]
        return {"messages": turns, **_tools(prompt, options)}
    return {"prompt": _content(prompt.parts, documents)}


def _tool_fields(message: Message) -> dict[str, Any]:
    """What a message says of tool calls; one that only calls tools has no content."""
    fields: dict[str, Any] = {}
    if message.tool_call_id:
        fields["tool_call_id"] = require_unicode(message.tool_call_id)
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": require_unicode(call.id),
                "type": "function",
                "function": {
                    "name": require_unicode(call.name),
                    "arguments": require_unicode(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
        if not message.text:
            fields["content"] = None
    return fields


def _reasoning_field(message: Message) -> dict[str, str]:
    """What a message says of its thoughts, under the name that the server has for them."""
    if not (message.reasoning and message.reasoning_field):
        return {}
    return {message.reasoning_field: require_unicode(message.reasoning)}


def _tools(prompt: Prompt, options: SamplingOptions) -> dict[str, Any]:
    if not prompt.tools:
        return {}
    definitions = [_strict(tool).definition() for tool in prompt.tools]
    require_unicode(json.dumps(definitions, ensure_ascii=False))
    fields: dict[str, Any] = {"tools": definitions}
    choice = options.tool_choice
    if choice != _DEFAULTS.tool_choice:
        named = {"type": "function", "function": {"name": choice}}
        fields["tool_choice"] = choice if choice in TOOL_CHOICES else named
    if not options.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    return fields


def _strict(tool: Tool) -> Tool:
    """A tool in a form that a server can hold its arguments to, if it is to do so."""
    if not tool.strict:
        return tool
    try:
        return replace(tool, parameters=strict_schema(tool.parameters, asked=True))
    except ConfigurationError as error:
        raise ConfigurationError(f"strict=True of the tool {tool.name}: {error}") from error


def _content(parts: Sequence[Part], documents: bool) -> str | list[dict[str, Any]]:
    text = require_unicode("".join(map(part_text, parts)))
    if documents and any(isinstance(part, PromptDocument) for part in parts):
        return content_parts(part for part in parts if part)
    return text


def _token_fields(rendered: RenderedPrompt) -> dict[str, Any]:
    spans = extra_args_from_spans([(span.id, span.start, span.end) for span in rendered.documents])
    return {"prompt": rendered.token_ids, **({"vllm_xargs": spans} if spans else {})}


def _salt(namespace: str) -> str:
    """A namespace as vLLM takes it: one that is long, or holds ``@`` or ``/``, by its hash."""
    if len(namespace) <= MAX_SALT_CHARACTERS and not _NO_SALT.search(namespace):
        return namespace
    return f"hash-{content_id(namespace)}"


def _response_format(options: SamplingOptions) -> dict[str, Any] | None:
    if options.json_schema is None:
        return None
    schema = strict_form(options)
    named = {
        "name": "answer",
        "schema": dict(options.json_schema) if schema is None else schema,
        "strict": schema is not None,
    }
    return {"type": "json_schema", "json_schema": named}


def strict_form(options: SamplingOptions) -> dict[str, Any] | None:
    """The schema of an answer for a server's strict mode; ``None`` if it is sent as not strict.

    Raises:
        ConfigurationError: The schema has no strict form, although ``strict`` is true.
    """
    if options.json_schema is None or options.strict is False:
        return None
    try:
        return strict_schema(options.json_schema, asked=options.strict is True)
    except ConfigurationError as error:
        if options.strict:
            msg = f"strict=True: {error}. With strict=None such a schema is sent as not strict"
            raise ConfigurationError(msg) from error
        logger.debug("not sent as strict: %s", error)
        return None


def usage_fields(usage: Usage) -> dict[str, Any] | None:
    """Say a usage in the protocol's words, which the frameworks' token counters read.

    ``None`` where the server did not say what the answer took.
    """
    if usage.estimated:
        return None
    fields: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_known:
        fields["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return fields


REASONING, REFUSAL = "reasoning_content", "refusal"
"""Names in a message's ``additional_kwargs``, as the frameworks' other classes have them."""


def extra_texts(reasoning: str, refusal: str) -> dict[str, str]:
    """Say what an answer says besides its text, for a message's ``additional_kwargs``."""
    said = {REASONING: reasoning, REFUSAL: refusal}
    return {name: text for name, text in said.items() if text}


def noted_reasoning(said: Mapping[str, Any], field_name: object = None) -> dict[str, str]:
    """Return what a model thought, as arguments of a message that is sent back to it.

    Only servers that report it in a field of the message take it, under the same name.

    Args:
        said: The ``additional_kwargs`` of its message.
        field_name: The server's name for the field, if it is another one than there.
    """
    for name in (REASONING, "reasoning"):
        text = said.get(name)
        if isinstance(text, str) and text:
            return {"reasoning": text, "reasoning_field": str(field_name or name)}
    return {}


def require_unicode(text: str) -> str:
    """Pass a text on if it can be encoded.

    Raises:
        ConfigurationError: It is no string, or holds a lone surrogate.
    """
    check_type("text", text, str, "a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at position "
            f"{error.start}: it is no valid Unicode; decode its source with errors='replace'"
        ) from error
    return text
