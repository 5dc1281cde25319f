"""Refuses requests whose texts would be read as markup.

If vLLM makes a prompt itself, it tokenises a chat's whole text, including its contents, so that
markup in a content would be read as markup: a request with such a content is refused. Roles with
markup are refused everywhere, because templates must see roles: they compare them, and may write
them between brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ragcache_integrations.engine.serving.refusals import RequestRefusedError

__all__ = ["MarkupGuard", "is_guarded"]

# At these paths the application writes the prompt itself, as text or tokens, or nothing is
# generated.
_PROMPTS = frozenset(
    {
        *("/v1/completions", "/v1/completions/render", "/v1/completions/derender"),
        *("/v1/chat/completions/derender", "/tokenize", "/detokenize", "/inference/v1/generate"),
    }
)
# At these paths, too, unless the request has messages.
_INPUTS = frozenset(
    {
        *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score"),
        *("/rerank", "/v1/rerank", "/v2/rerank", "/invocations"),
    }
)
# Fields whose text never gets into a prompt.
_SETTINGS = frozenset(
    {
        *("model", "stop", "stop_sequences", "bad_words", "user", "cache_salt", "chat_template"),
        *("structured_outputs", "vllm_xargs", "kv_transfer_params", "request_id", "session_id"),
        "metadata",
    }
)
# Roles in the templates of existing models. Some models have them in brackets as control tokens:
# <|user|> opens a turn of the user, as it should.
_ROLES = frozenset(
    {
        *("system", "developer", "user", "assistant", "model", "tool", "function", "ipython"),
        *("context", "document", "documents", "environment", "observation", "tool_response"),
    }
)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def is_guarded(path: str, body: Mapping[str, Any]) -> bool:
    """Whether vLLM writes contents of this request into a prompt."""
    return path not in _PROMPTS and (path not in _INPUTS or "messages" in body)


class MarkupGuard:
    """Refuses requests with contents or roles that would be read as markup.

    Args:
        is_markup: Returns whether a text contains markup.
        markup: The texts of the tokens that are markup.
    """

    def __init__(self, is_markup: Callable[[str], bool], markup: Iterable[str] = ()) -> None:
        self._is_markup = is_markup
        self._markup = [token.casefold() for token in markup]

    @classmethod
    def of(cls, tokenizer: Any) -> MarkupGuard | None:
        """A guard for any other tokenizer; ``None`` if the tokenizer has no list of its markup."""
        known = getattr(tokenizer, "all_special_tokens", None) or ()
        added: Any = getattr(tokenizer, "get_added_vocab", dict)()
        tokens = {str(token) for token in (*known, *added) if str(token).strip()}
        return cls(lambda text: any(token in text for token in tokens), tokens) if tokens else None

    def check(self, body: Mapping[str, Any]) -> None:
        """Check a request.

        Raises:
            RequestRefusedError: A content holds markup, or a role could become some.
        """
        self.check_roles(body)
        for name, value in body.items():
            if name in _SETTINGS:
                continue
            for text in _texts(value):
                if self._is_markup(text):
                    raise _refusal(name)

    def check_roles(self, body: Mapping[str, Any]) -> None:
        """Check the roles of a request's messages.

        Raises:
            RequestRefusedError: A role is no plain word, or it is an unusual word that is part of a
                control token: a template that puts it into brackets would write that token.
        """
        for role in (*_roles(body.get("messages")), *_roles(body.get("input"))):
            if role not in _ROLES and not self._is_harmless(role):
                msg = (
                    "a role must be a word of letters, digits, _ and - that is part of none of the "
                    f"model's control tokens, such as user or tool, got {role[:100]!r}"
                )
                raise RequestRefusedError(400, msg)

    def _is_harmless(self, role: str) -> bool:
        if not _WORD.fullmatch(role) or self._is_markup(role):
            return False
        # Templates may change the case, too.
        return not any(role.casefold() in token for token in self._markup)


def _roles(messages: Any) -> Iterator[str]:
    """The roles in messages, or in a list of conversations; vLLM refuses other types itself."""
    for item in messages if isinstance(messages, list) else ():
        if isinstance(item, dict) and isinstance(item.get("role"), str):
            yield item["role"]
        elif isinstance(item, list):
            yield from _roles(item)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a field, and those that a template may write next to each other."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        parts = [item.get("text") for item in value if isinstance(item, dict)]
        joined = [part for part in parts if isinstance(part, str)]
        if len(joined) > 1:
            yield "".join(joined)
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            if key not in _SETTINGS:
                yield from _texts(item)


def _refusal(name: str) -> RequestRefusedError:
    return RequestRefusedError(
        400,
        f"{name[:100]} holds one of the model's control tokens as text, which would be read as one "
        "here: send it to /v1/chat/completions in messages of text, where it is text, or leave it "
        "out",
    )
