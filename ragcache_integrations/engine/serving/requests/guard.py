"""Refuses requests whose texts would be read as markup.

If vLLM makes a chat's prompt itself, it tokenises the template's text together with the contents,
so that markup in a content would be read as markup. Such a request is refused, in one of two ways:

- :class:`RenderedGuard` looks at the rendered prompt. By then vLLM has parsed the request, on any
  route, with all its fields and escapes. The template is applied a second time, to harmless texts
  of the same lengths. Both results must have the same control tokens, and in the same places unless
  no text holds one; otherwise a text of the request made, moved or hid one.
- :class:`MarkupGuard` looks at the request where the first way is impossible: on routes that apply
  no template, and for models without a template in Jinja. It refuses a control token in any text.

Roles with markup are refused everywhere, because templates must see roles: they compare them, and
may write them between brackets.
"""

from __future__ import annotations

import itertools
import re
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ragcache_integrations.core.prompt import TEMPLATE_WORDS, TextEncoder
from ragcache_integrations.engine.serving.wire import RequestRefusedError

__all__ = ["MarkupGuard", "RenderedGuard", "is_guarded"]

_TABLES = tomllib.loads(files(__package__).joinpath("guard.toml").read_text("utf-8"))
_PROMPTS, _INPUTS, _CHATS = (frozenset(_TABLES["paths"][k]) for k in ("prompts", "inputs", "chats"))
_SETTINGS, _ROLES, _PARTS = (frozenset(_TABLES["words"][k]) for k in ("settings", "roles", "parts"))
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

_NAME = re.compile(r"[A-Za-z0-9_$.:-]{1,128}")
# Without going back, or many backslashes would take quadratic time.
_ESCAPED_CHARACTER = re.compile(r"(?<!\\)\\++u([0-9a-fA-F]{4})")
_ARGUMENTS = "chat_template_kwargs"
_ANY = "the request"
_KNOWN_NAMES = 4096


def is_guarded(path: str, body: Mapping[str, Any], *, rendered: bool = False) -> bool:
    """Whether the texts of a request must hold no markup.

    Args:
        path: The request's path.
        body: The request.
        rendered: Whether all results of the chat template are checked (:class:`RenderedGuard`).
    """
    if path in _PROMPTS or (path in _INPUTS and "messages" not in body):
        return False
    return not (rendered and path in _CHATS | _INPUTS)


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
            for text in _texts(_without_template(value) if name == _ARGUMENTS else value):
                if self._is_markup(text) or ("\\" in text and self._is_markup(_unescaped(text))):
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
            yield from _texts(item)


def _without_template(arguments: Any) -> Any:
    """Arguments of the chat template without one of its own, which is the application's."""
    if not isinstance(arguments, dict):
        return arguments
    return {key: item for key, item in arguments.items() if key != "chat_template"}


def _unescaped(text: str) -> str:
    """A text without the escapes of JSON, however deep it is JSON within JSON."""
    units = _ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1], 16)), text).replace("\\", "")
    return units.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class RenderedGuard:
    """Refuses chats whose texts change the control tokens of what the template writes.

    Args:
        encoder: Encoder of the tokenizer that reads the template's result.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._markup_in = encoder.markup_in
        self._sent = MarkupGuard(encoder.holds_markup, encoder.markup)
        self._names = _Names(encoder.markup)

    def check(
        self,
        render: Callable[[list[Any], dict[str, Any]], str],
        sent: str,
        conversation: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        texts: Sequence[Sequence[str]] = (),
    ) -> None:
        """Check what a template writes for a conversation.

        Args:
            render: Applies the template to a conversation and further arguments.
            sent: What it wrote for these.
            conversation: The messages as the template gets them.
            arguments: The template's further arguments, such as ``tools``; ``chat_template`` is the
                application's own.
            texts: For each message, the texts that its content was made from if the server itself
                has added to them, for example placeholders of images; empty for other messages.

        Raises:
            RequestRefusedError: A text of the request makes, moves or hides a control token.
        """
        self._sent.check_roles({"messages": list(conversation)})
        twin = _Twin(self._names)
        beside: Iterator[Sequence[str]] = itertools.chain(texts, itertools.repeat(()))
        harmless = render(
            [
                twin.message(message, known)
                for message, known in zip(conversation, beside, strict=False)
            ],
            {
                name: value if name == "chat_template" else twin.of(value)
                for name, value in arguments.items()
            },
        )
        found, expected = self._markup_in(sent), self._markup_in(harmless)
        if [token for *_, token in found] != [token for *_, token in expected]:
            raise _refusal(_ANY)
        if found != expected:
            # The template sorts names, looks for words in a content, or writes texts in a form of
            # another length. Then no text of the request may hold a control token.
            self._sent.check({"messages": list(conversation), _ARGUMENTS: dict(arguments)})


class _Names:
    """Which texts a template may see in a harmless request, and the characters that others get.

    Templates evaluate names, and words of the protocol. Such a text stays if no control token holds
    it, so that no template can make a control token of it.

    Args:
        markup: The texts of all control tokens.
    """

    def __init__(self, markup: Iterable[str]) -> None:
        self._markup = "\n".join(markup).casefold()
        self._is_part = lru_cache(_KNOWN_NAMES)(lambda text: text.casefold() in self._markup)
        cores = (re.sub(r"^[\W_]+|[\W_]+$", "", token) for token in self._markup.split("\n"))
        self._words = (TEMPLATE_WORDS | _PARTS) - set(cores)
        # Each stands for characters that are as long in JSON: one, \uXXXX, or two of these.
        self.letters = self._absent(string.ascii_lowercase + string.digits)
        self.wide = self._absent("éèêëïîç")[0]
        self.astral = self._absent("\U00010428\U00010429\U0001042a")[0]

    def _absent(self, characters: str) -> str:
        """Those characters that are in no control token.

        Raises:
            ValueError: There are none.
        """
        absent = "".join(character for character in characters if character not in self._markup)
        if not absent:
            msg = f"each of the characters {characters} is in one of the model's control tokens"
            raise ValueError(msg)
        return absent

    def keeps(self, text: str, name: str = "") -> bool:
        """Whether a text stays as it is.

        Args:
            text: The text.
            name: The field that holds it; empty for none.
        """
        if text in self._words or (name == "type" and text in TEMPLATE_WORDS | _PARTS):
            return True
        return _NAME.fullmatch(text) is not None and not self._is_part(text)


class _Twin:
    """The same request with harmless texts of the same lengths.

    White space, quotation marks and backslashes stay, because templates trim the former and write
    the latter as two characters in JSON. Everything else becomes a character that is in no control
    token, so that each control token in the result is the template's own.

    Args:
        names: What stays.
    """

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._shape = _Shape(names)

    def message(self, message: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
        """The twin of a message; its role stays, which was checked before."""
        twin: dict[str, Any] = {
            name: value if name == "role" else self.of(value, name)
            for name, value in message.items()
        }
        if texts and isinstance(message.get("content"), str):
            twin["content"] = self._between(message["content"], texts)
        return twin

    def of(self, value: Any, name: str = "") -> Any:
        """The twin of a JSON value."""
        if isinstance(value, str):
            return value if self._names.keeps(value, name) else value.translate(self._shape)
        if isinstance(value, list | tuple):
            return [self.of(item, name) for item in value]
        if isinstance(value, Mapping):
            keys = self._keys(value)
            return {keys[key]: self.of(item, key) for key, item in value.items()}
        if value is None or isinstance(value, bool | int | float):
            return value
        raise _refusal(_ANY)  # an object that could hold any text

    def _between(self, content: str, texts: Sequence[str]) -> str:
        """The twin of a content that the server made of texts: what it has added stays."""
        pieces, end = [], len(content)
        for text in reversed(texts):
            start = content.rfind(text, 0, end)
            if start < 0:
                return content.translate(self._shape)
            pieces += [content[start + len(text) : end], text.translate(self._shape)]
            end = start
        return content[:end] + "".join(reversed(pieces))

    def _keys(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        """The twins of an object's names, which remain different."""
        twins = {key: key for key in value if not isinstance(key, str) or self._names.keeps(key)}
        taken, used = set(twins), Counter[str]()
        for key in value:
            if key in twins:
                continue
            shape = key.translate(self._shape)
            twin = self._numbered(shape, used[shape])
            while twin in taken:
                used[shape] += 1
                twin = self._numbered(shape, used[shape])
            used[shape] += 1
            twins[key] = twin
            taken.add(twin)
        return twins

    def _numbered(self, shape: str, number: int) -> str:
        """A harmless name of a shape, which other numbers don't have."""
        if not number:
            return shape
        name, letters = list(shape), self._names.letters
        for at in range(len(name) - 1, -1, -1):
            if name[at] == letters[0] and number:
                number, letter = divmod(number, len(letters))
                name[at] = letters[letter]
        if number:
            raise _refusal(_ANY)  # there are more names than harmless ones
        return "".join(name)


class _Shape(dict[int, int]):
    """A table for :meth:`str.translate` that keeps a text's lengths, in JSON, too."""

    def __init__(self, names: _Names) -> None:
        super().__init__()
        self._letter, self._wide, self._astral = map(
            ord, (names.letters[0], names.wide, names.astral)
        )

    def __missing__(self, code: int) -> int:
        character = chr(code)
        if character in '"\\\x7f' or character < " " or character.isspace():
            self[code] = code
        elif code < 0x80:  # noqa: PLR2004 - ASCII
            self[code] = self._letter
        else:
            self[code] = self._wide if code < 0x10000 else self._astral  # noqa: PLR2004 - \uXXXX
        return self[code]


def _refusal(name: str) -> RequestRefusedError:
    return RequestRefusedError(
        400,
        f"{name[:100]} holds one of the model's control tokens as text, which would be read as one "
        "here: send it to /v1/chat/completions in messages of text, where it is text, or leave it "
        "out",
    )
