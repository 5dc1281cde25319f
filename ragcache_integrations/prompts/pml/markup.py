"""Reading Prompt Markup Language safely, and writing text into it.

The syntax is XML without entities, DTDs, processing instructions and namespaces. The meaning of the
elements is defined in :mod:`.schema` and :mod:`.prompt` (Prompt Cache §3.2).

White space is text or layout. Text is separated by *blocks*: all tags except ``<param>``, which is
part of the text, like a word.

1. White space between two blocks, without other text, is layout.
2. White space after a tag up to the end of its line is layout, and so are empty lines after that.
3. Indentation that all further lines of a text share is layout; further indentation is text.
4. White space before a tag on a line of its own is layout. The line break before it is text, once.
5. In a prompt, and at both ends of a turn such as ``<user>``, white space at the edges is layout.

CDATA and character references such as ``&#10;`` are always text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import takewhile
from xml.parsers import expat

from ragcache_integrations._suggestions import closest_names, shortened
from ragcache_integrations.core.checks import check_int, check_type
from ragcache_integrations.errors import MarkupError

__all__ = [
    "Characters",
    "Element",
    "Limits",
    "Where",
    "attributes_of",
    "escape",
    "markup_error",
    "name_hint",
    "parse_markup",
    "text_and_blocks",
    "to_markup",
]


# Characters that XML 1.0 cannot contain, and lone surrogates, which are not text.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_REPLACEMENT = "\ufffd"
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_QUOTES = {'"': "&quot;", "'": "&#39;"}
_WRITTEN = str.maketrans(_MARKUP)
_ESCAPED = str.maketrans(_MARKUP | _QUOTES)

_ERRORS = {name: expat.errors.codes[getattr(expat.errors, name)] for name in dir(expat.errors)
           if name.startswith("XML_ERROR_")}  # fmt: skip
_EXPECTED = {
    _ERRORS["XML_ERROR_INVALID_TOKEN"]: "expected markup; '&' and '<' in text are written "
    "'&amp;' and '&lt;', and control characters cannot be written",
    _ERRORS["XML_ERROR_UNDEFINED_ENTITY"]: "there are no entities but &lt; &gt; &amp; &quot; "
    "&apos; and character references such as &#10;",
    _ERRORS["XML_ERROR_DUPLICATE_ATTRIBUTE"]: "an attribute is given twice",
    _ERRORS["XML_ERROR_JUNK_AFTER_DOC_ELEMENT"]: "expected nothing after the closing tag",
    _ERRORS["XML_ERROR_BAD_CHAR_REF"]: "a character reference names no character that can be "
    "written",
    _ERRORS["XML_ERROR_UNCLOSED_CDATA_SECTION"]: "expected ']]>', which ends <![CDATA[",
    _ERRORS["XML_ERROR_UNCLOSED_TOKEN"]: "expected the end of a tag or comment",
}
_UNFINISHED = {_ERRORS["XML_ERROR_TAG_MISMATCH"], _ERRORS["XML_ERROR_NO_ELEMENTS"]}


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a text.

    Attributes:
        line: Number of the line, from 1.
        column: Number of the character in the line, from 1.
        source: Name of the file; ``None`` for a text without a file.
    """

    line: int
    column: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Characters:
    """Text between tags.

    Attributes:
        text: The text.
        literal: Whether it was written as CDATA or as a character reference, so that its white
            space is text.
        where: The place of its first character.
    """

    text: str
    literal: bool
    where: Where


@dataclass(frozen=True, slots=True)
class Element:
    """An element with its content.

    Attributes:
        tag: Name of the element.
        attributes: Values by name.
        children: Elements and text in it, in order.
        where: The place of its tag.
    """

    tag: str
    attributes: Mapping[str, str]
    children: tuple[Element | Characters, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on markup from untrusted sources; markup that exceeds one is refused.

    Attributes:
        characters: Characters of the whole text.
        elements: Number of elements.
        texts: Pieces of text; a character reference or CDATA ends a piece and begins another.
        depth: Depth to which elements are nested, at most 100.
        attributes: Attributes of an element.
        value: Characters of an attribute's value.
        name: Characters of the name of an element or attribute.

    Raises:
        ConfigurationError: A bound is not a whole number above 0, or ``depth`` is above 100.
    """

    characters: int = 16_000_000
    elements: int = 100_000
    texts: int = 250_000
    depth: int = 64
    attributes: int = 64
    value: int = 100_000
    name: int = 128

    def __post_init__(self) -> None:
        for name in self.__slots__:
            # The functions that read the tree are recursive, hence the bound on depth.
            check_int(name, getattr(self, name), 1, 100 if name == "depth" else None)


DEFAULT_LIMITS = Limits()
MOST_LISTED = 20
"""The most names that a message lists."""


def markup_error(message: str, where: Where | None) -> MarkupError:
    """The error for a place in markup; ``None`` where it is not known."""
    if where is None:
        return MarkupError(message)
    return MarkupError(message, where.line, where.column, where.source)


def name_hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known names, or a list of them."""
    names = sorted(known)
    close = closest_names(name, names, 3)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    if not names:
        return "; there are none"
    listed = ", ".join(map(shortened, names[:MOST_LISTED]))
    return f"; expected one of {listed}{', ...' if len(names) > MOST_LISTED else ''}"


def attributes_of(element: Element, *names: str) -> tuple[str, ...]:
    """The values of the attributes that an element must have; it may have no others.

    Raises:
        MarkupError: An attribute is missing, empty or unknown.
    """
    for name in element.attributes:
        if name not in names:
            expected = name_hint(name, names)
            msg = f"<{element.tag}> has no attribute {name!r}{expected}"
            raise markup_error(msg, element.where)
    for name in names:
        if not element.attributes.get(name, "").strip():
            raise markup_error(f"<{element.tag}> needs the attribute {name!r}", element.where)
    return tuple(element.attributes[name] for name in names)


def escape(text: str) -> str:
    """Escape text for use in markup: between tags, or as the value of an attribute.

    Any text is read back unchanged: markup characters are escaped and white space is preserved.
    Only characters that markup cannot contain, such as U+0000, become U+FFFD.

    Raises:
        ConfigurationError: ``text`` is not a string.
    """
    check_type("text", text, str, "a string")
    return _keeping_spaces(_UNWRITABLE.sub(_REPLACEMENT, text), _ESCAPED)


def to_markup(text: str, *, attribute: bool = False) -> str:
    """Escape text that must be read back exactly; see :func:`escape`.

    Args:
        text: The text.
        attribute: Whether it is an attribute's value, in double quotes.

    Raises:
        MarkupError: The text has a character that markup cannot contain.
    """
    bad = _UNWRITABLE.search(text)
    if bad is not None:
        raise MarkupError(
            f"a text holds U+{ord(bad[0]):04X} at position {bad.start()}, which markup cannot "
            "hold: keep the object, or drop the character"
        )
    return _keeping_spaces(text, _ESCAPED if attribute else _WRITTEN)


def _keeping_spaces(text: str, table: dict[int, str]) -> str:
    """Escape text; spaces at its edges become references, as they could pass for indentation."""
    core = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    left = "&#32;" * start
    right = "&#32;" * (len(text) - len(core) - start)
    return f"{left}{core.translate(table)}{right}"


def parse_markup(
    text: str, *, limits: Limits = DEFAULT_LIMITS, source: str | None = None
) -> Element:
    """Read an element with its content.

    Args:
        text: Markup, from any source.
        limits: Bounds on the markup.
        source: Name of the file, for messages.

    Raises:
        MarkupError: The markup is not well-formed, has a refused construct, or exceeds a limit.
        ConfigurationError: ``text`` is not a string.
    """
    check_type("markup", text, str, "a string")
    if len(text) > limits.characters:
        msg = f"markup of {len(text)} characters; allowed: {limits.characters}"
        raise markup_error(msg, Where(1, 1, source))
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        before = text[: error.start]
        line = before.count("\n") + 1
        where = Where(line, error.start - before.rfind("\n"), source)
        msg = f"a lone surrogate (U+{ord(text[error.start]):04X}) is not text"
        raise markup_error(msg, where) from None
    return _Reader(data, limits, source).read()


@dataclass(slots=True)
class _Open:
    """An element whose end has not been read yet."""

    tag: str
    attributes: dict[str, str]
    where: Where
    children: list[Element | _Text]


@dataclass(slots=True)
class _Text:
    """Text whose end has not been read yet: expat delivers it in pieces, such as lines."""

    literal: bool
    where: Where
    written: StringIO = field(default_factory=StringIO)


class _Reader:
    """The handlers of an expat parser, which build the tree of elements."""

    def __init__(self, data: bytes, limits: Limits, source: str | None) -> None:
        self._data = data
        self._limits = limits
        self._source = source
        self._open: list[_Open] = []
        self._root: Element | None = None
        self._elements = 0
        self._texts = 0
        self._literal = False  # whether within CDATA
        parser = expat.ParserCreate("utf-8")  # overrides an XML declaration
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartCdataSectionHandler = self._start_cdata
        parser.EndCdataSectionHandler = self._end_cdata
        parser.StartDoctypeDeclHandler = self._doctype
        parser.ProcessingInstructionHandler = self._instruction
        self._parser = parser

    def read(self) -> Element:
        try:
            self._parser.Parse(self._data, True)  # noqa: FBT003 - C code takes no keywords
        except expat.ExpatError as error:
            where = Where(error.lineno, error.offset + 1, self._source)
            raise markup_error(self._expected(error), where) from None
        assert self._root is not None  # noqa: S101 - expat refuses a text without an element
        return self._root

    def _expected(self, error: expat.ExpatError) -> str:
        if error.code in _UNFINISHED and self._open:
            last = self._open[-1]
            return (
                f"expected </{last.tag}>, which closes the <{last.tag}> of line {last.where.line}"
            )
        if error.code in _UNFINISHED or error.code == _ERRORS["XML_ERROR_SYNTAX"]:
            return "expected an element such as <schema> or <prompt>, found none"
        return _EXPECTED.get(error.code, expat.ErrorString(error.code))

    def _here(self) -> Where:
        parser = self._parser
        return Where(parser.CurrentLineNumber, parser.CurrentColumnNumber + 1, self._source)

    def _start(self, tag: str, pairs: list[str]) -> None:
        where = self._here()
        limits = self._limits
        self._elements += 1
        if self._elements > limits.elements:
            raise markup_error(f"more than {limits.elements} elements", where)
        if len(self._open) >= limits.depth:
            raise markup_error(f"elements are nested more than {limits.depth} deep", where)
        attributes = dict(zip(pairs[::2], pairs[1::2], strict=True))
        for name in (tag, *attributes):
            if len(name) > limits.name:
                msg = (
                    f"the name {name[:20]!r}... has {len(name)} characters; allowed: {limits.name}"
                )
                raise markup_error(msg, where)
        if len(attributes) > limits.attributes:
            msg = f"<{tag}> has {len(attributes)} attributes; allowed: {limits.attributes}"
            raise markup_error(msg, where)
        for name, value in attributes.items():
            if len(value) > limits.value:
                raise markup_error(
                    f"the attribute {name!r} of <{tag}> has {len(value)} characters; "
                    f"allowed: {limits.value}",
                    where,
                )
        self._open.append(_Open(tag, attributes, where, []))

    def _end(self, _tag: str) -> None:
        done = self._open.pop()
        children = tuple(
            Characters(child.written.getvalue(), child.literal, child.where)
            if isinstance(child, _Text)
            else child
            for child in done.children
        )
        element = Element(done.tag, done.attributes, children, done.where)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element

    def _characters(self, text: str) -> None:
        # expat delivers a character reference as a separate piece.
        at = self._parser.CurrentByteIndex
        literal = self._literal or self._data.startswith(b"&#", at)
        children = self._open[-1].children
        last = children[-1] if children else None
        if not isinstance(last, _Text) or last.literal != literal:
            self._texts += 1
            if self._texts > self._limits.texts:
                msg = f"more than {self._limits.texts} pieces of text"
                raise markup_error(msg, self._here())
            last = _Text(literal, self._here())
            children.append(last)
        last.written.write(text)

    def _start_cdata(self) -> None:
        self._literal = True

    def _end_cdata(self) -> None:
        self._literal = False

    def _doctype(self, *_: object) -> None:
        msg = "a document type (<!DOCTYPE ...>) is refused, and entities with it"
        raise markup_error(msg, self._here())

    def _instruction(self, target: str, _data: str) -> None:
        msg = f"a processing instruction (<?{target:.50} ...?>) is refused"
        raise markup_error(msg, self._here())


_SPACE = " \t\n"  # \r can only come from a character reference, which is text
_HELD = "\0"  # replaces items that are not layout; markup cannot contain it

Item = Element | Characters


def text_and_blocks(
    children: Sequence[Item], *, prompt: bool = False, turn: bool = False
) -> list[Item]:
    """The children of an element without layout.

    Args:
        children: The children as they were read.
        prompt: Whether they are part of a prompt.
        turn: Whether they are the content of a turn.
    """
    runs: list[list[Item] | Element] = [[]]
    for child in children:
        if isinstance(child, Element) and child.tag != "param":
            runs += [child, []]
        else:
            last = runs[-1]
            assert isinstance(last, list)  # noqa: S101 - a block is followed by a run
            last.append(child)
    content: list[Item] = []
    for number, run in enumerate(runs):
        if isinstance(run, Element):
            content.append(run)
            continue
        items = _without_layout(run)
        if items and (prompt or (turn and number == 0)):
            items[0] = _strip(items[0], left=True)
        if items and (prompt or (turn and number == len(runs) - 1)):
            items[-1] = _strip(items[-1], left=False)
        content += (item for item in items if not isinstance(item, Characters) or item.text)
    return content


def _strip(item: Item, *, left: bool) -> Item:
    if not isinstance(item, Characters) or item.literal:
        return item
    return replace(item, text=item.text.lstrip(_SPACE) if left else item.text.rstrip(_SPACE))


def _without_layout(run: list[Item]) -> list[Item]:
    plain: list[Characters | None] = [None]  # before, between and after the items in held
    held: list[Item] = []
    for item in run:
        if isinstance(item, Characters) and not item.literal:
            plain[-1] = item
        else:
            held.append(item)
            plain.append(None)
    text = _HELD.join("" if item is None else item.text for item in plain)
    if not text.strip(_SPACE):
        return []
    items: list[Item] = []
    for number, piece in enumerate(_drop_indentation(text).split(_HELD)):
        characters = plain[number]
        if characters is not None and piece:
            items.append(replace(characters, text=piece))
        items += held[number : number + 1]
    return items


def _drop_indentation(text: str) -> str:
    """Drop the shared indentation (rule 3), and layout at the edges (rules 2 and 4)."""
    first, *lines = text.split("\n")
    filled = [line for line in lines if line.strip(_SPACE)]
    columns = zip(*(_indentation(line) for line in filled), strict=False)
    margin = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    lines = [first, *(line[margin:] if line.strip(_SPACE) else "" for line in lines)]
    start, end = 0, len(lines)
    while start < end - 1 and not lines[start].strip(_SPACE):
        start += 1
    while end > 1 and not lines[end - 1]:
        end -= 1
    closing = "\n" if end < len(lines) else ""
    return "\n".join(lines[start:end]) + closing


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(_SPACE))]
