"""``ragcache encode``: a corpus's documents encoded ahead, and kept on disk."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.files import read_json_lines, read_regular, reading, text_of
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.arguments import GIB, EngineKnobs, check_installed
from ragcache_integrations.engine.measurements import Reloading, measure_reloading
from ragcache_integrations.errors import ConfigurationError

from .options import add_fields, add_json, add_model

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_encode"]

DISK_CACHE_GIB = 100.0
ENGINE = ("disk_cache_dir", "disk_cache_gib", "kv_cache_gib", "max_model_len", "dtype")
"""The engine's knobs that are options."""
MEASURED = 5
"""Documents of the prompt by which it is measured what was gained, or fewer if they don't fit."""
LARGEST_TEXT = 1 << 28
"""Bytes of a text file; no context window takes a hundredth of that."""
JSON_LINES = (".jsonl", ".ndjson", ".json", ".gz")
TEXTS = (".txt", ".md")


def add_encode(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "encode",
        help="compute the KV caches of a corpus in advance, and keep them on disk",
        description=(
            'Compute the KV cache of each document of a corpus, for engines with reuse="anywhere" '
            "and the same disk_cache_dir, and measure what that saves. Documents that are on disk "
            "already are skipped, so you can repeat the command after an interruption, or when "
            "the corpus has grown. It fails if the disk does not hold all of them; what it has "
            "stored by then stays."
        ),
    )
    parser.set_defaults(command=_encode)
    add_model(parser)
    parser.add_argument(
        "corpus",
        metavar="CORPUS",
        type=Path,
        help=(
            'JSON lines of {"text": ..., "title": ...} as for ragcache eval --documents, or of '
            '{"documents": [{"text": ...}, ...]} as for ragcache profile --workload, both also '
            "gzipped (.gz); a text file, which is one document; or a folder of text files (links, "
            "pipes and devices in it are left out)"
        ),
    )
    parser.add_argument(
        "--namespace",
        metavar="TENANT",
        default="",
        help="tenant that the documents belong to (default: none)",
    )
    add_fields(parser, EngineKnobs, *ENGINE, disk_cache_gib=DISK_CACHE_GIB)
    add_json(parser)


def _encode(options: argparse.Namespace) -> None:
    require("rich", feature="ragcache encode", package="rich")
    from rich.console import Console  # noqa: PLC0415 - of the extra eval

    check_installed("ragcache encode")
    console = Console()
    texts = list(dict.fromkeys(_texts(options.corpus)))
    if not texts:
        raise ConfigurationError(f"{options.corpus} holds no document")
    console.print(f"{len(texts):,} documents. Starting the engine ...", highlight=False)
    with RAGCacheEngine(
        options.model, reuse="anywhere", **{name: getattr(options, name) for name in ENGINE}
    ) as engine:
        if engine.reuse_is_off is not None:
            msg = f"this model's documents can't be reused anywhere: {engine.reuse_is_off}"
            raise ConfigurationError(msg)
        if engine.disk_is_off is not None:
            raise ConfigurationError(f"documents can't be kept on disk: {engine.disk_is_off}")
        lengths = {text: engine.count_tokens(text) for text in texts}
        fitting = [text for text in texts if lengths[text] < engine.max_model_len]
        token_bytes = engine.stats().block_bytes // engine.block_size
        _check_size(sum(map(lengths.__getitem__, fitting)) * token_bytes, options.disk_cache_gib)
        usage = engine.encode(fitting, show_progress=True, namespace=options.namespace)
        measured = _measured(engine, fitting, options.namespace)
    content = {
        "documents": len(fitting),
        "too_long": len(texts) - len(fitting),
        "tokens": usage.prompt_tokens,
        "computed_tokens": usage.prompt_tokens - usage.cached_tokens,
        "bytes": usage.prompt_tokens * token_bytes,
    }
    _show(console, content, measured)
    if options.json:
        times = {"computed_seconds": None, "loaded_seconds": None}
        if measured is not None:
            times = {name: getattr(measured, name) for name in times}
        sys.stdout.write(json.dumps(content | times) + "\n")


def _measured(engine: RAGCacheEngine, texts: Sequence[str], tenant: str) -> Reloading | None:
    """What is saved with a prompt of a few documents; ``None`` where none fits."""
    room, documents = engine.max_model_len // 2, list[str]()
    for text in texts:
        room -= engine.count_tokens(text)
        if room < 0 or len(documents) == MEASURED:
            break
        documents.append(text)
    return measure_reloading(engine, documents, namespace=tenant) if documents else None


def _check_size(size: int, most_gib: float) -> None:
    """Refuse what the disk would not hold before hours are spent on it."""
    if size > most_gib * GIB:
        raise ConfigurationError(
            f"these documents take {_size(size)}, and --disk-cache-gib allows {most_gib:g} GiB: "
            "raise it, or encode fewer"
        )


def _show(console: Console, content: dict[str, Any], measured: Reloading | None) -> None:
    known = content["tokens"] - content["computed_tokens"]
    count, size = content["documents"], content["bytes"]
    lines = [
        f"Documents: {count:,} of {content['tokens']:,} tokens, {known:,} of which were there",
        f"Size: {_size(size / max(1, count))} a document, {_size(size)} together",
    ]
    if content["too_long"]:
        lines.append(f"Left out: {content['too_long']:,}, longer than the context window")
    if measured is not None:
        lines.append(
            f"First token of a prompt of {measured.tokens:,} tokens: "
            f"{1000 * measured.computed_seconds:,.0f} ms if all is computed, "
            f"{1000 * measured.loaded_seconds:,.0f} ms if documents are read from disk, "
            f"{measured.ratio:.1f} times sooner"
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:  # noqa: PLR2004 - of each unit in the next
            return f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} GiB"


def _texts(path: Path) -> Iterator[str]:
    """The texts of a corpus.

    Raises:
        ConfigurationError: It cannot be read, or is of another kind.
    """
    if path.is_dir():
        for file in _files(path):
            yield from _texts(file)
    elif path.suffix in JSON_LINES:
        for row in read_json_lines(path):
            yield from _row_texts(row, path)
    else:
        with reading(str(path)):
            text = read_regular(path, LARGEST_TEXT).decode("utf-8")
        if text.strip():
            yield text


def _files(folder: Path) -> list[Path]:
    """Return the text files of a folder, in their order.

    A folder may come from someone else's archive, in which a link can lead to any file of this
    machine, to a device that never ends, or back into the folder. So none is followed.
    """
    return sorted(
        file
        for inner, _, names in os.walk(folder)
        for file in (Path(inner, name) for name in names)
        if file.suffix in TEXTS and file.is_file() and not file.is_symlink()
    )


def _row_texts(row: dict[str, Any], path: Path) -> Iterable[str]:
    with reading(str(path)):
        if "documents" in row:
            named = [document for document in row["documents"] if isinstance(document, dict)]
            return [text_of(document, "text") for document in named if "text" in document]
        title, text = text_of(row, "title", ""), text_of(row, "text")
        return [f"{title}\n{text}" if title else text]
