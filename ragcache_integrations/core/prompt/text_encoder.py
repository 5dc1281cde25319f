"""Makes tokens of text, in which only a chat template's own text can be markup.

Markup tokens are those that were added to a tokenizer's vocabulary (``<|user|>``, ``<think>``,
``</s>``), whether or not they are declared special. A tokenizer finds their characters everywhere
in a text, so it cannot distinguish a turn that a template opened from one that a user typed.
:class:`TextEncoder` can.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from ragcache_integrations.errors import ConfigurationError

__all__ = ["TemplateText", "TextEncoder", "leading_special_tokens"]

Result = TypeVar("Result")

MAX_ROUNDS = 32
"""How often a text is cut at most; each cut halves words that the vocabulary has as one token."""

_CUT, _UNKNOWN = -1, -2
_BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True, slots=True)
class TemplateText:
    """Text that a chat template wrote: markup in it counts."""

    text: str


class Marker(NamedTuple):
    """An added token in a text, including the white space that belongs to it."""

    start: int
    end: int
    id: int


class TextEncoder:
    """Makes tokens of texts and of a chat template's results. Thread-safe.

    Args:
        tokenizer: A tokenizer of Hugging Face transformers. Later changes to it have no effect.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._markup = _markup(tokenizer)
        self._forbidden = frozenset(self._markup) - _harmless(tokenizer, self._markup)
        self._backend = (
            _PythonBackend(tokenizer)
            if backend is None
            else _RustBackend(backend, frozenset(self._markup))
        )

    @property
    def markup(self) -> frozenset[str]:
        """The texts of the markup tokens."""
        return frozenset(self._markup.values())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text in which markup counts, without additional special tokens.

        Raises:
            ConfigurationError: The text cannot be tokenised, for example for a lone surrogate.
        """
        return _explain_failure(text, lambda: self._backend.encode(text))

    def literal(self, text: str, *, first: bool = True) -> list[int]:
        """The tokens of a text in which nothing is markup.

        Args:
            text: The text.
            first: Whether the text is at the beginning; some tokenizers put a space before it then.

        Raises:
            ConfigurationError: The text cannot be tokenised, or not without markup because the
                vocabulary has a single character as a control token.
        """
        return self._literals([text], first=first)[0]

    def holds_markup(self, text: str) -> bool:
        """Whether a text would have markup if a template had written it."""
        return bool(self.markup_in(text))

    def markup_in(self, text: str) -> list[Marker]:
        """The markup tokens that a tokenizer finds in a text.

        Raises:
            ConfigurationError: As for :meth:`encode`.
        """
        (markers,) = _explain_failure(text, lambda: self._backend.markers([text]))
        return [marker for marker in markers if marker.id in self._forbidden]

    def mixed(
        self, stretches: Sequence[Sequence[str | TemplateText]], *, first: bool = True
    ) -> list[list[int]]:
        """The tokens of a template's text and of the contents in it.

        Like in the model's own tokenizer, contents and the template's words around them are one
        text, up to the template's next markup.

        Args:
            stretches: Neighbouring pieces; contents are ``str``. The documents between stretches
                are tokenised separately.
            first: As for :meth:`literal`, for the first stretch.

        Returns:
            The tokens of each stretch.

        Raises:
            ConfigurationError: As for :meth:`literal`.
        """
        texts = [
            piece.text for pieces in stretches for piece in pieces if not isinstance(piece, str)
        ]
        markers = iter(_explain_failure("".join(texts), lambda: self._backend.markers(texts)))
        splits = [self._split(pieces, markers) for pieces in stretches]
        runs = [run for texts_between, _ in splits for run in texts_between]
        literals = iter(self._literals(runs, first=first and bool(runs and runs[0])))
        return [_join(ids, literals) for _, ids in splits]

    def _split(
        self, pieces: Sequence[str | TemplateText], markers: Iterator[list[Marker]]
    ) -> tuple[list[str], list[int]]:
        """Split a stretch at the template's markup: runs of text, and the token between two."""
        runs: list[str] = [""]
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                runs[-1] += piece
                continue
            at = 0
            for marker in next(markers):
                if marker.id in self._forbidden:
                    runs[-1] += piece.text[at : marker.start]
                    ids.append(marker.id)
                    runs.append("")
                    at = marker.end
            runs[-1] += piece.text[at:]
        return runs, ids

    def _literals(self, texts: Sequence[str], *, first: bool) -> list[list[int]]:
        full = [text for text in texts if text]
        if not full:
            return [[] for _ in texts]
        tokens = _explain_failure(
            "".join(full), lambda: self._backend.literals(full, self._forbidden, first=first)
        )
        if tokens is None:
            raise ConfigurationError(
                "the text has a character that this tokenizer has as a control token only, so "
                "it cannot be read as text"
            )
        known = iter(tokens)
        return [next(known) if text else [] for text in texts]


def _join(ids: Sequence[int], literals: Iterator[list[int]]) -> list[int]:
    """The tokens of a split stretch, from those of its runs."""
    tokens = list(next(literals))
    for id_ in ids:
        tokens += [id_, *next(literals)]
    return tokens


class _Variant:
    """A tokenizer's normaliser, a model, and some of its added tokens.

    Args:
        model: The model.
        whole: The tokenizer.
        added: Tokens by their number in the tokenizer.
        cut: A token that separates texts: the text after it is neither the first one nor merged
            with the text before it.
        ids: Replacements for the model's token ids.
    """

    def __init__(
        self,
        model: Any,
        whole: Any,
        added: dict[int, Any],
        cut: Any,
        ids: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        import tokenizers  # noqa: PLC0415 - comes with the tokenizer

        self.tokenizer = tokenizers.Tokenizer(model)
        self.tokenizer.normalizer = whole.normalizer
        self.tokenizer.add_tokens([added[id_] for id_ in sorted(added)])
        self.tokenizer.add_special_tokens([cut])
        number = self.tokenizer.token_to_id
        # Tokens are left out, so the others get new numbers; this maps them to the old ones.
        ours: dict[Any, int] = {number(token.content): id_ for id_, token in added.items()}
        self._ids = {**ids, **ours, number(cut.content): _CUT}

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of the original tokenizer, and the offsets of the tokens in the text."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        get = self._ids.get
        return [get(id_, id_) for id_ in encoding.ids], encoding.offsets


class _RustBackend:
    """A tokenizer of the library ``tokenizers``."""

    def __init__(self, backend: Any, markup: frozenset[int]) -> None:
        import tokenizers  # noqa: PLC0415 - comes with the tokenizer

        # A copy, whose settings are never changed again, so that many threads may use it.
        self._whole = tokenizers.Tokenizer.from_str(backend.to_str())
        self._whole.no_truncation()
        self._whole.no_padding()
        self._whole.encode_special_tokens = False
        added = self._whole.get_added_tokens_decoder()
        self._cut = f"<{secrets.token_hex(16)}>"  # can't be guessed
        cut = tokenizers.AddedToken(self._cut, normalized=False, special=True)
        # A tokenizer without markup, which only has vocabulary, normaliser and pre-tokenizer. The
        # option encode_special_tokens would keep added tokens that are not special.
        text = {id_: token for id_, token in added.items() if id_ not in markup}
        self._bare = _Variant(self._whole.model, self._whole, text, cut)
        self._bare.tokenizer.pre_tokenizer = self._whole.pre_tokenizer
        # A tokenizer with added tokens only: the text between them is one unknown word.
        nothing = tokenizers.models.WordLevel({"": 0}, unk_token="")
        self._added = _Variant(nothing, self._whole, added, cut, {0: _UNKNOWN})
        self._added_ids = frozenset(added)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, including markup."""
        ids: list[int] = self._whole.encode(text, add_special_tokens=False).ids
        return ids

    def markers(self, texts: Sequence[str]) -> list[list[Marker]]:
        """The added tokens in each text."""
        markers: list[list[Marker]] = [[] for _ in texts]
        ids, offsets = self._added.encode(self._cut.join(texts))
        number, start = 0, 0  # index and first character of the current text
        for id_, (begin, end) in zip(ids, offsets, strict=True):
            if id_ == _CUT:
                number, start = number + 1, end
            elif id_ in self._added_ids:
                markers[number].append(Marker(begin - start, end - start, id_))
        return markers

    def literals(
        self, texts: Sequence[str], forbidden: frozenset[int], *, first: bool
    ) -> list[list[int]] | None:
        """The tokens of several texts without forbidden ones; ``None`` if that is impossible.

        Args:
            texts: Texts that are not empty.
            forbidden: Ids of tokens that must not occur.
            first: Whether the first text is at the beginning of a prompt.
        """
        # All texts in one call, because most are short.
        ids, _ = self._bare.encode(self._cut.join(texts if first else ["", *texts]))
        tokens = _between_cuts(ids)[0 if first else 1 :]
        if all(map(forbidden.isdisjoint, tokens)):
            return tokens
        separate = [
            self._literal(text, forbidden, first=first and not at) for at, text in enumerate(texts)
        ]
        return None if None in separate else [ids for ids in separate if ids is not None]

    def _literal(self, text: str, forbidden: frozenset[int], *, first: bool) -> list[int] | None:
        text = text if first else self._cut + text
        for _ in range(MAX_ROUNDS):
            ids, offsets = self._bare.encode(text)
            # The vocabulary has the characters of a control token as a word, which is cut in half.
            wrong = [at for id_, at in zip(ids, offsets, strict=True) if id_ in forbidden]
            if not wrong:
                return [id_ for id_ in ids if id_ != _CUT]
            if any(end - start < 2 for start, end in wrong):  # noqa: PLR2004 - two halves
                return None
            middles = [(start + end) // 2 for start, end in wrong]
            edges = zip([0, *middles], [*middles, len(text)], strict=True)
            text = self._cut.join(text[start:end] for start, end in edges)
        return None


def _between_cuts(ids: list[int]) -> list[list[int]]:
    pieces, at = [], 0
    for _ in range(ids.count(_CUT)):
        end = ids.index(_CUT, at)
        pieces.append(ids[at:end])
        at = end + 1
    return [*pieces, ids[at:]]


class _PythonBackend:
    """A tokenizer written in Python, with the methods of :class:`_RustBackend`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {
            token.content: (id_, token) for id_, token in tokenizer.added_tokens_decoder.items()
        }
        self._added = {text: id_ for text, (id_, _) in added.items()}
        # The longest first, because the tokenizer prefers it.
        pattern = "|".join(
            (r"\s*" if token.lstrip else "")
            + f"({re.escape(text)})"
            + (r"\s*" if token.rstrip else "")
            for text, (_, token) in sorted(added.items(), key=lambda item: -len(item[0]))
        )
        self._pattern = re.compile(pattern) if pattern else None

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def markers(self, texts: Sequence[str]) -> list[list[Marker]]:
        return [list(self._markers(text)) for text in texts]

    def _markers(self, text: str) -> Iterator[Marker]:
        for match in self._pattern.finditer(text) if self._pattern else ():
            token = match[match.lastindex or 0]
            yield Marker(match.start(), match.end(), self._added[token])

    def literals(
        self, texts: Sequence[str], forbidden: frozenset[int], *, first: bool
    ) -> list[list[int]] | None:
        del first  # these tokenizers make no difference
        tokens = [self._literal(text, forbidden) for text in texts]
        return None if None in tokens else [ids for ids in tokens if ids is not None]

    def _literal(self, text: str, forbidden: frozenset[int]) -> list[int] | None:
        ids = list(
            self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )
        if forbidden.isdisjoint(ids):
            return ids
        if len(text) < 2:  # noqa: PLR2004 - two halves
            return None
        middle = len(text) // 2
        halves = [self._literal(half, forbidden) for half in (text[:middle], text[middle:])]
        return None if None in halves else [id_ for half in halves for id_ in half or ()]


def leading_special_tokens(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer puts before a text, such as ``<s>``; often none."""
    plain = list(tokenizer.encode("a", add_special_tokens=False))
    whole = list(tokenizer.encode("a", add_special_tokens=True))
    return whole[: whole.index(plain[0])] if plain and plain[0] in whole else []


def _markup(tokenizer: Any) -> dict[int, str]:
    """The texts of markup tokens, by id."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = (
        tokenizer.added_tokens_decoder if backend is None else backend.get_added_tokens_decoder()
    )
    tokens = {
        id_: token.content for id_, token in added.items() if not _is_text(token.content, token)
    }
    known = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=False)
    return tokens | {id_: text for id_, text in known if id_ is not None and text.strip()}


def _is_text(content: str, token: Any) -> bool:
    """Whether an added token is a piece of text: white space, or one character.

    Some vocabularies have runs of spaces, line ends or a brace as added tokens.
    """
    character = len(content) == 1 and content.isascii() and not token.special
    return character or not content.strip()


def _harmless(tokenizer: Any, markup: dict[int, str]) -> set[int]:
    """Ids of added tokens that represent characters which the vocabulary lacks.

    They cannot open a turn. An unknown token that also begins or ends texts is not among them.
    """
    unknown = {_unknown_id(tokenizer)} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
    return unknown | {id_ for id_, text in markup.items() if _BYTE.fullmatch(text)}


def _unknown_id(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.unk_token_id
    # A byte-level vocabulary has all characters, even if the tokenizer names an unknown token.
    token = getattr(backend.model, "unk_token", tokenizer.unk_token)
    return None if token is None else backend.token_to_id(token)


def _explain_failure(text: str, encode: Callable[[], Result]) -> Result:
    try:
        return encode()
    except (UnicodeEncodeError, TypeError) as error:
        place = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
        msg = "the text cannot be tokenised"
        if place is not None:
            msg = (
                f"the text has a lone surrogate (U+{ord(text[place]):04X}) at position {place}: "
                "it is no valid Unicode; decode the source with errors='replace' or drop it"
            )
        raise ConfigurationError(msg) from error
