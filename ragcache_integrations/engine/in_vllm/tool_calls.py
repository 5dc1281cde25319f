"""Tool calls in an answer, read by vLLM's own parsers.

A model that is free to call tools writes calls in the form that it was trained on, which a parser
of vLLM's reads. Where a call is forced, a grammar has the answer be JSON that holds the calls and
nothing else, whichever model it is.
"""

from __future__ import annotations

import logging
from typing import Any

from ragcache_integrations.core.checks import unknown_name
from ragcache_integrations.core.prompt import ToolCallPiece
from ragcache_integrations.engine.protocol import ToolUse

__all__ = ["CallReader"]

logger = logging.getLogger(__name__)


class CallReader:
    """Reads the calls of one answer.

    Args:
        use: The tools, and which of them must be called.
        tokenizer: The model's tokenizer.
        prompt: Tokens of the prompt.

    Attributes:
        schema: JSON schema that the answer must satisfy; ``None`` if it is free.
        keeps_special_tokens: Whether the parser needs the text of special tokens.
        called: Whether any call has begun.

    Raises:
        ValueError: There is no such parser, or it does not suit the tokenizer.
    """

    def __init__(self, use: ToolUse, tokenizer: Any, prompt: list[int]) -> None:
        # Imported here: most engines never see a tool, and vLLM's server takes long to import.
        from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415 - takes long
            ChatCompletionRequest,
        )

        self._prompt: list[int] | None = prompt
        self._most_calls = None if use.parallel else 1
        definitions = [_closed(tool) if use.forced else tool for tool in use.definitions]
        named = {"type": "function", "function": {"name": use.choice}}
        request = ChatCompletionRequest.model_validate(
            {
                "messages": [{"role": "user", "content": ""}],
                "tools": definitions,
                "tool_choice": use.choice if use.choice in {"auto", "required"} else named,
                "parallel_tool_calls": use.parallel,
            }
        )
        try:
            self._parser: Any = _parser_class(use)(tokenizer, request.tools)
        except ValueError:
            raise
        except Exception as error:  # such as a special token that the vocabulary lacks
            msg = f"vLLM's tool_parser {use.parser!r} does not suit the model: {error}"
            raise ValueError(msg) from error
        self._request = self._parser.adjust_request(request)
        outputs = self._request.structured_outputs
        schema = None if outputs is None else outputs.json
        if use.choice == "required" and not use.parallel and isinstance(schema, dict):
            schema = {**schema, "maxItems": 1}  # older versions set no limit
        self.schema: Any = schema
        self.keeps_special_tokens = not self._request.skip_special_tokens
        self.called = False

    def read(
        self, text: str, token_ids: list[int], *, finished: bool
    ) -> tuple[str, tuple[ToolCallPiece, ...]]:
        """Read a further piece of the answer.

        Args:
            text: Its text.
            token_ids: Its tokens.
            finished: Whether it is the last one.

        Returns:
            The part of the text that is no call, and pieces of calls.
        """
        if self._parser is None:
            return text, ()
        try:
            delta = self._parser.parse_delta(
                text, token_ids, self._request, self._prompt, finished=finished
            )
        except Exception:
            # Parsers stumble over what models write. A call that has begun stays incomplete, so
            # that nobody executes it.
            logger.warning("vLLM's parser cannot read this answer as tool calls", exc_info=True)
            self._parser = None
            return text, ()
        self._prompt = None
        if delta is None:
            return "", ()
        pieces = tuple(
            _piece(call)
            for call in delta.tool_calls or ()
            if self._most_calls is None or call.index < self._most_calls
        )
        self.called = self.called or bool(pieces)
        return delta.content or "", pieces


def _parser_class(use: ToolUse) -> Any:
    # Imported here, too, for the engines that never see a tool.
    from vllm.parser.abstract_parser import DelegatingParser  # noqa: PLC0415 - takes long
    from vllm.parser.parser_manager import ParserManager  # noqa: PLC0415 - takes long
    from vllm.tool_parsers import ToolParser, ToolParserManager  # noqa: PLC0415 - takes long

    if use.forced:
        # The base class reads the JSON of forced calls. Those of families would have the model
        # write its own form, by a kind of grammar that the engine's backend does not have.
        class ForcedCalls(DelegatingParser):
            tool_parser_cls = ToolParser

        return ForcedCalls
    known = list(ToolParserManager.list_registered())
    if use.parser not in known:
        raise ValueError(unknown_name("tool_parser", use.parser, known))
    return ParserManager.get_parser(tool_parser_name=use.parser, enable_auto_tools=True)


def _piece(call: Any) -> ToolCallPiece:
    function = call.function
    arguments = getattr(function, "arguments", None) or ""
    return ToolCallPiece(
        call.index, arguments, call.id or "", getattr(function, "name", None) or ""
    )


def _closed(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool whose arguments are those that its schema names, and no others."""
    function = tool["function"]
    parameters = function["parameters"]
    if "properties" not in parameters:
        return tool
    return {
        **tool,
        "function": {**function, "parameters": {"additionalProperties": False, **parameters}},
    }
