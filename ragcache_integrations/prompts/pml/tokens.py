r"""Tokens of texts, and the markers that a model's chat template writes around turns.

Every piece of text is tokenised on its own, so that its tokens do not depend on its neighbours.

A chat template is a program. Here it is run on conversations of placeholders, and the text that it
writes between two of them is split: the first part closes a turn, the second opens the next. So
``<user>`` becomes ``[INST] ... [/INST]`` for one model and
``<|im_start|>user\n...<|im_end|>\n`` for another (Prompt Cache §3.2.3).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.prompt import TextEncoder, leading_special_tokens
from ragcache_integrations.errors import ConfigurationError

from .nodes import ROLES, Role

__all__ = ["ChatRoles", "Encoder", "Markers", "Tokenizer"]


class Tokenizer(Protocol):
    """The methods that are used of a tokenizer of Hugging Face transformers."""

    @property
    def unk_token_id(self) -> Any:
        """Id of the unknown token; ``None`` if there is none."""

    @property
    def bos_token(self) -> Any:
        """The token that begins every text; ``None`` if there is none."""

    @property
    def bos_token_id(self) -> Any:
        """Id of :attr:`bos_token`; ``None`` if there is none."""

    def encode(self, text: str, **kwargs: Any) -> Any:
        """Token ids; accepts ``add_special_tokens`` and ``split_special_tokens``."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """A conversation as text; accepts ``tokenize`` and ``add_generation_prompt``."""


class Encoder:
    """Turns texts into tokens. Thread-safe.

    Attributes:
        head: Tokens that the tokenizer puts before every text, such as ``<s>``; often none.
        blank: The placeholder in params: the tokenizer's unknown token, or a space if it has none
            (§3.3: white space does not change the meaning).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoder = TextEncoder(tokenizer)
        self.head = tuple(leading_special_tokens(tokenizer))
        unknown = tokenizer.unk_token_id
        spaces = () if unknown is not None else (self.text(" ") or self.text("."))
        self.blank: int = spaces[0] if spaces else int(unknown or 0)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Encoder:
        """The encoder of a tokenizer; kept, because copying a large vocabulary takes a second."""
        key = (tokenizer.encode("a", add_special_tokens=True), _size(tokenizer))
        known = _ENCODERS.get(tokenizer)
        if known is None or known[0] != key:
            known = _ENCODERS[tokenizer] = (key, cls(tokenizer))
        return known[1]

    def text(self, text: str) -> tuple[int, ...]:
        """Tokens of a text; control tokens in it, such as ``<|user|>``, are plain text.

        Raises:
            ConfigurationError: It cannot be tokenised, for example because of a lone surrogate.
        """
        return tuple(self._encoder.literal(text))

    def markup(self, text: str) -> tuple[int, ...]:
        """Tokens of the output of a chat template, including control tokens.

        Raises:
            ConfigurationError: It cannot be tokenised.
        """
        return tuple(self._encoder.encode(text))


# By tokenizer, with a key that differs if the tokenizer was changed since.
_ENCODERS: MutableMapping[Tokenizer, tuple[object, Encoder]] = WeakKeyDictionary()


def _size(tokenizer: Tokenizer) -> int | None:
    return len(tokenizer) if isinstance(tokenizer, Sized) else None


MAX_TURNS = 256


@dataclass(frozen=True, slots=True)
class Markers:
    """The text that a chat template writes around a turn.

    Attributes:
        opening: Text before the turn.
        closing: Text after the turn.
    """

    opening: str
    closing: str


class ChatRoles:
    """The chat template of a tokenizer, split into the markers of turns.

    The token that begins every text, such as ``<s>``, is not part of the first turn's markers: it
    belongs to the whole prompt (:attr:`begins_text`).

    Raises:
        ConfigurationError: The tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not has_chat_template(tokenizer):
            raise ConfigurationError(
                "this tokenizer has no chat template, so <system>, <user> and <assistant> mean "
                "nothing to its model: set tokenizer.chat_template, or write turns as text"
            )
        self._tokenizer = tokenizer
        self._markers: dict[tuple[Role, ...], tuple[Markers, ...]] = {(): ()}

    @property
    def begins_text(self) -> bool:
        """Whether the template writes the token that begins every text."""
        pieces = self._pieces(("user",)) or self._pieces(("user", "assistant"))
        return pieces is not None and self._without_head(pieces[0]) != pieces[0]

    def markers(self, roles: Sequence[Role]) -> tuple[Markers, ...]:
        """The markers of each turn; those of the first turns do not depend on later ones.

        Args:
            roles: The role of each turn.

        Raises:
            ConfigurationError: The template refuses this conversation, or writes it in another
                order than turn by turn.
        """
        if len(roles) > MAX_TURNS:
            raise ConfigurationError(f"{len(roles)} turns; allowed: {MAX_TURNS}")
        whole = tuple(roles)
        for count in range(1, len(whole) + 1):
            turns = whole[:count]
            if turns not in self._markers:
                self._markers[turns] = (*self._markers[turns[:-1]], self._last(turns))
        return self._markers[whole]

    def answer(self, roles: Sequence[Role]) -> str:
        """The text that opens the model's answer after turns with these roles.

        Raises:
            ConfigurationError: As for :meth:`markers`.
        """
        whole = tuple(roles)
        closing = self.markers(whole)[-1].closing
        pieces = self._pieces(whole, answer=True)
        if pieces is None or not pieces[-1].startswith(closing):
            raise self._template_error(whole)
        return pieces[-1].removeprefix(closing)

    def _last(self, roles: tuple[Role, ...]) -> Markers:
        alone = self._pieces(roles)
        # Some templates write a system turn only together with the next turn, and others write the
        # last turn of the assistant differently. So the markers are those of a turn that another
        # turn follows.
        usual: Role = "assistant" if roles[-1] == "user" else "user"
        others = sorted(ROLES, key=lambda role: role != usual)
        followed = [self._pieces((*roles, role)) for role in others]
        pieces = next((written for written in followed if written is not None), alone)
        if pieces is None:
            raise self._template_error(roles)
        opening = pieces[len(roles) - 1]
        if len(roles) == 1:
            opening = self._without_head(opening)
        else:
            before = self.markers(roles[:-1])
            closing = before[-1].closing
            earlier = self._between_turns(before)
            if not opening.startswith(closing) or earlier != self._start(pieces, len(roles) - 1):
                raise self._template_error(roles)
            opening = opening.removeprefix(closing)
        continued = (*followed, self._pieces(roles, answer=True))
        ends = [written[len(roles)] for written in continued if written]
        # Text closes the turn if it is there regardless of what follows. Text that depends on what
        # follows is the opening of the next turn.
        closing = alone[-1] if alone and all(end.startswith(alone[-1]) for end in ends) else ""
        return Markers(opening, closing)

    def _between_turns(self, markers: Sequence[Markers]) -> list[str]:
        """The text before each turn: the closing of the turn before it, and its opening."""
        openings = [marker.opening for marker in markers]
        closings = ["", *(marker.closing for marker in markers)]
        return [closings[at] + opening for at, opening in enumerate(openings)]

    def _start(self, pieces: Sequence[str], count: int) -> list[str]:
        return [self._without_head(pieces[0]), *pieces[1:count]]

    def _without_head(self, text: str) -> str:
        head = self._tokenizer.bos_token
        return text.removeprefix(head) if head else text

    def _pieces(self, roles: Sequence[Role], *, answer: bool = False) -> list[str] | None:
        """The text that the template writes around placeholders; ``None`` if it refuses."""
        marks = [f"Qz{at}zQ" for at in range(len(roles))]
        turns = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        rest = self._render(turns, answer=answer)
        if rest is None or any(rest.count(mark) != 1 for mark in marks):
            return None
        pieces = []
        for mark in marks:
            piece, separator, rest = rest.partition(mark)
            if not separator:
                return None  # the template changed the order
            pieces.append(piece)
        return [*pieces, rest]

    def _render(self, turns: list[dict[str, str]], *, answer: bool) -> str | None:
        jinja2 = require("jinja2", feature="a chat template", extra="tokenizer")
        try:
            text: Any = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=answer
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError):
            return None
        return str(text)

    def _template_error(self, roles: Sequence[Role]) -> ConfigurationError:
        return ConfigurationError(
            f"the model's chat template does not write the turns {', '.join(roles)} one after the "
            "other: it refuses them, or changes earlier turns when later ones come"
        )


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))
