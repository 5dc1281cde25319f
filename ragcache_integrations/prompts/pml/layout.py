"""The parts of a prompt: modules that were encoded on their own, and tokens to compute.

These classes are independent of the model. Schemas and lists of documents produce them; engines
consume them (Prompt Cache §3.3-3.4).

vLLM gives the tokens of a prompt the positions 0, 1, 2 and so on, and each stored document is one
stretch of them. So a prompt for vLLM has no empty positions, and a module that a param or another
module interrupts becomes several documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from ragcache_integrations.core.prompt import DocumentSpan, RenderedPrompt
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.errors import ConfigurationError

__all__ = ["Assembly", "Fresh", "Module", "Param", "Placed", "render_assembly", "render_modules"]


@dataclass(frozen=True, slots=True)
class Param:
    """A slot in a module, which each prompt may fill.

    Attributes:
        name: Name of the argument that fills it.
        start: Offset of its first token among the module's tokens.
        length: The most tokens of an argument.
    """

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Module:
    """Tokens that are encoded on their own: they see only each other.

    The modules of a scaffold become a single one, so that they see each other.

    Attributes:
        name: Name, unique in its schema.
        token_ids: Tokens; in the slots of params, placeholders.
        positions: Position of each token, increasing; nested modules leave gaps.
        params: Slots, whose KV are never used.
        members: Names of the modules that a scaffold's module consists of.
    """

    name: str
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    params: tuple[Param, ...] = ()
    members: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.token_ids or len(self.token_ids) != len(self.positions):
            raise ConfigurationError(
                f"module {self.name!r} has {len(self.token_ids)} tokens and "
                f"{len(self.positions)} positions; allowed: one position per token, at least 1"
            )
        if self.positions[0] < 0 or any(
            after <= before
            for before, after in zip(self.positions, self.positions[1:], strict=False)
        ):
            msg = f"positions of module {self.name!r} must not be negative, and must increase"
            raise ConfigurationError(msg)

    @property
    def served(self) -> tuple[int, ...]:
        """Offsets of the tokens whose KV serve: all except those of params."""
        slots: set[int] = set()
        for param in self.params:
            slots.update(range(param.start, param.start + param.length))
        return tuple(at for at in range(len(self.token_ids)) if at not in slots)


@dataclass(frozen=True, slots=True)
class Placed:
    """A module in a prompt.

    Attributes:
        module: The module.
        shift: Added to its positions; its keys are moved if it is not 0.
    """

    module: Module
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Fresh:
    """Tokens computed for this prompt: arguments and new text.

    Attributes:
        token_ids: The tokens.
        positions: Position of each token.
        fills: Name of the module whose param these tokens fill; empty for new text. An argument is
            masked and dropped together with its module.
    """

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    fills: str = ""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A prompt ready to be served.

    Attributes:
        parts: The parts, in which no two tokens that serve share a position. The last part is
            fresh, and its last token has the highest position, as it gives the first token of the
            answer.
    """

    parts: tuple[Placed | Fresh, ...]


def render_assembly(assembly: Assembly, schema: str, computed: Sequence[str]) -> RenderedPrompt:
    """Lay a prompt out for vLLM: the pieces of its modules are its documents.

    Args:
        assembly: The prompt.
        schema: Name of its schema, with which the documents' ids begin.
        computed: Names of modules that are computed in their place, as text around documents is.
    """
    tokens: list[tuple[int, int, str, bool]] = []  # position, id, document, whether it is new
    for part in assembly.parts:
        if isinstance(part, Fresh):
            found = zip(part.positions, part.token_ids, strict=True)
            tokens += ((position, token_id, "", True) for position, token_id in found)
            continue
        module = part.module
        for name, piece in _pieces(module):
            document = "" if module.name in computed else f"{schema}/{name}"
            tokens += (
                (module.positions[at] + part.shift, module.token_ids[at], document, False)
                for at in piece
            )
    tokens.sort()
    spans: list[DocumentSpan] = []
    start, new = 0, ""
    for document, group in groupby(tokens, itemgetter(2)):
        run = list(group)
        end = start + len(run)
        if document:
            # The tree takes an id after other text for a document that has changed.
            id_ = f"{document}@{content_id(new)}" if new else document
            spans.append(DocumentSpan(id_, start, end))
        new = " ".join(str(token_id) for _, token_id, _, is_new in run if is_new)
        start = end
    return RenderedPrompt([token_id for _, token_id, _, _ in tokens], tuple(spans))


def render_modules(modules: Iterable[Module], schema: str) -> list[RenderedPrompt]:
    """The documents that modules of a schema become in vLLM, to be encoded ahead."""
    documents = []
    for module in modules:
        for name, piece in _pieces(module):
            tokens = [module.token_ids[at] for at in piece]
            span = DocumentSpan(f"{schema}/{name}", 0, len(tokens))
            documents.append(RenderedPrompt(tokens, (span,)))
    return documents


def _pieces(module: Module) -> Iterator[tuple[str, list[int]]]:
    """Name and offsets of each piece of a module, which params and nested modules cut.

    The cuts do not depend on the prompt, so that a piece is the same document in all prompts.
    """
    gaps = enumerate(module.served)
    cut = groupby(gaps, lambda pair: module.positions[pair[1]] - pair[0])
    for number, (_, piece) in enumerate(cut, start=1):
        yield module.name if number == 1 else f"{module.name}#{number}", [at for _, at in piece]
