"""HTTP headers of one call, which neither traces nor errors nor caches are to show."""

from __future__ import annotations

import functools
import hashlib
import hmac
import inspect
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import SecretStr
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError

__all__ = ["EXTRA_HEADERS", "HeaderValue", "checked_headers", "hidden", "hides_headers"]

K = TypeVar("K", bound=type)

EXTRA_HEADERS = "extra_headers"
"""The argument of a call, as the ``openai`` package calls it."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[ -~]*")
_PROCESS_KEY = secrets.token_bytes(32)


class HeaderValue(SecretStr):
    """A value that is hidden, but whose text differs from that of other values.

    The frameworks' caches of answers compare the text of a call's arguments: if the text were the
    same for all values, one tenant would get another's answer. The key of the digest is random for
    each process, so that nobody can test values against a log.
    """

    @override
    def _display(self) -> str:
        value = self.get_secret_value().encode("utf-8", "surrogatepass")
        return f"**********{hmac.new(_PROCESS_KEY, value, hashlib.sha256).hexdigest()[:16]}"


def checked_headers(headers: object, argument: str = EXTRA_HEADERS) -> dict[str, SecretStr]:
    """Check HTTP headers.

    Args:
        headers: The headers; ``None`` for none.
        argument: The argument that holds them, for messages.

    Raises:
        ConfigurationError: They are no mapping from names to texts of printable ASCII. No value is
            in the message.
    """
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        msg = f"{argument} must be a mapping of names to texts, got {type(headers).__name__}"
        raise ConfigurationError(msg)
    checked = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{argument} holds something that is no name of a header")
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if not isinstance(text, str) or not _VALUE.fullmatch(text):
            msg = f"the value of {name} in {argument} must be a text of printable ASCII"
            raise ConfigurationError(msg)
        checked[name] = SecretStr(text)
    return checked


def hides_headers(*methods: str) -> Callable[[K], K]:
    """Make methods of a class wrap the headers of a call in hidden values.

    Frameworks pass a call's arguments on to callbacks, spans and caches.

    Args:
        methods: Names of the methods.
    """

    def decorate(kind: K) -> K:
        for name in methods:
            setattr(kind, name, _hiding(getattr(kind, name)))
        return kind

    return decorate


def _hiding(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def hiding(self: Any, *positional: Any, **call: Any) -> Any:
        return method(self, *positional, **hidden(call))

    @functools.wraps(method)
    async def coroutine(self: Any, *positional: Any, **call: Any) -> Any:
        return await method(self, *positional, **hidden(call))

    @functools.wraps(method)
    async def generator(self: Any, *positional: Any, **call: Any) -> AsyncGenerator[Any]:
        async with aclosing(method(self, *positional, **hidden(call))) as items:
            async for item in items:
                yield item

    if inspect.isasyncgenfunction(method):
        return generator
    return coroutine if inspect.iscoroutinefunction(method) else hiding


def hidden(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments with headers that do not show their values."""
    headers = call.get(EXTRA_HEADERS)
    if not isinstance(headers, Mapping):
        return call
    return {**call, EXTRA_HEADERS: {name: _secret(value) for name, value in headers.items()}}


def _secret(value: object) -> object:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return HeaderValue(text) if isinstance(text, str) else text
