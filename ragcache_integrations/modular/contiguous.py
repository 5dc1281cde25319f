"""Prompts of modules for vLLM, where reuse anywhere serves them, batched.

vLLM gives the tokens of a prompt the positions 0, 1, 2 and so on, and each stored document is one
stretch of them. So a prompt can be laid out for it if its parts leave no position empty, and if
each of its modules is one stretch of tokens that are all encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragcache_integrations.core.prompt import DocumentSpan, RenderedPrompt
from ragcache_integrations.errors import ConfigurationError

from .layout import Assembly, Fresh, Module

__all__ = ["render_assembly", "render_modules"]

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
