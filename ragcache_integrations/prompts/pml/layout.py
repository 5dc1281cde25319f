"""The parts of a prompt: modules that were encoded on their own, and tokens to compute.

These classes are independent of the model. Schemas and lists of documents produce them; engines
consume them (Prompt Cache §3.3-3.4).

vLLM gives the tokens of a prompt the positions 0, 1, 2 and so on, and each stored document is one
stretch of them. So a prompt can be laid out for it if its parts leave no position empty, and if
each of its modules is one stretch of tokens that are all encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from ragcache_integrations.core.prompt import DocumentSpan, RenderedPrompt
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
            msg = (
                f"module {self.name!r} has {len(self.token_ids)} tokens and "
                f"{len(self.positions)} positions; allowed: one position per token, at least 1"
            )
            raise ConfigurationError(msg)
        if self.positions[0] < 0 or any(
            after <= before
            for before, after in zip(self.positions, self.positions[1:], strict=False)
        ):
            msg = f"positions of module {self.name!r} must not be negative, and must increase"
            raise ConfigurationError(msg)

    @property
    def served(self) -> tuple[int, ...]:
        """Offsets of the tokens whose KV serve: all except those of params."""
        slots = set(
            chain.from_iterable(
                range(param.start, param.start + param.length) for param in self.params
            )
        )
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


INSTEAD = "; ModularModel has no such limits"


def render_assembly(assembly: Assembly, computed: Sequence[str]) -> RenderedPrompt:
    """Lay a prompt out for vLLM: its modules are its documents.

    Args:
        assembly: The prompt.
        computed: Names of modules that are computed in their place, as text around documents is.

    Raises:
        ConfigurationError: That is impossible; the message says why.
    """
    tokens: list[tuple[int, int, str]] = []
    spans: list[DocumentSpan] = []
    for part in assembly.parts:
        if isinstance(part, Fresh):
            name, found = "new text", zip(part.positions, part.token_ids, strict=True)
            tokens += ((position, token_id, name) for position, token_id in found)
            continue
        module = part.module
        name = f"module {module.name!r}"
        places = [(module.positions[at] + part.shift, module.token_ids[at]) for at in module.served]
        tokens += ((position, token_id, name) for position, token_id in places)
        if module.name not in computed and places:
            _check_stretch(module)
            begin = places[0][0]
            spans.append(DocumentSpan(module.name, begin, begin + len(places)))
    tokens.sort()
    for at, (position, _, name) in enumerate(tokens):
        if position != at:
            msg = (
                f"positions {at} to {position - 1} are empty before the {name}, where the prompt "
                "leaves out a module or does not fill a param, and vLLM leaves no position empty"
                f"{INSTEAD}"
            )
            raise ConfigurationError(msg)
    spans.sort(key=lambda span: span.start)
    return RenderedPrompt([token_id for _, token_id, _ in tokens], tuple(spans))


def render_modules(modules: Iterable[Module]) -> list[RenderedPrompt]:
    """Modules that can be documents in vLLM, each as one, to be encoded ahead."""
    documents = []
    for module in modules:
        served = module.served
        if served and _is_stretch(module):
            tokens = [module.token_ids[at] for at in served]
            span = DocumentSpan(module.name, 0, len(tokens))
            documents.append(RenderedPrompt(tokens, (span,)))
    return documents


def _is_stretch(module: Module) -> bool:
    """Whether the tokens that serve follow one another, in the module and by their positions."""
    served = module.served
    last = len(served) - 1
    return served[-1] == last and module.positions[last] == module.positions[0] + last


def _check_stretch(module: Module) -> None:
    if _is_stretch(module):
        return
    served = module.served
    params = [param.name for param in module.params if param.start < served[-1]]
    why = f"text after its param {params[0]!r}" if params else "text on both sides of other modules"
    msg = (
        f"module {module.name!r} has {why}, and vLLM keeps a module as one stretch of tokens"
        f"{INSTEAD}"
    )
    raise ConfigurationError(msg)
